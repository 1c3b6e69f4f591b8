"""`/api/attention` and `/api/attribution`: the numbers of `Run.explain`, in a compact form, and computed once."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import triform
from triform.run import Run
from triform.serving import ServerOptions, explanations

TEXT = "amber birch cedar dune"


@pytest.fixture(scope="module")
def client(connect: Any, runs_folder: Path) -> TestClient:
    return connect(ServerOptions(folder=runs_folder, page=True, device="cpu"))


@pytest.fixture
def explained_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that models were run for."""
    texts: list[str] = []
    explain = Run.explain

    def explain_and_count(run: Run, text: str, **options: Any) -> Any:
        texts.append(text)
        return explain(run, text, **options)

    monkeypatch.setattr(Run, "explain", explain_and_count)
    return texts


def request_attention(
    client: TestClient, model: str = "reviews", text: str = TEXT, **options: Any
) -> dict[str, Any]:
    response = client.post("/api/attention", json={"model": model, "text": text, **options})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def decode_weights(response: dict[str, Any]) -> np.ndarray:
    matrix = response["weights"]
    return np.frombuffer(base64.b64decode(matrix["data"]), "<f4").reshape(matrix["rows"], matrix["columns"])


@pytest.mark.parametrize("model", ["reviews", "verses", "french"])
def test_every_map_of_a_run_is_the_one_that_explain_gives(
    client: TestClient, runs_folder: Path, model: str
) -> None:
    expected = triform.load(runs_folder / model, device="cpu").explain(TEXT)
    response = request_attention(client, model)
    assert response["task"] == {"reviews": "classify", "verses": "generate", "french": "translate"}[model]
    assert (response["output"], response["notes"]) == (expected.output, list(expected.notes))
    assert (response["checkpoint"], response["step"]) == ("best", None)
    assert [part["name"] for part in response["parts"]] == [item.name for item in expected.maps]
    for part, attention_map in zip(response["parts"], expected.maps, strict=True):
        assert (part["queries"], part["keys"]) == (list(attention_map.queries), list(attention_map.keys))
        assert (part["n_layers"], part["n_heads"]) == attention_map.weights.shape[:2]
        assert part["has_rollout"] == attention_map.supports_rollout
        name = part["name"]
        for layer in range(2):
            for head in range(2):
                response = request_attention(client, model, part=name, layer=layer, head=head)
                np.testing.assert_array_equal(decode_weights(response), attention_map.weights[layer, head])
        average = decode_weights(request_attention(client, model, part=name, layer=1, head="average"))
        np.testing.assert_array_equal(average, attention_map.average()[1])
        if attention_map.supports_rollout:
            rollout = decode_weights(request_attention(client, model, part=name, layer=1, head="rollout"))
            np.testing.assert_array_equal(rollout, attention_map.rollout()[1])
        summary = request_attention(client, model, part=name)["summary"]
        assert summary["entropy"] == attention_map.entropy().tolist()
        assert summary["max_entropy"] == attention_map.max_entropy()
        distance = attention_map.mean_distance()
        assert summary["distance"] == (None if distance is None else distance.tolist())


def test_thumbnails_show_all_heads_of_a_layer(client: TestClient, runs_folder: Path) -> None:
    pixels = request_attention(client, thumbnails=3, layer=1, weights=False, summary=False)["thumbnails"]
    attention_map = triform.load(runs_folder / "reviews", device="cpu").explain(TEXT).maps[0]
    assert (pixels["rows"], pixels["columns"]) == (3, 3)
    assert base64.b64decode(pixels["data"]) == attention_map.thumbnails(1, 3).tobytes()


def test_only_what_is_requested_is_returned(client: TestClient) -> None:
    response = request_attention(client, weights=False, summary=False)
    assert (response["weights"], response["summary"], response["thumbnails"]) == (None, None, None)


def test_a_given_translation_is_explained(client: TestClient) -> None:
    response = request_attention(client, "french", target="dune amber", part="cross")
    assert next(part["queries"] for part in response["parts"] if part["name"] == "cross")[:2] == ["dune", "amber"]
    assert response["output"] == "dune amber"


def test_another_head_of_the_same_text_does_not_run_the_model_again(
    client: TestClient, explained_texts: list[str]
) -> None:
    for layer, head in ((0, 0), (1, 1), (1, "rollout"), (0, "average")):
        request_attention(client, text="cedar ember", layer=layer, head=head, thumbnails=8)
    assert explained_texts == ["cedar ember"]
    request_attention(client, text="ember cedar")
    request_attention(client, "seeds/seed-1", text="cedar ember")
    assert explained_texts == ["cedar ember", "ember cedar", "cedar ember"]


def test_the_oldest_explanations_are_forgotten(
    client: TestClient, explained_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "MAX_CACHED_BYTES", 2 * 4 * 2 * 2 * 9)  # two texts of three tokens
    texts = ["amber dune dune", "amber dune ember", "amber dune cedar"]
    for text in (*texts, texts[2], texts[1], texts[0]):
        request_attention(client, text=text)
    assert explained_texts == [*texts, texts[0]]


def test_maps_of_the_latest_checkpoint_change_when_training_goes_on(
    connect: Any, runs_folder: Path, tmp_path: Path, explained_texts: list[str]
) -> None:
    shutil.copytree(runs_folder / "reviews", tmp_path / "reviews")
    (tmp_path / "reviews/model.safetensors").unlink()  # as before the first validation
    client = connect(ServerOptions(folder=tmp_path, page=True, device="cpu"))
    first = request_attention(client, checkpoint="latest")
    assert (first["checkpoint"], first["step"]) == ("latest", 12)
    request_attention(client, checkpoint="latest", head=1)
    assert len(explained_texts) == 1
    latest = triform.load(tmp_path / "reviews", device="cpu", checkpoint="latest")
    np.testing.assert_array_equal(decode_weights(first), latest.explain(TEXT).maps[0].weights[0, 0])
    checkpoint = tmp_path / "reviews/checkpoints/step-000000012"
    checkpoint.rename(checkpoint.with_name("step-000000016"))
    assert request_attention(client, checkpoint="latest", step=12)["step"] == 12  # the view that is open stays
    assert request_attention(client, checkpoint="latest")["step"] == 16
    assert request_attention(client, checkpoint="latest", step=12)["step"] == 16  # it is gone


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "missing"}, 404, "there is no model 'missing'"),
        ({"model": "../reviews", "checkpoint": "latest"}, 404, "there is no model '../reviews'"),
        ({"text": " "}, 400, "the text is empty, so there is nothing to explain"),
        ({"layer": 2}, 400, "layer: expected a number from 0 to 1, found 2"),
        ({"head": 2}, 400, "head: expected a number from 0 to 1, found 2"),
        ({"head": "last"}, 400, "head: "),
        ({"layer": -1}, 400, "layer: "),
        ({"thumbnails": 1000}, 400, "thumbnails: "),
        ({"part": "cross"}, 400, "part: this model has no cross attention; choose from encoder"),
        (
            {"model": "french", "part": "cross", "head": "rollout"},
            400,
            "head: rollout is defined for self-attention",
        ),
        ({"checkpoint": "first"}, 400, "checkpoint: "),
        ({"colour": 1}, 400, "unknown parameter: colour"),
        ({"target": "unheard"}, 400, "unknown label 'unheard'; choose from long, short"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(
    client: TestClient, change: dict[str, Any], status: int, message: str
) -> None:
    response = client.post("/api/attention", json={"model": "reviews", "text": TEXT, **change})
    assert response.status_code == status, response.text
    assert response.json()["error"].startswith(message)
    assert request_attention(client)["weights"]


def test_a_text_that_is_too_long_is_cut_with_a_note(client: TestClient) -> None:
    response = request_attention(client, text="amber " * 5000)
    assert response["notes"][0].startswith("only the first ")
    assert decode_weights(response).shape[0] < 5000


def test_too_many_waiting_explanations_are_refused(connect: Any, runs_folder: Path) -> None:
    client = connect(ServerOptions(folder=runs_folder, page=True, device="cpu", max_queue=0))
    response = client.post("/api/attention", json={"model": "reviews", "text": TEXT})
    assert (response.status_code, response.headers["Retry-After"]) == (429, "1")


def test_a_label_is_explained_by_its_tokens(
    client: TestClient, runs_folder: Path, explained_texts: list[str]
) -> None:
    expected = triform.load(runs_folder / "reviews", device="cpu").explain(TEXT, target="short")
    body = {"model": "reviews", "text": TEXT, "label": "short"}
    response = client.post("/api/attribution", json=body).json()
    assert response["output"] == expected.output
    assert response["probabilities"] == expected.probabilities
    assert [item["method"] for item in response["attributions"]] == ["integrated gradients", "gradient × input"]
    for item, attribution in zip(response["attributions"], expected.attributions, strict=True):
        assert (item["label"], item["tokens"]) == ("short", list(attribution.pieces))
        assert item["values"] == pytest.approx(attribution.values)
    assert response["attributions"][0]["total"] == pytest.approx(expected.attributions[0].total)
    assert response["attributions"][1]["total"] is None
    assert client.post("/api/attribution", json=body).json() == response
    assert explained_texts == [TEXT, TEXT]  # here, and once by the server


def test_attributions_are_for_classifiers(client: TestClient) -> None:
    response = client.post("/api/attribution", json={"model": "verses", "text": TEXT})
    assert response.status_code == 400
    assert response.json()["error"].startswith("model 'verses' is for generate, and this route is for classify")
    response = client.post("/api/attribution", json={"model": "reviews", "text": TEXT, "label": "medium"})
    assert response.json() == {"error": "unknown label 'medium'; choose from long, short"}
