"""BERT, MiniLM (a small BERT) and DistilBERT: norms after each sublayer and the embeddings, segments, poolers.

BERT's pooler is a hidden layer of the head with tanh over the first token, DistilBERT's one with relu. Folders of
sentence-transformers say how a text is pooled; a pooler that they carry along unused is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triform.config import Config, Sizes
from triform.pretrained.family import FREE, Family, Shape, Word, whole
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
FREE_HERE = (*FREE, "rotary_base", "bias", "qkv_bias", "out_bias", "head_bias", "tie_embeddings")
POOLING = "1_Pooling/config.json"  # of sentence-transformers
BERT_PAIRS = (
    pair("encoder.embedding.tokens", "bert.embeddings.word_embeddings", endings=WEIGHT),
    pair("encoder.embedding.positions.table", "bert.embeddings.position_embeddings", endings=WEIGHT),
    pair("encoder.embedding.segments.table", "bert.embeddings.token_type_embeddings", endings=WEIGHT),
    pair("encoder.embedding.norm", "bert.embeddings.LayerNorm"),
    *layers(
        "encoder.blocks",
        "bert.encoder.layer",
        {
            "attention.query": "attention.self.query",
            "attention.key_value": "attention.self.key attention.self.value",
            "attention.out": "attention.output.dense",
            "attend.norm": "attention.output.LayerNorm",
            "feedforward.up": "intermediate.dense",
            "feedforward.down": "output.dense",
            "think.norm": "output.LayerNorm",
        },
    ),
    pair("head.0", "bert.pooler.dense"),
    pair("head.2", "classifier"),
    pair("head", "classifier"),
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
    by_mean = foreign.beside(POOLING).get("pooling_mode_mean_tokens", False)
    pooled = pooler in foreign.tensors and not by_mean
    scored = "classifier.weight" in foreign.tensors and foreign.architecture.endswith("ForSequenceClassification")
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


def _unfit(config: Config, sizes: Sizes) -> list[str]:
    """Both have a hidden layer in the head, as wide as the model, over the first token."""
    model = config.model
    wrong = [("pooling", "first")] if model.pooling != "first" else []
    wrong += [("head_hidden", f"{model.d_model}, its d_model")] if model.head_hidden != model.d_model else []
    return [f"model.{name}={getattr(model, name)} (bert and distilbert have {wanted})" for name, wanted in wrong]


def _unfit_bert(config: Config, sizes: Sizes) -> list[str]:
    none = [] if config.model.segments else ["model.segments=0 (bert has one or more)"]
    return _unfit(config, sizes) + none


def _labels(config: Config, sizes: Sizes) -> dict[str, Any]:
    names = config.data.labels or tuple(f"LABEL_{number}" for number in range(sizes.n_labels))
    return {
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_len,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def _write_bert(config: Config, sizes: Sizes) -> dict[str, Any]:
    more = {"position_embedding_type": "absolute", "architectures": ["BertForSequenceClassification"]}
    return {**_labels(config, sizes), **more}


def _write_distilbert(config: Config, sizes: Sizes) -> dict[str, Any]:
    more = {"sinusoidal_pos_embds": False, "architectures": ["DistilBertForSequenceClassification"]}
    return {**_labels(config, sizes), **more, "seq_classif_dropout": config.model.dropout}


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
    fixed={**ENCODER, "head_activation": "tanh"},
    pairs=BERT_PAIRS,
    read=_read_bert,
    write=_write_bert,
    unfit=_unfit_bert,
    only={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    free=(*FREE_HERE, "pooling", "head_hidden"),
    ignored=("bert.embeddings.position_ids",),
    scores="classifier",
    others=("cls.*", "qa_outputs.*"),
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
    fixed={**ENCODER, "head_activation": "relu", "segments": 0, "norm_eps": 1e-12},
    pairs=DISTILBERT_PAIRS,
    read=_read_distilbert,
    write=_write_distilbert,
    unfit=_unfit,
    free=(*FREE_HERE, "pooling", "head_hidden"),
    ignored=("distilbert.embeddings.position_ids",),
    scores="classifier",
    others=("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*", "qa_outputs.*"),
)
