"""The metadata of exported model cards, read by huggingface_hub, and uploads to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import triform
from triform.config import DataConfig
from triform.errors import CheckpointError, ConfigError
from triform.pretrained.card_metadata import CardInfo, build_metadata, format_front_matter
from triform.pretrained.hub_upload import push_folder
from triform.pretrained.model_card import _describe_training

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[triform.Run, Path]:
    folder = tmp_path_factory.mktemp("card")
    tiny: dict[str, Any] = {"model": {"d_model": 8, "n_layers": 1, "n_heads": 2}, "train": {"max_steps": 2}}
    rows = [("a good film", "pos"), ("a bad film", "neg")] * 10
    run = triform.train("classify", data=rows, out=folder / "run", device="cpu", quiet=True, **tiny)
    languages = ["en", "pt-BR"]
    run.export("hf", folder / "reviews", license="cc-by-4.0", languages=languages, dataset="owner/films")
    return run, folder / "reviews"


def test_the_hub_reads_the_metadata_of_a_card(exported: tuple[triform.Run, Path]) -> None:
    run, folder = exported
    card = hub.ModelCard.load(folder / "README.md")
    best: Any = run.progress()["best"]
    assert (card.data.license, card.data.language, card.data.datasets) == (
        "cc-by-4.0",
        ["en", "pt-BR"],
        ["owner/films"],
    )
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-classification")
    assert card.data.tags == ["triform"]
    results = {result.metric_type: result for result in card.data.eval_results}
    assert results["accuracy"].metric_value == best["accuracy"]
    assert results["f1"].dataset_type == "owner/films"
    assert card.data.model_name == "reviews"
    assert f"| accuracy | {best['accuracy']:.6g} |" in card.text
    assert hub.metadata_load(folder / "README.md")["metrics"][0] in results


def test_a_card_without_statements_is_valid_too() -> None:
    config = triform.Config(task="translate")
    metadata = build_metadata("ctranslate2", config, "x", CardInfo(base_model="Helsinki-NLP/opus-mt-en-fr"))
    card = hub.ModelCard(format_front_matter(metadata) + "\n# x\n")
    assert (card.data.base_model, card.data.license) == ("Helsinki-NLP/opus-mt-en-fr", None)
    metrics = {"loss": float("nan"), "bleu": 31.5, "tokens": 3.0}
    metadata = build_metadata("hf", config, "x", CardInfo(metrics=metrics))
    assert metadata["metrics"] == ["bleu"]  # neither what is not finite nor what is no metric


def test_a_card_names_data_without_its_folder_and_without_a_key() -> None:
    config = triform.Config(task="translate", data=DataConfig(train="https://host/get?key=secret&f=x.csv"))
    metadata = build_metadata("hf", config, "x", CardInfo(metrics={"bleu": 31.5}))
    assert metadata["model-index"][0]["results"][0]["dataset"]["name"] == "get"
    assert "secret" not in _describe_training(config, CardInfo())


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ({"license": "Apache 2.0"}, "--license Apache 2.0: use an identifier such as apache-2.0"),
        ({"languages": ["english: yes"]}, "--language english: yes: use a code such as en"),
        ({"dataset": "a/b/c"}, "--dataset a/b/c: use a name on the Hugging Face Hub"),
        ({"base_model": "no name"}, "--base-model no name: use a name"),
    ],
)
def test_a_statement_that_the_hub_would_refuse_is_refused(statement: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CardInfo(**statement)


# -- uploads


def test_an_upload_creates_the_repository_and_sends_only_the_model(
    exported: tuple[triform.Run, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = exported
    calls: list[tuple[str, dict[str, Any]]] = []

    class Client:
        def __init__(self, endpoint: str | None) -> None:
            calls.append(("client", {"endpoint": endpoint}))

        def create_repo(self, repository: str, **options: Any) -> str:
            calls.append((repository, options))
            return f"https://hub.test/{repository}"

        def upload_folder(self, **options: Any) -> None:
            calls.append(("upload", options))

    monkeypatch.setattr(hub, "HfApi", Client)
    monkeypatch.setattr(hub, "get_token", lambda: "hf_x")
    assert push_folder(folder, "me/reviews", private=True) == "https://hub.test/me/reviews"
    assert calls[:2] == [
        ("client", {"endpoint": None}),
        ("me/reviews", {"private": True, "exist_ok": True}),
    ]
    upload = calls[2][1]
    assert (upload["repo_id"], upload["folder_path"]) == ("me/reviews", folder)
    state = ["checkpoints/step-1/tensors.safetensors", "optimizer.pt", ".cache/x", "data_copies/train-1.jsonl"]
    names = ["README.md", "model.safetensors", *state, *(f"runs/reviews/{name}" for name in state)]
    sent = list(hub.utils.filter_repo_objects(names, ignore_patterns=upload["ignore_patterns"]))
    assert sent == ["README.md", "model.safetensors"]


def test_an_upload_that_cannot_work_is_one_line(
    exported: tuple[triform.Run, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, folder = exported
    monkeypatch.setattr(hub, "get_token", lambda: "hf_x")
    with pytest.raises(CheckpointError, match=r"^[^\n]+ cannot be uploaded to me/reviews \([^\n]+\)$"):
        push_folder(folder, "me/reviews", endpoint="http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr(hub, "get_token", lambda: None)
    with pytest.raises(CheckpointError, match="there is no token of the Hugging Face Hub"):
        push_folder(folder, "me/reviews")
    with pytest.raises(ConfigError, match="reviews is not the name of a repository; write it as OWNER/NAME"):
        push_folder(folder, "reviews")
    with pytest.raises(CheckpointError, match="is a run folder; export it first"):
        push_folder(run.path, "me/reviews")
    with pytest.raises(CheckpointError, match=r"has no README\.md"):
        push_folder(tmp_path, "me/reviews")
    with pytest.raises(CheckpointError, match="no such folder"):
        push_folder(tmp_path / "none", "me/reviews")
