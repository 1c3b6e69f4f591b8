"""What a recurrent model costs: weights and states exactly, operations exactly, activations estimated.

What a cell keeps for the backward pass is the affair of its library: `KEPT` is what was seen on a CPU, where torch
computes rnn and gru itself and lstm through oneDNN, which keeps most. cuDNN keeps less.
"""

from __future__ import annotations

from collections.abc import Iterator

from triform.explain.ledger import Item, Ledger, Work
from triform.models.budget import Budget, value_of

# Numbers a token, layer and unit of width: read one way, and both ways.
KEPT = {"rnn": (3, 5), "gru": (9, 11), "lstm": (18, 26)}


class RecurrentBook(Ledger):
    """Keeps the accounts of a recurrent model; its cells compute in float32 whatever is asked."""

    def activations(self) -> Iterator[Item]:
        if self.task == "translate":
            yield from self._embedding("source embedding", "S")
            yield from self._cells("encoder", "S", both_ways=self.both_ways)
            yield from self._embedding("target embedding", "T")
            yield from self._cells("decoder", "T", both_ways=False)
            yield self._item("attention", "5·B·T·d + 3·B·S·d", 4)
            wide = "·d" if self.model.score == "additive" else ""
            yield self._item("attention: weights", f"2·B·T·S{wide}", 4)
        else:
            yield from self._embedding("embedding", "T")
            labels = self.task == "classify"
            yield from self._cells("encoder" if labels else "decoder", "T", both_ways=labels and self.both_ways)
        if self.task == "classify":
            yield self._item("output", f"{'2·B·h + ' if self.model.head_hidden else ''}2·B·d + B·C", 4)
            return
        yield self._item("output: states", "B·T·d", 4)
        yield self._item("output: log-probabilities", f"B·T·{self.target}", 4)
        yield self._item("output: scores, then their gradients", f"B·T·{self.target}", 4, note="passing")

    @property
    def both_ways(self) -> bool:
        return self.model.reach != "causal"

    def _cells(self, name: str, t: str, *, both_ways: bool) -> Iterator[Item]:
        rows = f"L·B·{t}·d"
        yield self._item(f"{name}: cells", f"{KEPT[self.model.kind][both_ways]}·{rows}", 4, note="estimate")
        if self.model.dropout:
            yield self._item(f"{name}: dropout", rows, self.mask)

    def inference(self, counted: Budget) -> Iterator[Item]:
        yield self._plain("weights", counted.total, 4)
        if self.task == "classify":
            return
        yield self._item("states", "L·p·B·d", 4, note="however long the text is")
        if self.task == "translate":
            yield self._item("keys and values of the source", "2·B·S·d", 4)

    def cache_per_token(self) -> Iterator[tuple[str, int]]:
        """Of what was read and written nothing grows; of a source its keys and values are kept."""
        if self.task == "generate":
            yield "a token", 0
        if self.task == "translate":
            yield from (("a source token", 4 * value_of("2·d", self.values)), ("a target token", 0))

    def work(self) -> Iterator[Work]:
        reading = "3·L·g·d·d" if self.both_ways else "4·L·g·d·d"  # half as wide each way: e · d + e · e, twice
        if self.task == "translate":
            yield self._work("encoder: cells", "source token", reading)
            yield self._work("attention: key, value", "source token", "4·d·d")
            yield self._work("first state", "text", "2·d·L·p·d")
            yield self._work("decoder: cells", "target token", "4·L·g·d·d")
            yield self._work("attention: query, output, mixing", "target token", "6·d·d")
            yield self._work("attention: reading S tokens", "target token", "4·S·d")
            yield self._work("output: scores", "target token", f"2·d·{self.target}")
        elif self.task == "generate":
            yield self._work("decoder: cells", "token", "4·L·g·d·d")
            yield self._work("output: scores", "token", "2·d·V")
        else:
            yield self._work("encoder: cells", "token", reading)
            hidden = self.model.head_hidden
            yield self._work("output: labels", "text", "2·d·h + 2·h·C" if hidden else "2·d·C")
