"""BERT, MiniLM (a small BERT) and DistilBERT: norms after each sublayer and the embeddings, segments, poolers.

Megatron's BERT has norms before each sublayer instead, as a default classifier does.

BERT's pooler is a hidden layer of the head with tanh over the first token, DistilBERT's one with relu. Folders of
sentence-transformers say how a text is pooled; a pooler that they carry along unused is left out. A classifier
that takes the mean of its states is written as one that scores tokens (...ForTokenClassification): a text's logits
are the mean of its tokens' logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from triform.config import Config, Sizes
from triform.pretrained.family import FREE, Family, Shape, Word, whole
from triform.pretrained.gpt2 import CLASSIFIERS_OWN
from triform.pretrained.names import WEIGHT, layers, pair
from triform.pretrained.read import Foreign
from triform.settings import Settings

ENCODER: Settings = {
    "positions": "learned",
    "norm": "layer",
    "norm_position": "post",
    "final_norm": False,
    "embedding_norm": True,
    "n_kv_heads": 0,
    "scale_embeddings": False,
    "rotary_scaling": (),
}
FREE_HERE = (*FREE, "rotary_base", "bias", "qkv_bias", "out_bias", "head_bias", "tie_embeddings", *CLASSIFIERS_OWN)
TOKEN_TYPES = "bert.embeddings.token_type_embeddings"
BY_TOKEN = ("classifier_pooling", "mean")  # in config.json: the mean of all tokens' logits is the text's
POOLING = "1_Pooling/config.json"  # of sentence-transformers
BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key_value": "attention.self.key attention.self.value",
    "attention.out": "attention.output.dense",
    "attend.norm": "attention.output.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "think.norm": "output.LayerNorm",
}
MEGATRON_LAYER = BERT_LAYER | {"attend.norm": "attention.ln", "think.norm": "ln"}
BERT_COMMON = (
    pair("encoder.embedding.tokens", "bert.embeddings.word_embeddings", endings=WEIGHT),
    pair("encoder.embedding.positions.table", "bert.embeddings.position_embeddings", endings=WEIGHT),
    pair("encoder.embedding.segments.table", TOKEN_TYPES, endings=WEIGHT),
    pair("head.0", "bert.pooler.dense"),
    pair("head.2", "classifier"),
    pair("head", "classifier"),
)
BERT_PAIRS = (
    *BERT_COMMON,
    pair("encoder.embedding.norm", "bert.embeddings.LayerNorm"),
    *layers("encoder.blocks", "bert.encoder.layer", BERT_LAYER),
)
MEGATRON_PAIRS = (
    *BERT_COMMON,
    *layers("encoder.blocks", "bert.encoder.layer", MEGATRON_LAYER),
    pair("encoder.norm", "bert.encoder.ln"),
)
DISTILBERT_PAIRS = (
    pair("encoder.embedding.tokens", "distilbert.embeddings.word_embeddings", endings=WEIGHT),
    pair("encoder.embedding.positions.table", "distilbert.embeddings.position_embeddings", endings=WEIGHT),
    pair("encoder.embedding.norm", "distilbert.embeddings.LayerNorm"),
    *layers(
        "encoder.blocks",
        "distilbert.transformer.layer",
        {
            "attention.query": "attention.q_lin",
            "attention.key_value": "attention.k_lin attention.v_lin",
            "attention.out": "attention.out_lin",
            "attend.norm": "sa_layer_norm",
            "feedforward.up": "ffn.lin1",
            "feedforward.down": "ffn.lin2",
            "think.norm": "output_layer_norm",
        },
    ),
    pair("head.0", "pre_classifier"),
    pair("head.2", "classifier"),
    pair("head", "classifier"),
)


def _read_bert(foreign: Foreign, said: Settings) -> Shape:
    return _read(foreign, said, pooler="bert.pooler.dense.weight", activation="tanh")


def _read_distilbert(foreign: Foreign, said: Settings) -> Shape:
    return _read(foreign, said, pooler="pre_classifier.weight", activation="relu")


def _read(foreign: Foreign, said: Settings, *, pooler: str, activation: str) -> Shape:
    """The head is what the folder has of one: a pooler over the first token, or the mean of all."""
    by_token = foreign.config.get(BY_TOKEN[0]) == BY_TOKEN[1]
    by_mean = by_token or foreign.beside(POOLING).get("pooling_mode_mean_tokens", False)
    pooled = pooler in foreign.tensors and not by_mean
    whole_texts = foreign.architecture.endswith("ForSequenceClassification")
    scored = "classifier.weight" in foreign.tensors and (by_token or whole_texts)
    n_labels = (*foreign.tensors["classifier.weight"].shape, 0)[0] if scored else 0
    model: Settings = {
        **said,
        "pooling": "first" if pooled else "mean",
        "head_hidden": said["d_model"] if pooled else 0,
        "head_activation": activation if pooled else "relu",
    }
    return Shape(
        model=model,
        vocab_size=whole(foreign, "vocab_size", 30_522),
        max_len=whole(foreign, "max_position_embeddings", 512),
        labels=_names_of_labels(foreign, n_labels),
        fresh=not scored,
        unused=() if pooled else (pooler.rpartition(".")[0] + ".*",),
        notices=tuple(_other_scores(foreign, n_labels)),
    )


def _names_of_labels(foreign: Foreign, n_labels: int) -> tuple[str, ...]:
    """As config.json has them; where it has not just so many, each another, as `transformers` would call them."""
    told = foreign.config.get("id2label")
    names = {str(number): str(name) for number, name in told.items()} if isinstance(told, dict) else {}
    numbers = list(map(str, range(n_labels)))
    told_apart = names.keys() == set(numbers) and len({*names.values()} - {""}) == n_labels
    return tuple(names[number] if told_apart else f"LABEL_{number}" for number in numbers)


def _other_scores(foreign: Foreign, n_labels: int) -> Iterator[str]:
    """What scores mean there, where that is not a choice among labels."""
    if n_labels == 1:
        yield "it gives one score, which is no choice: only with labels of your own, and trained, does it classify"
    elif foreign.config.get("problem_type") == "multi_label_classification":
        yield "there a text may have several labels at once; here it has the likeliest one"


def _unfit(name: str, activation: str) -> Callable[[Config, Sizes], list[str]]:
    """A head is one layer over the mean, or has a hidden layer as wide as the model over the first token."""

    def wrong(config: Config, sizes: Sizes) -> list[str]:
        model = config.model
        if model.pooling == "mean":
            wanted: Settings = {"head_hidden": 0}
        else:
            wanted = {"pooling": "first", "head_hidden": model.d_model, "head_activation": activation}
        differing = {setting: value for setting, value in wanted.items() if getattr(model, setting) != value}
        where = f" with model.pooling={model.pooling}" if "pooling" not in differing else ""
        return [
            f"model.{setting}={getattr(model, setting)} ({name} has {value}{where})"
            for setting, value in differing.items()
        ]

    return wrong


def _no_token_types(config: Config) -> dict[str, Tensor]:
    """All text is of one kind here: a table of one row, which adds nothing."""
    return {} if config.model.segments else {f"{TOKEN_TYPES}.weight": torch.zeros(1, config.model.d_model)}


def _labels(config: Config, sizes: Sizes, kind: str) -> dict[str, Any]:
    """What is said of labels: by text, or by token where the mean of a text decides."""
    by_token = config.model.pooling == "mean"
    names = config.data.labels or tuple(f"LABEL_{number}" for number in range(sizes.n_labels))
    return {
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_len,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "architectures": [f"{kind}For{'Token' if by_token else 'Sequence'}Classification"],
        **(dict([BY_TOKEN]) if by_token else {}),
    }


def _write_bert(config: Config, sizes: Sizes, kind: str = "Bert") -> dict[str, Any]:
    more = {"position_embedding_type": "absolute", "type_vocab_size": max(1, config.model.segments)}
    return {**_labels(config, sizes, kind), **more}


def _write_distilbert(config: Config, sizes: Sizes) -> dict[str, Any]:
    more = {"sinusoidal_pos_embds": False, "seq_classif_dropout": config.model.dropout}
    return {**_labels(config, sizes, "DistilBert"), **more}


BERT = Family(
    name="bert",
    kinds=("bert",),
    task="classify",
    prefix="bert.",
    words=(
        Word("hidden_size", "d_model", 768),
        Word("intermediate_size", "d_ff", 3_072),
        Word("num_hidden_layers", "n_layers", 12),
        Word("num_attention_heads", "n_heads", 12),
        Word("hidden_act", "activation", "gelu"),
        Word("layer_norm_eps", "norm_eps", 1e-12),
        Word("hidden_dropout_prob", "dropout", 0.1),
        Word("attention_probs_dropout_prob", "attention_dropout", 0.1),
        Word("type_vocab_size", "segments", 2),
    ),
    fixed=ENCODER,
    pairs=BERT_PAIRS,
    read=_read_bert,
    write=_write_bert,
    unfit=_unfit("bert", "tanh"),
    constants=_no_token_types,
    only={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    free=FREE_HERE,
    ignored=("bert.embeddings.position_ids",),
    scores="classifier",
    others=("cls.*", "qa_outputs.*"),
)
MEGATRON_BERT = replace(
    BERT,
    name="megatron-bert",
    kinds=("megatron-bert",),
    fixed={**ENCODER, "norm_position": "pre", "final_norm": True, "embedding_norm": False},
    pairs=MEGATRON_PAIRS,
    write=partial(_write_bert, kind="MegatronBert"),
    unfit=_unfit("megatron-bert", "tanh"),
)
DISTILBERT = Family(
    name="distilbert",
    kinds=("distilbert",),
    task="classify",
    prefix="distilbert.",
    words=(
        Word("dim", "d_model", 768),
        Word("hidden_dim", "d_ff", 3_072),
        Word("n_layers", "n_layers", 6),
        Word("n_heads", "n_heads", 12),
        Word("activation", "activation", "gelu"),
        Word("dropout", "dropout", 0.1),
        Word("attention_dropout", "attention_dropout", 0.1),
    ),
    fixed={**ENCODER, "segments": 0, "norm_eps": 1e-12},
    pairs=DISTILBERT_PAIRS,
    read=_read_distilbert,
    write=_write_distilbert,
    unfit=_unfit("distilbert", "relu"),
    free=FREE_HERE,
    ignored=("distilbert.embeddings.position_ids",),
    scores="classifier",
    others=("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*", "qa_outputs.*"),
)
