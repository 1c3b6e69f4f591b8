"""Export a model as config.json and named tensors of the model family that matches its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from triform.config import Config, DataSizes
from triform.errors import ConfigError
from triform.models.encoder import Classifier
from triform.models.seq2seq import Seq2Seq
from triform.pretrained.families import FAMILIES
from triform.pretrained.family import SPECIAL_TOKEN_KEYS, Family
from triform.pretrained.name_mapping import expand_patterns, export_state_dict

# Special tokens of Triform's tokenizers: padding, start, end, and the start of a translation.
DEFAULT_TOKEN_IDS = dict(zip(SPECIAL_TOKEN_KEYS, (0, 2, 3, 2), strict=True))


def to_hf(
    model: nn.Module, config: Config, special_tokens: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a model as `transformers` stores it.

    Args:
        model: A model of `triform.models`.
        config: The settings that the model was built with.
        special_tokens: Token ids by their keys in config.json. The default is the ids of Triform's tokenizers.

    Returns:
        The content of config.json, and the tensors for model.safetensors.

    Raises:
        ConfigError: No supported family can express these settings. The message names the settings that differ.

    >>> from triform.config import DataSizes
    >>> from triform.config.settings import build_config
    >>> from triform.models.decoder import Decoder
    >>> sizes = {"model.d_model": 8, "model.d_ff": 32, "model.n_layers": 1, "model.n_heads": 2, "data.max_len": 16}
    >>> config = build_config({"task": "generate", "model.head_bias": False, **sizes})
    >>> hf_config, tensors = to_hf(Decoder(config.model, DataSizes(vocab_size=20, max_len=16)), config)
    >>> hf_config["model_type"], tensors["transformer.wte.weight"].shape
    ('gpt2', torch.Size([20, 8]))
    """
    sizes = infer_sizes(model, config)
    family = find_matching_family(config, sizes)
    model, config = family.adapt_model(model, config)
    hf_config = family.build_config(config, sizes)
    token_ids = DEFAULT_TOKEN_IDS if special_tokens is None else special_tokens
    if config.task != "translate":
        token_ids = {name: token_id for name, token_id in token_ids.items() if name != "decoder_start_token_id"}
    tensors = export_state_dict(
        model, expand_patterns(family.patterns, config.model.n_layers), write_zero_biases=family.write_zero_biases
    )
    return {**hf_config, **token_ids}, {**tensors, **family.constant_tensors(config)}


def find_matching_family(config: Config, sizes: DataSizes) -> Family:
    """Return the family that can express these settings.

    Raises:
        ConfigError: There is no such family. The message names the settings that differ from the closest one.
    """
    candidates = [family for family in FAMILIES if family.write_config and family.task == config.task]
    mismatches = {family.name: family.find_mismatches(config, sizes) for family in candidates}
    for family in candidates:
        if not mismatches[family.name]:
            return family
    closest, *others = sorted(mismatches, key=lambda name: len(mismatches[name]))
    others_summary = "".join(f"; {name} differs in {len(mismatches[name])} settings" for name in others)
    raise ConfigError(
        f"no model of transformers supports these settings: {'; '.join(mismatches[closest])}{others_summary}"
    )


def infer_sizes(model: nn.Module, config: Config) -> DataSizes:
    """Return the sizes that a model was built for, from the shapes of its embeddings."""
    if isinstance(model, Classifier):
        output_layer = [module for module in model.classification_head.modules() if isinstance(module, nn.Linear)][
            -1
        ]
        vocab_size = model.encoder.embedding.token_embedding.num_embeddings
        return DataSizes(vocab_size=vocab_size, max_len=config.data.max_len, n_labels=output_layer.out_features)
    if isinstance(model, Seq2Seq):
        source, target = model.encoder.embedding.token_embedding, model.embedding.token_embedding
        target_vocab_size = target.num_embeddings if target is not source else 0
        vocab_size = source.num_embeddings
        return DataSizes(vocab_size=vocab_size, max_len=config.data.max_len, target_vocab_size=target_vocab_size)
    table: nn.Embedding = model.embedding.token_embedding  # type: ignore[union-attr,assignment]
    return DataSizes(vocab_size=table.num_embeddings, max_len=config.data.max_len)
