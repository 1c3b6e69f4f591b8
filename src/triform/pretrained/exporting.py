"""One of Triform's models as others keep it: config.json and named tensors of the family that its settings fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from triform.config import Config, Sizes
from triform.errors import ConfigError
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.pretrained.families import FAMILIES
from triform.pretrained.family import Family
from triform.pretrained.names import gather, sames

OUR_TOKENS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}


def to_hf(
    model: nn.Module, config: Config, special: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and tensors of the family that fits; `special` are the numbers of special tokens."""
    sizes = sizes_of(model, config)
    family = fitting(config, sizes)
    model, config = family.adapt(model, config)
    told = family.config(config, sizes)
    numbers = OUR_TOKENS if special is None else special
    if config.task != "translate":
        numbers = {name: number for name, number in numbers.items() if name != "decoder_start_token_id"}
    tensors = gather(model, sames(family.pairs, config.model.n_layers), zeros=family.zeros)
    return {**told, **numbers}, {**tensors, **family.constants(config)}


def fitting(config: Config, sizes: Sizes) -> Family:
    """The family whose models have these settings; where none has, the settings that stand in the way."""
    able = [family for family in FAMILIES if family.write and family.task == config.task]
    trouble = {family.name: family.misfits(config, sizes) for family in able}
    for family in able:
        if not trouble[family.name]:
            return family
    nearest, *others = sorted(trouble, key=lambda name: len(trouble[name]))
    farther = "".join(f"; {name} differs in {len(trouble[name])} settings" for name in others)
    raise ConfigError(f"no family of published models has these settings: {'; '.join(trouble[nearest])}{farther}")


def sizes_of(model: nn.Module, config: Config) -> Sizes:
    """What the model was built for, as its tables have it."""
    if isinstance(model, Classifier):
        last = [module for module in model.head.modules() if isinstance(module, nn.Linear)][-1]
        vocab_size = model.encoder.embedding.tokens.num_embeddings
        return Sizes(vocab_size=vocab_size, max_len=config.data.max_len, n_labels=last.out_features)
    if isinstance(model, Seq2Seq):
        source, target = model.encoder.embedding.tokens, model.embedding.tokens
        second = target.num_embeddings if target is not source else 0
        vocab_size = source.num_embeddings
        return Sizes(vocab_size=vocab_size, max_len=config.data.max_len, target_vocab_size=second)
    tokens: nn.Embedding = model.embedding.tokens  # type: ignore[union-attr,assignment]
    return Sizes(vocab_size=tokens.num_embeddings, max_len=config.data.max_len)
