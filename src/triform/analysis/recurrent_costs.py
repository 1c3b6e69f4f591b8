"""Estimate what a recurrent model costs. Weights, states and operations are exact, activations are estimates.

What a cell saves for the backward pass depends on its library. `SAVED_TENSORS` was measured on a CPU, where torch
computes rnn and gru with its own kernels and lstm with oneDNN, which saves most. cuDNN saves less.
"""

from __future__ import annotations

from collections.abc import Iterator

from triform.analysis.cost_model import CostModel, FlopItem, MemoryItem
from triform.analysis.parameters import ParameterBudget, evaluate_formula

# Saved elements per token, layer and unit of width: in one direction, and in both.
SAVED_TENSORS = {"rnn": (3, 5), "gru": (9, 11), "lstm": (18, 26)}


class RecurrentCostModel(CostModel):
    """The cost model of a recurrent model, whose cells always compute in float32."""

    def activations(self) -> Iterator[MemoryItem]:
        """Return the activations that autograd saves, and the logits with their gradients."""
        if self.task == "translate":
            yield from self._embedding_activations("source embedding", "S")
            yield from self._cell_activations("encoder", "S", bidirectional=self.is_bidirectional)
            yield from self._embedding_activations("target embedding", "T")
            yield from self._cell_activations("decoder", "T", bidirectional=False)
            yield self._memory_item("attention", "5·B·T·d + 3·B·S·d", 4)
            width_factor = "·d" if self.model.attention_score == "additive" else ""
            yield self._memory_item("attention: weights", f"2·B·T·S{width_factor}", 4)
        else:
            yield from self._embedding_activations("embedding", "T")
            is_classifier = self.task == "classify"
            yield from self._cell_activations(
                "encoder" if is_classifier else "decoder",
                "T",
                bidirectional=is_classifier and self.is_bidirectional,
            )
        if self.task == "classify":
            yield from self._encoder_output_activations()
            return
        yield self._memory_item("output: states", "B·T·d", 4)
        yield self._memory_item("output: log-probabilities", f"B·T·{self.target_vocab_symbol}", 4)
        yield self._memory_item(
            "output: logits, then their gradients", f"B·T·{self.target_vocab_symbol}", 4, note="temporary"
        )

    @property
    def is_bidirectional(self) -> bool:
        """Whether the encoder reads in both directions."""
        return self.model.attention_direction != "causal"

    def _cell_activations(self, name: str, length_symbol: str, *, bidirectional: bool) -> Iterator[MemoryItem]:
        formula = f"L·B·{length_symbol}·d"
        yield self._memory_item(
            f"{name}: cells", f"{SAVED_TENSORS[self.model.kind][bidirectional]}·{formula}", 4, note="estimate"
        )
        if self.model.dropout:
            yield self._memory_item(f"{name}: dropout", formula, self.dropout_mask_bytes)

    def inference_memory(self, param_budget: ParameterBudget) -> Iterator[MemoryItem]:
        """Return the memory for weights and states."""
        yield self._constant_item("weights", param_budget.total, 4)
        if self.task == "classify":
            return
        yield self._memory_item("states", "L·p·B·d", 4, note="independent of the length")
        if self.task == "translate":
            yield self._memory_item("keys and values of the source", "2·B·S·d", 4)

    def cache_per_token(self) -> Iterator[tuple[str, int]]:
        """Return the bytes for each kind of token: none, except for the keys and values of a source."""
        if self.task == "generate":
            yield "token", 0
        if self.task == "translate":
            yield from (("source token", 4 * evaluate_formula("2·d", self.symbols)), ("target token", 0))

    def flop_items(self) -> Iterator[FlopItem]:
        """Return the operations of the forward pass by component."""
        # Each direction has half the width: e · d + e · e, twice.
        encoder_formula = "3·L·g·d·d" if self.is_bidirectional else "4·L·g·d·d"
        if self.task == "translate":
            yield self._flop_item("encoder: cells", "source token", encoder_formula)
            yield self._flop_item("attention: key, value", "source token", "4·d·d")
            yield self._flop_item("first state", "text", "2·d·L·p·d")
            yield self._flop_item("decoder: cells", "target token", "4·L·g·d·d")
            yield self._flop_item("attention: query, output, mixing", "target token", "6·d·d")
            yield self._flop_item("attention: S keys", "target token", "4·S·d")
            yield self._flop_item("output: logits", "target token", f"2·d·{self.target_vocab_symbol}")
        elif self.task == "generate":
            yield self._flop_item("decoder: cells", "token", "4·L·g·d·d")
            yield self._flop_item("output: logits", "token", "2·d·V")
        else:
            yield self._flop_item("encoder: cells", "token", encoder_formula)
            yield self._encoder_output_flops()
