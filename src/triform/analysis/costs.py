"""Estimate what a Transformer costs to train and to use: memory and floating-point operations by component.

Weights, gradients, optimizer state and the key/value cache are exact. Activations are what autograd saves for the
backward pass, counted operation by operation for fused attention over batches without padding; the masks of windows
and attention without a fused kernel are estimates. Temporary buffers (workspaces, gradients of activations) and the
framework itself are not included, so leave a fifth of the device's memory free.

Operations are those of matrix products, two for each multiply-add, as the flop counter of torch counts them:
attention counts in full, including masked positions. `needed` counts without masked attention. The backward pass
costs twice the forward pass, because each product has two gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

from triform.analysis.cost_model import CostModel, Costs, FlopItem, MemoryItem, Workload, simplify
from triform.analysis.parameters import ParameterBudget, count_parameters, evaluate_formula
from triform.analysis.recurrent_costs import RecurrentCostModel
from triform.config import Config, DataSizes

__all__ = [
    "MAX_SAVED_ELEMENTS",
    "MAX_TILED_COST",
    "MIN_TILE",
    "Costs",
    "FlopItem",
    "MemoryItem",
    "Workload",
    "count_attended_pairs",
    "estimate_costs",
    "simplify",
]

# Limits of the kernels, for CPU and GPU. This module works without torch; a test compares them with the kernels.
MAX_SAVED_ELEMENTS = (1 << 22, 1 << 26)  # larger attention weights are recomputed instead of saved
MIN_TILE = (64, 1024)  # queries in a tile of windowed attention
MAX_TILED_COST = 0.6  # tiling is used if at most this share of the work remains


def estimate_costs(config: Config, sizes: DataSizes, workload: Workload) -> Costs:
    """Estimate the costs of the model that these settings build."""
    param_budget = count_parameters(config, sizes)
    cost_model = (RecurrentCostModel if config.model.is_recurrent else _TransformerCostModel)(
        config, sizes, workload
    )
    return Costs(
        workload=workload,
        training=tuple(cost_model.training_state(param_budget)),
        activations=tuple(cost_model.activations()),
        inference=tuple(cost_model.inference_memory(param_budget)),
        cache_per_token=tuple(cost_model.cache_per_token()),
        flop_items=tuple(cost_model.flop_items()),
    )


def count_attended_pairs(length: int, window: int, *, causal: bool) -> int:
    """Return the number of (query, key) pairs that are not masked, out of length²."""
    width = length if window < 0 else min(window, length)
    n_causal_pairs = width * (width + 1) // 2 + (length - width) * width  # every token attends to itself
    return n_causal_pairs if causal else 2 * n_causal_pairs - length


def _keys_per_tile(length: int, window: int, *, causal: bool, gpu: bool) -> int:
    """Return the number of keys in a tile of windowed attention, or all keys if tiling would save too little."""
    if window < 0:
        return length
    span = window if causal else 2 * window - 1
    keys = span + max(MIN_TILE[gpu], span // 2)
    return keys if keys <= MAX_TILED_COST * length else length


def _uses_flex_attention(length: int, window: int) -> bool:
    """Return whether a GPU uses FlexAttention for this window: long texts in whole blocks, most of them masked."""
    return 0 < 8 * window <= length and length >= 1024 and length % 128 == 0


class _TransformerCostModel(CostModel):
    """The cost model of a Transformer."""

    # -- memory

    def activations(self) -> Iterator[MemoryItem]:
        """Return the activations that autograd saves, and the logits with their gradients."""
        if self.task == "translate":
            yield from self._embedding_activations("source embedding", "S")
            yield from self._stack_activations("encoder", "S", causal=self.model.attention_direction == "causal")
            yield self._memory_item(
                "encoder: states", "B·S·d" if not self.is_bf16 else "L·B·S·d", self.element_bytes
            )
            yield from self._embedding_activations("target embedding", "T")
            yield from self._stack_activations("decoder", "T", causal=True, cross=True)
        else:
            yield from self._embedding_activations("embedding", "T")
            name = "encoder" if self.task == "classify" else "decoder"
            yield from self._stack_activations(
                name, "T", causal=self.task != "classify" or self.model.attention_direction == "causal"
            )
        if self.task == "classify":
            yield from self._encoder_output_activations()
            return
        yield self._memory_item("output: states", "B·T·d", self.element_bytes)
        yield self._memory_item("output: log-probabilities", f"B·T·{self.target_vocab_symbol}", 4)
        formula = f"B·T·{self.target_vocab_symbol}"
        yield self._memory_item(
            "output: logits, then their gradients", formula, 6 if self.is_bf16 else 4, note="temporary"
        )

    def _stack_activations(
        self, name: str, length_symbol: str, *, causal: bool, cross: bool = False
    ) -> Iterator[MemoryItem]:
        """Return the activations of all layers: a norm saves its input, a product its inputs, dropout its mask."""
        model, rows, sublayers = self.model, f"L·B·{length_symbol}", 3 if cross else 2
        norm_tensors = self.norm_saved_tensors
        final_norm_term = f" + {norm_tensors}·B·{length_symbol}·d" if model.final_norm else ""
        yield self._memory_item(
            f"{name}: norms", f"{norm_tensors * sublayers}·{rows}·d{final_norm_term} + {2 * sublayers}·{rows}", 4
        )
        key_symbol = self._key_symbol(length_symbol, causal=causal)
        yield from self._attention_activations(f"{name}: self-attention", rows, rows)
        yield from self._position_activations(f"{name}: self-attention", length_symbol, key_symbol)
        yield from self._naive_attention_activations(
            f"{name}: self-attention", length_symbol, key_symbol, relative=model.positions == "relative"
        )
        if cross:
            yield from self._attention_activations(f"{name}: cross-attention", rows, "L·B·S")
            yield from self._naive_attention_activations(
                f"{name}: cross-attention", length_symbol, "S", relative=False
            )
        ffn_tensors = {"relu": 1, "gelu": 2, "gelu_tanh": 2, "silu": 2, "swiglu": 4}[model.activation]
        yield self._memory_item(f"{name}: feedforward", f"{rows}·d + {ffn_tensors}·{rows}·f", self.element_bytes)
        if model.dropout:
            yield self._memory_item(f"{name}: dropout", f"{sublayers}·{rows}·d", self.dropout_mask_bytes)

    def _attention_activations(self, name: str, rows: str, sources: str) -> Iterator[MemoryItem]:
        """Return what a fused kernel saves: inputs, queries, keys, values, outputs, and one sum per row."""
        # In bf16 each product copies its input; the states of the encoder are counted elsewhere.
        input_copies = 2 if self.is_bf16 and rows == sources else 1
        yield self._memory_item(
            name, f"{2 + input_copies}·{rows}·d + 2·{sources}·{self.kv_width_symbol}", self.element_bytes
        )
        yield self._memory_item(f"{name}, row sums", f"{rows}·H", 4)
        if self.model.attention_score == "cosine":
            formula = f"2·{rows}·d + {sources}·{self.kv_width_symbol} + 4·{rows}·H"
            yield self._memory_item(f"{name}, vectors of length one", formula, self.element_bytes)

    def _key_symbol(self, length_symbol: str, *, causal: bool) -> str:
        """Return the symbol for the keys of a tile: all keys, or R if windowed attention is tiled."""
        length = self.symbols[length_symbol]
        keys_per_layer = [
            _keys_per_tile(length, window, causal=causal, gpu=self.workload.gpu) for window in self.model.windows
        ]
        self.symbols["R"] = round(sum(keys_per_layer) / len(keys_per_layer))
        return length_symbol if self.symbols["R"] == length else "R"

    def _position_activations(self, name: str, length_symbol: str, key_symbol: str) -> Iterator[MemoryItem]:
        """Return what positions and windows save in addition to a fused kernel."""
        model, length = self.model, self.symbols[length_symbol]
        if model.positions == "rotary":
            yield self._memory_item(
                f"{name}, rotated keys",
                f"L·B·{length_symbol}·{self.kv_width_symbol} + 4·L·{length_symbol}·Dh",
                self.element_bytes,
            )
        elif self.workload.gpu and _uses_flex_attention(length, max(model.windows)):
            return  # FlexAttention needs only a short table
        elif model.positions == "t5" and not self.workload.gpu:  # no fused CPU kernel has a gradient for the bias
            yield self._memory_item(f"{name}, weights", f"L·B·H·{length_symbol}·{key_symbol}", 4)
        elif model.positions in ("alibi", "t5"):
            yield self._memory_item(f"{name}, biases", f"L·H·{length_symbol}·{key_symbol}", self.element_bytes)
        elif any(0 < window < length for window in model.windows):
            yield self._memory_item(f"{name}, masks", f"L·{length_symbol}·{key_symbol}", self.element_bytes)
        if key_symbol == "R":
            yield self._memory_item(f"{name}, joined tiles", f"L·B·{length_symbol}·d", self.element_bytes)

    def _naive_attention_activations(
        self, name: str, length_symbol: str, key_symbol: str, *, relative: bool
    ) -> Iterator[MemoryItem]:
        """Return the memory of attention weights and their inputs, unless they are recomputed."""
        additive = self.model.attention_score == "additive"
        scores_formula = f"L·B·H·{length_symbol}·{key_symbol}"
        if (
            not (additive or relative)
            or evaluate_formula(f"B·H·{length_symbol}·{key_symbol}" + "·Dh" * additive, self.symbols)
            > MAX_SAVED_ELEMENTS[self.workload.gpu]
        ):
            return
        yield self._memory_item(
            f"{name}, weights", f"2·{scores_formula}" + f" + 2·{scores_formula}·Dh" * additive, 4
        )
        if relative:
            yield self._memory_item(
                f"{name}, by distance",
                f"2·L·B·H·{length_symbol}·(2k+1) + L·B·{length_symbol}·d",
                self.element_bytes,
            )
            yield self._memory_item(f"{name}, distances", f"2·L·{length_symbol}·{key_symbol}", 8)

    def inference_memory(self, param_budget: ParameterBudget) -> Iterator[MemoryItem]:
        """Return the memory for weights and the key/value cache."""
        note = "if you cast them; Triform uses fp32 by default" if self.is_bf16 else ""
        yield self._constant_item("weights", param_budget.total, self.element_bytes, note=note)
        if self.task == "classify":
            return
        note = "up to twice as much while the cache grows"
        yield self._memory_item("keys and values", f"2·L·B·T·{self.kv_width_symbol}", self.element_bytes, note=note)
        if self.task == "translate":
            yield self._memory_item(
                "keys and values of the source", f"2·L·B·S·{self.kv_width_symbol}", self.element_bytes
            )

    def cache_per_token(self) -> Iterator[tuple[str, int]]:
        """Return the bytes of the key/value cache for each kind of token. A window does not reduce it."""
        bytes_per_token = evaluate_formula(f"2·L·{self.kv_width_symbol}", self.symbols) * self.element_bytes
        if self.task == "generate":
            yield "token", bytes_per_token
        if self.task == "translate":
            yield from (("source token", bytes_per_token), ("target token", bytes_per_token))

    # -- operations

    def flop_items(self) -> Iterator[FlopItem]:
        """Return the operations of the forward pass by component."""
        if self.task == "translate":
            yield from self._stack_flops(
                "encoder", "source token", "S", causal=self.model.attention_direction == "causal"
            )
            yield self._flop_item("cross-attention: key, value", "source token", f"4·L·d·{self.kv_width_symbol}")
            yield from self._stack_flops("decoder", "target token", "T", causal=True)
            yield self._flop_item("cross-attention: query, output", "target token", "4·L·d·d")
            yield self._flop_item("cross-attention: S keys", "target token", "4·L·S·d")
            yield self._flop_item("output: logits", "target token", f"2·d·{self.target_vocab_symbol}")
            return
        causal = self.task != "classify" or self.model.attention_direction == "causal"
        yield from self._stack_flops(
            "encoder" if self.task == "classify" else "decoder", "token", "T", causal=causal
        )
        if self.task == "generate":
            yield self._flop_item("output: logits", "token", "2·d·V")
        else:
            yield self._encoder_output_flops()

    def _stack_flops(self, name: str, per: str, length_symbol: str, *, causal: bool) -> Iterator[FlopItem]:
        model, length = self.model, self.symbols[length_symbol]
        yield self._flop_item(f"{name}: attention's projections", per, f"4·L·d·d + 4·L·d·{self.kv_width_symbol}")
        if model.positions == "relative":
            yield self._flop_item(f"{name}: distances", per, "4·L·d·(2k+1)")
        up_factor = 4 if model.activation == "swiglu" else 2
        yield self._flop_item(f"{name}: feedforward", per, f"{up_factor + 2}·L·d·f")
        n_pairs = sum(count_attended_pairs(length, window, causal=causal) for window in model.windows)
        needed = 4 * model.d_model * n_pairs
        yield self._flop_item(
            f"{name}: attention to {length_symbol} tokens", per, f"4·L·{length_symbol}·d", needed=needed
        )
