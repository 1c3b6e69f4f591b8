"""The pages of an account: numbers kept, operations done, each with its formula in the letters of one model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from triform.config import Config, ModelConfig, OptimizerKind, Sizes
from triform.models.budget import GATES, Budget, in_numbers, value_of


@dataclass(frozen=True, kw_only=True)
class Use:
    """How a model is run: on how much at once, and in what numbers."""

    batch_size: int
    length: int  # tokens of a text; of an encoder-decoder, on each side
    optimizer: OptimizerKind = "adamw"
    momentum: float = 0.9  # sgd
    precision: Literal["fp32", "bf16"] = "fp32"
    gpu: bool = True  # dropout keeps a byte a number there; on a CPU it keeps a whole one
    learns: int | None = None  # parameters that learn; None: all
    adapters: int = 0  # of those, how many are not the model's own


@dataclass(frozen=True, kw_only=True)
class Item:
    """So many numbers of so many bytes."""

    name: str
    formula: str
    numbers: str
    count: int
    bytes_each: int
    note: str = ""

    @property
    def total(self) -> int:
        return self.count * self.bytes_each


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations of the forward pass for one text, and what is left of them where masks hide."""

    name: str
    per: str  # whose cost it is: a token, a source token, a target token, a text
    formula: str  # for one of them
    numbers: str
    each: int
    times: int  # how many of them a text has
    needed: int  # for the whole text, without what masks hide

    @property
    def total(self) -> int:
        return self.each * self.times


@dataclass(frozen=True, kw_only=True)
class Costs:
    use: Use
    training: tuple[Item, ...]
    activations: tuple[Item, ...]  # the detail of what training keeps for the backward pass
    inference: tuple[Item, ...]
    cache_per_token: tuple[tuple[str, int], ...]  # bytes: a token read or written, a token of the source
    work: tuple[Work, ...]

    @property
    def training_bytes(self) -> int:
        return sum(item.total for item in (*self.training, *self.activations))

    @property
    def activation_bytes(self) -> int:
        return sum(item.total for item in self.activations)

    @property
    def inference_bytes(self) -> int:
        return sum(item.total for item in self.inference)

    @property
    def forward(self) -> int:
        """Operations for one text, attention counted in full."""
        return sum(work.total for work in self.work)

    @property
    def forward_needed(self) -> int:
        return sum(work.needed for work in self.work)

    @property
    def per_token(self) -> dict[str, int]:
        """Operations forward for each kind of token, attention counted in full."""
        kinds = [work.per for work in self.work if work.per != "text"]
        return {kind: sum(work.each for work in self.work if work.per == kind) for kind in kinds}

    @property
    def step(self) -> int:
        """Operations of one training step: forward and backward for the whole batch."""
        return 3 * self.use.batch_size * self.forward


def tidy(formula: str) -> str:
    """Like terms added up: `3·L·d + 2·L·d` is `5·L·d`."""
    counts: dict[str, int] = {}
    for term in formula.split(" + "):
        head, _, tail = term.partition("·")
        number, letters = (int(head), tail) if head.isdigit() else (1, term)
        counts[letters] = counts.get(letters, 0) + number
    return " + ".join(letters if number == 1 else f"{number}·{letters}" for letters, number in counts.items())


class Ledger:
    """What the accounts of all kinds of models share; T tokens a text, S of the source, B texts. Abstract."""

    def __init__(self, config: Config, sizes: Sizes, use: Use) -> None:
        self.task, self.use = config.task, use
        self.model = config.model.for_shared_parts if config.model.is_recurrent else config.model
        self.values = {
            **letters_of(self.model, sizes),
            "B": use.batch_size,
            "T": use.length,
            "S": use.length,
        }
        self.keys = "d" if self.model.kv_heads == self.model.n_heads else "G·Dh"
        self.target = "V′" if sizes.target_vocab_size else "V"
        self.half = use.precision == "bf16"
        self.width = 2 if self.half else 4  # bytes of what matrix products read
        self.mask = 1 if use.gpu else self.width
        self.norm_keeps = 1 if self.model.norm == "layer" or use.gpu else 2  # on a CPU rms keeps input and result

    def state(self, counted: Budget) -> Iterator[Item]:
        use, total = self.use, counted.total
        learns = total if use.learns is None else use.learns
        yield self._plain("weights", total, 4)
        if use.adapters:
            yield self._plain("adapters", use.adapters, 4)
        if self.half:
            yield self._plain("weights in bf16", _in_products(counted), 2, note="copies that products read")
        yield self._plain("gradients", learns, 4)
        copies = (1 if use.momentum else 0) if use.optimizer == "sgd" else 2
        note = {0: "keeps nothing", 1: "momentum", 2: "two running means"}[copies]
        yield self._plain(f"state of {use.optimizer}", copies * learns, 4, note=note)

    def _embedding(self, name: str, t: str) -> Iterator[Item]:
        yield self._item(f"{name}: token numbers", f"B·{t}", 8)
        if self.model.dropout:
            yield self._item(f"{name}: dropout", f"B·{t}·d", 1 if self.use.gpu else 4)
        if self.model.embedding_norm:
            yield self._item(f"{name}: norm", f"{self.norm_keeps}·B·{t}·d + 2·B·{t}", 4)

    def _work(self, name: str, per: str, formula: str, needed: int | None = None) -> Work:
        formula = tidy(formula)
        each = value_of(formula, self.values)
        times = 1 if per == "text" else self.use.length
        whole = each * times if needed is None else needed
        numbers = in_numbers(formula, self.values)
        return Work(name=name, per=per, formula=formula, numbers=numbers, each=each, times=times, needed=whole)

    def _item(self, name: str, formula: str, bytes_each: int, note: str = "") -> Item:
        formula = tidy(formula)
        numbers, count = in_numbers(formula, self.values), value_of(formula, self.values)
        return Item(name=name, formula=formula, numbers=numbers, count=count, bytes_each=bytes_each, note=note)

    def _plain(self, name: str, count: int, bytes_each: int, note: str = "") -> Item:
        return Item(name=name, formula="", numbers=f"{count:,}", count=count, bytes_each=bytes_each, note=note)


def letters_of(model: ModelConfig, sizes: Sizes) -> dict[str, int]:
    return {
        "d": model.d_model,
        "f": model.d_ff,
        "H": model.n_heads,
        "G": model.kv_heads,
        "Dh": model.head_dim,
        "L": model.n_layers,
        "V": sizes.vocab_size,
        "V′": sizes.target_vocab_size,
        "h": model.head_hidden,
        "C": sizes.n_labels,
        "g": GATES.get(model.kind, 0),
        "p": 2 if model.kind == "lstm" else 1,
        "(2k+1)": 2 * model.max_distance_or_published + 1,
    }


def _in_products(counted: Budget) -> int:
    """Parameters of matrix products; embeddings, norms and positions are read as they are."""
    roles = ("attention", "cross", "feedforward", "recurrent", "output")
    lines = [(part, line) for part, line in counted.every_line() if line.role in roles]
    return sum(part.layers * line.times * line.each for part, line in lines)
