"""A decoder or an encoder-decoder as a CTranslate2 folder: its weights laid into that engine's own description."""

from __future__ import annotations

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
from triform.nn.embedding import Embedding
from triform.nn.norm import USUAL_EPS
from triform.nn.positions import Learned, Sinusoidal
from triform.text import Tokenizer

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "swiglu": "SWISH"}
SCORES = ("scaled_dot", "dot")
POSITIONS = ("learned", "sinusoidal", "sinusoidal_halves", "rotary", "relative", "none")


def write_ctranslate2(model: nn.Module, config: Config, tokenizers: list[Tokenizer], out: Path) -> None:
    """Write model.bin, config.json and the vocabulary into a folder that is there."""
    if config.task == "classify":
        raise ConfigError("ctranslate2 has no classifiers; export this run to onnx or hf")
    if trouble := misfits(config):
        raise ConfigError(f"ctranslate2 cannot have these settings: {'; '.join(trouble)}")
    specs = _specs()
    spec = _translator(specs, model, config) if isinstance(model, Seq2Seq) else _writer(specs, model, config)
    special = tokenizers[-1].special
    names = tokenizers[-1].vocabulary
    spec.config.unk_token = names[special.nothing]
    spec.config.bos_token, spec.config.eos_token = names[special.start], names[special.blank]
    spec.config.layer_norm_epsilon = config.model.norm_eps or USUAL_EPS[config.model.norm]
    if isinstance(model, Seq2Seq):
        spec.config.decoder_start_token = names[special.start]
        spec.register_source_vocabulary(list(tokenizers[0].vocabulary))
        spec.register_target_vocabulary(list(names))
    else:
        spec.register_vocabulary(list(names))
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(out))


def misfits(config: Config) -> list[str]:
    """The settings that the engine cannot have, each with what it has."""
    model, wrong = config.model, []
    known = (*POSITIONS, "alibi") if config.task == "generate" else POSITIONS
    if model.score not in SCORES:
        wrong.append(f"model.score={model.score} (it has {' and '.join(SCORES)})")
    if model.positions not in known:
        wrong.append(f"model.positions={model.positions} (it has {', '.join(known)})")
    if any(0 < window < config.data.max_len for window in model.windows):
        wrong.append("model.window or model.layer_windows (it reads everything before a token)")
    if model.segments:
        wrong.append(f"model.segments={model.segments} (it has none)")
    if config.task == "translate" and model.reach == "causal":
        wrong.append("model.reach=causal (its encoder reads both ways)")
    if config.task == "translate" and len(model.rotary_scaling) == 4:
        wrong.append(f"model.rotary_scaling={list(model.rotary_scaling)} (its encoder scales by one factor)")
    return wrong


def _specs() -> Any:
    try:
        from ctranslate2 import specs
    except ImportError:
        raise CheckpointError(
            f"writing for ctranslate2 needs its package; install it with {install_command('export')}"
        ) from None
    return specs


def _shape(specs: Any, model: ModelConfig) -> dict[str, Any]:
    """What both sides of a model are told of their layers."""
    told: dict[str, Any] = {
        "pre_norm": True,  # with norms that come after, too, there may be a last one: `_lay_side` says which it is
        "no_final_norm": not model.final_norm,
        "activation": specs.common_spec.Activation[ACTIVATIONS[model.activation]],
        "ffn_glu": model.activation == "swiglu",
        "rms_norm": model.norm == "rms",
        "layernorm_embedding": model.embedding_norm,
        "relative_position": model.positions == "relative",
        "num_heads_kv": model.kv_heads if model.kv_heads != model.n_heads else None,
    }
    if model.positions == "rotary":
        told |= {"rotary_dim": model.head_dim, "rotary_interleave": False, "rotary_base": model.rotary_base}
        kinds = specs.attention_spec.RotaryScalingType
        if len(model.rotary_scaling) == 1:
            told |= {"rotary_scaling_type": kinds.Linear, "rotary_scaling_factor": model.rotary_scaling[0]}
        elif model.rotary_scaling:
            told |= {"rotary_scaling_type": kinds.Llama3}
            told |= {"original_max_position_embeddings": int(model.rotary_scaling[3])}
    return told


def _writer(specs: Any, model: nn.Module, config: Config) -> Any:
    assert isinstance(model, Decoder)
    kinds, shape = specs.transformer_spec, _shape(specs, config.model)
    side = kinds.TransformerDecoderSpec(
        config.model.n_layers, config.model.n_heads, with_encoder_attention=False,
        alibi=config.model.positions == "alibi", **shape,
    )  # fmt: skip
    _lay_side(specs, side, model, config, side.embeddings)
    _lay_linear(side.projection, model.head)
    return kinds.TransformerDecoderModelSpec(side)


def _translator(specs: Any, model: Seq2Seq, config: Config) -> Any:
    kinds, shape = specs.transformer_spec, _shape(specs, config.model)
    reads = kinds.TransformerEncoderSpec(config.model.n_layers, config.model.n_heads, **shape)
    writes = kinds.TransformerDecoderSpec(config.model.n_layers, config.model.n_heads, **shape)
    _lay_side(specs, reads, model.encoder, config, reads.embeddings[0])
    _lay_side(specs, writes, model, config, writes.embeddings)
    _lay_linear(writes.projection, model.head)
    return kinds.TransformerSpec(reads, writes)


def _lay_side(specs: Any, side: Any, model: nn.Module, whole: Config, table: Any) -> None:
    """An encoder or a decoder: embeddings, layers, the norm after them."""
    embedding: Embedding = model.embedding  # type: ignore[assignment]
    config = whole.model
    side.pre_norm, side.scale_embeddings = config.norm_position == "pre", config.scale_embeddings
    table.weight = _host(embedding.tokens.weight)
    if hasattr(side, "position_encodings") and config.positions not in ("rotary", "alibi", "relative"):
        side.position_encodings.encodings = _host(_places(embedding, whole.data.max_len))
    if config.embedding_norm:
        _lay_norm(side.layernorm_embedding, embedding.norm)
    if config.final_norm:
        _lay_norm(side.layer_norm, model.norm)  # type: ignore[arg-type]
    for layer, block in zip(side.layer, model.blocks, strict=True):  # type: ignore[arg-type]
        _lay_layer(layer, block, config)


def _places(embedding: Embedding, max_len: int) -> Tensor:
    """What is added at each position; where nothing is, zeros, for the engine would add sinusoids."""
    positions = embedding.positions
    if isinstance(positions, Learned):
        return positions.table.weight
    if isinstance(positions, Sinusoidal):
        return positions.table
    return torch.zeros(max_len, embedding.tokens.embedding_dim)


def _lay_layer(layer: Any, block: Block | CrossBlock, config: ModelConfig) -> None:
    own = layer.self_attention
    _lay_linear(own.linear[0], block.attention.query, block.attention.key_value)
    _lay_linear(own.linear[1], block.attention.out)
    _lay_norm(own.layer_norm, block.attend.norm)
    if config.positions == "relative":
        relation: Any = block.attention.matching.relation
        own.relative_position_keys = _host(relation.key_table.weight)
        own.relative_position_values = _host(relation.value_table.weight)
    if len(config.rotary_scaling) == 4:
        # the engine reads the factor, but the description has no place for it
        vars(own)["rotary_scaling_factor"] = _number(config.rotary_scaling[0])
        own.rotary_low_freq_factor, own.rotary_high_freq_factor = map(_number, config.rotary_scaling[1:3])
    attentions = [own]
    if isinstance(block, CrossBlock):
        _lay_linear(layer.attention.linear[0], block.cross.query)
        _lay_linear(layer.attention.linear[1], block.cross.key_value)
        _lay_linear(layer.attention.linear[2], block.cross.out)
        _lay_norm(layer.attention.layer_norm, block.consult.norm)
        attentions.append(layer.attention)
    if config.score == "dot":
        for attention in attentions:
            attention.queries_scale = _number(1.0)
    _lay_feedforward(layer.ffn, block)


def _lay_feedforward(theirs: Any, block: Block | CrossBlock) -> None:
    up, down = block.feedforward.up, block.feedforward.down
    if hasattr(theirs, "linear_0_noact"):  # the half that decides comes first here
        biases: tuple[Any, ...] = (None, None) if up.bias is None else up.bias.chunk(2)
        _lay(theirs.linear_0, up.weight.chunk(2)[0], biases[0])
        _lay(theirs.linear_0_noact, up.weight.chunk(2)[1], biases[1])
    else:
        _lay_linear(theirs.linear_0, up)
    _lay_linear(theirs.linear_1, down)
    _lay_norm(theirs.layer_norm, block.think.norm)


def _lay_linear(theirs: Any, *ours: nn.Linear) -> None:
    """One layer of theirs from some of ours, one under the other."""
    weights: list[Tensor] = [layer.weight for layer in ours]
    biases: list[Tensor] = [layer.bias for layer in ours if layer.bias is not None]
    _lay(theirs, torch.cat(weights), torch.cat(biases) if biases else None)


def _lay(theirs: Any, weight: Tensor, bias: Tensor | None) -> None:
    theirs.weight = _host(weight)
    if bias is not None:
        theirs.bias = _host(bias)


def _lay_norm(theirs: Any, ours: nn.Module) -> None:
    weight: Tensor = ours.weight  # type: ignore[assignment]
    theirs.gamma = _host(weight)
    if hasattr(theirs, "beta"):
        bias: Tensor | None = ours.bias  # type: ignore[assignment]
        theirs.beta = _host(torch.zeros_like(weight) if bias is None else bias)


def _host(x: Tensor) -> Any:
    return x.detach().float().cpu().contiguous().numpy()


def _number(x: float) -> Any:
    return np.float32(x)
