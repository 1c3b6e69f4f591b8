"""Training that begins with another run, and adapters that are carried to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from triform.errors import CheckpointError, ConfigError
from triform.launch import train
from triform.run import Run, load
from triform.seeds import train_seeds
from triform.tasks import TASKS
from triform.training.adapter import KEY, read_adapter
from triform.training.base import take

MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.1}
PACE = {"max_steps": 4, "batch_size": 8, "lr": 0.01}
HOW: dict[str, Any] = {"device": "cpu", "quiet": True}


class Files:
    def __init__(self, folder: Path) -> None:
        self.rows, self.other, self.story, self.pairs = (
            str(folder / name) for name in ("rows.tsv", "other.tsv", "story.txt", "pairs.tsv")
        )
        rows = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5}\n" for n in range(90)]
        Path(self.rows).write_text("".join(rows))
        Path(self.other).write_text("".join(f"{'abc'[n % 3]}\tword{n % 11} thing{n % 5}\n" for n in range(90)))
        Path(self.story).write_text("".join(f"{n % 7} birds sat, and {n % 5} flew.\n" for n in range(60)))
        Path(self.pairs).write_text("".join(f"word{n % 11} thing{n % 5}\tmot{n % 11} {n % 5}\n" for n in range(90)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def classifier(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "classifier"
    return train("classify", data=files.rows, model=MODEL, train=PACE, out=str(out), **HOW).path


@pytest.fixture(scope="module")
def writer(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "writer"
    short = {"train": files.story, "max_len": 16}
    return train("generate", data=short, model=MODEL, train=PACE, out=str(out), **HOW).path


def grown(task: Any, data: str, base: Path, out: Path, pace: dict[str, Any] | None = None, **more: Any) -> Run:
    return train(task, data=data, train=PACE | (pace or {}), base=base, out=str(out), **HOW, **more)


def notices(run: Path) -> list[str]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["text"] for event in events if event["event"] == "notice"]


# -- what is taken


def test_other_labels_have_a_new_head_on_the_same_encoder(files: Files, classifier: Path, tmp_path: Path) -> None:
    made = grown("classify", files.other, classifier, tmp_path / "run", {"freeze": 2})
    assert made.config.data.labels == ("a", "b", "c")
    assert made.config.train.base == str(classifier)
    assert (made.path / "tokenizer.json").read_text() == (classifier / "tokenizer.json").read_text()
    before, after = load_file(classifier / "model.safetensors"), load_file(made.path / "model.safetensors")
    assert all(tensor.equal(after[name]) for name, tensor in before.items() if name.startswith("encoder."))
    assert after["head.weight"].shape == (3, 16)
    told = f"{classifier}: 32 tensors taken: encoder.embedding 2, encoder.blocks 28, encoder.norm 2; "
    assert notices(made.path)[-1] == told + "2 tensors new: head 2; 2 tensors left: head 2"


def test_a_hidden_layer_of_the_head_stays_where_it_is_as_wide(files: Files, tmp_path: Path) -> None:
    pooled: Any = {"data": files.rows, "model": MODEL | {"head_hidden": 8}, "train": PACE, **HOW}
    base = train("classify", out=str(tmp_path / "base"), **pooled).path
    made = grown("classify", files.other, base, tmp_path / "other", {"lora_rank": 1})
    assert "2 tensors new: head 2; 2 tensors left" in "".join(notices(made.path)), "scores are of labels, it is not"
    wider = grown("classify", files.rows, base, tmp_path / "wider", model={"head_hidden": 12})
    assert "4 tensors new: head 4; 4 tensors left" in "".join(notices(wider.path)), "the labels are the same here"


def test_the_same_labels_keep_the_head(files: Files, classifier: Path, tmp_path: Path) -> None:
    run = load(classifier, device="cpu")
    fresh = TASKS["classify"].load(run.config, classifier)
    taken = take(fresh, classifier)
    assert not taken.new
    assert not taken.left
    text = ["word3 thing2"]
    assert fresh.predict(text) == run.predict(text)


def test_a_writer_goes_on_from_where_another_stopped(files: Files, writer: Path, tmp_path: Path) -> None:
    before = load(writer, device="cpu").evaluate(files.story)["loss"]
    made = grown("generate", files.story, writer, tmp_path / "run", {"lr": 1e-9})
    assert made.evaluate(files.story)["loss"] == pytest.approx(before, abs=1e-6)
    assert made.config.data.max_len == 16
    assert made.config.model == load(writer, device="cpu").config.model


def test_an_encoder_is_shared_by_a_classifier_and_a_translator(
    files: Files, classifier: Path, tmp_path: Path
) -> None:
    made = grown("translate", files.pairs, classifier, tmp_path / "run")
    assert any("encoder.blocks 28" in text and "tensors new: embedding" in text for text in notices(made.path))
    back = grown("classify", files.rows, made.path, tmp_path / "back")
    assert any("tensors left: " in text and "tensors new: head 2" in text for text in notices(back.path))


def test_two_vocabularies_come_along(files: Files, tmp_path: Path) -> None:
    two = {"shared": False, "kind": "word"}
    first = train(
        "translate", data=files.pairs, model=MODEL, train=PACE, tokenizer=two, out=tmp_path / "one", **HOW
    )
    made = grown("translate", files.pairs, first.path, tmp_path / "two")
    for side in ("source", "target"):
        name = f"tokenizer.{side}.json"
        assert (made.path / name).read_text() == (first.path / name).read_text()
    assert "new" not in notices(made.path)[-1]


def test_fewer_positions_are_taken_and_more_cannot_be(files: Files, writer: Path, tmp_path: Path) -> None:
    made = grown("generate", {"train": files.story, "max_len": 8}, writer, tmp_path / "run")  # type: ignore[arg-type]
    assert made.config.data.max_len == 8
    longer = {"train": files.story, "max_len": 32}
    with pytest.raises(ConfigError, match=r"has learned 16 positions and data\.max_len=32 needs more"):
        grown("generate", longer, writer, tmp_path / "none")  # type: ignore[arg-type]
    assert not (tmp_path / "none").exists()


def test_every_seed_begins_with_the_base(files: Files, classifier: Path, tmp_path: Path) -> None:
    made = train_seeds(
        "classify", 2, data=files.rows, base=classifier, train={**PACE, "lr": 1e-9}, out=tmp_path / "s", **HOW
    )
    before = load_file(classifier / "model.safetensors")
    for folder in made.folders:
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert (tensor - before[name]).abs().max() < 1e-6
    lora = train_seeds(
        "classify", 2, data=files.rows, base=classifier, train={**PACE, "lora_rank": 2}, out=tmp_path / "l", **HOW
    )
    one, two = (load_file(folder / "adapter.safetensors") for folder in lora.folders)
    assert not one["encoder.blocks.0.attention.query.lora_a.weight"].equal(
        two["encoder.blocks.0.attention.query.lora_a.weight"]
    )


def test_a_run_that_has_begun_needs_its_base_no_more(files: Files, classifier: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(classifier, tmp_path / "base"))
    made = grown("classify", files.rows, base, tmp_path / "run", {"lora_rank": 2})
    weights = (made.path / "model.safetensors").read_bytes()
    (made.path / "report.html").unlink()  # so that something is left to do
    shutil.rmtree(base)
    again = grown("classify", files.rows, base, tmp_path / "run", {"lora_rank": 2}, resume=True)
    assert (again.path / "model.safetensors").read_bytes() == weights


def test_the_settings_of_a_run_that_began_with_another_run_again(
    files: Files, classifier: Path, adapted: Path, tmp_path: Path
) -> None:
    again = train("classify", config=adapted / "config.toml", out=str(tmp_path / "again"), **HOW)
    for name in ("config.toml", "model.safetensors", "adapter.safetensors"):
        assert (again.path / name).read_bytes() == (adapted / name).read_bytes(), name


def test_a_run_that_is_replaced_begins_with_the_base_too(files: Files, writer: Path, tmp_path: Path) -> None:
    before = load_file(writer / "model.safetensors")
    for again in (False, True):
        made = grown("generate", files.story, writer, tmp_path / "run", {"lr": 1e-9}, overwrite=again)
        for name, tensor in load_file(made.path / "model.safetensors").items():
            assert (tensor - before[name]).abs().max() < 1e-6, name


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": {"d_model": 32}}, r"leave out model\.d_model: 32 \(the run has 16\)"),
        ({"model": {"n_layers": 3}}, r"leave out model\.n_layers: 3 \(the run has 2\)"),
        ({"tokenizer": {"vocab_size": 99}}, r"leave out tokenizer\.vocab_size: 99 \(the run has \d+\)"),
        ({"tokenizer": {"kind": "char"}}, r"leave out tokenizer\.kind: char \(the run has word\)"),
        ({"tokenizer": {"file": "words.json"}}, r"tokenizer\.file: the vocabulary comes with"),
    ],
)
def test_another_shape_or_vocabulary_is_refused_with_both_values(
    files: Files, classifier: Path, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        grown("classify", files.rows, classifier, tmp_path / "run", **asked)
    assert not (tmp_path / "run").exists()


def test_a_base_that_cannot_be_one(files: Files, classifier: Path, writer: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(
        ConfigError, match="is for generate; classify can begin with a run of classify or translate"
    ):
        grown("classify", files.rows, writer, out)
    with pytest.raises(ConfigError, match=r"train\.base=.*nowhere: no such run folder; give a run, .* hub:"):
        grown("classify", files.rows, tmp_path / "nowhere", out)
    unborn = Path(shutil.copytree(classifier, tmp_path / "unborn"))
    (unborn / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no model yet"):
        grown("classify", files.rows, unborn, out)
    assert not out.exists()
    with pytest.raises(ConfigError, match="a run cannot begin with itself"):
        grown("classify", files.rows, classifier, classifier, overwrite=True)
    assert load(classifier, device="cpu").predict(["word1"])


# -- adapters by themselves


@pytest.fixture(scope="module")
def adapted(files: Files, classifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels of its own, so that a head travels too."""
    out = tmp_path_factory.mktemp("adapted") / "run"
    return grown("classify", files.other, classifier, out, {"lora_rank": 2, "lr": 0.05}).path


def test_base_and_adapter_are_the_run_bit_for_bit(classifier: Path, adapted: Path) -> None:
    whole = load(adapted, device="cpu", precision="fp32")
    parts = load(classifier, device="cpu", precision="fp32", adapter=adapted / "adapter.safetensors")
    assert parts.config == whole.config
    for one, two in zip(parts.task.model.parameters(), whole.task.model.parameters(), strict=True):
        assert one.equal(two)
    texts = ["word3 thing2", "word9"]
    assert parts.predict(texts) == whole.predict(texts)
    rough = load(classifier, device="cpu", precision="bf16", adapter=adapted / "adapter.safetensors")
    assert rough.explain("word3 thing2").probabilities == whole.explain("word3 thing2").probabilities


def test_an_adapter_of_a_writer_is_small(files: Files, writer: Path, tmp_path: Path) -> None:
    made = grown("generate", files.story, writer, tmp_path / "run", {"lora_rank": 1, "lora_layers": "attention"})
    tensors = load_file(made.path / "adapter.safetensors")
    assert all(".attention." in name and ".lora_" in name for name in tensors)
    whole = sum(tensor.numel() for tensor in load_file(made.path / "model.safetensors").values())
    assert sum(tensor.numel() for tensor in tensors.values()) < whole / 15
    parts = load(writer, device="cpu", adapter=made.path / "adapter.safetensors")
    assert parts.evaluate(files.story) == made.evaluate(files.story)


def test_an_adapter_for_another_base_is_one_clear_error(
    files: Files, classifier: Path, writer: Path, adapted: Path, tmp_path: Path
) -> None:
    file = adapted / "adapter.safetensors"
    with pytest.raises(CheckpointError, match=r"is an adapter for another base: .* is for generate"):
        load(writer, device="cpu", adapter=file)
    twin = train("classify", data=files.rows, model=MODEL, train=PACE, seed=1, out=str(tmp_path / "twin"), **HOW)
    with pytest.raises(CheckpointError, match="another base: the base model's weights do not match the adapter"):
        load(twin.path, device="cpu", adapter=file)
    wide = {**MODEL, "d_model": 32}
    wider = train("classify", data=files.rows, model=wide, train=PACE, out=str(tmp_path / "wide"), **HOW)
    with pytest.raises(
        CheckpointError, match=r"for another base: .* is \(\d+, 32\) there, and \(\d+, 16\) is needed"
    ):
        load(wider.path, device="cpu", adapter=file)


def test_what_is_no_adapter_is_not_read(classifier: Path, adapted: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file; an adapter is"):
        read_adapter(tmp_path / "none")
    with pytest.raises(CheckpointError, match="is not an adapter"):
        load(classifier, device="cpu", adapter=classifier / "model.safetensors")
    whole = (adapted / "adapter.safetensors").read_bytes()
    cut = tmp_path / "cut.safetensors"
    for size in (5, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="is damaged"):
            load(classifier, device="cpu", adapter=cut)
    newer = json.dumps({"format": 99, "triform": "9.0.0"})
    save_file(load_file(adapted / "adapter.safetensors"), cut, {KEY: newer})
    with pytest.raises(CheckpointError, match=r"was made by Triform 9\.0\.0"):
        read_adapter(cut)
