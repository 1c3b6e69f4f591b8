"""Run folders go both ways: NumPy opens what torch trained, torch what NumPy trained, and both say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triform
from triform import scratch
from triform.config import Config, DataConfig, DecodeConfig, ModelConfig, TokenizerConfig, TrainConfig
from triform.errors import CheckpointError

MODEL_SETTINGS = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32}
WORDS = ["the soup was cold", "a warm and good meal", "good good good", "cold, cold and bad", "a bad day"]
LABELS = ["bad", "good", "good", "bad", "bad"]
ESTIMATORS: dict[str, Any] = {
    "classify": scratch.TextClassifier,
    "generate": scratch.LanguageModel,
    "translate": scratch.Translator,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of each task that the torch side trained a little."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "rows.tsv").write_text(
        "".join(f"{label}\t{text} {n}\n" for n in range(9) for label, text in zip(LABELS, WORDS, strict=True))
    )
    (folder / "text.txt").write_text("".join(f"{text} {n}.\n" for n in range(30) for text in WORDS))
    (folder / "pairs.tsv").write_text(
        "".join(f"{text} {n}\t{n} {text.upper()}!\n" for n in range(9) for text in WORDS)
    )
    data_files = {"classify": "rows.tsv", "generate": "text.txt", "translate": "pairs.tsv"}
    tokenizer_settings = {"translate": {"kind": "word", "joint_vocab": False}, "generate": {"kind": "char"}}
    return {
        task: triform.train(
            task,
            out=folder / task,
            data={"train": str(folder / name), "header": "no", "max_len": 24},
            tokenizer=tokenizer_settings.get(task, {}),
            model=MODEL_SETTINGS,
            train={"max_steps": 30, "batch_size": 8},
            device="cpu",
            quiet=True,
        )
        for task, name in data_files.items()
    }


def to_float64(model: Any) -> Any:
    """A run or a NumPy model that computes in float64: what it writes does not hang on a near tie."""
    if isinstance(model, triform.Run):
        model.task.model.double()
    else:
        for parameter in model.model.named_parameters().values():
            parameter.value = parameter.value.astype(np.float64)
    return model


TEXTS = [*WORDS, "good", "", "an unknown and cold word " * 9]


def test_a_classifier_gives_the_labels_and_probabilities_of_torch(runs: dict[str, Any]) -> None:
    model = to_float64(scratch.load(runs["classify"].path))
    expected = to_float64(runs["classify"]).predict(TEXTS)
    assert model.predict(TEXTS) == [prediction.output for prediction in expected]
    probabilities = [[prediction.probabilities[label] for label in model.labels] for prediction in expected]
    np.testing.assert_allclose(model.predict_proba(TEXTS), probabilities, atol=1e-5)


@pytest.mark.parametrize(
    "decode_settings",
    [{}, {"strategy": "greedy"}, {"top_k": 5}, {"top_p": 0.7, "temperature": 1.3}, {"beam_size": 3}],
    ids=str,
)
def test_a_language_model_writes_what_torch_writes_even_by_chance(
    runs: dict[str, Any], decode_settings: dict[str, Any]
) -> None:
    model = to_float64(scratch.load(runs["generate"].path))
    strategy = {"beam_size": "beam", "top_k": "sample", "top_p": "sample"}
    settings = {
        "strategy": next((strategy[name] for name in decode_settings if name in strategy), "auto")
    } | decode_settings
    prompts = ["the soup", "", "a warm and good meal 12.\na ba"]  # the last fills the context, and goes on
    expected = to_float64(runs["generate"]).predict(prompts, seed=5, max_new_tokens=40, **decode_settings)
    outputs = model.generate(prompts, DecodeConfig(**settings, max_new_tokens=40), seed=5)
    assert outputs == [prediction.output for prediction in expected]
    with pytest.raises(triform.ConfigError, match=r"decode\.mix=\['ngram'\] is not supported by triform\.scratch"):
        model.generate(prompts, DecodeConfig(mix=("ngram",)))


@pytest.mark.parametrize(
    "decode_settings", [{}, {"strategy": "greedy"}, {"beam_size": 2, "length_penalty": 0.0}], ids=str
)
def test_a_translator_with_two_vocabularies_writes_what_torch_writes(
    runs: dict[str, Any], decode_settings: dict[str, Any]
) -> None:
    model = to_float64(scratch.load(runs["translate"].path))
    assert model.target_tokenizer.vocab_size != model.tokenizer.vocab_size
    expected = to_float64(runs["translate"]).predict(TEXTS, **decode_settings)
    assert model.translate(TEXTS, DecodeConfig(**decode_settings)) == [prediction.output for prediction in expected]


def build_estimator(task: str, **tokenizer: Any) -> Any:
    model, train = ModelConfig(**MODEL_SETTINGS), TrainConfig(max_steps=20, batch_size=4)
    return ESTIMATORS[task](
        Config(
            model=model,
            train=train,
            tokenizer=TokenizerConfig(**{"kind": "word"} | tokenizer),
            data=DataConfig(max_len=0 if task != "generate" else 8),
        )
    )


def test_torch_opens_what_was_learned_without_it(tmp_path: Path) -> None:
    classifier = build_estimator("classify").fit(WORDS, LABELS)
    classifier.save(tmp_path / "c")
    assert [prediction.output for prediction in to_float64(triform.load(tmp_path / "c")).predict(TEXTS)] == (
        to_float64(classifier).predict(TEXTS)
    )
    language_model = build_estimator("generate", kind="char").fit(WORDS * 3)
    language_model.save(tmp_path / "g")
    written = to_float64(triform.load(tmp_path / "g")).predict(["a", "the"], max_new_tokens=20, seed=3)
    assert [prediction.output for prediction in written] == (
        to_float64(language_model).generate(["a", "the"], DecodeConfig(max_new_tokens=20), 3)
    )
    for shared in (True, False):
        translator = build_estimator("translate", joint_vocab=shared).fit(WORDS, LABELS)
        translator.save(tmp_path / f"t{shared}")
        answers = to_float64(triform.load(tmp_path / f"t{shared}")).predict(TEXTS)
        expected = to_float64(translator).translate(TEXTS)
        assert [prediction.output for prediction in answers] == expected
        assert to_float64(scratch.load(tmp_path / f"t{shared}")).translate(TEXTS) == expected


def read_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_what_was_saved_without_checkpoints_is_not_trained_anew(tmp_path: Path) -> None:
    run = tmp_path / "c"
    build_estimator("classify").fit(WORDS, LABELS).save(run)
    before = read_files(run)
    with pytest.raises(CheckpointError, match="was saved without checkpoints, so it cannot be resumed"):
        triform.train("classify", out=run, resume=True, device="cpu", quiet=True)
    with pytest.raises(CheckpointError, match="already contains a finished run"):
        triform.train("classify", out=run, device="cpu", quiet=True)
    assert read_files(run) == before


def test_saving_takes_no_folder_that_holds_something_unless_it_may(tmp_path: Path) -> None:
    classifier = build_estimator("classify").fit(WORDS, LABELS)
    translator = build_estimator("translate", joint_vocab=False).fit(WORDS, LABELS)
    run, other_folder, file = tmp_path / "run", tmp_path / "mine", tmp_path / "file"
    translator.save(run)
    (run / "notes.md").write_text("mine")
    (run / "checkpoints").mkdir()
    before = read_files(run)
    with pytest.raises(
        CheckpointError, match="run already contains a run; choose another folder, or use overwrite"
    ):
        classifier.save(run)
    assert read_files(run) == before
    classifier.save(run, overwrite=True)
    assert set(read_files(run)) == {
        "config.toml",
        "digests.json",
        "model.safetensors",
        "tokenizer.json",
        "notes.md",
    }
    assert not (run / "checkpoints").exists()
    assert scratch.load(run).predict(WORDS) == classifier.predict(WORDS)
    other_folder.mkdir()
    (other_folder / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match="mine exists and is not a run folder; choose another"):
            classifier.save(other_folder, overwrite=overwrite)
    assert read_files(other_folder) == {"thesis.txt": b"years of work"}
    file.write_text("a file")
    with pytest.raises(CheckpointError, match="file is a file; choose another folder"):
        classifier.save(file)
    with pytest.raises(CheckpointError, match="below cannot be written: Not a directory"):
        classifier.save(file / "below")


def test_the_same_seed_learns_the_same_and_another_one_something_else() -> None:
    losses = [build_estimator("classify").fit(WORDS, LABELS).losses for _ in range(2)]
    assert losses[0] == losses[1]
    other = scratch.TextClassifier(
        Config(seed=1, model=ModelConfig(**MODEL_SETTINGS), train=TrainConfig(max_steps=20))
    )
    assert other.fit(WORDS, LABELS).losses != losses[0]


def test_learning_again_forgets_what_earlier_data_decided() -> None:
    estimator = build_estimator("classify").fit(WORDS, LABELS)
    estimator.fit([*WORDS, "a much longer text than all that came before it"], [*LABELS, "new"])
    assert estimator.labels == ("bad", "good", "new")
    assert estimator.config.data.max_len == 10
    fresh = build_estimator("classify").fit(
        [*WORDS, "a much longer text than all that came before it"], [*LABELS, "new"]
    )
    assert estimator.losses == fresh.losses


def test_a_run_that_was_opened_learns_other_data_by_its_own_settings(runs: dict[str, Any], tmp_path: Path) -> None:
    texts, labels = ["one two", "three four five", "six"], ["1", "2", "3"]
    estimator = scratch.load(runs["classify"].path).fit(texts, labels)
    assert estimator.labels == ("1", "2", "3")
    assert estimator.config.data == DataConfig(labels=estimator.labels, max_len=3)
    assert estimator.config.model == runs["classify"].config.model
    assert estimator.tokenizer.vocab_size == 10
    scratch.load(runs["generate"].path).fit("other words entirely")
    scratch.load(runs["translate"].path).fit(texts, labels)


def test_a_vocabulary_with_special_tokens_of_its_own_is_not_read_as_if_it_had_ours(
    runs: dict[str, Any], tmp_path: Path
) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "cold"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    run = triform.train(
        "classify",
        out=tmp_path / "run",
        data={"train": runs["classify"].config.data.train, "header": "no"},
        tokenizer={"file": str(tmp_path / "vocab.txt")},
        model=MODEL_SETTINGS,
        train={"max_steps": 1},
        device="cpu",
        quiet=True,
    )
    with pytest.raises(
        triform.ConfigError, match=r"run: tokenizer\.kind=imported is not supported by triform\.scratch"
    ):
        scratch.load(run.path)


def test_a_folder_that_is_none_or_damaged_is_told_in_one_line(runs: dict[str, Any], tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    with pytest.raises(CheckpointError, match=r"is not a run folder: it has no config\.toml"):
        scratch.load(tmp_path, verify=False)
    for file in runs["classify"].path.glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "encoder.blocks.0.attn.q_proj.weight"

    def assert_refused(tensors: dict[str, Any], message: str) -> None:
        save_file(tensors, path)
        with pytest.raises(CheckpointError, match=message):
            scratch.load(tmp_path, verify=False)

    assert_refused(
        {**tensors, name: tensors[name][:3]}, r"attn.q_proj.weight has shape \(3, 16\), expected \(16, 16\)"
    )
    assert_refused({**tensors, name: tensors[name] * np.float32("nan")}, f"{name} contains NaN or infinity")
    assert_refused({**tensors, "wings": tensors[name]}, "do not match the settings: wings is missing or unknown")
    path.write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="is damaged, or is not a safetensors file"):
        scratch.load(tmp_path, verify=False)
    path.unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        scratch.load(tmp_path, verify=False)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace('positions = "learned"', 'positions = "rotary"'))
    with pytest.raises(triform.ConfigError, match=r"model.positions=rotary is not supported by triform\.scratch"):
        scratch.load(tmp_path, verify=False)
    config.write_text(config.read_text().replace("format = 2", "format = 9"))
    with pytest.raises(CheckpointError, match="reads format 2"):
        scratch.load(tmp_path, verify=False)
    config.write_text("[model]\nwings = 2\n")
    with pytest.raises(CheckpointError, match="is damaged"):
        scratch.load(tmp_path, verify=False)
    config_text = (runs["classify"].path / "config.toml").read_text()
    bad_formats = (
        config_text.replace("format = 2", 'format = "x"'),
        config_text.replace("format = 2", "format = [1]"),
    )
    for damage in (*bad_formats, "", "= [", config_text[:-1]):
        config.write_text(damage)
        with pytest.raises(CheckpointError, match=rf"^{re.escape(str(tmp_path))} is damaged \(.+\)"):
            scratch.load(tmp_path, verify=False)
    config.write_text(config_text.replace('labels = ["bad", "good"]', 'labels = ["bad"]'))
    with pytest.raises(triform.ConfigError, match=rf"^{re.escape(str(tmp_path))}: n_labels=1"):
        scratch.load(tmp_path, verify=False)
