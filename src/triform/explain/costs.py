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

from triform.config import Config, Sizes
from triform.explain.ledger import Costs, Item, Ledger, Use, Work, tidy
from triform.explain.recurrent import RecurrentBook
from triform.models.budget import Budget, budget, value_of

__all__ = ["MOST_AT_ONCE", "SHORTEST", "WORTH_IT", "Costs", "Item", "Use", "Work", "costs", "pairs", "tidy"]

# As the kernels have them; a test keeps the pairs equal, for torch stays out of here.
# On a CPU and on a GPU: attention that is written out and holds more numbers is computed again, not kept.
MOST_AT_ONCE = (1 << 22, 1 << 26)
SHORTEST = (64, 1024)  # queries a piece of windowed attention
WORTH_IT = 0.6  # the share of the work that pieces may leave


def costs(config: Config, sizes: Sizes, use: Use) -> Costs:
    """What the model that these settings build costs."""
    counted = budget(config, sizes)
    book = (RecurrentBook if config.model.is_recurrent else _Book)(config, sizes, use)
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
    width = length if window < 0 else min(window, length)
    before = width * (width + 1) // 2 + (length - width) * width  # itself included
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


class _Book(Ledger):
    """Keeps the accounts of a Transformer."""

    # -- memory

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
