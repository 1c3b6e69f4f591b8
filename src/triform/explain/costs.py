"""What a model costs to train and to use: memory and floating-point operations, by component.

Weights, gradients, optimizer state and the key/value cache are exact. Activations are what autograd keeps for the
backward pass, counted operation by operation for fused attention over batches without padding; estimated remain
the masks of windows and of attention that is written out. Passing buffers (a kernel's workspace, gradients of
activations) are not in it, nor is the framework itself, so leave a fifth of a device's memory free.

Operations are those of matrix products, two for a multiplication with its addition, as torch's flop counter has
them: attention counts as if every token read every token, whatever a mask hides. What masks leave of it stands
beside it. Backward costs twice forward: each product has two gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from triform.config import Config, ModelConfig, OptimizerKind, Sizes
from triform.explain.budget import Budget, budget, in_numbers, value_of

# As the kernels have them; a test keeps the pairs equal, for torch stays out of here.
# On a CPU and on a GPU: attention that is written out and holds more numbers is computed again, not kept.
MOST_AT_ONCE = (1 << 22, 1 << 26)
SHORTEST = (64, 1024)  # queries a piece of windowed attention
WORTH_IT = 0.6  # the share of the work that pieces may leave


@dataclass(frozen=True, kw_only=True)
class Use:
    """How a model is run: on how much at once, and in what numbers."""

    batch_size: int
    length: int  # tokens of a text; of an encoder-decoder, on each side
    optimizer: OptimizerKind = "adamw"
    momentum: float = 0.9  # sgd
    precision: Literal["fp32", "bf16"] = "fp32"
    gpu: bool = True  # dropout keeps a byte a number there; on a CPU it keeps a whole one


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


def costs(config: Config, sizes: Sizes, use: Use) -> Costs:
    """What the model that these settings build costs."""
    counted = budget(config, sizes)
    book = _Book(config, sizes, use)
    return Costs(
        use=use,
        training=tuple(book.state(counted)),
        activations=tuple(book.activations()),
        inference=tuple(book.inference(counted)),
        cache_per_token=tuple(book.cache_per_token()),
        work=tuple(book.work()),
    )


def pairs(length: int, window: int, *, causal: bool) -> int:
    """How many (query, key) pairs a mask leaves of length²."""
    width = length if window < 0 else window
    before = sum(min(place + 1, width) for place in range(length))  # itself included
    return before if causal else 2 * before - length


def _in_pieces(length: int, window: int, *, causal: bool, gpu: bool) -> int:
    """Keys that a piece of windowed attention holds; all of them where cutting would save too little."""
    if window < 0:
        return length
    span = window if causal else 2 * window - 1
    keys = span + max(SHORTEST[gpu], span // 2)
    return keys if keys <= WORTH_IT * length else length


def _compiled(length: int, window: int) -> bool:
    """Whether a GPU compiles this window: long texts in whole blocks, most of them out of reach."""
    return 0 < 8 * window <= length and length >= 1024 and length % 128 == 0


def tidy(formula: str) -> str:
    """Like terms added up: `3·L·d + 2·L·d` is `5·L·d`."""
    counts: dict[str, int] = {}
    for term in formula.split(" + "):
        head, _, tail = term.partition("·")
        number, letters = (int(head), tail) if head.isdigit() else (1, term)
        counts[letters] = counts.get(letters, 0) + number
    return " + ".join(letters if number == 1 else f"{number}·{letters}" for letters, number in counts.items())


class _Book:
    """Keeps the accounts of one model in its letters; T tokens a text, S of the source, B texts."""

    def __init__(self, config: Config, sizes: Sizes, use: Use) -> None:
        self.task, self.model, self.use = config.task, config.model, use
        self.values = {
            **_letters(config.model, sizes),
            "B": use.batch_size,
            "T": use.length,
            "S": use.length,
        }
        self.keys = "d" if config.model.kv_heads == config.model.n_heads else "G·Dh"
        self.target = "V′" if sizes.target_vocab_size else "V"
        self.half = use.precision == "bf16"
        self.width = 2 if self.half else 4  # bytes of what matrix products read
        self.mask = 1 if use.gpu else self.width
        self.norm_keeps = 1 if self.model.norm == "layer" or use.gpu else 2  # on a CPU rms keeps input and result

    # -- memory

    def state(self, counted: Budget) -> Iterator[Item]:
        use, total = self.use, counted.total
        yield self._plain("weights", total, 4)
        if self.half:
            yield self._plain("weights in bf16", _in_products(counted), 2, note="copies that products read")
        yield self._plain("gradients", total, 4)
        copies = (1 if use.momentum else 0) if use.optimizer == "sgd" else 2
        note = {0: "keeps nothing", 1: "momentum", 2: "two running means"}[copies]
        yield self._plain(f"state of {use.optimizer}", copies * total, 4, note=note)

    def activations(self) -> Iterator[Item]:
        """What autograd keeps, and the scores beside it."""
        if self.task == "translate":
            yield from self._embedding("source embedding", "S")
            yield from self._stack("encoder", "S", causal=self.model.reach == "causal")
            yield self._item("encoder: states", "B·S·d" if not self.half else "L·B·S·d", self.width)
            yield from self._embedding("target embedding", "T")
            yield from self._stack("decoder", "T", causal=True, cross=True)
        else:
            yield from self._embedding("embedding", "T")
            name = "encoder" if self.task == "classify" else "decoder"
            yield from self._stack(name, "T", causal=self.task != "classify" or self.model.reach == "causal")
        if self.task == "classify":
            hidden = "2·B·h + " if self.model.head_hidden else ""
            yield self._item("output", f"{hidden}2·B·d + B·C", 4)
            return
        yield self._item("output: states", "B·T·d", self.width)
        yield self._item("output: log-probabilities", f"B·T·{self.target}", 4)
        passing = f"B·T·{self.target}"
        yield self._item("output: scores, then their gradients", passing, 6 if self.half else 4, note="passing")

    def _embedding(self, name: str, t: str) -> Iterator[Item]:
        yield self._item(f"{name}: token numbers", f"B·{t}", 8)
        if self.model.dropout:
            yield self._item(f"{name}: dropout", f"B·{t}·d", 1 if self.use.gpu else 4)
        if self.model.embedding_norm:
            yield self._item(f"{name}: norm", f"{self.norm_keeps}·B·{t}·d + 2·B·{t}", 4)

    def _stack(self, name: str, t: str, *, causal: bool, cross: bool = False) -> Iterator[Item]:
        """All layers of a side: a norm keeps its input, a product what it reads, dropout what it let pass."""
        model, rows, sublayers = self.model, f"L·B·{t}", 3 if cross else 2
        kept = self.norm_keeps
        final = f" + {kept}·B·{t}·d" if model.final_norm else ""
        yield self._item(f"{name}: norms", f"{kept * sublayers}·{rows}·d{final} + {2 * sublayers}·{rows}", 4)
        keys = self._keys(t, causal=causal)
        yield from self._attention(f"{name}: self-attention", rows, rows)
        yield from self._distances(f"{name}: self-attention", t, keys)
        yield from self._written_out(f"{name}: self-attention", t, keys, relative=model.positions == "relative")
        if cross:
            yield from self._attention(f"{name}: cross-attention", rows, "L·B·S")
            yield from self._written_out(f"{name}: cross-attention", t, "S", relative=False)
        inner = {"relu": 1, "gelu": 2, "gelu_tanh": 2, "silu": 2, "swiglu": 4}[model.activation]
        yield self._item(f"{name}: feedforward", f"{rows}·d + {inner}·{rows}·f", self.width)
        if model.dropout:
            yield self._item(f"{name}: dropout", f"{sublayers}·{rows}·d", self.mask)

    def _attention(self, name: str, rows: str, sources: str) -> Iterator[Item]:
        """What goes in, queries, keys, values, what comes out, and a sum a row; all that a fused kernel keeps."""
        # In bf16 each product makes a narrow copy of what it reads; the encoder's states are counted elsewhere.
        read = 2 if self.half and rows == sources else 1
        yield self._item(name, f"{2 + read}·{rows}·d + 2·{sources}·{self.keys}", self.width)
        yield self._item(f"{name}, row sums", f"{rows}·H", 4)
        if self.model.score == "cosine":
            formula = f"2·{rows}·d + {sources}·{self.keys} + 4·{rows}·H"
            yield self._item(f"{name}, vectors of length one", formula, self.width)

    def _keys(self, t: str, *, causal: bool) -> str:
        """The letter for the keys that a piece of attention holds: all, or R where windows cut it into pieces."""
        length = self.values[t]
        held = [_in_pieces(length, window, causal=causal, gpu=self.use.gpu) for window in self.model.windows]
        self.values["R"] = round(sum(held) / len(held))
        return t if self.values["R"] == length else "R"

    def _distances(self, name: str, t: str, keys: str) -> Iterator[Item]:
        """What positions and windows keep beside a fused kernel's own."""
        model, length = self.model, self.values[t]
        if model.positions == "rotary":
            yield self._item(f"{name}, turned keys", f"L·B·{t}·{self.keys} + 4·L·{t}·Dh", self.width)
        elif self.use.gpu and _compiled(length, max(model.windows)):
            return  # what it needs of a window or of distances is a short table
        elif model.positions == "t5" and not self.use.gpu:  # no fused kernel there learns a bias
            yield self._item(f"{name}, weights", f"L·B·H·{t}·{keys}", 4)
        elif model.positions in ("alibi", "t5"):
            yield self._item(f"{name}, biases", f"L·H·{t}·{keys}", self.width)
        elif any(0 < window < length for window in model.windows):
            yield self._item(f"{name}, masks", f"L·{t}·{keys}", self.width)
        if keys == "R":
            yield self._item(f"{name}, pieces put together", f"L·B·{t}·d", self.width)

    def _written_out(self, name: str, t: str, keys: str, *, relative: bool) -> Iterator[Item]:
        """Attention weights and what they were made from; nothing where they are computed again."""
        additive = self.model.score == "additive"
        grid = f"L·B·H·{t}·{keys}"
        if (
            not (additive or relative)
            or value_of(f"B·H·{t}·{keys}" + "·Dh" * additive, self.values) > MOST_AT_ONCE[self.use.gpu]
        ):
            return
        yield self._item(f"{name}, weights", f"2·{grid}" + f" + 2·{grid}·Dh" * additive, 4)
        if relative:
            yield self._item(f"{name}, by distance", f"2·L·B·H·{t}·(2k+1) + L·B·{t}·d", self.width)
            yield self._item(f"{name}, distances", f"2·L·{t}·{keys}", 8)

    def inference(self, counted: Budget) -> Iterator[Item]:
        note = "if they are cast; Triform itself keeps fp32" if self.half else ""
        yield self._plain("weights", counted.total, self.width, note=note)
        if self.task == "classify":
            return
        note = "or twice that, to grow"
        yield self._item("keys and values", f"2·L·B·T·{self.keys}", self.width, note=note)
        if self.task == "translate":
            yield self._item("keys and values of the source", f"2·L·B·S·{self.keys}", self.width)

    def cache_per_token(self) -> Iterator[tuple[str, int]]:
        """A window does not shrink it: old keys stay where they are."""
        each = value_of(f"2·L·{self.keys}", self.values) * self.width
        if self.task == "generate":
            yield "a token", each
        if self.task == "translate":
            yield from (("a source token", each), ("a target token", each))

    # -- operations

    def work(self) -> Iterator[Work]:
        if self.task == "translate":
            yield from self._side("encoder", "source token", "S", causal=self.model.reach == "causal")
            yield self._work("cross-attention: key, value", "source token", f"4·L·d·{self.keys}")
            yield from self._side("decoder", "target token", "T", causal=True)
            yield self._work("cross-attention: query, output", "target token", "4·L·d·d")
            yield self._work("cross-attention: reading S tokens", "target token", "4·L·S·d")
            yield self._work("output: scores", "target token", f"2·d·{self.target}")
            return
        causal = self.task != "classify" or self.model.reach == "causal"
        yield from self._side("encoder" if self.task == "classify" else "decoder", "token", "T", causal=causal)
        if self.task == "generate":
            yield self._work("output: scores", "token", "2·d·V")
        elif self.model.head_hidden:
            yield self._work("output: labels", "text", "2·d·h + 2·h·C")
        else:
            yield self._work("output: labels", "text", "2·d·C")

    def _side(self, name: str, per: str, t: str, *, causal: bool) -> Iterator[Work]:
        model, length = self.model, self.values[t]
        yield self._work(f"{name}: attention's projections", per, f"4·L·d·d + 4·L·d·{self.keys}")
        if model.positions == "relative":
            yield self._work(f"{name}: distances", per, "4·L·d·(2k+1)")
        up = 4 if model.activation == "swiglu" else 2
        yield self._work(f"{name}: feedforward", per, f"{up + 2}·L·d·f")
        left = sum(pairs(length, window, causal=causal) for window in model.windows)
        needed = 4 * model.d_model * left
        yield self._work(f"{name}: reading {t} tokens", per, f"4·L·{t}·d", needed=needed)

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


def _letters(model: ModelConfig, sizes: Sizes) -> dict[str, int]:
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
        "(2k+1)": 2 * model.max_distance_or_published + 1,
    }


def _in_products(counted: Budget) -> int:
    """Parameters of matrix products; embeddings, norms and positions are read as they are."""
    roles = ("attention", "cross", "feedforward", "output")
    lines = [(part, line) for part, line in counted.every_line() if line.role in roles]
    return sum(part.layers * line.times * line.each for part, line in lines)
