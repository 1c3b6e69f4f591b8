"""Count the parameters of a model by formulas, without building it.

Every matrix and vector has a formula, which is a sum of products of symbols (`d·d + d`). Counts are the values of
these formulas, so the formulas that are shown always match the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from triform.config import Config, DataSizes
from triform.config.model import NGRAM_PROJECTION_SIZE
from triform.errors import ConfigError

Role = Literal[
    "tokens", "positions", "attention", "cross", "score", "feedforward", "norm", "recurrent", "output", "terms"
]
FORM_BY_TASK = {"classify": "encoder", "generate": "decoder", "translate": "encoder-decoder"}


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """A symbol of the formulas: its name, meaning and value."""

    name: str
    meaning: str
    value: int


@dataclass(frozen=True, kw_only=True)
class ParameterRow:
    """One component: its formula, its number of parameters, and how often it occurs."""

    name: str
    role: Role
    formula: str  # in symbols; empty if nothing is trained
    numbers: str  # the formula with values
    weights: int  # of one instance
    biases: int  # of one instance
    times: int = 1
    note: str = ""
    tied: bool = False  # shares the tensor of another row and is counted there

    @property
    def per_instance(self) -> int:
        """Parameters of one instance."""
        return self.weights + self.biases

    @property
    def total(self) -> int:
        """Parameters of all instances in a layer; 0 if they are counted elsewhere."""
        return 0 if self.tied else self.per_instance * self.times


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Related components, in `layers` identical layers."""

    name: str
    lines: tuple[ParameterRow, ...]
    layers: int = 1

    @property
    def per_layer(self) -> int:
        """Parameters of one layer."""
        return sum(row.total for row in self.lines)

    @property
    def total(self) -> int:
        """Parameters of all layers."""
        return self.layers * self.per_layer


@dataclass(frozen=True, kw_only=True)
class ParameterBudget:
    """The parameters of a model by group and component."""

    form: str
    symbols: tuple[Symbol, ...]
    groups: tuple[ParameterGroup, ...]

    @property
    def total(self) -> int:
        """Equal to `sum(p.numel() for p in model.parameters())`; all of them are trained."""
        return sum(group.total for group in self.groups)

    @property
    def shared(self) -> int:
        """Parameters saved by sharing tensors."""
        return sum(group.layers * row.per_instance * row.times for group, row in self.iter_rows() if row.tied)

    def iter_rows(self) -> Iterator[tuple[ParameterGroup, ParameterRow]]:
        """Yield all rows, each with its group."""
        for group in self.groups:
            for row in group.lines:
                yield group, row


def evaluate_formula(formula: str, values: Mapping[str, int]) -> int:
    """Compute the value of a formula; an empty formula is zero.

    >>> evaluate_formula("2·d·f + f", {"d": 64, "f": 256})
    33024
    """
    terms = formula.split(" + ") if formula else []
    return sum(prod(_factor_value(factor, values) for factor in term.split("·")) for term in terms)


def format_formula(formula: str, values: Mapping[str, int]) -> str:
    """Replace the symbols of a formula by their values.

    >>> format_formula("2·d·f + f", {"d": 64, "f": 256})
    '2·64·256 + 256'
    """
    terms = formula.split(" + ") if formula else []
    return " + ".join(
        "·".join(f"{_factor_value(factor, values):,}" for factor in term.split("·")) for term in terms
    )


def _factor_value(factor: str, values: Mapping[str, int]) -> int:
    return int(factor) if factor.isdigit() else values[factor]


def count_parameters(config: Config, sizes: DataSizes) -> ParameterBudget:
    """Count the parameters of the model that these settings build."""
    validate_sizes(config, sizes)
    counter = (_RecurrentCounter if config.model.is_recurrent else _TransformerCounter)(config, sizes)
    build_groups = {"classify": counter.classifier, "generate": counter.decoder, "translate": counter.translator}
    build = counter.masked_lm if config.train.objective == "masked" else build_groups[config.task]
    groups = tuple(build())
    return ParameterBudget(form=FORM_BY_TASK[config.task], symbols=counter.used_symbols(groups), groups=groups)


def validate_sizes(config: Config, sizes: DataSizes) -> None:
    """Raise `ConfigError` if a size that the number of parameters depends on is missing."""
    model = config.model
    needed = ("d_model", "n_layers") if model.is_recurrent else ("d_model", "d_ff", "n_layers", "n_heads")
    missing = [
        f"model.{name} must be above 0; set it with --set model.{name}=NUMBER"
        for name in needed
        if not getattr(model, name)
    ]
    missing += ["the vocabulary size is unknown; set it with --vocab-size NUMBER"] * (sizes.vocab_size < 1)
    missing += ["data.max_len must be above 0; set it with --max-len NUMBER"] * (sizes.max_len < 1)
    if config.predicts_labels and sizes.n_labels < 1:
        missing.append("the number of labels is unknown because data.labels is empty; set it with --labels NUMBER")
    if missing:
        raise ConfigError(missing[0])


class _TransformerCounter:
    """Lists the parameters of a Transformer."""

    def __init__(self, config: Config, sizes: DataSizes) -> None:
        self.model = model = config.model.as_single_head if config.model.is_recurrent else config.model
        target = sizes.target_vocab_size or sizes.vocab_size
        layers = "layers" if config.task != "translate" else "layers in the encoder and in the decoder"
        self.has_target_vocab = bool(sizes.target_vocab_size)
        self.bias, self.qkv_bias = "d" * model.bias, model.qkv_bias
        self.target = "V′" if self.has_target_vocab else "V"
        self.kv_width = "d" if model.kv_heads == model.n_heads else "G·Dh"  # of all keys together
        self.all_symbols = (
            Symbol(name="d", meaning="d_model, the width", value=model.d_model),
            Symbol(name="f", meaning="d_ff, the width of the feed-forward network", value=model.d_ff),
            Symbol(name="H", meaning="heads", value=model.n_heads),
            Symbol(name="G", meaning="key/value heads", value=model.kv_heads),
            Symbol(name="Dh", meaning="width of a head, d / H", value=model.head_dim),
            Symbol(name="L", meaning=layers, value=model.n_layers),
            Symbol(name="V", meaning="vocabulary", value=sizes.vocab_size),
            Symbol(name="V′", meaning="target vocabulary", value=target),
            Symbol(name="P", meaning="bigram_buckets, rows of the bigram table", value=model.bigram_buckets),
            Symbol(name="W", meaning="terms: V + term_buckets", value=sizes.vocab_size + model.term_buckets),
            Symbol(name="N", meaning="max_len, maximum number of tokens", value=sizes.max_len),
            Symbol(name="k", meaning="max_distance", value=model.resolved_max_distance),
            Symbol(name="n", meaning="n_buckets", value=model.n_buckets),
            Symbol(name="s", meaning="n_segments, number of segments", value=model.n_segments),
            Symbol(name="h", meaning="head_hidden", value=model.head_hidden),
            Symbol(name="C", meaning="labels", value=sizes.n_labels),
            Symbol(name="g", meaning="gates of a cell", value=GATES.get(model.kind, 0)),
            Symbol(name="e", meaning="width of each direction, d / 2", value=model.d_model // 2),
            Symbol(name="p", meaning="vectors of a state", value=2 if model.kind == "lstm" else 1),
        )
        self.values = {symbol.name: symbol.value for symbol in self.all_symbols}
        self.values["(2k+1)"] = 2 * self.values["k"] + 1

    always_shown: ClassVar[tuple[str, ...]] = ("H", "Dh", "L")

    def used_symbols(self, groups: tuple[ParameterGroup, ...]) -> tuple[Symbol, ...]:
        """Return the symbols that occur in the formulas, and those that are always shown."""
        factors = {
            factor
            for group in groups
            for row in group.lines
            for term in row.formula.split(" + ")
            for factor in term.split("·")
        }
        used = {*self.always_shown, *factors, *("k" * ("(2k+1)" in factors))}
        return tuple(symbol for symbol in self.all_symbols if symbol.name in used)

    # -- the three forms

    def masked_lm(self) -> Iterator[ParameterGroup]:
        *encoder, _ = self.classifier()
        yield from encoder
        yield ParameterGroup(name="output", lines=tuple(self._lm_head()))

    def classifier(self) -> Iterator[ParameterGroup]:
        yield ParameterGroup(name="embedding", lines=tuple(self._embedding("V")))
        yield self._block_stack("encoder", cross=False)
        yield from self._final_norm("encoder")
        yield ParameterGroup(name="output", lines=tuple(self._classification_head()))

    def decoder(self) -> Iterator[ParameterGroup]:
        yield ParameterGroup(name="embedding", lines=tuple(self._embedding("V")))
        yield self._block_stack("decoder", cross=False)
        yield from self._final_norm("decoder")
        yield ParameterGroup(name="output", lines=tuple(self._lm_head()))

    def translator(self) -> Iterator[ParameterGroup]:
        yield ParameterGroup(name="source embedding", lines=tuple(self._embedding("V")))
        is_shared = self.model.tie_embeddings and not self.has_target_vocab
        yield ParameterGroup(name="target embedding", lines=tuple(self._embedding(self.target, tied=is_shared)))
        yield self._block_stack("encoder", cross=False)
        yield from self._final_norm("encoder")
        yield self._block_stack("decoder", cross=True)
        yield from self._final_norm("decoder")
        yield ParameterGroup(name="output", lines=tuple(self._lm_head()))

    # -- their parts

    def _embedding(self, vocabulary: str, *, tied: bool = False) -> Iterator[ParameterRow]:
        note = "shared with the source" if tied else ""
        yield self._row("tokens", "tokens", f"{vocabulary}·d", tied=tied, note=note)
        if self.model.bigram_buckets:
            yield self._row("token bigrams", "tokens", "P·d", note="one row for each hash of two token ids")
        kind = self.model.positions
        is_trained = kind == "learned"
        yield self._row(f"positions, {kind}", "positions", "N·d" * is_trained, note=POSITION_NOTES[kind])
        if self.model.n_segments:
            yield self._row("segments", "tokens", "s·d", note="one vector for each segment")
        if self.model.embedding_norm:
            yield from self._norm("norm")

    def _block_stack(self, name: str, *, cross: bool) -> ParameterGroup:
        rows = [*self._attention("self-attention", "attention"), *self._relative_positions()]
        if cross:
            rows += self._attention("cross-attention", "cross")
        rows += self._feedforward()
        rows += self._norm("norms", times=3 if cross else 2)
        return ParameterGroup(name=name, lines=tuple(rows), layers=self.model.n_layers)

    def _attention(self, name: str, role: Role) -> Iterator[ParameterRow]:
        kv_width, has_bias = self.kv_width, self.qkv_bias
        yield self._row(f"{name}: query", role, "d·d", "d" * has_bias)
        yield self._row(f"{name}: key, value", role, f"2·d·{kv_width}", f"2·{kv_width}" * has_bias)
        yield self._row(f"{name}: output", role, "d·d", "d" * self.model.has_out_bias)
        if self.model.attention_score == "cosine":
            yield self._row(f"{name}: temperature", "score", "H", note="one for each head")
        if self.model.attention_score == "additive":
            yield self._row(f"{name}: score", "score", "H·Dh", note="one vector for each head")

    def _relative_positions(self) -> Iterator[ParameterRow]:
        """Return the position parameters of self-attention. Cross-attention has none."""
        if self.model.positions == "relative":
            note = "for keys and for values"
            yield self._row("self-attention: distances", "positions", "(2k+1)·Dh", times=2, note=note)
        if self.model.positions == "t5":
            yield self._row(
                "self-attention: distances", "positions", "n·H", note="one number for each bucket and head"
            )

    def _feedforward(self) -> Iterator[ParameterRow]:
        bias = self.model.bias
        if self.model.activation == "swiglu":
            yield self._row("feedforward: up and gate", "feedforward", "2·d·f", "2·f" * bias)
        else:
            yield self._row("feedforward: up", "feedforward", "d·f", "f" * bias)
        yield self._row("feedforward: down", "feedforward", "f·d", self.bias)

    def _norm(self, name: str, times: int = 1) -> Iterator[ParameterRow]:
        shift = self.bias if self.model.norm == "layer" else ""
        yield self._row(name, "norm", "d", shift, times=times)

    def _final_norm(self, name: str) -> Iterator[ParameterGroup]:
        if self.model.final_norm:
            yield ParameterGroup(name=f"final norm of the {name}", lines=tuple(self._norm("norm")))

    def _lm_head(self) -> Iterator[ParameterRow]:
        tied, vocabulary = self.model.tie_embeddings, self.target
        note = "the embedding, transposed" if tied else ""
        yield self._row("logits: weights", "output", f"d·{vocabulary}", tied=tied, note=note)
        if self.model.head_bias:
            yield self._row("logits: bias", "output", "", vocabulary)

    def _classification_head(self) -> Iterator[ParameterRow]:
        width = "d"
        if self.model.head_hidden:
            yield self._row("hidden layer", "output", "d·h", "h")
            width = "h"
        yield self._row("label logits", "output", f"{width}·C", "C" * self.model.head_bias)
        if self.model.term_buckets:
            note = "fitted, not trained by steps"
            yield self._row("linear part: terms", "terms", "W·C + W", "C", note=note)
            yield self._row("linear part: characters", "terms", f"V·C + {NGRAM_PROJECTION_SIZE}·V", note=note)
            yield self._row("linear part: mixture", "terms", "2", note="of the two classifiers")

    def _row(
        self,
        name: str,
        role: Role,
        weights: str,
        biases: str = "",
        *,
        times: int = 1,
        tied: bool = False,
        note: str = "",
    ) -> ParameterRow:
        formula = " + ".join(term for term in (weights, biases) if term)
        return ParameterRow(
            name=name,
            role=role,
            formula=formula,
            numbers=format_formula(formula, self.values),
            weights=evaluate_formula(weights, self.values),
            biases=evaluate_formula(biases, self.values),
            times=times,
            note=note,
            tied=tied,
        )


POSITION_NOTES = {
    "learned": "",
    "sinusoidal": "computed, not trained",
    "sinusoidal_halves": "computed, not trained",
    "rotary": "computed, not trained",
    "alibi": "computed, not trained",
    "relative": "in self-attention",
    "t5": "in self-attention",
    "none": "",
}


class _RecurrentCounter(_TransformerCounter):
    """Lists the parameters of a recurrent model: cells instead of blocks, and attention only to a source."""

    always_shown = ("L",)

    def classifier(self) -> Iterator[ParameterGroup]:
        yield ParameterGroup(name="embedding", lines=tuple(self._token_embedding("V")))
        yield self._encoder()
        yield ParameterGroup(name="output", lines=tuple(self._classification_head()))

    def decoder(self) -> Iterator[ParameterGroup]:
        yield ParameterGroup(name="embedding", lines=tuple(self._token_embedding("V")))
        yield self._decoder()
        yield ParameterGroup(name="output", lines=tuple(self._lm_head()))

    def translator(self) -> Iterator[ParameterGroup]:
        yield ParameterGroup(name="source embedding", lines=tuple(self._token_embedding("V")))
        is_shared = self.model.tie_embeddings and not self.has_target_vocab
        yield ParameterGroup(
            name="target embedding", lines=tuple(self._token_embedding(self.target, tied=is_shared))
        )
        yield self._encoder()
        initial_state = self._row(
            "first state", "recurrent", "d·L·p·d", "L·p·d", note="computed from the last states of the source"
        )
        yield ParameterGroup(name="initial state of the decoder", lines=(initial_state,))
        yield self._decoder()
        state_row = self._row("attention output and state", "cross", "d·d")
        yield ParameterGroup(name="attention", lines=(*self._attention("cross-attention", "cross"), state_row))
        yield ParameterGroup(name="output", lines=tuple(self._lm_head()))

    def _token_embedding(self, vocabulary: str, *, tied: bool = False) -> Iterator[ParameterRow]:
        """Return an embedding without positions, which a recurrent model does not need."""
        return (row for row in self._embedding(vocabulary, tied=tied) if row.role != "positions")

    def _encoder(self) -> ParameterGroup:
        if self.model.attention_direction == "causal":
            return self._decoder("encoder")
        biases = "2·g·e" * self.model.bias
        row = self._row("cell, each direction", "recurrent", "g·e·d + g·e·e", biases, times=2)
        return ParameterGroup(name="encoder", lines=(row,), layers=self.model.n_layers)

    def _decoder(self, name: str = "decoder") -> ParameterGroup:
        row = self._row("cell", "recurrent", "g·d·d + g·d·d", "2·g·d" * self.model.bias)
        return ParameterGroup(name=name, lines=(row,), layers=self.model.n_layers)


GATES = {"rnn": 1, "gru": 3, "lstm": 4}  # a test compares them with the cells
