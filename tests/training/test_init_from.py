"""Training that begins with another run, and adapters that are carried to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from triform.errors import CheckpointError, ConfigError
from triform.experiments.seeds import train_seeds
from triform.launch import train
from triform.run import Run, load
from triform.tasks import TASKS
from triform.training.init_from import load_matching_weights
from triform.training.lora_adapter import METADATA_KEY, read_adapter

MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.1}
TRAIN_SETTINGS = {"max_steps": 4, "batch_size": 8, "lr": 0.01}
OPTIONS: dict[str, Any] = {"device": "cpu", "quiet": True}


class DataFiles:
    def __init__(self, folder: Path) -> None:
        self.labelled, self.other_labels, self.text, self.pairs = (
            str(folder / name) for name in ("rows.tsv", "other.tsv", "story.txt", "pairs.tsv")
        )
        rows = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5}\n" for n in range(90)]
        Path(self.labelled).write_text("".join(rows))
        Path(self.other_labels).write_text(
            "".join(f"{'abc'[n % 3]}\tword{n % 11} thing{n % 5}\n" for n in range(90))
        )
        Path(self.text).write_text("".join(f"{n % 7} birds sat, and {n % 5} flew.\n" for n in range(60)))
        Path(self.pairs).write_text("".join(f"word{n % 11} thing{n % 5}\tmot{n % 11} {n % 5}\n" for n in range(90)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DataFiles:
    return DataFiles(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def classifier(files: DataFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "classifier"
    return train("classify", data=files.labelled, model=MODEL, train=TRAIN_SETTINGS, out=str(out), **OPTIONS).path


@pytest.fixture(scope="module")
def writer(files: DataFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "writer"
    short = {"train": files.text, "max_len": 16}
    return train("generate", data=short, model=MODEL, train=TRAIN_SETTINGS, out=str(out), **OPTIONS).path


def fine_tune(
    task: Any, data: str, base: Path, out: Path, train_settings: dict[str, Any] | None = None, **kwargs: Any
) -> Run:
    return train(
        task,
        data=data,
        train=TRAIN_SETTINGS | (train_settings or {}),
        init_from=base,
        out=str(out),
        **OPTIONS,
        **kwargs,
    )


def read_notices(run: Path) -> list[str]:
    events = map(json.loads, (run / "metrics.jsonl").read_bytes().splitlines())
    return [event["text"] for event in events if event["event"] == "notice"]


# -- what is taken


def test_other_labels_have_a_new_head_on_the_same_encoder(
    files: DataFiles, classifier: Path, tmp_path: Path
) -> None:
    result = fine_tune("classify", files.other_labels, classifier, tmp_path / "run", {"freeze_layers": 2})
    assert result.config.data.labels == ("a", "b", "c")
    assert result.config.train.init_from == str(classifier)
    assert (result.path / "tokenizer.json").read_text() == (classifier / "tokenizer.json").read_text()
    before, after = load_file(classifier / "model.safetensors"), load_file(result.path / "model.safetensors")
    assert all(tensor.equal(after[name]) for name, tensor in before.items() if name.startswith("encoder."))
    assert after["classification_head.weight"].shape == (3, 16)
    message = f"{classifier}: 32 tensors loaded: encoder.embedding 2, encoder.blocks 28, encoder.final_norm 2; "
    message += "2 tensors new: classification_head 2; 2 tensors unused: classification_head 2"
    assert read_notices(result.path)[-1] == message


def test_a_hidden_layer_of_the_head_stays_where_it_is_as_wide(files: DataFiles, tmp_path: Path) -> None:
    pooled: Any = {"data": files.labelled, "model": MODEL | {"head_hidden": 8}, "train": TRAIN_SETTINGS, **OPTIONS}
    base = train("classify", out=str(tmp_path / "base"), **pooled).path
    result = fine_tune("classify", files.other_labels, base, tmp_path / "other", {"lora_rank": 1})
    assert "2 tensors new: classification_head 2; 2 tensors unused" in "".join(read_notices(result.path)), (
        "scores are of labels, it is not"
    )
    wider = fine_tune("classify", files.labelled, base, tmp_path / "wider", model={"head_hidden": 12})
    assert "4 tensors new: classification_head 4; 4 tensors unused" in "".join(read_notices(wider.path)), (
        "the labels are the same here"
    )


def test_the_same_labels_keep_the_head(files: DataFiles, classifier: Path, tmp_path: Path) -> None:
    run = load(classifier, device="cpu")
    new_task = TASKS["classify"].load(run.config, classifier)
    report = load_matching_weights(new_task, classifier)
    assert not report.new
    assert not report.unused
    text = ["word3 thing2"]
    assert new_task.predictor.predict(text) == run.predict(text)


def test_a_writer_goes_on_from_where_another_stopped(files: DataFiles, writer: Path, tmp_path: Path) -> None:
    before = load(writer, device="cpu").evaluate(files.text)["loss"]
    result = fine_tune("generate", files.text, writer, tmp_path / "run", {"lr": 1e-9})
    assert result.evaluate(files.text)["loss"] == pytest.approx(before, abs=1e-6)
    assert result.config.data.max_len == 16
    assert result.config.model == load(writer, device="cpu").config.model


def test_an_encoder_is_shared_by_a_classifier_and_a_translator(
    files: DataFiles, classifier: Path, tmp_path: Path
) -> None:
    result = fine_tune("translate", files.pairs, classifier, tmp_path / "run")
    assert any(
        "encoder.blocks 28" in text and "tensors new: embedding" in text for text in read_notices(result.path)
    )
    second_result = fine_tune("classify", files.labelled, result.path, tmp_path / "back")
    notices = read_notices(second_result.path)
    assert any("tensors unused: " in text and "tensors new: classification_head 2" in text for text in notices)


def test_two_vocabularies_come_along(files: DataFiles, tmp_path: Path) -> None:
    tokenizer = {"joint_vocab": False, "kind": "word"}
    base_run = train(
        "translate",
        data=files.pairs,
        model=MODEL,
        train=TRAIN_SETTINGS,
        tokenizer=tokenizer,
        out=tmp_path / "one",
        **OPTIONS,
    )
    result = fine_tune("translate", files.pairs, base_run.path, tmp_path / "two")
    for side in ("source", "target"):
        name = f"tokenizer.{side}.json"
        assert (result.path / name).read_text() == (base_run.path / name).read_text()
    assert "new" not in read_notices(result.path)[-1]


def test_fewer_positions_are_taken_and_more_cannot_be(files: DataFiles, writer: Path, tmp_path: Path) -> None:
    result = fine_tune("generate", {"train": files.text, "max_len": 8}, writer, tmp_path / "run")  # type: ignore[arg-type]
    assert result.config.data.max_len == 8
    longer = {"train": files.text, "max_len": 32}
    with pytest.raises(ConfigError, match=r"has 16 learned positions, and data\.max_len=32 needs more"):
        fine_tune("generate", longer, writer, tmp_path / "none")  # type: ignore[arg-type]
    assert not (tmp_path / "none").exists()


def test_every_seed_begins_with_the_base(files: DataFiles, classifier: Path, tmp_path: Path) -> None:
    result = train_seeds(
        "classify",
        2,
        data=files.labelled,
        init_from=classifier,
        train={**TRAIN_SETTINGS, "lr": 1e-9},
        out=tmp_path / "s",
        **OPTIONS,
    )
    before = load_file(classifier / "model.safetensors")
    for folder in result.folders:
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert (tensor - before[name]).abs().max() < 1e-6
    lora = train_seeds(
        "classify",
        2,
        data=files.labelled,
        init_from=classifier,
        train={**TRAIN_SETTINGS, "lora_rank": 2},
        out=tmp_path / "l",
        **OPTIONS,
    )
    first, second = (load_file(folder / "adapter.safetensors") for folder in lora.folders)
    assert not first["encoder.blocks.0.attn.q_proj.lora_a.weight"].equal(
        second["encoder.blocks.0.attn.q_proj.lora_a.weight"]
    )


def test_a_run_that_has_begun_needs_its_base_no_more(files: DataFiles, classifier: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(classifier, tmp_path / "base"))
    result = fine_tune("classify", files.labelled, base, tmp_path / "run", {"lora_rank": 2})
    weights = (result.path / "model.safetensors").read_bytes()
    (result.path / "report.html").unlink()  # so that something is left to do
    shutil.rmtree(base)
    repeated = fine_tune("classify", files.labelled, base, tmp_path / "run", {"lora_rank": 2}, resume=True)
    assert (repeated.path / "model.safetensors").read_bytes() == weights


def test_the_settings_of_a_run_that_began_with_another_run_again(
    files: DataFiles, classifier: Path, adapted: Path, tmp_path: Path
) -> None:
    repeated = train("classify", config=adapted / "config.toml", out=str(tmp_path / "again"), **OPTIONS)
    for name in ("config.toml", "model.safetensors", "adapter.safetensors"):
        assert (repeated.path / name).read_bytes() == (adapted / name).read_bytes(), name


def test_a_run_that_is_replaced_begins_with_the_base_too(files: DataFiles, writer: Path, tmp_path: Path) -> None:
    before = load_file(writer / "model.safetensors")
    for repeated in (False, True):
        result = fine_tune("generate", files.text, writer, tmp_path / "run", {"lr": 1e-9}, overwrite=repeated)
        for name, tensor in load_file(result.path / "model.safetensors").items():
            assert (tensor - before[name]).abs().max() < 1e-6, name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"d_model": 32}}, r"remove model\.d_model: 32 \(the run has 16\)"),
        ({"model": {"n_layers": 3}}, r"remove model\.n_layers: 3 \(the run has 2\)"),
        ({"tokenizer": {"vocab_size": 99}}, r"remove tokenizer\.vocab_size: 99 \(the run has \d+\)"),
        ({"tokenizer": {"kind": "char"}}, r"remove tokenizer\.kind: char \(the run has word\)"),
        ({"tokenizer": {"file": "words.json"}}, r"remove tokenizer\.file: the tokenizer is that of"),
    ],
)
def test_another_shape_or_vocabulary_is_refused_with_both_values(
    files: DataFiles, classifier: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fine_tune("classify", files.labelled, classifier, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_base_that_cannot_be_one(files: DataFiles, classifier: Path, writer: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(
        ConfigError, match="is a run of generate; classify can start from classify or translate runs"
    ):
        fine_tune("classify", files.labelled, writer, out)
    with pytest.raises(ConfigError, match=r"train\.init_from=.*nowhere: no such run folder; use a run, .* hub:"):
        fine_tune("classify", files.labelled, tmp_path / "nowhere", out)
    without_model = Path(shutil.copytree(classifier, tmp_path / "unborn"))
    (without_model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no model yet"):
        fine_tune("classify", files.labelled, without_model, out)
    assert not out.exists()
    with pytest.raises(ConfigError, match="a run cannot start from itself"):
        fine_tune("classify", files.labelled, classifier, classifier, overwrite=True)
    assert load(classifier, device="cpu").predict(["word1"])


# -- adapters by themselves


@pytest.fixture(scope="module")
def adapted(files: DataFiles, classifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels of its own, so that a head travels too."""
    out = tmp_path_factory.mktemp("adapted") / "run"
    return fine_tune("classify", files.other_labels, classifier, out, {"lora_rank": 2, "lr": 0.05}).path


def test_base_and_adapter_are_the_run_bit_for_bit(classifier: Path, adapted: Path) -> None:
    trained = load(adapted, device="cpu", precision="fp32")
    with_adapter = load(classifier, device="cpu", precision="fp32", adapter=adapted / "adapter.safetensors")
    assert with_adapter.config == trained.config
    for first, second in zip(with_adapter.task.model.parameters(), trained.task.model.parameters(), strict=True):
        assert first.equal(second)
    texts = ["word3 thing2", "word9"]
    assert with_adapter.predict(texts) == trained.predict(texts)
    bf16_run = load(classifier, device="cpu", precision="bf16", adapter=adapted / "adapter.safetensors")
    assert bf16_run.explain("word3 thing2").probabilities == trained.explain("word3 thing2").probabilities


def test_an_adapter_of_a_writer_is_small(files: DataFiles, writer: Path, tmp_path: Path) -> None:
    result = fine_tune(
        "generate", files.text, writer, tmp_path / "run", {"lora_rank": 1, "lora_layers": "attention"}
    )
    tensors = load_file(result.path / "adapter.safetensors")
    assert all(".attn." in name and ".lora_" in name for name in tensors)
    n_parameters = sum(tensor.numel() for tensor in load_file(result.path / "model.safetensors").values())
    assert sum(tensor.numel() for tensor in tensors.values()) < n_parameters / 15
    with_adapter = load(writer, device="cpu", adapter=result.path / "adapter.safetensors")
    assert with_adapter.evaluate(files.text) == result.evaluate(files.text)


def test_an_adapter_for_another_base_is_one_clear_error(
    files: DataFiles, classifier: Path, writer: Path, adapted: Path, tmp_path: Path
) -> None:
    file = adapted / "adapter.safetensors"
    with pytest.raises(CheckpointError, match=r"is an adapter for another base: .* is a run of generate"):
        load(writer, device="cpu", adapter=file)
    other_base = train(
        "classify",
        data=files.labelled,
        model=MODEL,
        train=TRAIN_SETTINGS,
        seed=1,
        out=str(tmp_path / "twin"),
        **OPTIONS,
    )
    with pytest.raises(CheckpointError, match="another base: the base model's weights do not match the adapter"):
        load(other_base.path, device="cpu", adapter=file)
    wide = {**MODEL, "d_model": 32}
    wider = train(
        "classify", data=files.labelled, model=wide, train=TRAIN_SETTINGS, out=str(tmp_path / "wide"), **OPTIONS
    )
    with pytest.raises(CheckpointError, match=r"for another base: .* has shape \(\d+, 32\), expected \(\d+, 16\)"):
        load(wider.path, device="cpu", adapter=file)


def test_what_is_no_adapter_is_not_read(classifier: Path, adapted: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no such file; name the adapter\.safetensors"):
        read_adapter(tmp_path / "none")
    with pytest.raises(CheckpointError, match="is not an adapter"):
        load(classifier, device="cpu", adapter=classifier / "model.safetensors")
    original = (adapted / "adapter.safetensors").read_bytes()
    cut = tmp_path / "cut.safetensors"
    for size in (5, len(original) // 2, len(original) - 1):
        cut.write_bytes(original[:size])
        with pytest.raises(CheckpointError, match="is damaged"):
            load(classifier, device="cpu", adapter=cut)
    newer = json.dumps({"format": 99, "triform": "9.0.0"})
    save_file(load_file(adapted / "adapter.safetensors"), cut, {METADATA_KEY: newer})
    with pytest.raises(CheckpointError, match=r"has adapter format \d+, .* use Triform 9\.0\.0"):
        read_adapter(cut)
