"""Classification and embeddings in the dialect of text-embeddings-inference.

The requests are those in the documentation of these servers. `huggingface_hub.InferenceClient` is used where it
fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from starlette.testclient import TestClient

import triform
from triform.serving import ServerOptions

TEXTS = ["amber birch", "cedar dune ember amber birch cedar"]


@pytest.fixture(scope="module")
def run(runs_folder: Path) -> triform.Run:
    return triform.load(runs_folder / "reviews", device="cpu")


@pytest.fixture(scope="module")
def client(connect: Any, runs_folder: Path) -> TestClient:
    return connect(ServerOptions(runs={"reviews": runs_folder / "reviews"}, device="cpu", max_queue=4))


@pytest.fixture(scope="module")
def two_models(connect: Any, runs_folder: Path) -> TestClient:
    runs = {"first": runs_folder / "reviews", "second": runs_folder / "seeds/seed-1"}
    return connect(ServerOptions(runs=runs, device="cpu"))


@pytest.fixture(scope="module")
def address(start_server: Any, runs_folder: Path) -> Iterator[str]:
    with start_server(ServerOptions(runs={"reviews": runs_folder / "reviews"}, device="cpu")) as address:
        yield address


def expected_labels(run: triform.Run, text: str) -> list[dict[str, Any]]:
    probabilities = run.predict(text)[0].probabilities
    assert probabilities is not None
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    return [{"score": pytest.approx(probability, abs=1e-6), "label": label} for label, probability in ranked]


def test_one_text_gets_its_labels_the_most_probable_first(client: TestClient, run: triform.Run) -> None:
    for inputs in (TEXTS[0], [TEXTS[0]]):
        answer = client.post("/predict", json={"inputs": inputs, "raw_scores": False, "truncate": False})
        assert answer.json() == expected_labels(run, TEXTS[0])


def test_a_batch_is_a_list_of_lists(client: TestClient, run: triform.Run) -> None:
    answer = client.post("/predict", json={"inputs": [[text] for text in TEXTS]})
    assert answer.json() == [expected_labels(run, text) for text in TEXTS]


def test_raw_scores_are_logits(client: TestClient) -> None:
    for settings in ({"raw_scores": True}, {"parameters": {"function_to_apply": "none"}}):
        answer = client.post("/predict", json={"inputs": [[text] for text in TEXTS], **settings}).json()
        probabilities = client.post("/predict", json={"inputs": [[text] for text in TEXTS]}).json()
        for logits, expected in zip(answer, probabilities, strict=True):
            exponentials = np.exp([label["score"] for label in logits])
            assert sum(exponentials) != pytest.approx(1)
            assert exponentials / sum(exponentials) == pytest.approx(
                [label["score"] for label in expected], abs=1e-5
            )


def test_the_client_of_hugging_face_classifies(address: str, run: triform.Run) -> None:
    client = InferenceClient(model=f"{address}/predict")
    # For one text, text-embeddings-inference returns a list of labels, of which the client keeps the first.
    best: Any = client.text_classification(TEXTS[0])
    assert (best.label, best.score) == (run.predict(TEXTS[0])[0].output, expected_labels(run, TEXTS[0])[0]["score"])
    labels = client.text_classification([[TEXTS[0]]], top_k=1)  # type: ignore[arg-type]
    assert [label.label for label in labels] == [best.label]


def test_the_client_of_hugging_face_gets_vectors(address: str, run: triform.Run) -> None:
    vectors = InferenceClient(model=f"{address}/embed").feature_extraction(TEXTS, normalize=False, truncate=True)
    assert vectors.shape == (2, run.config.model.d_model)
    normalized = InferenceClient(model=f"{address}/embed").feature_extraction(TEXTS[0])
    assert np.linalg.norm(normalized) == pytest.approx(1, abs=1e-5)
    assert normalized[0] == pytest.approx(vectors[0] / np.linalg.norm(vectors[0]), abs=1e-5)


@pytest.mark.parametrize("path", ["/predict", "/embed"])
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": ""}, 400, "inputs: a text is empty"),
        ({"inputs": " \n"}, 400, "inputs: a text is empty"),
        ({"inputs": []}, 400, "inputs: there are no texts"),
        ({"inputs": 3}, 400, "inputs: Expected `str | array`, got `int`"),
        ({"text": "a"}, 400, "unknown parameter: text"),
        ({}, 400, "missing parameter: inputs"),
        ({"inputs": "a", "truncate": "yes"}, 400, "truncate: Expected `bool | null`, got `str`"),
        ({"inputs": "a", "truncation_direction": "left"}, 400, "truncation_direction: Invalid enum value 'left'"),
        ({"inputs": "amber " * 1000}, 413, "tokens, and this model reads at most"),
        ({"inputs": "a", "model": "other"}, 404, "there is no model 'other'"),
    ],
)
def test_bad_input_is_refused_with_the_reason(
    client: TestClient, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert answer.json()["error_type"] == "Validation"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (
            "/predict",
            {"inputs": ["a", "b"]},
            400,
            "inputs: pairs of texts are not supported; send several texts as [[",
        ),
        ("/predict", {"inputs": [["a", "b"]]}, 400, "inputs: pairs of texts are not supported"),
        ("/predict", {"inputs": ["a", ["b"]]}, 400, "inputs: pairs of texts are not supported"),
        ("/predict", {"inputs": [[]]}, 400, "inputs: pairs of texts are not supported"),
        (
            "/predict",
            {"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}},
            400,
            "parameters.function_to_apply: Invalid enum value 'sigmoid'",
        ),
        ("/predict", {"inputs": [["a"]] * 5}, 413, "inputs: a request may have at most 4 texts, found 5"),
        ("/embed", {"inputs": ["a"] * 5}, 413, "inputs: a request may have at most 4 texts, found 5"),
        ("/embed", {"inputs": "a", "dimensions": 3}, 400, "unknown parameter: dimensions"),
    ],
)
def test_what_only_one_route_refuses(
    client: TestClient, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_a_long_text_is_cut_on_request(client: TestClient, run: triform.Run) -> None:
    text = "amber " * 1000
    assert client.post("/predict", json={"inputs": text, "truncate": True}).json() == expected_labels(run, text)


def test_one_of_several_models_is_chosen_in_the_body_or_after_the_question_mark(two_models: TestClient) -> None:
    assert (
        "choose one with model: first, second" in two_models.post("/predict", json={"inputs": "a"}).json()["error"]
    )
    in_body = [
        two_models.post("/predict", json={"inputs": TEXTS[1], "model": name}).json() for name in ("first", "second")
    ]
    assert in_body[0] != in_body[1]
    assert two_models.post("/predict?model=second", json={"inputs": TEXTS[1]}).json() == in_body[1]


def test_a_route_for_another_task_is_named(connect: Any, runs_folder: Path) -> None:
    client = connect(ServerOptions(runs={"verses": runs_folder / "verses"}, device="cpu"))
    answer = client.post("/embed", json={"inputs": "a"})
    assert answer.status_code == 400
    assert answer.json()["error"].endswith("this route is for classify; use POST /v1/completions")
