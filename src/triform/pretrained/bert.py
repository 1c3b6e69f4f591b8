"""BERT, MiniLM (a small BERT), DistilBERT and Megatron's BERT.

BERT and DistilBERT have post-norm layers and a norm after the embeddings. Megatron's BERT has pre-norm layers, like
Triform's default classifier.

The pooler of a model becomes a hidden layer of the classification head over the first token, with tanh for BERT and
relu for DistilBERT. Folders of sentence-transformers state how a text is pooled; a pooler that they do not use is
skipped.

A classifier that pools by the mean is exported as a token classifier (...ForTokenClassification): the logits of a
text are the mean of the logits of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from triform.config import Config, DataSizes
from triform.config.settings import Settings
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint
from triform.pretrained.family import (
    IGNORED_WITHOUT_ROTARY,
    ConfigKey,
    Family,
    ImportSpec,
    require_size,
)
from triform.pretrained.name_mapping import WEIGHT_ONLY, layer_patterns, name_pattern

ENCODER_SETTINGS: Settings = {
    "positions": "learned",
    "norm": "layer",
    "norm_position": "post",
    "final_norm": False,
    "embedding_norm": True,
    "n_kv_heads": 0,
    "scale_embeddings": False,
    "rotary_scaling": (),
}
IGNORED_BERT_SETTINGS = (*IGNORED_WITHOUT_ROTARY, "tie_embeddings")
TOKEN_TYPES = "bert.embeddings.token_type_embeddings"
# In config.json: the logits of a text are the mean of the logits of its tokens.
TOKEN_POOLING_KEY = ("classifier_pooling", "mean")
POOLING_FILE = "1_Pooling/config.json"  # written by sentence-transformers
BERT_LAYER_NAMES = {
    "attn.q_proj": "attention.self.query",
    "attn.kv_proj": "attention.self.key attention.self.value",
    "attn.out_proj": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "ffn.up_proj": "intermediate.dense",
    "ffn.down_proj": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
MEGATRON_LAYER_NAMES = BERT_LAYER_NAMES | {"attn_norm": "attention.ln", "ffn_norm": "ln"}
BERT_COMMON_PATTERNS = (
    name_pattern("encoder.embedding.token_embedding", "bert.embeddings.word_embeddings", suffixes=WEIGHT_ONLY),
    name_pattern(
        "encoder.embedding.position_embedding.table", "bert.embeddings.position_embeddings", suffixes=WEIGHT_ONLY
    ),
    name_pattern("encoder.embedding.segment_embedding.table", TOKEN_TYPES, suffixes=WEIGHT_ONLY),
    name_pattern("classification_head.0", "bert.pooler.dense"),
    name_pattern("classification_head.2", "classifier"),
    name_pattern("classification_head", "classifier"),
)
BERT_PATTERNS = (
    *BERT_COMMON_PATTERNS,
    name_pattern("encoder.embedding.norm", "bert.embeddings.LayerNorm"),
    *layer_patterns("encoder.blocks", "bert.encoder.layer", BERT_LAYER_NAMES),
)
MEGATRON_PATTERNS = (
    *BERT_COMMON_PATTERNS,
    *layer_patterns("encoder.blocks", "bert.encoder.layer", MEGATRON_LAYER_NAMES),
    name_pattern("encoder.final_norm", "bert.encoder.ln"),
)
DISTILBERT_PATTERNS = (
    name_pattern(
        "encoder.embedding.token_embedding", "distilbert.embeddings.word_embeddings", suffixes=WEIGHT_ONLY
    ),
    name_pattern(
        "encoder.embedding.position_embedding.table",
        "distilbert.embeddings.position_embeddings",
        suffixes=WEIGHT_ONLY,
    ),
    name_pattern("encoder.embedding.norm", "distilbert.embeddings.LayerNorm"),
    *layer_patterns(
        "encoder.blocks",
        "distilbert.transformer.layer",
        {
            "attn.q_proj": "attention.q_lin",
            "attn.kv_proj": "attention.k_lin attention.v_lin",
            "attn.out_proj": "attention.out_lin",
            "attn_norm": "sa_layer_norm",
            "ffn.up_proj": "ffn.lin1",
            "ffn.down_proj": "ffn.lin2",
            "ffn_norm": "output_layer_norm",
        },
    ),
    name_pattern("classification_head.0", "pre_classifier"),
    name_pattern("classification_head.2", "classifier"),
    name_pattern("classification_head", "classifier"),
)


def _read_bert(checkpoint: PretrainedCheckpoint, settings: Settings) -> ImportSpec:
    return _read_spec(checkpoint, settings, pooler="bert.pooler.dense.weight", activation="tanh")


def _read_distilbert(checkpoint: PretrainedCheckpoint, settings: Settings) -> ImportSpec:
    return _read_spec(checkpoint, settings, pooler="pre_classifier.weight", activation="relu")


def _read_spec(checkpoint: PretrainedCheckpoint, settings: Settings, *, pooler: str, activation: str) -> ImportSpec:
    """Return the settings of a checkpoint, with a head over the first token or over the mean of the tokens."""
    pools_token_logits = checkpoint.config.get(TOKEN_POOLING_KEY[0]) == TOKEN_POOLING_KEY[1]
    pools_mean = pools_token_logits or checkpoint.read_optional_json(POOLING_FILE).get(
        "pooling_mode_mean_tokens", False
    )
    has_pooler = pooler in checkpoint.tensors and not pools_mean
    classifies_texts = checkpoint.architecture.endswith("ForSequenceClassification")
    has_label_head = "classifier.weight" in checkpoint.tensors and (pools_token_logits or classifies_texts)
    n_labels = (*checkpoint.tensors["classifier.weight"].shape, 0)[0] if has_label_head else 0
    model: Settings = {
        **settings,
        "pooling": "first" if has_pooler else "mean",
        "head_hidden": settings["d_model"] if has_pooler else 0,
        "head_activation": activation if has_pooler else "relu",
    }
    return ImportSpec(
        model_settings=model,
        vocab_size=require_size(checkpoint, "vocab_size", 30_522),
        max_len=require_size(checkpoint, "max_position_embeddings", 512),
        labels=_read_label_names(checkpoint, n_labels),
        new_head=not has_label_head,
        unused_patterns=() if has_pooler else (pooler.rpartition(".")[0] + ".*",),
        notices=tuple(_label_notices(checkpoint, n_labels)),
    )


def _read_label_names(checkpoint: PretrainedCheckpoint, n_labels: int) -> tuple[str, ...]:
    """Return the labels in config.json, or LABEL_0, LABEL_1, ... if it does not have `n_labels` distinct ones."""
    id2label = checkpoint.config.get("id2label")
    names = {str(label_id): str(name) for label_id, name in id2label.items()} if isinstance(id2label, dict) else {}
    label_ids = list(map(str, range(n_labels)))
    is_valid = names.keys() == set(label_ids) and len({*names.values()} - {""}) == n_labels
    return tuple(names[label_id] if is_valid else f"LABEL_{label_id}" for label_id in label_ids)


def _label_notices(checkpoint: PretrainedCheckpoint, n_labels: int) -> Iterator[str]:
    """Yield a notice if the head of the checkpoint does not choose one of several labels."""
    if n_labels == 1:
        yield "this model has one output instead of labels; choose your own labels and train it before you classify"
    elif checkpoint.config.get("problem_type") == "multi_label_classification":
        yield "this model was trained to assign several labels to a text; Triform predicts only the most likely one"


def _mismatch_finder(name: str, activation: str) -> Callable[[Config, DataSizes], list[str]]:
    """Return a check that the head is one layer over the mean, or has a hidden layer over the first token."""

    def find_mismatches(config: Config, sizes: DataSizes) -> list[str]:
        model = config.model
        if model.pooling == "mean":
            expected: Settings = {"head_hidden": 0}
        else:
            expected = {"pooling": "first", "head_hidden": model.d_model, "head_activation": activation}
        differing = {setting: value for setting, value in expected.items() if getattr(model, setting) != value}
        condition = f" with model.pooling={model.pooling}" if "pooling" not in differing else ""
        return [
            f"model.{setting}={getattr(model, setting)} ({name} requires {value}{condition})"
            for setting, value in differing.items()
        ]

    return find_mismatches


def _zero_token_types(config: Config) -> dict[str, Tensor]:
    """Return segment embeddings with one row of zeros for a model without segments."""
    return {} if config.model.n_segments else {f"{TOKEN_TYPES}.weight": torch.zeros(1, config.model.d_model)}


def _build_label_config(config: Config, sizes: DataSizes, class_prefix: str) -> dict[str, Any]:
    """Return the keys of config.json for sizes, labels and the model class."""
    pools_token_logits = config.model.pooling == "mean"
    names = config.data.labels or tuple(f"LABEL_{label_id}" for label_id in range(sizes.n_labels))
    return {
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_len,
        "id2label": {str(label_id): name for label_id, name in enumerate(names)},
        "label2id": {name: label_id for label_id, name in enumerate(names)},
        "architectures": [f"{class_prefix}For{'Token' if pools_token_logits else 'Sequence'}Classification"],
        **(dict([TOKEN_POOLING_KEY]) if pools_token_logits else {}),
    }


def _write_bert(config: Config, sizes: DataSizes, class_prefix: str = "Bert") -> dict[str, Any]:
    extra = {"position_embedding_type": "absolute", "type_vocab_size": max(1, config.model.n_segments)}
    return {**_build_label_config(config, sizes, class_prefix), **extra}


def _write_distilbert(config: Config, sizes: DataSizes) -> dict[str, Any]:
    extra = {"sinusoidal_pos_embds": False, "seq_classif_dropout": config.model.dropout}
    return {**_build_label_config(config, sizes, "DistilBert"), **extra}


BERT = Family(
    name="bert",
    model_types=("bert",),
    task="classify",
    prefix="bert.",
    config_keys=(
        ConfigKey("hidden_size", "d_model", 768),
        ConfigKey("intermediate_size", "d_ff", 3_072),
        ConfigKey("num_hidden_layers", "n_layers", 12),
        ConfigKey("num_attention_heads", "n_heads", 12),
        ConfigKey("hidden_act", "activation", "gelu"),
        ConfigKey("layer_norm_eps", "norm_eps", 1e-12),
        ConfigKey("hidden_dropout_prob", "dropout", 0.1),
        ConfigKey("attention_probs_dropout_prob", "attention_dropout", 0.1),
        ConfigKey("type_vocab_size", "n_segments", 2),
    ),
    fixed_settings=ENCODER_SETTINGS,
    patterns=BERT_PATTERNS,
    read_spec=_read_bert,
    write_config=_write_bert,
    find_extra_mismatches=_mismatch_finder("bert", "tanh"),
    constant_tensors=_zero_token_types,
    required_values={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    ignored_settings=IGNORED_BERT_SETTINGS,
    ignored_tensors=("bert.embeddings.position_ids",),
    label_head="classifier",
    other_heads=("cls.*", "qa_outputs.*"),
)
MEGATRON_BERT = replace(
    BERT,
    name="megatron-bert",
    model_types=("megatron-bert",),
    fixed_settings={**ENCODER_SETTINGS, "norm_position": "pre", "final_norm": True, "embedding_norm": False},
    patterns=MEGATRON_PATTERNS,
    write_config=partial(_write_bert, class_prefix="MegatronBert"),
    find_extra_mismatches=_mismatch_finder("megatron-bert", "tanh"),
)
DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    task="classify",
    prefix="distilbert.",
    config_keys=(
        ConfigKey("dim", "d_model", 768),
        ConfigKey("hidden_dim", "d_ff", 3_072),
        ConfigKey("n_layers", "n_layers", 6),
        ConfigKey("n_heads", "n_heads", 12),
        ConfigKey("activation", "activation", "gelu"),
        ConfigKey("dropout", "dropout", 0.1),
        ConfigKey("attention_dropout", "attention_dropout", 0.1),
    ),
    fixed_settings={**ENCODER_SETTINGS, "n_segments": 0, "norm_eps": 1e-12},
    patterns=DISTILBERT_PATTERNS,
    read_spec=_read_distilbert,
    write_config=_write_distilbert,
    find_extra_mismatches=_mismatch_finder("distilbert", "relu"),
    ignored_settings=IGNORED_BERT_SETTINGS,
    ignored_tensors=("distilbert.embeddings.position_ids",),
    label_head="classifier",
    other_heads=("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*", "qa_outputs.*"),
)
