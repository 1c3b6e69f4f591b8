"""What other engines can have of our settings is written exactly; what they cannot have is refused by name."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import onnxruntime
import pytest
import sentencepiece
import torch
from published import randomise_weights, relative_difference
from transformers import AutoTokenizer

from triform.config import DecodeConfig, ModelConfig, TokenizerConfig
from triform.config.settings import SETTING_TYPES, build_config
from triform.errors import CheckpointError, ConfigError, install_command
from triform.models.ensemble import EnsembleClassifier
from triform.pretrained import export
from triform.pretrained.ctranslate2_export import ACTIVATIONS
from triform.pretrained.onnx_export import write_onnx
from triform.tasks import TASKS, Task
from triform.text import Tokenizer, read_tokenizer, train_tokenizer

BASE_SETTINGS = {"model.d_model": 32, "model.d_ff": 48, "model.n_layers": 2, "model.n_heads": 4, "data.max_len": 40}
LLAMA_SETTINGS = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False}
FULL_LLAMA_SETTINGS: dict[str, Any] = {**LLAMA_SETTINGS, "n_kv_heads": 2, "qkv_bias": False, "head_bias": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "no biases": {"bias": False, "qkv_bias": False, "head_bias": False, "activation": "relu"},
    "norms after": {"norm_position": "post", "positions": "sinusoidal", "scale_embeddings": True},
    "as marian": {"norm_position": "post", "final_norm": False, "positions": "sinusoidal_halves"},
    "norm of embeddings": {
        "embedding_norm": True,
        "positions": "none",
        "attention_score": "dot",
        "activation": "gelu_tanh",
    },
    "as llama": FULL_LLAMA_SETTINGS,
    "slower turns": {**LLAMA_SETTINGS, "rotary_base": 50.0, "rotary_scaling": (4.0,), "n_kv_heads": 1},
    "scaled by the width": {"attention_scale": "d_model"},
    "shaw": {"positions": "relative", "max_distance": 5, "tie_embeddings": False, "norm_eps": 0.1},
    "no last norm": {"final_norm": False, "norm": "rms", "out_bias": "no", "activation": "silu"},
}
DECODER_VARIANTS = {
    "alibi": {"positions": "alibi"},
    "llama 3": {**FULL_LLAMA_SETTINGS, "rotary_base": 50.0, "rotary_scaling": (8.0, 1.0, 4.0, 16.0)},
}


@pytest.fixture(scope="module")
def char_tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="char"), ["abcdefghijklmnopqrstuvwxyz ,.-"])


def build_task(task: Any, tokenizer: Tokenizer, settings: dict[str, Any], **extra: Any) -> Task:
    """A model with weights that all have a say."""
    model_settings = {f"model.{name}": value for name, value in settings.items()}
    config = build_config({"task": task, "tokenizer.kind": "char", **BASE_SETTINGS, **model_settings, **extra})
    result: Task = TASKS[task](config, *[tokenizer] * (2 if task == "translate" else 1))  # type: ignore[call-arg]
    randomise_weights(result.model.eval())
    return result


@pytest.mark.parametrize("name", [*VARIANTS, *DECODER_VARIANTS])
def test_a_decoder_scores_and_writes_alike_in_ctranslate2(
    name: str, char_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    task_object: Any = build_task("generate", char_tokenizer, (VARIANTS | DECODER_VARIANTS)[name])
    export(task_object, "ctranslate2", tmp_path / "out")
    engine = ctranslate2.Generator(str(tmp_path / "out"), intra_threads=1)
    tokens = torch.randint(4, char_tokenizer.vocab_size, (3, 40))
    with torch.no_grad():
        expected = task_object.model(tokens)
    actual = np.asarray(engine.forward_batch(tokens.tolist(), return_log_probs=False))
    assert relative_difference(torch.from_numpy(actual), expected) < 1e-5
    prompts = [[5, 6, 7], [9, 10], [20, 4, 5, 11, 8]]
    settings = {"decode.strategy": "greedy", "decode.max_new_tokens": 20}
    task_object = task_object.with_config(build_config(settings, task_object.config))
    results = engine.generate_batch(
        [[char_tokenizer.vocabulary[token] for token in prompt] for prompt in prompts],
        max_length=20,
        sampling_topk=1,
        include_prompt_in_result=False,
        suppress_sequences=[["<pad>"], ["<unk>"], ["<bos>"]],
    )
    assert [result.sequences_ids[0] for result in results] == task_object.predictor.generate(prompts)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_translator_writes_alike_in_ctranslate2(name: str, char_tokenizer: Tokenizer, tmp_path: Path) -> None:
    task_object: Any = build_task("translate", char_tokenizer, VARIANTS[name])
    export(task_object, "ctranslate2", tmp_path / "out")
    engine = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    vocabulary = char_tokenizer.vocabulary
    sources = [[5, 6, 7, 20, 21, 22, 9, 10], [9, 10, 30], [20, 4, 5, 11, 8, 7, 6, 5, 4, 12, 13, 14, 15, 16]]
    targets = [[7, 8, 9], [10, 12, 11, 14, 20], [5, 5]]
    source_pieces, target_pieces = (
        [[vocabulary[token] for token in row] for row in rows] for rows in (sources, targets)
    )
    for source, target, result in zip(
        sources, targets, engine.score_batch(source_pieces, target_pieces), strict=True
    ):
        with torch.no_grad():
            log_probs = task_object.model(torch.tensor([source]), torch.tensor([[2, *target]])).log_softmax(-1)[0]
        expected = log_probs.gather(1, torch.tensor([[*target, 3]]).T)[:, 0]
        assert relative_difference(torch.tensor(result.log_probs), expected) < 1e-5
    greedy = DecodeConfig(strategy="greedy", max_new_tokens=20)
    results = engine.translate_batch(
        source_pieces, beam_size=1, min_decoding_length=0, max_decoding_length=20,
        suppress_sequences=[["<pad>"], ["<unk>"], ["<bos>"]],
    )  # fmt: skip
    actual = [
        [vocabulary.index(piece) for piece in hypothesis_result.hypotheses[0]] for hypothesis_result in results
    ]
    assert actual == task_object.predictor.generate(sources, decode=greedy)


def test_two_vocabularies_leave_for_ctranslate2_with_both(char_tokenizer: Tokenizer, tmp_path: Path) -> None:
    target_tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["éàçabc"])
    config = build_config(
        {"task": "translate", "tokenizer.kind": "char", "tokenizer.joint_vocab": False, **BASE_SETTINGS}
    )
    task_object: Any = TASKS["translate"](config, char_tokenizer, target_tokenizer)  # type: ignore[call-arg]
    randomise_weights(task_object.model.eval())
    export(task_object, "ctranslate2", tmp_path / "out")
    engine = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    result = engine.translate_batch(
        [["a", "b", "c"]], beam_size=1, min_decoding_length=0, max_decoding_length=9,
        suppress_sequences=[["<pad>"], ["<unk>"], ["<bos>"]],
    )[0].hypotheses[0]  # fmt: skip
    greedy = DecodeConfig(strategy="greedy", max_new_tokens=9)
    expected = task_object.predictor.generate([char_tokenizer.encode("abc")], decode=greedy)[0]
    assert [target_tokenizer.vocabulary.index(piece) for piece in result] == expected
    assert (tmp_path / "out/tokenizer.json").is_file()
    assert (tmp_path / "out/target/tokenizer.json").is_file()
    with pytest.raises(ConfigError, match=r"two vocabularies \(blenderbot requires tokenizer.joint_vocab=true\)"):
        export(task_object, "hf", tmp_path / "hf")


MANY_SETTINGS = {
    "positions": "relative",
    "max_distance": 3,
    "attention_direction": "causal",
    "bigram_buckets": 20,
    "n_segments": 2,
}


@pytest.mark.parametrize(
    "settings",
    [
        {
            **MANY_SETTINGS,
            "attention_score": "cosine",
            "pooling": "first",
            "head_hidden": 8,
            "embedding_norm": True,
        },
        {**LLAMA_SETTINGS, "positions": "t5", "window": 3, "n_kv_heads": 2, "pooling": "last"},
    ],
    ids=["relative", "t5, an ensemble"],
)
def test_a_graph_answers_for_any_number_of_texts_of_any_length(settings: dict[str, Any], tmp_path: Path) -> None:
    char_tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["abcdefghijkl"])
    overrides = {"data.labels": ("a", "b", "c"), "model.n_layers": 1}
    model = build_task("classify", char_tokenizer, settings, **overrides).model
    if settings["positions"] == "t5":
        other = build_task("classify", char_tokenizer, settings, **overrides).model
        model = EnsembleClassifier([model, other], [0, 0])
    write_onnx(model, 40, tmp_path / "model.onnx")
    engine = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for rows, length in ((1, 1), (2, 7), (5, 40), (3, 1)):
        tokens = torch.randint(4, char_tokenizer.vocab_size, (rows, length))
        keep = torch.arange(length) < torch.tensor([max(1, length - 3 * row) for row in range(rows)])[:, None]
        with torch.no_grad():
            expected = model(tokens, keep)
        inputs = {"input_ids": tokens.numpy(), "attention_mask": keep.long().numpy()}
        assert relative_difference(torch.from_numpy(engine.run(None, inputs)[0]), expected) < 1e-5
        tokens[~keep] = 4  # what stands in the place of padding changes nothing
        inputs["input_ids"] = tokens.numpy()
        assert relative_difference(torch.from_numpy(engine.run(None, inputs)[0]), expected) < 1e-5
    with torch.no_grad():
        repeated = model(tokens, keep)
    assert torch.equal(repeated, expected)  # the model is as it was


REFUSED_SETTINGS = [
    (
        "generate",
        {"attention_score": "additive"},
        r"model\.attention_score=additive \(it supports scaled_dot and dot\)",
    ),
    ("generate", {"positions": "t5"}, r"model\.positions=t5 \(it supports learned, .* alibi\)"),
    ("translate", {"positions": "alibi"}, r"model\.positions=alibi \(it supports learned, .* none\)"),
    ("generate", {"window": 8}, r"model\.window or model\.layer_windows \(it has no attention windows"),
    ("generate", {"n_segments": 2}, r"model\.n_segments=2 \(it has no segment embeddings\)"),
    (
        "translate",
        {"attention_direction": "causal"},
        r"model\.attention_direction=causal \(its encoder is bidirectional\)",
    ),
    (
        "translate",
        DECODER_VARIANTS["llama 3"],
        r"model\.rotary_scaling=\[8\.0, .*\(its encoder supports only one scaling factor\)",
    ),
]


@pytest.mark.parametrize(("task", "settings", "words"), REFUSED_SETTINGS)
def test_settings_that_ctranslate2_does_not_support_are_named(
    task: str, settings: dict[str, Any], words: str, char_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^ctranslate2 does not support these settings: {words}"):
        export(build_task(task, char_tokenizer, settings), "ctranslate2", tmp_path / "out")


# What is written as it is, what may be refused by name, and what matters in learning or for classifiers alone.
WRITTEN_SETTINGS = {
    *(
        "d_model",
        "d_ff",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "rotary_base",
        "max_distance",
        "norm",
        "norm_position",
        "attention_scale",
    ),
    *("norm_eps", "final_norm", "embedding_norm", "activation", "bias", "qkv_bias", "out_bias", "tie_embeddings"),
    *("scale_embeddings", "head_bias"),
}
CHECKED_SETTINGS = {
    "attention_score",
    "positions",
    "window",
    "layer_windows",
    "n_segments",
    "attention_direction",
    "rotary_scaling",
}
UNUSED_SETTINGS = {
    "kind",
    "dropout",
    "attention_dropout",
    "n_buckets",
    "bigram_buckets",
    "term_buckets",
    "pooling",
    "head_hidden",
    "head_activation",
}


def test_every_setting_of_a_model_is_written_for_ctranslate2_or_judged() -> None:
    """A new setting is put into one of these, or a model that has it would be written as one that does not."""
    assert {field.name for field in fields(ModelConfig)} == WRITTEN_SETTINGS | CHECKED_SETTINGS | UNUSED_SETTINGS


def test_a_window_as_long_as_the_text_is_none_for_ctranslate2(char_tokenizer: Tokenizer, tmp_path: Path) -> None:
    export(build_task("generate", char_tokenizer, {"window": 40}), "ctranslate2", tmp_path / "out")
    assert (tmp_path / "out/model.bin").is_file()


def test_every_activation_has_its_name_in_ctranslate2() -> None:
    assert set(ACTIVATIONS) == set(SETTING_TYPES["model.activation"].__args__)


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        (
            "generate",
            {"positions": "none"},
            r"none \(gpt2 requires learned\); llama differs in \d settings; --to ctranslate2 supports them$",
        ),
        (
            "generate",
            {"attention_score": "additive", "head_bias": False},
            r"model\.attention_score=additive \(gpt2 requires scaled_dot\); llama",
        ),
        ("generate", {"attention_score": "additive", "head_bias": False}, r"(?<!have them)$"),
        ("classify", {"positions": "none"}, r"model\.positions=none \(megatron-bert .*--to onnx supports them$"),
        (
            "translate",
            {"positions": "none"},
            r"model\.positions=none \(blenderbot requires learned\); .*--to ctranslate2 supports",
        ),
    ],
)
def test_the_error_names_the_settings_that_no_family_supports_and_another_format(
    task: str, settings: dict[str, Any], words: str, char_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    labels = {"data.labels": ("a", "b")} if task == "classify" else {}
    with pytest.raises(ConfigError, match=words):
        export(build_task(task, char_tokenizer, settings, **labels), "hf", tmp_path / "out")


def test_packages_that_are_not_installed_are_named_by_their_extra(
    char_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    generator_task, classifier_task = (
        build_task(task, char_tokenizer, {}, **extra)
        for task, extra in (("generate", {}), ("classify", LABEL_SETTINGS))
    )
    for task, export_format in ((generator_task, "ctranslate2"), (classifier_task, "onnx")):
        with pytest.raises(CheckpointError, match=re.escape(install_command("export"))):
            export(task, export_format, tmp_path / "out")
    assert not list(tmp_path.iterdir())


LABEL_SETTINGS = {"data.labels": ("a", "b")}


HARD_TEXTS = [
    "a  b   c ",
    "\tx\r\n\r\n",
    "I'll THEY'RE 12345",
    "🙂👩‍👩‍👧 猫が עברית",
    "<pad> <eos>",
    "e\u0301 ﬁ ß",
    " a",
]
MATCHING_SETTINGS: dict[str, dict[str, Any]] = {
    "generate": FULL_LLAMA_SETTINGS,
    "classify": {
        "norm_position": "post", "final_norm": False, "embedding_norm": True, "pooling": "first",
        "head_hidden": 32, "norm_eps": 1e-12,
    },
    "translate": VARIANTS["as marian"],
}  # fmt: skip


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["char", "word", "bpe", "wordpiece"])
@pytest.mark.parametrize("task", MATCHING_SETTINGS)
def test_a_tokenizer_of_ours_gives_the_same_ids_beside_any_model(
    task: str, kind: Any, lowercase: bool, tmp_path: Path
) -> None:
    tokenizer = train_tokenizer(
        TokenizerConfig(kind=kind, lowercase=lowercase), [*HARD_TEXTS[:5], "the cat sat on the mat"]
    )
    labels = LABEL_SETTINGS if task == "classify" else {}
    export(
        build_task(task, tokenizer, MATCHING_SETTINGS[task], **{"tokenizer.kind": kind, **labels}),
        "hf",
        tmp_path / "out",
    )
    hf_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in HARD_TEXTS:
        inputs = hf_tokenizer(text)
        assert inputs["input_ids"] == tokenizer.encode(text), ascii(text)
        assert set(inputs) == {"input_ids", "attention_mask"}
    assert (hf_tokenizer.pad_token_id, hf_tokenizer.eos_token_id, hf_tokenizer.model_max_length) == (0, 3, 40)


def test_a_sentencepiece_model_goes_along_and_is_asked_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What transformers makes of such a file can give other ids."""
    with (tmp_path / "tokenizer.model").open("wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the cat sat on the mat"] * 9), model_writer=out, model_type="unigram",
            hard_vocab_limit=False, minloglevel=2, vocab_size=30,
        )  # fmt: skip
    tokenizer = read_tokenizer(tmp_path / "tokenizer.model")
    task_object = build_task("generate", tokenizer, {"head_bias": False}, **{"tokenizer.kind": "imported"})
    settings = {"decode.strategy": "greedy", "decode.max_new_tokens": 40 - len(tokenizer.encode("the"))}
    task_object = task_object.with_config(build_config(settings, task_object.config))
    expected = task_object.predictor.predict(["the"])[0]
    for export_format in ("hf", "ctranslate2"):
        export(task_object, export_format, tmp_path / export_format)
        assert (tmp_path / export_format / "tokenizer.model").read_bytes() == (
            tmp_path / "tokenizer.model"
        ).read_bytes()
        code = (
            (tmp_path / export_format / "README.md")
            .read_text(encoding="utf-8")
            .split("```python\n")[1]
            .split("```")[0]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code, {})
        assert capsys.readouterr().out.strip() == ("the" + expected.output).strip()
