"""Export a decoder or an encoder-decoder for CTranslate2, by filling in that engine's model specification."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from triform.config import Config, ModelConfig
from triform.errors import CheckpointError, ConfigError, install_command
from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.block import Block, CrossBlock
from triform.nn.embedding import InputEmbedding, LearnedPositionEmbedding, SinusoidalPositionEmbedding
from triform.nn.norm import DEFAULT_EPS
from triform.text import SpecialTokens, Tokenizer

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "swiglu": "SWISH"}
SUPPORTED_SCORES = ("scaled_dot", "dot")
SUPPORTED_POSITIONS = ("learned", "sinusoidal", "sinusoidal_halves", "rotary", "relative", "none")


def write_ctranslate2(model: nn.Module, config: Config, tokenizers: list[Tokenizer], out: Path) -> None:
    """Write model.bin, config.json and the vocabulary into an existing folder.

    Raises:
        ConfigError: CTranslate2 does not support the task or the settings of the model.
        CheckpointError: The package ctranslate2 is not installed.
    """
    if config.task == "classify":
        raise ConfigError("ctranslate2 does not support classifiers; use --to onnx or --to hf")
    if problems := find_unsupported_settings(config):
        raise ConfigError(f"ctranslate2 does not support these settings: {'; '.join(problems)}")
    vocabularies = [list(tokenizer.vocabulary) for tokenizer in tokenizers]
    write_specification(model, config, vocabularies, tokenizers[-1].special_tokens, out)


def write_specification(
    model: nn.Module, config: Config, vocabularies: list[list[str]], special: SpecialTokens, out: Path
) -> None:
    """Write a model that CTranslate2 supports, with any names for its tokens.

    Args:
        model: A decoder or an encoder-decoder.
        config: Its settings.
        vocabularies: The name of each token, ordered by id; for two vocabularies, source and target.
        special: The special tokens of the target.
        out: An existing folder.

    Raises:
        CheckpointError: The package ctranslate2 is not installed.
    """
    specs = _import_specs()
    spec = (
        _build_seq2seq_spec(specs, model, config)
        if isinstance(model, Seq2Seq)
        else _build_decoder_spec(specs, model, config)
    )
    vocabulary = vocabularies[-1]
    spec.config.unk_token = vocabulary[special.unk_or_pad]
    spec.config.bos_token, spec.config.eos_token = vocabulary[special.start_token], vocabulary[special.end_token]
    spec.config.layer_norm_epsilon = config.model.norm_eps or DEFAULT_EPS[config.model.norm]
    if isinstance(model, Seq2Seq):
        spec.config.decoder_start_token = vocabulary[special.start_token]
        spec.register_source_vocabulary(vocabularies[0])
        spec.register_target_vocabulary(vocabulary)
    else:
        spec.register_vocabulary(vocabulary)
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(out))


def find_unsupported_settings(config: Config) -> list[str]:
    """Return the settings that CTranslate2 does not support, each with the values that it supports."""
    model, problems = config.model, []
    supported_positions = (*SUPPORTED_POSITIONS, "alibi") if config.task == "generate" else SUPPORTED_POSITIONS
    if model.attention_score not in SUPPORTED_SCORES:
        problems.append(
            f"model.attention_score={model.attention_score} (it supports {' and '.join(SUPPORTED_SCORES)})"
        )
    if model.positions not in supported_positions:
        problems.append(f"model.positions={model.positions} (it supports {', '.join(supported_positions)})")
    if any(0 < window < config.data.max_len for window in model.windows):
        problems.append("model.window or model.layer_windows (it has no attention windows)")
    if model.n_segments:
        problems.append(f"model.n_segments={model.n_segments} (it has no segment embeddings)")
    if config.task == "translate" and model.attention_direction == "causal":
        problems.append("model.attention_direction=causal (its encoder is bidirectional)")
    if config.task == "translate" and len(model.rotary_scaling) == 4:
        problems.append(
            f"model.rotary_scaling={list(model.rotary_scaling)} (its encoder supports only one scaling factor)"
        )
    return problems


def _import_specs() -> Any:
    try:
        from ctranslate2 import specs
    except ImportError:
        raise CheckpointError(
            f"ctranslate2 is not installed; install it with {install_command('export')}"
        ) from None
    return specs


def _layer_options(specs: Any, model: ModelConfig) -> dict[str, Any]:
    """Return the CTranslate2 options that encoder and decoder share."""
    options: dict[str, Any] = {
        "pre_norm": True,  # `_fill_stack` sets the actual value; a final norm requires True here
        "no_final_norm": not model.final_norm,
        "activation": specs.common_spec.Activation[ACTIVATIONS[model.activation]],
        "ffn_glu": model.activation == "swiglu",
        "rms_norm": model.norm == "rms",
        "layernorm_embedding": model.embedding_norm,
        "relative_position": model.positions == "relative",
        "num_heads_kv": model.kv_heads if model.kv_heads != model.n_heads else None,
    }
    if model.positions == "rotary":
        options |= {"rotary_dim": model.head_dim, "rotary_interleave": False, "rotary_base": model.rotary_base}
        scaling_types = specs.attention_spec.RotaryScalingType
        if len(model.rotary_scaling) == 1:
            options |= {
                "rotary_scaling_type": scaling_types.Linear,
                "rotary_scaling_factor": model.rotary_scaling[0],
            }
        elif model.rotary_scaling:
            options |= {"rotary_scaling_type": scaling_types.Llama3}
            options |= {"original_max_position_embeddings": int(model.rotary_scaling[3])}
    return options


def _build_decoder_spec(specs: Any, model: nn.Module, config: Config) -> Any:
    assert isinstance(model, Decoder)
    transformer_spec, options = specs.transformer_spec, _layer_options(specs, config.model)
    decoder = transformer_spec.TransformerDecoderSpec(
        config.model.n_layers, config.model.n_heads, with_encoder_attention=False,
        alibi=config.model.positions == "alibi", **options,
    )  # fmt: skip
    _fill_stack(specs, decoder, model, config, decoder.embeddings)
    _fill_linear(decoder.projection, model.lm_head)
    return transformer_spec.TransformerDecoderModelSpec(decoder)


def _build_seq2seq_spec(specs: Any, model: Seq2Seq, config: Config) -> Any:
    transformer_spec, options = specs.transformer_spec, _layer_options(specs, config.model)
    encoder = transformer_spec.TransformerEncoderSpec(config.model.n_layers, config.model.n_heads, **options)
    decoder = transformer_spec.TransformerDecoderSpec(config.model.n_layers, config.model.n_heads, **options)
    _fill_stack(specs, encoder, model.encoder, config, encoder.embeddings[0])
    _fill_stack(specs, decoder, model, config, decoder.embeddings)
    _fill_linear(decoder.projection, model.lm_head)
    return transformer_spec.TransformerSpec(encoder, decoder)


def _fill_stack(specs: Any, stack: Any, model: nn.Module, full_config: Config, token_table: Any) -> None:
    """Fill in an encoder or a decoder: embeddings, layers and final norm."""
    embedding: InputEmbedding = model.embedding  # type: ignore[assignment]
    model_config = full_config.model
    stack.pre_norm, stack.scale_embeddings = model_config.norm_position == "pre", model_config.scale_embeddings
    token_table.weight = _to_numpy(embedding.token_embedding.weight)
    if hasattr(stack, "position_encodings") and model_config.positions not in ("rotary", "alibi", "relative"):
        stack.position_encodings.encodings = _to_numpy(_position_table(embedding, full_config.data.max_len))
    if model_config.embedding_norm:
        _fill_norm(stack.layernorm_embedding, embedding.norm)
    if model_config.final_norm:
        _fill_norm(stack.layer_norm, model.final_norm)  # type: ignore[arg-type]
    for layer, block in zip(stack.layer, model.blocks, strict=True):  # type: ignore[arg-type]
        _fill_layer(layer, block, model_config)


def _position_table(embedding: InputEmbedding, max_len: int) -> Tensor:
    """Return the position embeddings: zeros for a model without a table, None if CTranslate2 computes sinusoids."""
    positions = embedding.position_embedding
    if isinstance(positions, LearnedPositionEmbedding):
        return positions.table.weight
    if isinstance(positions, SinusoidalPositionEmbedding):
        return positions.table
    return torch.zeros(max_len, embedding.token_embedding.embedding_dim)


def _fill_layer(layer: Any, block: Block | CrossBlock, config: ModelConfig) -> None:
    self_attention = layer.self_attention
    _fill_linear(self_attention.linear[0], block.attn.q_proj, block.attn.kv_proj)
    _fill_linear(self_attention.linear[1], block.attn.out_proj)
    _fill_norm(self_attention.layer_norm, block.attn_norm)
    if config.positions == "relative":
        relation: Any = block.attn.score_fn.relative_position
        self_attention.relative_position_keys = _to_numpy(relation.key_table.weight)
        self_attention.relative_position_values = _to_numpy(relation.value_table.weight)
    if len(config.rotary_scaling) == 4:
        # the engine reads the factor, but the specification has no attribute for it
        vars(self_attention)["rotary_scaling_factor"] = _to_float32(config.rotary_scaling[0])
        self_attention.rotary_low_freq_factor, self_attention.rotary_high_freq_factor = map(
            _to_float32, config.rotary_scaling[1:3]
        )
    attentions = [self_attention]
    if isinstance(block, CrossBlock):
        _fill_linear(layer.attention.linear[0], block.cross_attn.q_proj)
        _fill_linear(layer.attention.linear[1], block.cross_attn.kv_proj)
        _fill_linear(layer.attention.linear[2], block.cross_attn.out_proj)
        _fill_norm(layer.attention.layer_norm, block.cross_attn_norm)
        attentions.append(layer.attention)
    if config.score_scale != 1 / math.sqrt(config.head_dim):  # the engine's default
        for attention in attentions:
            attention.queries_scale = _to_float32(config.score_scale)
    _fill_feedforward(layer.ffn, block)


def _fill_feedforward(target: Any, block: Block | CrossBlock) -> None:
    up, down = block.ffn.up_proj, block.ffn.down_proj
    if hasattr(target, "linear_0_noact"):  # the gate is the first half
        biases: tuple[Any, ...] = (None, None) if up.bias is None else up.bias.chunk(2)
        _fill_weights(target.linear_0, up.weight.chunk(2)[0], biases[0])
        _fill_weights(target.linear_0_noact, up.weight.chunk(2)[1], biases[1])
    else:
        _fill_linear(target.linear_0, up)
    _fill_linear(target.linear_1, down)
    _fill_norm(target.layer_norm, block.ffn_norm)


def _fill_linear(target: Any, *sources: nn.Linear) -> None:
    """Fill in one linear layer from one or more linear layers of the model, concatenated by rows."""
    weights: list[Tensor] = [layer.weight for layer in sources]
    biases: list[Tensor] = [layer.bias for layer in sources if layer.bias is not None]
    _fill_weights(target, torch.cat(weights), torch.cat(biases) if biases else None)


def _fill_weights(target: Any, weight: Tensor, bias: Tensor | None) -> None:
    target.weight = _to_numpy(weight)
    if bias is not None:
        target.bias = _to_numpy(bias)


def _fill_norm(target: Any, source: nn.Module) -> None:
    weight: Tensor = source.weight  # type: ignore[assignment]
    target.gamma = _to_numpy(weight)
    if hasattr(target, "beta"):
        bias: Tensor | None = source.bias  # type: ignore[assignment]
        target.beta = _to_numpy(torch.zeros_like(weight) if bias is None else bias)


def _to_numpy(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()


def _to_float32(value: float) -> Any:
    return np.float32(value)
