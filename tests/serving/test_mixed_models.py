"""A run that was trained with `decode.mix` is served with its mixture."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import triform
from triform.serving import ServerOptions, create_app

PROMPT = "amber birch cedar dune"


@pytest.fixture
def mixed_folder(runs_folder: Path, tmp_path: Path) -> Path:
    """A copy of the language model, whose settings have a mixture."""
    shutil.copytree(runs_folder / "verses", tmp_path / "mixed")
    config = tmp_path / "mixed" / "config.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("\nmix = []\n", '\nmix = ["ngram", "cache"]\n'), encoding="utf-8")
    (tmp_path / "mixed" / "digests.json").unlink()
    return tmp_path


def test_completions_are_those_of_predict_with_the_mixture(mixed_folder: Path) -> None:
    run = triform.load(mixed_folder / "mixed", device="cpu", verify=False)
    (prediction,) = run.predict(PROMPT, strategy="greedy", max_new_tokens=4, top=1)
    best = prediction.alternatives[0].probability
    assert best is not None
    with TestClient(create_app(ServerOptions(folder=mixed_folder)), base_url="http://127.0.0.1:8000") as client:
        body = {"model": "mixed", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 1}
        choice = client.post("/v1/completions", json=body).json()["choices"][0]
        assert choice["text"] == prediction.output
        assert choice["logprobs"]["token_logprobs"][0] == pytest.approx(math.log(best), abs=1e-5)
        refusal = client.post("/v1/completions", json=body | {"echo": True})
        assert refusal.status_code == 400
        assert "with decode.mix, a prompt has no log probabilities" in refusal.text
