"""Published folders become run folders, and runs begin with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Core
from tokenizers import models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
from transformers import PreTrainedTokenizerFast as Fast
from typer.testing import CliRunner

import triform
from triform.cli.main import app
from triform.errors import CheckpointError, ConfigError
from triform.pretrained import load_pretrained
from triform.pretrained.run_import import ensure_run_folder, import_run

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "the", "was", "a", "very", "not"]
VOCAB_SETTINGS: dict[str, Any] = {"vocab_size": len(VOCABULARY)}
TEXTS = ["the film was very good", "a bad film", "not good"]


def build_tokenizer() -> Fast:
    hf_tokenizer = Core(
        models.WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    hf_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    hf_tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return Fast(
        tokenizer_object=hf_tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    config = BertConfig(
        **VOCAB_SETTINGS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    build_tokenizer().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_a_published_classifier_answers_as_it_did(bert: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["convert", "import", str(bert), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "parameters, classify) to " in result.output
    reference = BertForSequenceClassification.from_pretrained(bert).eval()
    inputs = build_tokenizer()(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = reference(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.softmax(-1)
    predictions = triform.load(tmp_path / "run", device="cpu").predict(TEXTS)
    for row, prediction in zip(expected, predictions, strict=True):
        assert prediction.probabilities is not None
        assert list(prediction.probabilities) == ["no", "yes"]
        torch.testing.assert_close(torch.tensor(list(prediction.probabilities.values())), row, rtol=1e-4, atol=1e-5)


def test_a_classifier_begins_with_a_published_folder(bert: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    rows = tmp_path / "rows.tsv"
    rows.write_text("".join(f"the film was {'very good' if n % 2 else 'not good'}\t{n % 2}\n" for n in range(40)))
    trained_run = triform.train(
        "classify", data=str(rows), init_from=str(bert), out=tmp_path / "run", device="cpu", quiet=True,
        train={"max_steps": 2},
    )  # fmt: skip
    events = (trained_run.path / "metrics.jsonl").read_text(encoding="utf-8")
    assert "35 tensors loaded" in events, "the pooler, which knows nothing of labels, among them"
    assert "2 tensors new: classification_head 2" in events
    assert trained_run.predict(["a film"])[0].output in ("0", "1")
    imported_folders = list((tmp_path / "cache" / "imported").iterdir())
    assert len(imported_folders) == 1, "a folder is read once"
    assert imported_folders[0].name.startswith("bert-"), "messages that name it say which model it is"
    assert ensure_run_folder(str(bert)) == str(imported_folders[0])
    monkeypatch.setattr(triform, "__version__", "9.9")
    assert ensure_run_folder(str(bert)) != str(imported_folders[0]), "another Triform may read it otherwise"


def test_a_published_encoder_becomes_that_of_a_translator(bert: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"the film was {word}\ta {word} film\n" for word in ("good", "bad") * 20))
    train_settings: Any = {
        "data": str(pairs),
        "init_from": str(bert),
        "device": "cpu",
        "quiet": True,
        "train": {"max_steps": 1},
    }
    trained_run = triform.train("translate", out=tmp_path / "run", **train_settings)
    assert "33 tensors loaded: encoder" in (trained_run.path / "metrics.jsonl").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="is a run of classify; generate can start from generate runs"):
        triform.train("generate", out=tmp_path / "other", **train_settings)


def test_a_published_decoder_writes_on(tmp_path: Path) -> None:
    config = GPT2Config(
        **VOCAB_SETTINGS, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=3, eos_token_id=3
    )
    reference = GPT2LMHeadModel(config).eval()
    reference.save_pretrained(tmp_path / "gpt2")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path / "gpt2")
    folder, imported = import_run(tmp_path / "gpt2", tmp_path / "run")
    assert imported.config.task == "generate"
    run = triform.load(folder.path, device="cpu")
    tokens = torch.tensor([[4, 6, 8]])
    with torch.no_grad():
        torch.testing.assert_close(run.task.model(tokens), reference(tokens).logits, rtol=1e-4, atol=1e-5)
    assert run.predict(["the film"], strategy="greedy", max_new_tokens=3)[0].output


def test_a_tokenizer_of_another_size_is_refused(bert: Path, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(bert)
    with pytest.raises(ConfigError, match=r"tokenizer has 13 tokens, but the embedding has 12 rows"):
        import_run(bert, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_published_folder_is_no_run_yet(bert: Path) -> None:
    with pytest.raises(
        triform.TriformError,
        match=r"no config\.toml; if this is a published model, convert it with `triform convert import`",
    ):
        triform.load(bert)


def test_what_was_only_imported_names_no_data_to_score(bert: Path, tmp_path: Path) -> None:
    import_run(bert, tmp_path / "run")
    run = triform.load(tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="is an imported model without training data: name the file to evaluate"):
        run.evaluate()
    (tmp_path / "rows.tsv").write_text("the film\tyes\na good film\tno\n", encoding="utf-8")
    assert run.evaluate(tmp_path / "rows.tsv")["rows"] == 2
    with pytest.raises(ConfigError, match="without training data: baselines need training data"):
        run.baselines(tmp_path / "rows.tsv")


def test_what_is_there_is_not_written_over(bert: Path, tmp_path: Path) -> None:
    import_run(bert, tmp_path / "run")
    result = CliRunner().invoke(app, ["convert", "import", str(bert), "--out", str(tmp_path / "run")])
    assert result.exit_code != 0


@pytest.mark.parametrize("labels", [",", "yes,", "yes,,no"])
def test_a_label_without_a_name_is_refused(bert: Path, tmp_path: Path, labels: str) -> None:
    command = ["convert", "import", str(bert), "--out", str(tmp_path / "run"), "--labels", labels]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"--labels {labels}: a label is empty; write them as A,B"


def test_a_published_folder_is_not_written_into(bert: Path) -> None:
    contents = {file.name: file.read_bytes() for file in bert.iterdir()}
    with pytest.raises(CheckpointError, match="exists and is not a run folder; choose another --out"):
        import_run(bert, bert)
    assert {file.name: file.read_bytes() for file in bert.iterdir()} == contents


@pytest.mark.parametrize("names", [("no", "no"), ("", "yes")])
def test_names_of_labels_that_tell_nothing_apart_are_numbers(bert: Path, names: tuple[str, str]) -> None:
    config = json.loads((bert / "config.json").read_text(encoding="utf-8"))
    (bert / "config.json").write_text(json.dumps(config | {"id2label": dict(enumerate(names))}), encoding="utf-8")
    assert load_pretrained(bert, "classify").config.data.labels == ("LABEL_0", "LABEL_1")


def test_a_folder_of_seeds_is_no_published_model(tmp_path: Path) -> None:
    (tmp_path / "many" / "seed-0").mkdir(parents=True)
    (tmp_path / "many" / "seed-0" / "config.toml").touch()
    with pytest.raises(ConfigError, match="holds runs with several seeds"):
        triform.train("classify", init_from=str(tmp_path / "many"), out=tmp_path / "run", device="cpu", quiet=True)


def test_an_unknown_architecture_is_named(bert: Path, tmp_path: Path) -> None:
    (bert / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    with pytest.raises(ConfigError, match="the architecture mamba is not supported"):
        import_run(bert, tmp_path / "run")
