"""Runs trained here on built-in data, written for other engines, loaded there: the same answers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import ctranslate2
import onnxruntime
import pytest
import torch
import transformers
from published import apart, run_readme
from typer.testing import CliRunner

import triform
from triform.cli.main import app
from triform.nn.rows import pad
from triform.pretrained import export
from triform.pretrained.for_onnx import OUTPUT
from triform.run import Run

HARD = [
    *("", " ", "\n", "a  b   c ", "\tx\r\n\r\n", "I'll THEY'RE 12345", "🙂👩‍👩‍👧 猫が עברית", "\x00\x85\ufeff"),
    *("<pad><unk> <bos> a <eos>", "x" * 300, " leading", "e\u0301 ﬁ ß"),
]
SHAPE = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
PACE = {"max_steps": 30, "eval_every": 1000, "lr": 0.01}
FITTING: dict[str, dict[str, Any]] = {
    "generate": {"head_bias": False},
    "classify": {
        "norm_position": "post", "final_norm": False, "embedding_norm": True, "segments": 1, "pooling": "first",
        "head_hidden": 16, "head_activation": "tanh",
    },
    "translate": {"positions": "sinusoidal_halves", "norm_position": "post", "final_norm": False},
}  # fmt: skip
REVIEWS = ["A wonderful film.", "bad", "the story was dull, and the acting worse than that: a waste of an evening"]
NUMBERS = ["one hundred and two", "seven", "four thousand and ninety-nine"]


def trained(task: Any, out: Path, model: dict[str, Any] | None = None, pace: dict[str, Any] = PACE) -> Run:
    size = {} if task == "classify" else {"tokenizer": {"vocab_size": 300}}
    return triform.train(
        task, out=out, device="cpu", quiet=True, data={"max_len": 32, "valid_fraction": 0.0},
        model=SHAPE | (FITTING[task] if model is None else model), train=pace, decode={"max_new_tokens": 8}, **size,
    )  # fmt: skip


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained("generate", tmp_path_factory.mktemp("runs") / "writer")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained("classify", tmp_path_factory.mktemp("runs") / "judge")


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained("translate", tmp_path_factory.mktemp("runs") / "interpreter")


def exported(run: Run, to: str, out: Path) -> Path:
    answer = CliRunner().invoke(app, ["convert", "export", str(run.path), "--to", to, "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    assert "its README.md shows how to load it" in answer.output
    return out


def opened(kind: str, folder: Path) -> tuple[Any, Any]:
    """Their model and tokenizer; nothing was missing from the file, and nothing left over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, notes = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
        spoken = transformers.AutoTokenizer.from_pretrained(folder)
    assert not {name for name in notes["missing_keys"] if "embed_positions" not in name}
    assert not notes["unexpected_keys"]
    return model.eval(), spoken


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("generate", "GPT2LMHeadModel"),
        ("classify", "MegatronBertForTokenClassification"),
        ("translate", "BlenderbotForConditionalGeneration"),
    ],
)
def test_a_run_with_default_settings_is_a_model_of_transformers(task: str, kind: str, tmp_path: Path) -> None:
    """Only the sizes are not the default ones."""
    run = trained(task, tmp_path / "run", {}, PACE | {"max_steps": 3})
    folder = exported(run, "hf", tmp_path / "out")
    theirs, spoken = opened(kind, folder)
    source, target = torch.tensor([[40, 50, 60, 70, 80]]), torch.tensor([[2, 41, 51]])
    with torch.no_grad():
        if task == "translate":
            found, wanted = theirs(source, decoder_input_ids=target).logits, run.task.model(source, target)
        elif task == "generate":
            found, wanted = theirs(source).logits, run.task.model(source)
        else:
            given = spoken(REVIEWS, padding=True, return_tensors="pt")
            real = given["attention_mask"][:, :, None]
            found = (theirs(**given).logits * real).sum(1) / real.sum(1)
            wanted = run.task.model(given["input_ids"], given["attention_mask"] != 0)
    assert apart(found, wanted) < 1e-5
    back = tmp_path / "back"
    answer = CliRunner().invoke(app, ["convert", "import", str(folder), "--out", str(back)])
    assert answer.exit_code == 0, answer.output
    again = triform.load(back, device="cpu").task.model
    with torch.no_grad():
        assert (
            apart(
                again(source, target) if task == "translate" else again(source),
                run.task.model(*([source, target] if task == "translate" else [source])),
            )
            < 1e-5
        )


def test_a_decoder_is_a_gpt2_for_transformers(writer: Run, tmp_path: Path) -> None:
    folder = exported(writer, "hf", tmp_path / "out")
    theirs, spoken = opened("AutoModelForCausalLM", folder)
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    for text in HARD:
        assert spoken(text)["input_ids"] == writer.task.tokenizer.encode(text), ascii(text)
    tokens = torch.tensor([writer.task.tokenizer.encode("the king and the queen of the land")])
    with torch.no_grad():
        assert apart(writer.task.model(tokens), theirs(tokens).logits) < 1e-5
    prompts = ["the", "one day a king and his"]
    given = spoken(prompts, padding=True, return_tensors="pt")
    assert set(given) == {"input_ids", "attention_mask"}
    with torch.no_grad():
        written = theirs.generate(**given, max_new_tokens=8, max_length=None)
    mine = [one.input + one.output for one in writer.predict(prompts, strategy="greedy", max_new_tokens=8)]
    assert spoken.batch_decode(written, skip_special_tokens=True) == mine
    n_prompt = len(writer.task.tokenizer.encode("the"))
    whole = writer.predict(["the"], strategy="greedy", max_new_tokens=32 - n_prompt)[0]
    assert run_readme(folder) == whole.input + whole.output


def test_a_decoder_writes_the_same_in_ctranslate2(writer: Run, tmp_path: Path) -> None:
    folder = exported(writer, "ctranslate2", tmp_path / "out")
    spoken, never = writer.task.tokenizer, [[writer.task.tokenizer.vocabulary[token]] for token in (0, 1, 2)]
    theirs = ctranslate2.Generator(str(folder), intra_threads=1)
    prompts = ["the", "one day a king and his", "and"]
    pieces = [[spoken.vocabulary[token] for token in row] for row in spoken.encode_batch(prompts)]
    answers = theirs.generate_batch(
        pieces, max_length=8, sampling_topk=1, include_prompt_in_result=False, suppress_sequences=never
    )
    mine = [one.output for one in writer.predict(prompts, strategy="greedy", max_new_tokens=8)]
    assert [spoken.decode(answer.sequences_ids[0]) for answer in answers] == mine
    whole = writer.predict(["the"], strategy="greedy", max_new_tokens=32 - len(pieces[0]))[0]
    assert run_readme(folder) == whole.input + whole.output


def test_a_classifier_is_a_bert_for_transformers(judge: Run, tmp_path: Path) -> None:
    folder = exported(judge, "hf", tmp_path / "out")
    theirs, spoken = opened("AutoModelForSequenceClassification", folder)
    assert type(theirs).__name__ == "BertForSequenceClassification"
    assert tuple(theirs.config.id2label.values()) == judge.config.data.labels
    for text in HARD:
        assert spoken(text)["input_ids"] == judge.task.tokenizer.encode(text), ascii(text)
    with torch.no_grad():
        wanted = theirs(**spoken(REVIEWS, padding=True, return_tensors="pt")).logits.softmax(-1)
    for row, mine in zip(wanted, judge.predict(REVIEWS), strict=True):
        assert mine.probabilities is not None
        assert apart(torch.tensor([*mine.probabilities.values()]), row) < 1e-5
    assert run_readme(folder) == judge.predict(["A wonderful film."])[0].output


def test_a_classifier_says_the_same_in_onnxruntime(judge: Run, tmp_path: Path) -> None:
    folder = exported(judge, "onnx", tmp_path / "out")
    theirs = onnxruntime.InferenceSession(folder / "model.onnx")
    rows = judge.task.tokenizer.encode_batch([*REVIEWS, "the " * 40])
    for some in (rows[:1], rows[1:2], rows[:3], [row[:32] for row in rows]):
        tokens, keep = pad(some)
        keep = torch.ones_like(tokens, dtype=torch.bool) if keep is None else keep
        with torch.no_grad():
            wanted = judge.task.model(tokens, keep)
        given = {"input_ids": tokens.numpy(), "attention_mask": keep.long().numpy()}
        assert apart(torch.from_numpy(theirs.run([OUTPUT], given)[0]), wanted) < 1e-5
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert tuple(told["id2label"].values()) == judge.config.data.labels
    assert run_readme(folder) == judge.predict(["A wonderful film."])[0].output


def test_a_translator_is_a_marian_for_transformers(interpreter: Run, tmp_path: Path) -> None:
    folder = exported(interpreter, "hf", tmp_path / "out")
    theirs, spoken = opened("AutoModelForSeq2SeqLM", folder)
    assert type(theirs).__name__ == "MarianMTModel"
    for text in HARD:
        assert spoken(text)["input_ids"] == interpreter.task.source.encode(text), ascii(text)
    source, target = torch.tensor([[40, 50, 60, 70]]), torch.tensor([[2, 41, 51]])
    with torch.no_grad():
        wanted = theirs(input_ids=source, decoder_input_ids=target).logits
        assert apart(interpreter.task.model(source, target), wanted) < 1e-5
        given = spoken(NUMBERS, padding=True, return_tensors="pt")
        written = theirs.generate(**given, max_new_tokens=8, max_length=None)
    mine = [one.output for one in interpreter.predict(NUMBERS, strategy="greedy")]
    assert spoken.batch_decode(written, skip_special_tokens=True) == mine
    whole = interpreter.predict(NUMBERS[:1], strategy="greedy", max_new_tokens=31)
    assert run_readme(folder) == whole[0].output


def test_a_translator_writes_the_same_in_ctranslate2(interpreter: Run, tmp_path: Path) -> None:
    folder = exported(interpreter, "ctranslate2", tmp_path / "out")
    spoken = interpreter.task.source
    pieces = [[spoken.vocabulary[token] for token in row] for row in spoken.encode_batch(NUMBERS)]
    theirs = ctranslate2.Translator(str(folder), intra_threads=1)
    never = [[spoken.vocabulary[token]] for token in spoken.never_written]
    answers = theirs.translate_batch(
        pieces, beam_size=1, min_decoding_length=0, max_decoding_length=8, suppress_sequences=never
    )
    wrote = [[spoken.vocabulary.index(piece) for piece in answer.hypotheses[0]] for answer in answers]
    assert [spoken.decode(row) for row in wrote] == [
        one.output for one in interpreter.predict(NUMBERS, strategy="greedy")
    ]
    assert run_readme(folder)


def test_a_lora_run_leaves_merged_and_so_does_its_base_with_the_adapter(judge: Run, tmp_path: Path) -> None:
    tuned = triform.train(
        "classify", base=str(judge.path), out=tmp_path / "tuned", device="cpu", quiet=True,
        data={"valid_fraction": 0.0}, train={"max_steps": 3, "eval_every": 1000, "lora_rank": 2, "lr": 0.05},
    )  # fmt: skip
    folder = exported(tuned, "hf", tmp_path / "out")
    theirs, _ = opened("AutoModelForSequenceClassification", folder)
    tokens = torch.tensor([[5, 9, 14, 30]])
    with torch.no_grad():
        found = theirs(tokens).logits
        assert apart(tuned.task.model(tokens), found) < 1e-5
        assert apart(judge.task.model(tokens), found) > 1e-3
    adapter = ["--adapter", str(tuned.path / "adapter.safetensors")]
    command = ["convert", "export", str(judge.path), "--to", "hf", "--out", str(tmp_path / "again"), *adapter]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize(("to", "file"), [("hf", "model.safetensors"), ("ctranslate2", "model.bin")])
def test_the_stored_weights_are_exported_whatever_precision_a_run_was_opened_with(
    to: str, file: str, precision: str, writer: Run, tmp_path: Path
) -> None:
    rounded = triform.load(writer.path, device="cpu", precision=precision)
    for run, name in ((writer, "exact"), (rounded, "rounded")):
        run.export(to, tmp_path / name)
    assert (tmp_path / "exact" / file).read_bytes() == (tmp_path / "rounded" / file).read_bytes()
    with pytest.raises(triform.TriformError, match=r"opened in bf16 or int8; export the stored weights"):
        export(rounded.task, to, tmp_path / "out")


def test_the_stored_weights_are_written_for_onnx_too(
    judge: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[torch.nn.Module] = []
    monkeypatch.setattr("triform.pretrained.exported.write_onnx", lambda model, *rest: written.append(model))
    triform.load(judge.path, device="cpu", precision="bf16").export("onnx", tmp_path / "out")
    for mine, theirs in zip(judge.task.model.parameters(), written[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_what_was_exported_comes_back_as_it_was(writer: Run, tmp_path: Path) -> None:
    folder = exported(writer, "hf", tmp_path / "out")
    command = ["convert", "import", str(folder), "--out", str(tmp_path / "back")]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0, answer.output
    back = triform.load(tmp_path / "back", device="cpu")
    prompts = ["the", "one day a king and his"]
    mine, again = (run.predict(prompts, strategy="greedy", max_new_tokens=8) for run in (writer, back))
    assert [one.output for one in mine] == [one.output for one in again]
    tokens = torch.tensor([[40, 50, 60]])
    with torch.no_grad():
        assert torch.equal(back.task.model(tokens), writer.task.model(tokens))


def test_an_export_that_fails_leaves_nothing(
    writer: Run, judge: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, to, words in (
        (writer, "onnx", "onnx is written for classifiers; export what writes text to hf or ctranslate2"),
        (judge, "ctranslate2", "ctranslate2 has no classifiers; export this run to onnx or hf"),
        (writer, "tensorrt", "--to tensorrt: known are hf, ctranslate2, onnx"),
    ):
        with pytest.raises(triform.TriformError, match=words):
            export(run.task, to, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").touch()
    with pytest.raises(triform.TriformError, match="is there already"):
        export(writer.task, "hf", tmp_path / "full")
    (tmp_path / "full/mine.txt").unlink()
    monkeypatch.chdir(tmp_path / "full")
    with pytest.raises(triform.TriformError, match="is there already"):
        export(writer.task, "hf", Path())
    assert [path.name for path in tmp_path.rglob("*")] == ["full"]
