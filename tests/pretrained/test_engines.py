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
from published import apart, stir
from transformers import AutoTokenizer

from triform.config import DecodeConfig, ModelConfig, TokenizerConfig
from triform.errors import CheckpointError, ConfigError, install_command
from triform.pretrained import export
from triform.pretrained.for_ctranslate2 import ACTIVATIONS
from triform.pretrained.for_onnx import write_onnx
from triform.settings import HINTS, build
from triform.tasks import TASKS, Task
from triform.text import Tokenizer, read_tokenizer, train_tokenizer

SHAPE = {"model.d_model": 32, "model.d_ff": 48, "model.n_layers": 2, "model.n_heads": 4, "data.max_len": 40}
LLAMA = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False}
LIKE_LLAMA: dict[str, Any] = {**LLAMA, "n_kv_heads": 2, "qkv_bias": False, "head_bias": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "no biases": {"bias": False, "qkv_bias": False, "head_bias": False, "activation": "relu"},
    "norms after": {"norm_position": "post", "positions": "sinusoidal", "scale_embeddings": True},
    "as marian": {"norm_position": "post", "final_norm": False, "positions": "sinusoidal_halves"},
    "norm of embeddings": {"embedding_norm": True, "positions": "none", "score": "dot", "activation": "gelu_tanh"},
    "as llama": LIKE_LLAMA,
    "slower turns": {**LLAMA, "rotary_base": 50.0, "rotary_scaling": (4.0,), "n_kv_heads": 1},
    "shaw": {"positions": "relative", "max_distance": 5, "tie_embeddings": False, "norm_eps": 0.1},
    "no last norm": {"final_norm": False, "norm": "rms", "out_bias": "no", "activation": "silu"},
}
DECODERS = {
    "alibi": {"positions": "alibi"},
    "llama 3": {**LIKE_LLAMA, "rotary_base": 50.0, "rotary_scaling": (8.0, 1.0, 4.0, 16.0)},
}


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="char"), ["abcdefghijklmnopqrstuvwxyz ,.-"])


def made(task: Any, spoken: Tokenizer, settings: dict[str, Any], **more: Any) -> Task:
    """A model with weights that all have a say."""
    told = {f"model.{name}": value for name, value in settings.items()}
    config = build({"task": task, "tokenizer.kind": "char", **SHAPE, **told, **more})
    found: Task = TASKS[task](config, *[spoken] * (2 if task == "translate" else 1))  # type: ignore[call-arg]
    stir(found.model.eval())
    return found


@pytest.mark.parametrize("name", [*VARIANTS, *DECODERS])
def test_a_decoder_scores_and_writes_alike_in_ctranslate2(name: str, letters: Tokenizer, tmp_path: Path) -> None:
    ours: Any = made("generate", letters, (VARIANTS | DECODERS)[name])
    export(ours, "ctranslate2", tmp_path / "out")
    theirs = ctranslate2.Generator(str(tmp_path / "out"), intra_threads=1)
    tokens = torch.randint(4, letters.vocab_size, (3, 40))
    with torch.no_grad():
        wanted = ours.model(tokens)
    found = np.asarray(theirs.forward_batch(tokens.tolist(), return_log_probs=False))
    assert apart(torch.from_numpy(found), wanted) < 1e-5
    prompts = [[5, 6, 7], [9, 10], [20, 4, 5, 11, 8]]
    ours.config = build({"decode.strategy": "greedy", "decode.max_new_tokens": 20}, ours.config)
    answers = theirs.generate_batch(
        [[letters.vocabulary[token] for token in prompt] for prompt in prompts], max_length=20, sampling_topk=1,
        include_prompt_in_result=False, suppress_sequences=[["<pad>"], ["<unk>"], ["<bos>"]],
    )  # fmt: skip
    assert [answer.sequences_ids[0] for answer in answers] == ours._continue(prompts, [0] * 3)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_translator_writes_alike_in_ctranslate2(name: str, letters: Tokenizer, tmp_path: Path) -> None:
    ours: Any = made("translate", letters, VARIANTS[name])
    export(ours, "ctranslate2", tmp_path / "out")
    theirs = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    spelled = letters.vocabulary
    sources = [[5, 6, 7, 20, 21, 22, 9, 10], [9, 10, 30], [20, 4, 5, 11, 8, 7, 6, 5, 4, 12, 13, 14, 15, 16]]
    targets = [[7, 8, 9], [10, 12, 11, 14, 20], [5, 5]]
    read, wrote = ([[spelled[token] for token in row] for row in rows] for rows in (sources, targets))
    for source, target, scored in zip(sources, targets, theirs.score_batch(read, wrote), strict=True):
        with torch.no_grad():
            shares = ours.model(torch.tensor([source]), torch.tensor([[2, *target]])).log_softmax(-1)[0]
        wanted = shares.gather(1, torch.tensor([[*target, 3]]).T)[:, 0]
        assert apart(torch.tensor(scored.log_probs), wanted) < 1e-5
    greedy = DecodeConfig(strategy="greedy", max_new_tokens=20)
    answers = theirs.translate_batch(
        read, beam_size=1, min_decoding_length=0, max_decoding_length=20,
        suppress_sequences=[["<pad>"], ["<unk>"], ["<bos>"]],
    )  # fmt: skip
    found = [[spelled.index(piece) for piece in answer.hypotheses[0]] for answer in answers]
    assert found == ours._decode(sources, greedy)


def test_two_vocabularies_leave_for_ctranslate2_with_both(letters: Tokenizer, tmp_path: Path) -> None:
    other = train_tokenizer(TokenizerConfig(kind="char"), ["éàçabc"])
    config = build({"task": "translate", "tokenizer.kind": "char", "tokenizer.shared": False, **SHAPE})
    ours: Any = TASKS["translate"](config, letters, other)  # type: ignore[call-arg]
    stir(ours.model.eval())
    export(ours, "ctranslate2", tmp_path / "out")
    theirs = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    answer = theirs.translate_batch(
        [["a", "b", "c"]], beam_size=1, min_decoding_length=0, max_decoding_length=9,
        suppress_sequences=[["<pad>"], ["<unk>"], ["<bos>"]],
    )[0].hypotheses[0]  # fmt: skip
    greedy = DecodeConfig(strategy="greedy", max_new_tokens=9)
    assert [other.vocabulary.index(piece) for piece in answer] == ours._decode([letters.encode("abc")], greedy)[0]
    assert (tmp_path / "out/tokenizer.json").is_file()
    assert (tmp_path / "out/target/tokenizer.json").is_file()
    with pytest.raises(ConfigError, match=r"two vocabularies \(blenderbot has one: tokenizer.shared=true\)"):
        export(ours, "hf", tmp_path / "hf")


EVERYTHING = {"positions": "relative", "max_distance": 3, "reach": "causal", "pair_rows": 20, "segments": 2}


@pytest.mark.parametrize(
    "settings",
    [
        {**EVERYTHING, "score": "cosine", "pooling": "first", "head_hidden": 8, "embedding_norm": True},
        {**LLAMA, "positions": "t5", "window": 3, "n_kv_heads": 2, "pooling": "last"},
    ],
    ids=["relative", "t5"],
)
def test_a_graph_answers_for_any_number_of_texts_of_any_length(settings: dict[str, Any], tmp_path: Path) -> None:
    letters = train_tokenizer(TokenizerConfig(kind="char"), ["abcdefghijkl"])
    model = made("classify", letters, settings, **{"data.labels": ("a", "b", "c"), "model.n_layers": 1}).model
    write_onnx(model, 40, tmp_path / "model.onnx")
    theirs = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for rows, length in ((1, 1), (2, 7), (5, 40), (3, 1)):
        tokens = torch.randint(4, letters.vocab_size, (rows, length))
        keep = torch.arange(length) < torch.tensor([max(1, length - 3 * row) for row in range(rows)])[:, None]
        with torch.no_grad():
            wanted = model(tokens, keep)
        given = {"input_ids": tokens.numpy(), "attention_mask": keep.long().numpy()}
        assert apart(torch.from_numpy(theirs.run(None, given)[0]), wanted) < 1e-5
        tokens[~keep] = 4  # what stands in the place of padding changes nothing
        given["input_ids"] = tokens.numpy()
        assert apart(torch.from_numpy(theirs.run(None, given)[0]), wanted) < 1e-5
    with torch.no_grad():
        again = model(tokens, keep)
    assert torch.equal(again, wanted)  # the model is as it was


REFUSED = [
    ("generate", {"score": "additive"}, r"model\.score=additive \(it has scaled_dot and dot\)"),
    ("generate", {"positions": "t5"}, r"model\.positions=t5 \(it has learned, .* alibi\)"),
    ("translate", {"positions": "alibi"}, r"model\.positions=alibi \(it has learned, .* none\)"),
    ("generate", {"window": 8}, r"model\.window or model\.layer_windows \(it reads everything"),
    ("generate", {"segments": 2}, r"model\.segments=2 \(it has none\)"),
    ("translate", {"reach": "causal"}, r"model\.reach=causal \(its encoder reads both ways\)"),
    ("translate", DECODERS["llama 3"], r"model\.rotary_scaling=\[8\.0, .*\(its encoder scales by one factor\)"),
]


@pytest.mark.parametrize(("task", "settings", "words"), REFUSED)
def test_what_ctranslate2_cannot_have_is_named(
    task: str, settings: dict[str, Any], words: str, letters: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^ctranslate2 cannot have these settings: {words}"):
        export(made(task, letters, settings), "ctranslate2", tmp_path / "out")


# What is written as it is, what may be refused by name, and what matters in learning or for classifiers alone.
WRITTEN = {
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
    ),
    *("norm_eps", "final_norm", "embedding_norm", "activation", "bias", "qkv_bias", "out_bias", "tie_embeddings"),
    *("scale_embeddings", "head_bias"),
}
JUDGED = {"score", "positions", "window", "layer_windows", "segments", "reach", "rotary_scaling"}
APART = {
    "kind",
    "dropout",
    "attention_dropout",
    "n_buckets",
    "pair_rows",
    "pooling",
    "head_hidden",
    "head_activation",
}


def test_every_setting_of_a_model_is_written_for_ctranslate2_or_judged() -> None:
    """A new setting is put into one of these, or a model that has it would be written as one that does not."""
    assert {field.name for field in fields(ModelConfig)} == WRITTEN | JUDGED | APART


def test_a_window_as_long_as_the_text_is_none_for_ctranslate2(letters: Tokenizer, tmp_path: Path) -> None:
    export(made("generate", letters, {"window": 40}), "ctranslate2", tmp_path / "out")
    assert (tmp_path / "out/model.bin").is_file()


def test_every_activation_has_its_name_in_ctranslate2() -> None:
    assert set(ACTIVATIONS) == set(HINTS["model.activation"].__args__)


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        (
            "generate",
            {"positions": "none"},
            r"positions=none \(gpt2 has learned\); llama differs in \d settings; --to ctranslate2 can have them$",
        ),
        (
            "generate",
            {"score": "additive", "head_bias": False},
            r"model\.score=additive \(gpt2 has scaled_dot\); llama",
        ),
        ("generate", {"score": "additive", "head_bias": False}, r"(?<!have them)$"),
        ("classify", {"positions": "none"}, r"model\.positions=none \(megatron-bert .*--to onnx can have them$"),
        (
            "translate",
            {"positions": "none"},
            r"model\.positions=none \(blenderbot has learned\); .*--to ctranslate2 can have",
        ),
    ],
)
def test_where_no_family_fits_the_settings_in_the_way_are_named_and_another_way_out(
    task: str, settings: dict[str, Any], words: str, letters: Tokenizer, tmp_path: Path
) -> None:
    labels = {"data.labels": ("a", "b")} if task == "classify" else {}
    with pytest.raises(ConfigError, match=words):
        export(made(task, letters, settings, **labels), "hf", tmp_path / "out")


def test_packages_that_are_not_installed_are_named_by_their_extra(
    letters: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    writer, judge = (made(task, letters, {}, **more) for task, more in (("generate", {}), ("classify", LABELS)))
    for task, to in ((writer, "ctranslate2"), (judge, "onnx")):
        with pytest.raises(CheckpointError, match=re.escape(install_command("export"))):
            export(task, to, tmp_path / "out")
    assert not list(tmp_path.iterdir())


LABELS = {"data.labels": ("a", "b")}


HARD = ["a  b   c ", "\tx\r\n\r\n", "I'll THEY'RE 12345", "🙂👩‍👩‍👧 猫が עברית", "<pad> <eos>", "e\u0301 ﬁ ß", " a"]
FITTING: dict[str, dict[str, Any]] = {
    "generate": LIKE_LLAMA,
    "classify": {
        "norm_position": "post", "final_norm": False, "embedding_norm": True, "pooling": "first",
        "head_hidden": 32, "norm_eps": 1e-12,
    },
    "translate": VARIANTS["as marian"],
}  # fmt: skip


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
@pytest.mark.parametrize("task", FITTING)
def test_a_tokenizer_of_ours_gives_the_same_ids_beside_any_model(
    task: str, kind: Any, lowercase: bool, tmp_path: Path
) -> None:
    spoken = train_tokenizer(TokenizerConfig(kind=kind, lowercase=lowercase), [*HARD[:5], "the cat sat on the mat"])
    labels = LABELS if task == "classify" else {}
    export(made(task, spoken, FITTING[task], **{"tokenizer.kind": kind, **labels}), "hf", tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in HARD:
        given = theirs(text)
        assert given["input_ids"] == spoken.encode(text), ascii(text)
        assert set(given) == {"input_ids", "attention_mask"}
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.model_max_length) == (0, 3, 40)


def test_a_sentencepiece_model_goes_along_and_is_asked_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What transformers makes of such a file can give other ids."""
    with (tmp_path / "tokenizer.model").open("wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the cat sat on the mat"] * 9), model_writer=out, model_type="unigram",
            hard_vocab_limit=False, minloglevel=2, vocab_size=30,
        )  # fmt: skip
    spoken = read_tokenizer(tmp_path / "tokenizer.model")
    ours = made("generate", spoken, {"head_bias": False}, **{"tokenizer.kind": "imported"})
    ours.config = build(
        {"decode.strategy": "greedy", "decode.max_new_tokens": 40 - len(spoken.encode("the"))}, ours.config
    )
    wanted = ours.predict(["the"])[0]
    for to in ("hf", "ctranslate2"):
        export(ours, to, tmp_path / to)
        assert (tmp_path / to / "tokenizer.model").read_bytes() == (tmp_path / "tokenizer.model").read_bytes()
        code = (tmp_path / to / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code, {})
        assert capsys.readouterr().out.strip() == ("the" + wanted.output).strip()
