"""The way back: what was read is written as it was, and what Triform made itself loads in `transformers`."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from published import EVERY_MODEL, apart, saved, tokens
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from triform.config import Config, DataConfig, ModelConfig, Sizes
from triform.errors import CheckpointError, ConfigError
from triform.pretrained import open_folder, to_hf
from triform.pretrained.exporting import fitting
from triform.pretrained.families import FAMILIES
from triform.pretrained.family import PLAIN, Family
from triform.pretrained.importing import FORMS

AUTO = {"generate": "AutoModelForCausalLM", "classify": "AutoModelForSequenceClassification"}
AUTO["translate"] = "AutoModelForSeq2SeqLM"
SIZES = Sizes(vocab_size=61, max_len=24, n_labels=3)
ONE_VOCABULARY = [name for name in EVERY_MODEL if name != "marian of two vocabularies"]

# What is told in other words: a width left open, a dropout of its own, a synonym, a scaling without effect.
OTHER_WORDS = {"gpt2": "n_inner", "distilbert": "seq_classif_dropout", "marian": "activation_function"}
OTHER_WORDS["llama dynamic"] = "rope_parameters"


def loaded(model: nn.Module, config: Config, folder: Path, special: dict[str, int] | None = None) -> Any:
    """The model written down as others keep theirs, and read by `transformers`."""
    told, tensors = to_hf(model, config, special)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(told))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    by_token = config.task == "classify" and config.model.pooling == "mean"
    auto = "AutoModelForTokenClassification" if by_token else AUTO[config.task]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, notes = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    missing = {name for name in notes["missing_keys"] if "embed_positions" not in name}
    assert not missing
    assert not notes["unexpected_keys"]
    assert not notes["mismatched_keys"]
    return found.eval()


def compared(theirs: Any, model: nn.Module, task: str) -> float:
    model.eval()
    with torch.no_grad():
        if task == "translate":
            target = tokens(length=6, seed=6)
            return apart(model(tokens(), target), theirs(input_ids=tokens(), decoder_input_ids=target).logits)
        logits = theirs(input_ids=tokens()).logits
        by_token = task == "classify" and logits.ndim == 3
        return apart(model(tokens()), logits.mean(1) if by_token else logits)


@pytest.mark.parametrize("name", ONE_VOCABULARY)
def test_what_was_read_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    case = EVERY_MODEL[name]
    folder = saved(case.make(), tmp_path / "theirs")
    got = open_folder(folder, case.task)
    told, tensors = to_hf(got.model, got.config, got.special)
    before: dict[str, Tensor] = load_file(folder / "model.safetensors")
    positions = {each for each in before if "embed_positions" in each and "marian" in name}  # which it computes
    assert tensors.keys() == before.keys() - positions
    assert all(torch.equal(tensors[each], before[each]) for each in tensors)
    then = json.loads((folder / "config.json").read_text())
    unlike = {key for key in told if key in then and told[key] != then[key]}
    assert unlike == ({OTHER_WORDS[name]} if name in OTHER_WORDS else set())
    assert told["architectures"] == then["architectures"]


@pytest.mark.parametrize("name", ONE_VOCABULARY)
def test_transformers_reads_what_was_written_with_equal_logits(name: str, tmp_path: Path) -> None:
    case = EVERY_MODEL[name]
    got = open_folder(saved(case.make(), tmp_path / "theirs"), case.task)
    theirs = loaded(got.model, got.config, tmp_path / "back", got.special)
    assert compared(theirs, got.model, case.task) < 1e-5


BASE = {"d_model": 16, "d_ff": 24, "n_layers": 2, "n_heads": 4, "dropout": 0.0}
MARIAN = {"positions": "sinusoidal_halves", "norm_position": "post", "final_norm": False}
BERT = {"norm_position": "post", "final_norm": False, "embedding_norm": True, "pooling": "first", "head_hidden": 16}
NO_BIASES = {"bias": False, "qkv_bias": False, "head_bias": False}
OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("generate", {"head_bias": False}),
    "gpt2 without biases": (
        "generate",
        {"head_bias": False, "bias": False, "qkv_bias": False, "activation": "relu"},
    ),
    "gpt2 untied, half of its biases": (
        "generate",
        {"head_bias": False, "tie_embeddings": False, "out_bias": "no"},
    ),
    "llama": (
        "generate",
        {
            "positions": "rotary",
            "norm": "rms",
            "activation": "swiglu",
            "bias": False,
            "qkv_bias": False,
            "head_bias": False,
            "n_kv_heads": 2,
            "rotary_scaling": (2.0,),
        },
    ),
    "bert": ("classify", BERT | {"head_activation": "tanh", "segments": 1}),
    "distilbert": ("classify", BERT | {"norm_eps": 1e-12, "qkv_bias": False, "head_bias": False}),
    "gpt2 with a bias in its head": ("generate", {}),
    "gpt2 with a bias in its head alone": ("generate", NO_BIASES | {"head_bias": True, "tie_embeddings": False}),
    "bert of one kind of text": ("classify", BERT | {"head_activation": "tanh"}),
    "bert by the mean": ("classify", BERT | {"pooling": "mean", "head_hidden": 0}),
    "megatron-bert by the mean": ("classify", {}),
    "megatron-bert": ("classify", {"pooling": "first", "head_hidden": 16, "head_activation": "tanh"}),
    "blenderbot": ("translate", {}),
    "blenderbot without biases": ("translate", NO_BIASES),
    "marian": ("translate", MARIAN | {"scale_embeddings": True}),
    "marian without biases": ("translate", MARIAN | NO_BIASES),
}


@pytest.mark.parametrize("name", OWN)
def test_a_model_of_our_own_loads_in_transformers_with_equal_logits(name: str, tmp_path: Path) -> None:
    task, settings = OWN[name]
    data = DataConfig(max_len=24, labels=("a", "b", "c") if task == "classify" else ())
    config = Config(task=task, model=ModelConfig(**BASE | settings), data=data)
    model = FORMS[task](config.model, SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs = loaded(model, config, tmp_path)
    assert theirs.config.model_type == name.split()[0]
    assert compared(theirs, model, task) < 1e-5
    if task == "classify":
        assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    again = open_folder(tmp_path, task)
    assert again.sizes == (SIZES if task == "classify" else Sizes(vocab_size=61, max_len=24))
    assert compared(theirs, again.model, task) < 1e-5


@pytest.mark.parametrize(
    ("task", "settings", "stands_in_the_way"),
    [
        ("generate", {"head_bias": False, "positions": "alibi"}, "model.positions=alibi (gpt2 has learned)"),
        ("generate", {"head_bias": False, "window": 8}, "model.window=8 (gpt2 has -1)"),
        ("generate", {"head_bias": False, "score": "cosine"}, "model.score=cosine (gpt2 has scaled_dot)"),
        ("generate", OWN["llama"][1] | {"qkv_bias": True}, "model.out_bias=auto with model.qkv_bias=True"),
        (
            "generate",
            {"head_bias": False, "activation": "swiglu"},
            "model.activation=swiglu (gpt2 has one of gelu_new",
        ),
        (
            "classify",
            OWN["bert"][1] | {"pooling": "mean"},
            "model.head_hidden=16 (bert has 0 with model.pooling=mean)",
        ),
        ("classify", OWN["bert"][1] | {"pooling": "last"}, "model.pooling=last (bert has first)"),
        ("classify", OWN["bert"][1] | {"segments": 0, "head_hidden": 7}, "model.head_hidden=7"),
        ("classify", OWN["bert"][1] | {"reach": "causal"}, "model.reach=causal (bert reads both ways)"),
        ("translate", MARIAN | {"reach": "causal"}, "model.reach=causal (marian reads both ways)"),
        ("translate", MARIAN | {"positions": "learned"}, "model.positions=learned (marian has sinusoidal_halves)"),
        ("translate", MARIAN | {"tie_embeddings": False}, "model.tie_embeddings=False (marian has True)"),
    ],
)
def test_where_nothing_fits_the_setting_in_the_way_is_named(
    task: Any, settings: Any, stands_in_the_way: str
) -> None:
    config = Config(task=task, model=ModelConfig(**BASE | settings), data=DataConfig(max_len=24))
    with pytest.raises(ConfigError) as caught:
        to_hf(FORMS[task](config.model, SIZES), config)
    said = str(caught.value)
    assert said.startswith("no family of published models has these settings: ")
    assert stands_in_the_way in said
    assert "\n" not in said


def test_a_parameter_without_a_place_is_not_lost_silently(tmp_path: Path) -> None:
    got = open_folder(saved(EVERY_MODEL["gpt2"].make(), tmp_path), "generate")
    got.model.blocks[0].attention.query.register_parameter("down", nn.Parameter(torch.zeros(2)))
    with pytest.raises(CheckpointError, match=r"blocks\.0\.attention\.query\.down has no place in this family"):
        to_hf(got.model, got.config)


def test_two_vocabularies_stand_in_the_way() -> None:
    config = Config(task="translate", model=ModelConfig(**BASE | MARIAN), data=DataConfig(max_len=24))
    with pytest.raises(ConfigError, match=r"two vocabularies \(marian has one: tokenizer\.shared=true\)"):
        fitting(config, Sizes(vocab_size=61, max_len=24, target_vocab_size=71))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_setting_of_a_model_is_told_fixed_or_known_to_be_free(family: Family) -> None:
    """A new setting is put into one of these, or a model that has it would be written as one that does not."""
    said = {word.setting for word in family.words}
    every = {field.name for field in fields(ModelConfig)}
    assert said | family.fixed.keys() | PLAIN.keys() | set(family.free) == every
    assert not said & family.fixed.keys()
