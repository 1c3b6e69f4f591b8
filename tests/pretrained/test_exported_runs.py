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
from published import relative_difference, run_readme
from typer.testing import CliRunner

import triform
from triform.cli.main import app
from triform.nn.layouts import pad
from triform.pretrained import export
from triform.pretrained.onnx_export import OUTPUT_NAME
from triform.run import Run

HARD_TEXTS = [
    *("", " ", "\n", "a  b   c ", "\tx\r\n\r\n", "I'll THEY'RE 12345", "🙂👩‍👩‍👧 猫が עברית", "\x00\x85\ufeff"),
    *("<pad><unk> <bos> a <eos>", "x" * 300, " leading", "e\u0301 ﬁ ß"),
]
MODEL_SIZE = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
TRAIN_SETTINGS = {"max_steps": 30, "eval_every": 1000, "lr": 0.01}
MATCHING_SETTINGS: dict[str, dict[str, Any]] = {
    "generate": {"head_bias": False},
    "classify": {
        "norm_position": "post", "final_norm": False, "embedding_norm": True, "n_segments": 1, "pooling": "first",
        "head_hidden": 16, "head_activation": "tanh",
    },
    "translate": {"positions": "sinusoidal_halves", "norm_position": "post", "final_norm": False},
}  # fmt: skip
REVIEWS = ["A wonderful film.", "bad", "the story was dull, and the acting worse than that: a waste of an evening"]
NUMBERS = ["one hundred and two", "seven", "four thousand and ninety-nine"]


def train_run(
    task: Any, out: Path, model: dict[str, Any] | None = None, train_settings: dict[str, Any] = TRAIN_SETTINGS
) -> Run:
    extra = {} if task == "classify" else {"tokenizer": {"vocab_size": 300}}
    return triform.train(
        task,
        out=out,
        device="cpu",
        quiet=True,
        data={"max_len": 32, "valid_fraction": 0.0},
        model=MODEL_SIZE | (MATCHING_SETTINGS[task] if model is None else model),
        train=train_settings,
        decode={"max_new_tokens": 8},
        **extra,
    )


@pytest.fixture(scope="module")
def generator_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run("generate", tmp_path_factory.mktemp("runs") / "writer")


@pytest.fixture(scope="module")
def classifier_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run("classify", tmp_path_factory.mktemp("runs") / "judge")


@pytest.fixture(scope="module")
def translator_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run("translate", tmp_path_factory.mktemp("runs") / "interpreter")


def export_with_cli(run: Run, export_format: str, out: Path) -> Path:
    result = CliRunner().invoke(app, ["convert", "export", str(run.path), "--to", export_format, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "see its README.md for how to load it" in result.output
    return out


def load_with_transformers(class_name: str, folder: Path) -> tuple[Any, Any]:
    """Their model and tokenizer; nothing was missing from the file, and nothing left over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, loading_info = getattr(transformers, class_name).from_pretrained(folder, output_loading_info=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert not {name for name in loading_info["missing_keys"] if "embed_positions" not in name}
    assert not loading_info["unexpected_keys"]
    return model.eval(), tokenizer


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
    run = train_run(task, tmp_path / "run", {}, TRAIN_SETTINGS | {"max_steps": 3})
    folder = export_with_cli(run, "hf", tmp_path / "out")
    reference, tokenizer = load_with_transformers(kind, folder)
    source, target = torch.tensor([[40, 50, 60, 70, 80]]), torch.tensor([[2, 41, 51]])
    with torch.no_grad():
        if task == "translate":
            actual, expected = reference(source, decoder_input_ids=target).logits, run.task.model(source, target)
        elif task == "generate":
            actual, expected = reference(source).logits, run.task.model(source)
        else:
            inputs = tokenizer(REVIEWS, padding=True, return_tensors="pt")
            mask = inputs["attention_mask"][:, :, None]
            actual = (reference(**inputs).logits * mask).sum(1) / mask.sum(1)
            expected = run.task.model(inputs["input_ids"], inputs["attention_mask"] != 0)
    assert relative_difference(actual, expected) < 1e-5
    imported_folder = tmp_path / "back"
    result = CliRunner().invoke(app, ["convert", "import", str(folder), "--out", str(imported_folder)])
    assert result.exit_code == 0, result.output
    imported_model = triform.load(imported_folder, device="cpu").task.model
    with torch.no_grad():
        assert (
            relative_difference(
                imported_model(source, target) if task == "translate" else imported_model(source),
                run.task.model(*([source, target] if task == "translate" else [source])),
            )
            < 1e-5
        )


def test_a_decoder_is_a_gpt2_for_transformers(generator_run: Run, tmp_path: Path) -> None:
    folder = export_with_cli(generator_run, "hf", tmp_path / "out")
    reference, tokenizer = load_with_transformers("AutoModelForCausalLM", folder)
    assert type(reference).__name__ == "GPT2LMHeadModel"
    for text in HARD_TEXTS:
        assert tokenizer(text)["input_ids"] == generator_run.task.tokenizer.encode(text), ascii(text)
    tokens = torch.tensor([generator_run.task.tokenizer.encode("the king and the queen of the land")])
    with torch.no_grad():
        assert relative_difference(generator_run.task.model(tokens), reference(tokens).logits) < 1e-5
    prompts = ["the", "one day a king and his"]
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    assert set(inputs) == {"input_ids", "attention_mask"}
    with torch.no_grad():
        generated = reference.generate(**inputs, max_new_tokens=8, max_length=None)
    expected = [
        prediction.input + prediction.output
        for prediction in generator_run.predict(prompts, strategy="greedy", max_new_tokens=8)
    ]
    assert tokenizer.batch_decode(generated, skip_special_tokens=True) == expected
    n_prompt = len(generator_run.task.tokenizer.encode("the"))
    full_prediction = generator_run.predict(["the"], strategy="greedy", max_new_tokens=32 - n_prompt)[0]
    assert run_readme(folder) == full_prediction.input + full_prediction.output


def test_a_decoder_writes_the_same_in_ctranslate2(generator_run: Run, tmp_path: Path) -> None:
    folder = export_with_cli(generator_run, "ctranslate2", tmp_path / "out")
    tokenizer, suppressed = (
        generator_run.task.tokenizer,
        [[generator_run.task.tokenizer.vocabulary[token]] for token in (0, 1, 2)],
    )
    engine = ctranslate2.Generator(str(folder), intra_threads=1)
    prompts = ["the", "one day a king and his", "and"]
    pieces = [[tokenizer.vocabulary[token] for token in row] for row in tokenizer.encode_batch(prompts)]
    results = engine.generate_batch(
        pieces, max_length=8, sampling_topk=1, include_prompt_in_result=False, suppress_sequences=suppressed
    )
    expected = [
        prediction.output for prediction in generator_run.predict(prompts, strategy="greedy", max_new_tokens=8)
    ]
    assert [tokenizer.decode(result.sequences_ids[0]) for result in results] == expected
    full_prediction = generator_run.predict(["the"], strategy="greedy", max_new_tokens=32 - len(pieces[0]))[0]
    assert run_readme(folder) == full_prediction.input + full_prediction.output


def test_a_classifier_is_a_bert_for_transformers(classifier_run: Run, tmp_path: Path) -> None:
    folder = export_with_cli(classifier_run, "hf", tmp_path / "out")
    reference, tokenizer = load_with_transformers("AutoModelForSequenceClassification", folder)
    assert type(reference).__name__ == "BertForSequenceClassification"
    assert tuple(reference.config.id2label.values()) == classifier_run.config.data.labels
    for text in HARD_TEXTS:
        assert tokenizer(text)["input_ids"] == classifier_run.task.tokenizer.encode(text), ascii(text)
    with torch.no_grad():
        expected = reference(**tokenizer(REVIEWS, padding=True, return_tensors="pt")).logits.softmax(-1)
    for row, prediction in zip(expected, classifier_run.predict(REVIEWS), strict=True):
        assert prediction.probabilities is not None
        assert relative_difference(torch.tensor([*prediction.probabilities.values()]), row) < 1e-5
    assert run_readme(folder) == classifier_run.predict(["A wonderful film."])[0].output


@pytest.mark.parametrize("has_linear_part", [False, True])
def test_a_classifier_says_the_same_in_onnxruntime(
    classifier_run: Run, tmp_path: Path, has_linear_part: bool
) -> None:
    if has_linear_part:
        classifier_run = train_run("classify", tmp_path / "run", {"term_buckets": 2**12})
    folder = export_with_cli(classifier_run, "onnx", tmp_path / "out")
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    rows = classifier_run.task.tokenizer.encode_batch([*REVIEWS, "the " * 40])
    for batch in (rows[:1], rows[1:2], rows[:3], [row[:32] for row in rows]):
        tokens, keep = pad(batch)
        keep = torch.ones_like(tokens, dtype=torch.bool) if keep is None else keep
        with torch.no_grad():
            expected = classifier_run.task.model(tokens, keep)
        inputs = {"input_ids": tokens.numpy(), "attention_mask": keep.long().numpy()}
        assert relative_difference(torch.from_numpy(session.run([OUTPUT_NAME], inputs)[0]), expected) < 1e-5
    exported_config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert tuple(exported_config["id2label"].values()) == classifier_run.config.data.labels
    assert run_readme(folder) == classifier_run.predict(["A wonderful film."])[0].output


def test_the_card_of_an_ensemble_has_no_metrics_of_a_single_model(classifier_run: Run, tmp_path: Path) -> None:
    for name, run in (("one", classifier_run), ("two", triform.load([str(classifier_run.path)] * 2, device="cpu"))):
        run.export("onnx", tmp_path / name)
        assert ("## Metrics" in (tmp_path / name / "README.md").read_text(encoding="utf-8")) == (name == "one")


def test_a_translator_is_a_marian_for_transformers(translator_run: Run, tmp_path: Path) -> None:
    folder = export_with_cli(translator_run, "hf", tmp_path / "out")
    reference, tokenizer = load_with_transformers("AutoModelForSeq2SeqLM", folder)
    assert type(reference).__name__ == "MarianMTModel"
    for text in HARD_TEXTS:
        assert tokenizer(text)["input_ids"] == translator_run.task.source_tokenizer.encode(text), ascii(text)
    source, target = torch.tensor([[40, 50, 60, 70]]), torch.tensor([[2, 41, 51]])
    with torch.no_grad():
        expected_logits = reference(input_ids=source, decoder_input_ids=target).logits
        assert relative_difference(translator_run.task.model(source, target), expected_logits) < 1e-5
        inputs = tokenizer(NUMBERS, padding=True, return_tensors="pt")
        generated = reference.generate(**inputs, max_new_tokens=8, max_length=None)
    expected = [prediction.output for prediction in translator_run.predict(NUMBERS, strategy="greedy")]
    assert tokenizer.batch_decode(generated, skip_special_tokens=True) == expected
    full_prediction = translator_run.predict(NUMBERS[:1], strategy="greedy", max_new_tokens=31)
    assert run_readme(folder) == full_prediction[0].output


def test_a_translator_writes_the_same_in_ctranslate2(translator_run: Run, tmp_path: Path) -> None:
    folder = export_with_cli(translator_run, "ctranslate2", tmp_path / "out")
    tokenizer = translator_run.task.source_tokenizer
    pieces = [[tokenizer.vocabulary[token] for token in row] for row in tokenizer.encode_batch(NUMBERS)]
    engine = ctranslate2.Translator(str(folder), intra_threads=1)
    suppressed = [[tokenizer.vocabulary[token]] for token in tokenizer.banned_tokens]
    results = engine.translate_batch(
        pieces, beam_size=1, min_decoding_length=0, max_decoding_length=8, suppress_sequences=suppressed
    )
    generated_ids = [[tokenizer.vocabulary.index(piece) for piece in result.hypotheses[0]] for result in results]
    assert [tokenizer.decode(row) for row in generated_ids] == [
        prediction.output for prediction in translator_run.predict(NUMBERS, strategy="greedy")
    ]
    assert run_readme(folder)


def test_a_lora_run_leaves_merged_and_so_does_its_base_with_the_adapter(
    classifier_run: Run, tmp_path: Path
) -> None:
    tuned = triform.train(
        "classify", init_from=str(classifier_run.path), out=tmp_path / "tuned", device="cpu", quiet=True,
        data={"valid_fraction": 0.0}, train={"max_steps": 3, "eval_every": 1000, "lora_rank": 2, "lr": 0.05},
    )  # fmt: skip
    folder = export_with_cli(tuned, "hf", tmp_path / "out")
    reference, _ = load_with_transformers("AutoModelForSequenceClassification", folder)
    tokens = torch.tensor([[5, 9, 14, 30]])
    with torch.no_grad():
        expected = reference(tokens).logits
        assert relative_difference(tuned.task.model(tokens), expected) < 1e-5
        assert relative_difference(classifier_run.task.model(tokens), expected) > 1e-3
    adapter = ["--adapter", str(tuned.path / "adapter.safetensors")]
    command = [
        "convert",
        "export",
        str(classifier_run.path),
        "--to",
        "hf",
        "--out",
        str(tmp_path / "again"),
        *adapter,
    ]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize(("to", "file"), [("hf", "model.safetensors"), ("ctranslate2", "model.bin")])
def test_the_stored_weights_are_exported_whatever_precision_a_run_was_opened_with(
    to: str, file: str, precision: str, generator_run: Run, tmp_path: Path
) -> None:
    low_precision_run = triform.load(generator_run.path, device="cpu", precision=precision)
    for run, name in ((generator_run, "exact"), (low_precision_run, "rounded")):
        run.export(to, tmp_path / name)
    assert (tmp_path / "exact" / file).read_bytes() == (tmp_path / "rounded" / file).read_bytes()
    with pytest.raises(triform.TriformError, match=r"opened in bf16 or int8; use Run.export"):
        export(low_precision_run.task, to, tmp_path / "out")


def test_the_stored_weights_are_written_for_onnx_too(
    classifier_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported_models: list[torch.nn.Module] = []
    monkeypatch.setattr(
        "triform.pretrained.run_export.write_onnx", lambda model, *rest: exported_models.append(model)
    )
    triform.load(classifier_run.path, device="cpu", precision="bf16").export("onnx", tmp_path / "out")
    for stored, exported_parameter in zip(
        classifier_run.task.model.parameters(), exported_models[0].parameters(), strict=True
    ):
        assert torch.equal(stored, exported_parameter)


def test_what_was_exported_comes_back_as_it_was(generator_run: Run, tmp_path: Path) -> None:
    folder = export_with_cli(generator_run, "hf", tmp_path / "out")
    command = ["convert", "import", str(folder), "--out", str(tmp_path / "back")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    imported_run = triform.load(tmp_path / "back", device="cpu")
    prompts = ["the", "one day a king and his"]
    expected, actual = (
        run.predict(prompts, strategy="greedy", max_new_tokens=8) for run in (generator_run, imported_run)
    )
    assert [prediction.output for prediction in expected] == [prediction.output for prediction in actual]
    tokens = torch.tensor([[40, 50, 60]])
    with torch.no_grad():
        assert torch.equal(imported_run.task.model(tokens), generator_run.task.model(tokens))


def test_an_export_that_fails_leaves_nothing(
    generator_run: Run, classifier_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, to, words in (
        (generator_run, "onnx", "onnx supports only classifiers; use --to hf or --to ctranslate2"),
        (classifier_run, "ctranslate2", "ctranslate2 does not support classifiers; use --to onnx or --to hf"),
        (generator_run, "tensorrt", "unknown --to .tensorrt.; choose from hf, ctranslate2, onnx"),
    ):
        with pytest.raises(triform.TriformError, match=words):
            export(run.task, to, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").touch()
    with pytest.raises(triform.TriformError, match="already exists"):
        export(generator_run.task, "hf", tmp_path / "full")
    (tmp_path / "full/mine.txt").unlink()
    monkeypatch.chdir(tmp_path / "full")
    with pytest.raises(triform.TriformError, match="already exists"):
        export(generator_run.task, "hf", Path())
    assert [path.name for path in tmp_path.rglob("*")] == ["full"]
