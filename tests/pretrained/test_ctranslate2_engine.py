"""CTranslate2 as an engine gives the tokens of torch, converts a model once, and refuses what it cannot do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from triform.config import DecodeConfig, TokenizerConfig
from triform.config.settings import build_config
from triform.errors import CheckpointError, ConfigError
from triform.io.cache import engines_folder
from triform.models.ensemble import EnsembleDecoder
from triform.nn.kernels import int8
from triform.pretrained import ctranslate2_engine as engine_module
from triform.pretrained.ctranslate2_engine import MAX_CONVERSIONS, open_ctranslate2
from triform.tasks import TASKS, Task
from triform.text import Tokenizer, train_tokenizer

MAX_LEN = 24
SIZES = {"model.d_model": 16, "model.d_ff": 24, "model.n_layers": 1, "model.n_heads": 2, "data.max_len": MAX_LEN}
RECURRENT_SIZES = ("model.d_model", "model.n_layers", "data.max_len")
LLAMA_SETTINGS = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False, "n_kv_heads": 1}
MARIAN_SETTINGS = {"norm_position": "post", "final_norm": False, "positions": "sinusoidal_halves"}
GREEDY = DecodeConfig(strategy="greedy")


def randomise_weights(model: nn.Module) -> None:
    """Large random weights make the most likely token clear, so that rounding cannot change it."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="char"), ["abcdefghijklmnopqrstuvwxyz ,.-"])


def build_task(task: str, tokenizer: Tokenizer, settings: dict[str, Any] | None = None, **extra: Any) -> Any:
    model_settings = {f"model.{name}": value for name, value in (settings or {}).items()}
    sizes = {
        name: size for name, size in SIZES.items() if "kind" not in (settings or {}) or name in RECURRENT_SIZES
    }
    config = build_config({"task": task, "tokenizer.kind": "char", **sizes, **model_settings, **extra})
    result: Task = TASKS[task](config, *[tokenizer] * (2 if task == "translate" else 1))  # type: ignore[index, call-arg]
    randomise_weights(result.model.eval())
    return result


def generate_with_engine(task: Any, rows: list[list[int]], decode: DecodeConfig) -> list[list[int]]:
    with_engine = task.with_config(task.config)  # a copy
    with_engine.engine = open_ctranslate2(task, "fp32")
    result: list[list[int]] = with_engine.predictor.generate(rows, decode=decode)
    return result


@pytest.mark.parametrize("settings", [{}, LLAMA_SETTINGS, {"positions": "alibi"}], ids=["gpt", "llama", "alibi"])
def test_texts_are_continued_as_with_torch(settings: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Also beyond the context, whose newer half stays, and from prompts that are longer than it."""
    task = build_task("generate", tokenizer, settings)
    prompts = [[5, 6, 7], [9, 10], [20, 4, 11], list(range(4, 4 + MAX_LEN)), [8, 2, 9] * MAX_LEN, [1, 9]]
    for eos_bias, max_new_tokens in ((0.0, 1), (0.0, 2 * MAX_LEN), (-99.0, MAX_LEN - 2), (-99.0, 3 * MAX_LEN)):
        with torch.no_grad():
            task.model.lm_head.bias[tokenizer.eos] += eos_bias
        decode = DecodeConfig(strategy="greedy", max_new_tokens=max_new_tokens)
        expected = task.predictor.generate(prompts, decode=decode)
        assert generate_with_engine(task, prompts, decode) == expected
    assert set(map(len, expected)) == {3 * MAX_LEN}


@pytest.mark.parametrize("settings", [{}, MARIAN_SETTINGS], ids=["as it comes", "marian"])
def test_sentences_are_translated_as_with_torch(settings: dict[str, Any], tokenizer: Tokenizer) -> None:
    task = build_task("translate", tokenizer, settings)
    sources = [[5 + (row + column) % 25 for column in range(1 + row % 9)] for row in range(40)]
    expected = task.predictor.generate(sources, decode=GREEDY)
    assert generate_with_engine(task, sources, GREEDY) == expected
    assert len(set(map(len, expected))) > 1


def test_banned_tokens_are_never_generated(tokenizer: Tokenizer) -> None:
    task = build_task("generate", tokenizer)
    engine = open_ctranslate2(task, "fp32")
    predictor = task.predictor
    requests = [engine_module.Request([5, 6], 9, decode=GREEDY)]
    free = predictor.constraints
    first = engine.generate(requests, free)[0]
    banned = engine_module.TokenConstraints(eos=free.eos, banned=(*free.banned, first[0], free.eos))
    assert first[0] not in engine.generate(requests, banned)[0]
    assert len(engine.generate(requests, banned)[0]) == 9


@pytest.mark.skipif(bool(int8.int8_unavailable_reason()), reason="no int8 here")
def test_int8_is_close_to_fp32(tokenizer: Tokenizer) -> None:
    task = build_task("generate", tokenizer, **{"model.d_model": 64})
    for parameter in task.model.parameters():
        parameter.requires_grad_(False).mul_(0.1)
    tokens = [[5, 6, 7, 8, 9, 10]]
    logits = [
        np.asarray(open_ctranslate2(task, precision).model.forward_batch(tokens, return_log_probs=False))
        for precision in ("fp32", "int8")
    ]
    difference = np.abs(logits[1] - logits[0]).max() / np.abs(logits[0]).max()
    assert 0 < difference < 0.1


def test_a_model_is_converted_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    task = build_task("generate", tokenizer)
    expected = generate_with_engine(task, [[5, 6]], GREEDY)
    (folder,) = engines_folder().iterdir()
    convert = engine_module.convert
    monkeypatch.setattr(engine_module, "convert", lambda *arguments: pytest.fail("it was converted again"))
    assert generate_with_engine(task, [[5, 6]], GREEDY) == expected
    monkeypatch.setattr(engine_module, "convert", convert)

    (folder / "model.bin").write_bytes(b"damaged")
    assert generate_with_engine(task, [[5, 6]], GREEDY) == expected
    assert (folder / "model.bin").stat().st_size > 1000

    randomise_weights(task.model)
    assert generate_with_engine(task, [[5, 6]], GREEDY) == task.predictor.generate([[5, 6]], decode=GREEDY)
    assert len(list(engines_folder().iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_not_needed(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "file"))
    task = build_task("generate", tokenizer)
    assert generate_with_engine(task, [[5, 6]], GREEDY) == task.predictor.generate([[5, 6]], decode=GREEDY)


def test_few_conversions_are_kept(tokenizer: Tokenizer) -> None:
    task = build_task("generate", tokenizer)
    for number in range(MAX_CONVERSIONS + 3):
        (engines_folder() / f"ctranslate2-{number}").mkdir(parents=True)
    generate_with_engine(task, [[5, 6]], GREEDY)
    names = {folder.name for folder in engines_folder().iterdir()}
    assert len(names) == MAX_CONVERSIONS
    assert f"ctranslate2-{engine_module.conversion_digest(task)}" in names


REFUSED_TASKS = [
    ("classify", {}, "does not support classifiers; use engine torch"),
    ("generate", {"positions": "t5"}, "does not support these settings: model.positions=t5 "),
    ("generate", {"window": 4}, "does not support these settings: model.window "),
    ("generate", {"kind": "lstm"}, "supports only Transformers, not model.kind=lstm"),
    (
        "translate",
        {"attention_score": "additive"},
        "does not support these settings: model.attention_score=additive",
    ),
]


@pytest.mark.parametrize(("task", "settings", "words"), REFUSED_TASKS)
def test_models_that_it_does_not_support_are_refused(
    task: str, settings: dict[str, Any], words: str, tokenizer: Tokenizer
) -> None:
    extra = {"data.labels": ("a", "b")} if task == "classify" else {}
    with pytest.raises(ConfigError, match=f"^engine ctranslate2 {words}"):
        open_ctranslate2(build_task(task, tokenizer, settings, **extra), "fp32")


def test_ensembles_other_precisions_and_a_missing_package_are_refused(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build_task("generate", tokenizer)
    with pytest.raises(ConfigError, match=r"^engine ctranslate2 computes in fp32 or int8, not in bf16"):
        open_ctranslate2(task, "bf16")
    ensemble = task.with_config(task.config)
    ensemble.model = EnsembleDecoder([task.model, task.model], [16, 16])
    with pytest.raises(ConfigError, match="an ensemble of 2 models, and engine ctranslate2 needs a single one"):
        open_ctranslate2(ensemble, "fp32")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(CheckpointError, match=r"^ctranslate2 is not installed; install it with "):
        open_ctranslate2(task, "fp32")
    assert not engines_folder().exists()


@pytest.mark.parametrize(
    ("task", "strategy"), [("generate", "sample"), ("translate", "beam"), ("generate", "beam")]
)
def test_strategies_with_other_results_are_refused(task: str, strategy: Any, tokenizer: Tokenizer) -> None:
    task_object = build_task(task, tokenizer)
    with pytest.raises(ConfigError, match=f"decodes greedily, and decode.strategy is {strategy}; set it to greedy"):
        generate_with_engine(task_object, [[5, 6]], DecodeConfig(strategy=strategy))
