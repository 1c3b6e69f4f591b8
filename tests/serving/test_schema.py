"""No request that schemathesis draws from the description of the API, valid or invalid, makes the server fail."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from triform.serving import ServerOptions, create_app

EXAMPLES = 12  # of each route and kind
# What half of the requests contain, so that they reach a model.
USABLE = {"model": None, "source": "en", "target": "fr", "q": "amber", "inputs": "amber", "input": "amber", "n": 1}


def use_a_model(body: Any) -> None:
    """Change a request so that it is for a model of the server and takes a moment."""
    if isinstance(body, dict):
        body.update({name: value for name, value in USABLE.items() if name in body})
        if "max_tokens" in body:
            body["max_tokens"] = 3


@pytest.fixture(scope="module")
def schema(runs_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = shutil.copytree(runs_folder, tmp_path_factory.mktemp("schema") / "runs")
    shutil.rmtree(folder / "seeds")
    (folder / "french").rename(folder / "en-fr")
    options = ServerOptions(folder=folder, page=True, read_only=True, device="cpu", allowed_hosts=("testserver",))
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(options))


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_makes_the_server_fail(schema: Any, mode: GenerationMode) -> None:
    statuses: Counter[int] = Counter()
    failures: list[str] = []
    for operation in (result.ok() for result in schema.get_all_operations()):
        if mode is GenerationMode.NEGATIVE and not operation.body and not operation.query:
            continue  # any text is a valid part of a path

        @settings(
            max_examples=EXAMPLES,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            if mode is GenerationMode.POSITIVE and sum(statuses.values()) % 2:
                use_a_model(case.body)
            answer = case.call()
            statuses[answer.status_code] += 1
            if answer.status_code >= 500:
                failures.append(f"{case.operation.label} {case.body} {case.query}: {answer.text}")

        send()
    assert not failures
    assert statuses[400] > EXAMPLES
    assert statuses[200] > EXAMPLES or mode is GenerationMode.NEGATIVE
