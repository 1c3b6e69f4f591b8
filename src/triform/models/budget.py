"""How many parameters a model has: every matrix and vector with its formula, none of them built.

A formula is a sum of products of letters (`d·d + d`). The letters are the paper's sizes; the count is the
formula with numbers put in, so what is shown and what is counted cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from triform.config import Config, Sizes
from triform.errors import ConfigError

Role = Literal["tokens", "positions", "attention", "cross", "score", "feedforward", "norm", "recurrent", "output"]
FORMS = {"classify": "encoder", "generate": "decoder", "translate": "encoder-decoder"}


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A size, as formulas name it."""

    sign: str
    meaning: str
    value: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """One component: its formula, how large one of it is, and how many there are."""

    name: str
    role: Role
    formula: str  # in letters; empty where there is nothing to train
    numbers: str  # the same in numbers
    weights: int  # of one
    biases: int  # of one
    times: int = 1
    note: str = ""
    tied: bool = False  # the same tensor as another line's: counted there

    @property
    def each(self) -> int:
        return self.weights + self.biases

    @property
    def total(self) -> int:
        return 0 if self.tied else self.each * self.times


@dataclass(frozen=True, kw_only=True)
class Part:
    """Components that belong together; `layers` of them, all alike."""

    name: str
    lines: tuple[Line, ...]
    layers: int = 1

    @property
    def per_layer(self) -> int:
        return sum(line.total for line in self.lines)

    @property
    def total(self) -> int:
        return self.layers * self.per_layer


@dataclass(frozen=True, kw_only=True)
class Budget:
    """All parameters of a model, by part and component."""

    form: str
    letters: tuple[Letter, ...]
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """Equal to `sum(p.numel() for p in model.parameters())`; all of them are trained."""
        return sum(part.total for part in self.parts)

    @property
    def shared(self) -> int:
        """Parameters saved by using one tensor in several places."""
        return sum(part.layers * line.each * line.times for part, line in self.every_line() if line.tied)

    def every_line(self) -> Iterator[tuple[Part, Line]]:
        for part in self.parts:
            for line in part.lines:
                yield part, line


def value_of(formula: str, values: Mapping[str, int]) -> int:
    """`2·d·f + f` in numbers; an empty formula is zero."""
    terms = formula.split(" + ") if formula else []
    return sum(prod(_factor(factor, values) for factor in term.split("·")) for term in terms)


def in_numbers(formula: str, values: Mapping[str, int]) -> str:
    """`2·d·f + f` as `2·64·256 + 256`."""
    terms = formula.split(" + ") if formula else []
    return " + ".join("·".join(f"{_factor(factor, values):,}" for factor in term.split("·")) for term in terms)


def _factor(factor: str, values: Mapping[str, int]) -> int:
    return int(factor) if factor.isdigit() else values[factor]


def budget(config: Config, sizes: Sizes) -> Budget:
    """The parameters of the model that these settings build."""
    check_sizes(config, sizes)
    counter = (_RecurrentCounter if config.model.is_recurrent else _Counter)(config, sizes)
    parts = {"classify": counter.classifier, "generate": counter.decoder, "translate": counter.translator}
    made = tuple(parts[config.task]())
    return Budget(form=FORMS[config.task], letters=counter.letters(made), parts=made)


def check_sizes(config: Config, sizes: Sizes) -> None:
    """Every size that a formula needs is there."""
    model = config.model
    needed = ("d_model", "n_layers") if model.is_recurrent else ("d_model", "d_ff", "n_layers", "n_heads")
    open_ = [name for name in needed if not getattr(model, name)]
    if open_:
        raise ConfigError(
            f"model.{open_[0]} is left open, so nothing can be counted: --set model.{open_[0]}=NUMBER"
        )
    missing = {"--vocab-size": sizes.vocab_size, "--max-len": sizes.max_len}
    if config.task == "classify":
        missing["--labels"] = sizes.n_labels
    for option, size in missing.items():
        if size < 1:
            raise ConfigError(f"a size is missing that depends on the data: give {option} NUMBER")


class _Counter:
    """Writes the lines of each part, in the letters of one model."""

    def __init__(self, config: Config, sizes: Sizes) -> None:
        self.model = model = config.model.for_shared_parts if config.model.is_recurrent else config.model
        target = sizes.target_vocab_size or sizes.vocab_size
        layers = "layers" if config.task != "translate" else "layers, of encoder and decoder each"
        self.two_vocabularies = bool(sizes.target_vocab_size)
        self.bias, self.qkv_bias = "d" * model.bias, model.qkv_bias
        self.target = "V′" if self.two_vocabularies else "V"
        self.keys = "d" if model.kv_heads == model.n_heads else "G·Dh"  # the width of all keys together
        self.all_letters = (
            Letter(sign="d", meaning="d_model, the width", value=model.d_model),
            Letter(sign="f", meaning="d_ff, the width inside feedforward", value=model.d_ff),
            Letter(sign="H", meaning="heads", value=model.n_heads),
            Letter(sign="G", meaning="heads of keys and values", value=model.kv_heads),
            Letter(sign="Dh", meaning="width of a head, d / H", value=model.head_dim),
            Letter(sign="L", meaning=layers, value=model.n_layers),
            Letter(sign="V", meaning="vocabulary", value=sizes.vocab_size),
            Letter(sign="V′", meaning="vocabulary of the target", value=target),
            Letter(sign="P", meaning="pair_rows, of the table of pairs", value=model.pair_rows),
            Letter(sign="N", meaning="max_len, tokens read at once", value=sizes.max_len),
            Letter(sign="k", meaning="max_distance", value=model.max_distance_or_published),
            Letter(sign="n", meaning="n_buckets", value=model.n_buckets),
            Letter(sign="s", meaning="segments, kinds of text", value=model.segments),
            Letter(sign="h", meaning="head_hidden", value=model.head_hidden),
            Letter(sign="C", meaning="labels", value=sizes.n_labels),
            Letter(sign="g", meaning="gates of a cell", value=GATES.get(model.kind, 0)),
            Letter(sign="e", meaning="width of each direction, d / 2", value=model.d_model // 2),
            Letter(sign="p", meaning="vectors of a state", value=2 if model.kind == "lstm" else 1),
        )
        self.values = {letter.sign: letter.value for letter in self.all_letters}
        self.values["(2k+1)"] = 2 * self.values["k"] + 1

    reader_looks_for: ClassVar[tuple[str, ...]] = ("H", "Dh", "L")

    def letters(self, parts: tuple[Part, ...]) -> tuple[Letter, ...]:
        """Those that the formulas use, and those that a reader looks for."""
        factors = {
            factor
            for part in parts
            for line in part.lines
            for term in line.formula.split(" + ")
            for factor in term.split("·")
        }
        used = {*self.reader_looks_for, *factors, *("k" * ("(2k+1)" in factors))}
        return tuple(letter for letter in self.all_letters if letter.sign in used)

    # -- the three forms

    def classifier(self) -> Iterator[Part]:
        yield Part(name="embedding", lines=tuple(self._embedding("V")))
        yield self._stack("encoder", cross=False)
        yield from self._final_norm("encoder")
        yield Part(name="output", lines=tuple(self._label_head()))

    def decoder(self) -> Iterator[Part]:
        yield Part(name="embedding", lines=tuple(self._embedding("V")))
        yield self._stack("decoder", cross=False)
        yield from self._final_norm("decoder")
        yield Part(name="output", lines=tuple(self._vocabulary_head()))

    def translator(self) -> Iterator[Part]:
        yield Part(name="source embedding", lines=tuple(self._embedding("V")))
        one_table = self.model.tie_embeddings and not self.two_vocabularies
        yield Part(name="target embedding", lines=tuple(self._embedding(self.target, tied=one_table)))
        yield self._stack("encoder", cross=False)
        yield from self._final_norm("encoder")
        yield self._stack("decoder", cross=True)
        yield from self._final_norm("decoder")
        yield Part(name="output", lines=tuple(self._vocabulary_head()))

    # -- their parts

    def _embedding(self, vocabulary: str, *, tied: bool = False) -> Iterator[Line]:
        note = "the source's table" if tied else ""
        yield self._line("tokens", "tokens", f"{vocabulary}·d", tied=tied, note=note)
        if self.model.pair_rows:
            yield self._line("pairs of tokens", "tokens", "P·d", note="a row by the numbers of both")
        kind = self.model.positions
        trained = kind == "learned"
        yield self._line(f"positions, {kind}", "positions", "N·d" * trained, note=POSITION_NOTES[kind])
        if self.model.segments:
            yield self._line("segments", "tokens", "s·d", note="a vector for each kind of text")
        if self.model.embedding_norm:
            yield from self._norm("norm")

    def _stack(self, name: str, *, cross: bool) -> Part:
        lines = [*self._attention("self-attention", "attention"), *self._inside_attention()]
        if cross:
            lines += self._attention("cross-attention", "cross")
        lines += self._feedforward()
        lines += self._norm("norms", times=3 if cross else 2)
        return Part(name=name, lines=tuple(lines), layers=self.model.n_layers)

    def _attention(self, name: str, role: Role) -> Iterator[Line]:
        keys, asked = self.keys, self.qkv_bias
        yield self._line(f"{name}: query", role, "d·d", "d" * asked)
        yield self._line(f"{name}: key, value", role, f"2·d·{keys}", f"2·{keys}" * asked)
        yield self._line(f"{name}: output", role, "d·d", "d" * self.model.has_out_bias)
        if self.model.score == "cosine":
            yield self._line(f"{name}: temperature", "score", "H", note="one a head")
        if self.model.score == "additive":
            yield self._line(f"{name}: score", "score", "H·Dh", note="one vector a head")

    def _inside_attention(self) -> Iterator[Line]:
        """Positions that live in self-attention; cross-attention has none."""
        if self.model.positions == "relative":
            note = "for keys and for values"
            yield self._line("self-attention: distances", "positions", "(2k+1)·Dh", times=2, note=note)
        if self.model.positions == "t5":
            yield self._line("self-attention: distances", "positions", "n·H", note="a number a bucket and head")

    def _feedforward(self) -> Iterator[Line]:
        bias = self.model.bias
        if self.model.activation == "swiglu":
            yield self._line("feedforward: up and gate", "feedforward", "2·d·f", "2·f" * bias)
        else:
            yield self._line("feedforward: up", "feedforward", "d·f", "f" * bias)
        yield self._line("feedforward: down", "feedforward", "f·d", self.bias)

    def _norm(self, name: str, times: int = 1) -> Iterator[Line]:
        shift = self.bias if self.model.norm == "layer" else ""
        yield self._line(name, "norm", "d", shift, times=times)

    def _final_norm(self, name: str) -> Iterator[Part]:
        if self.model.final_norm:
            yield Part(name=f"final norm of the {name}", lines=tuple(self._norm("norm")))

    def _vocabulary_head(self) -> Iterator[Line]:
        tied, vocabulary = self.model.tie_embeddings, self.target
        note = "the embedding, transposed" if tied else ""
        yield self._line("scores: weights", "output", f"d·{vocabulary}", tied=tied, note=note)
        if self.model.head_bias:
            yield self._line("scores: bias", "output", "", vocabulary)

    def _label_head(self) -> Iterator[Line]:
        width = "d"
        if self.model.head_hidden:
            yield self._line("hidden layer", "output", "d·h", "h")
            width = "h"
        yield self._line("label scores", "output", f"{width}·C", "C" * self.model.head_bias)

    def _line(
        self,
        name: str,
        role: Role,
        weights: str,
        biases: str = "",
        *,
        times: int = 1,
        tied: bool = False,
        note: str = "",
    ) -> Line:
        formula = " + ".join(term for term in (weights, biases) if term)
        return Line(
            name=name,
            role=role,
            formula=formula,
            numbers=in_numbers(formula, self.values),
            weights=value_of(weights, self.values),
            biases=value_of(biases, self.values),
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


class _RecurrentCounter(_Counter):
    """The same for a recurrent model: cells instead of blocks, and attention over a source alone."""

    reader_looks_for = ("L",)

    def classifier(self) -> Iterator[Part]:
        yield Part(name="embedding", lines=tuple(self._tokens("V")))
        yield self._encoder()
        yield Part(name="output", lines=tuple(self._label_head()))

    def decoder(self) -> Iterator[Part]:
        yield Part(name="embedding", lines=tuple(self._tokens("V")))
        yield self._decoder()
        yield Part(name="output", lines=tuple(self._vocabulary_head()))

    def translator(self) -> Iterator[Part]:
        yield Part(name="source embedding", lines=tuple(self._tokens("V")))
        one_table = self.model.tie_embeddings and not self.two_vocabularies
        yield Part(name="target embedding", lines=tuple(self._tokens(self.target, tied=one_table)))
        yield self._encoder()
        first = self._line("first state", "recurrent", "d·L·p·d", "L·p·d", note="made of the ends of the source")
        yield Part(name="beginning of the decoder", lines=(first,))
        yield self._decoder()
        mixed = self._line("state, beside what is read", "cross", "d·d")
        yield Part(name="attention", lines=(*self._attention("cross-attention", "cross"), mixed))
        yield Part(name="output", lines=tuple(self._vocabulary_head()))

    def _tokens(self, vocabulary: str, *, tied: bool = False) -> Iterator[Line]:
        """An embedding without positions: order is told by reading in order."""
        return (line for line in self._embedding(vocabulary, tied=tied) if line.role != "positions")

    def _encoder(self) -> Part:
        if self.model.reach == "causal":
            return self._decoder("encoder")
        biases = "2·g·e" * self.model.bias
        line = self._line("cell, each direction", "recurrent", "g·e·d + g·e·e", biases, times=2)
        return Part(name="encoder", lines=(line,), layers=self.model.n_layers)

    def _decoder(self, name: str = "decoder") -> Part:
        line = self._line("cell", "recurrent", "g·d·d + g·d·d", "2·g·d" * self.model.bias)
        return Part(name=name, lines=(line,), layers=self.model.n_layers)


GATES = {"rnn": 1, "gru": 3, "lstm": 4}  # as the cells have them; a test keeps them equal
