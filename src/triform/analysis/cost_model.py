"""Data structures and shared parts of cost estimates: memory and operations, each with its formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from triform.analysis.parameters import GATES, ParameterBudget, evaluate_formula, format_formula
from triform.config import Config, DataSizes, ModelConfig, OptimizerKind

BLOCK_ROLES = ("attention", "cross", "feedforward")  # of the rows with linear layers in blocks
BF16_WEIGHTS = "weights in bf16"  # the name of the memory for copies of weights


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How a model is trained and used: batch size, text length, optimizer, precision and device kind."""

    batch_size: int
    length: int  # tokens in each text; for an encoder-decoder, on each side
    optimizer: OptimizerKind = "adamw"
    momentum: float = 0.9  # of sgd
    precision: Literal["fp32", "bf16"] = "fp32"
    gpu: bool = True  # on a GPU dropout stores one byte per element, on a CPU a whole element
    trainable: int | None = None  # trainable parameters; None: all of them
    adapters: int = 0  # trainable parameters that belong to adapters, not to the model


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """Memory for a number of elements of the same size."""

    name: str
    formula: str
    numbers: str
    count: int
    bytes_each: int
    note: str = ""

    @property
    def total(self) -> int:
        """Bytes of all elements."""
        return self.count * self.bytes_each


@dataclass(frozen=True, kw_only=True)
class FlopItem:
    """Operations of the forward pass of one text, in full and without masked attention."""

    name: str
    per: str  # the unit: token, source token, target token or text
    formula: str  # for one unit
    numbers: str
    per_unit: int
    times: int  # units in a text
    needed: int  # for the whole text, without masked attention

    @property
    def total(self) -> int:
        """Operations of the whole text, with attention in full."""
        return self.per_unit * self.times


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The estimated costs of a model for a workload."""

    workload: Workload
    training: tuple[MemoryItem, ...]
    activations: tuple[MemoryItem, ...]  # saved for the backward pass
    inference: tuple[MemoryItem, ...]
    cache_per_token: tuple[tuple[str, int], ...]  # bytes for each kind of token
    flop_items: tuple[FlopItem, ...]

    @property
    def training_bytes(self) -> int:
        """Bytes needed to train: weights, gradients, optimizer state and activations."""
        return sum(item.total for item in (*self.training, *self.activations))

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations that are saved for the backward pass."""
        return sum(item.total for item in self.activations)

    @property
    def inference_bytes(self) -> int:
        """Bytes needed to use the model: weights and caches."""
        return sum(item.total for item in self.inference)

    @property
    def forward_flops(self) -> int:
        """Operations of the forward pass of one text, with attention in full."""
        return sum(item.total for item in self.flop_items)

    @property
    def needed_forward_flops(self) -> int:
        """Operations of the forward pass of one text, without masked attention."""
        return sum(item.needed for item in self.flop_items)

    @property
    def flops_per_token(self) -> dict[str, int]:
        """Operations of the forward pass for each kind of token, with attention in full."""
        kinds = [item.per for item in self.flop_items if item.per != "text"]
        return {kind: sum(item.per_unit for item in self.flop_items if item.per == kind) for kind in kinds}

    @property
    def step_flops(self) -> int:
        """Operations of a training step: forward and backward for the whole batch."""
        return 3 * self.workload.batch_size * self.forward_flops


def simplify(formula: str) -> str:
    """Combine like terms of a formula.

    >>> simplify("3·L·d + 2·L·d")
    '5·L·d'
    """
    coefficients: dict[str, int] = {}
    for term in formula.split(" + "):
        factor, _, rest = term.partition("·")
        coefficient, symbols = (int(factor), rest) if factor.isdigit() else (1, term)
        coefficients[symbols] = coefficients.get(symbols, 0) + coefficient
    return " + ".join(
        symbols if coefficient == 1 else f"{coefficient}·{symbols}" for symbols, coefficient in coefficients.items()
    )


class CostModel:
    """Base class of the cost models of Transformers and recurrent models.

    Formulas use T for the tokens of a text, M for those of them that are masked, S for the tokens of a source and B
    for the texts of a batch.
    """

    def __init__(self, config: Config, sizes: DataSizes, workload: Workload) -> None:
        self.task, self.workload = config.task, workload
        self.model = config.model.as_single_head if config.model.is_recurrent else config.model
        self.symbols = {
            **symbol_values(self.model, sizes),
            "B": workload.batch_size,
            "T": workload.length,
            "S": workload.length,
            "M": max(1, int(config.train.mask_rate * workload.length + 0.5)),
        }
        self.predicts_labels = config.predicts_labels
        self.kv_width_symbol = "d" if self.model.kv_heads == self.model.n_heads else "G·Dh"
        self.target_vocab_symbol = "V′" if sizes.target_vocab_size else "V"
        self.is_bf16 = workload.precision == "bf16"
        self.element_bytes = 2 if self.is_bf16 else 4  # of the inputs of matrix products
        self.dropout_mask_bytes = 1 if workload.gpu else self.element_bytes
        # On a CPU, RMSNorm saves its input and its result.
        self.norm_saved_tensors = 1 if self.model.norm == "layer" or workload.gpu else 2

    def training_state(self, param_budget: ParameterBudget) -> Iterator[MemoryItem]:
        """Return the memory for weights, gradients and optimizer state."""
        workload, total = self.workload, param_budget.total
        n_trainable = total if workload.trainable is None else workload.trainable
        yield self._constant_item("weights", total, 4)
        if workload.adapters:
            yield self._constant_item("adapters", workload.adapters, 4)
        if self.is_bf16:
            yield self._constant_item(
                BF16_WEIGHTS, _count_matmul_parameters(param_budget), 2, note="copies for matrix products"
            )
        yield self._constant_item("gradients", n_trainable, 4)
        n_states = (1 if workload.momentum else 0) if workload.optimizer == "sgd" else 2
        note = {0: "none", 1: "momentum", 2: "two moving averages"}[n_states]
        n_saved = 0
        if workload.optimizer == "muon" and workload.trainable is None:
            n_saved, note = (
                _count_block_weights(param_budget),
                "one moving average for matrices of blocks, else two",
            )
        yield self._constant_item(f"state of {workload.optimizer}", n_states * n_trainable - n_saved, 4, note=note)

    def _embedding_activations(self, name: str, length_symbol: str) -> Iterator[MemoryItem]:
        yield self._memory_item(f"{name}: token ids", f"B·{length_symbol}", 8)
        if self.model.dropout:
            yield self._memory_item(f"{name}: dropout", f"B·{length_symbol}·d", 1 if self.workload.gpu else 4)
        if self.model.embedding_norm:
            yield self._memory_item(
                f"{name}: norm", f"{self.norm_saved_tensors}·B·{length_symbol}·d + 2·B·{length_symbol}", 4
            )

    def _encoder_output_activations(self) -> Iterator[MemoryItem]:
        """Return the activations of the labels of a classifier, or of the masked tokens of an encoder."""
        if self.predicts_labels:
            yield self._memory_item("output", f"{'2·B·h + ' if self.model.head_hidden else ''}2·B·d + B·C", 4)
        else:
            yield self._memory_item("output: masked tokens", "2·B·M·d + 2·B·M·V", 4)

    def _encoder_output_flops(self) -> FlopItem:
        """Return the operations of the labels of a classifier, or of the masked tokens of an encoder."""
        if not self.predicts_labels:
            return self._flop_item("output: masked tokens", "text", "2·M·d·V")
        formula = "2·d·h + 2·h·C" if self.model.head_hidden else "2·d·C"
        return self._flop_item("output: labels", "text", formula)

    def _flop_item(self, name: str, per: str, formula: str, needed: int | None = None) -> FlopItem:
        formula = simplify(formula)
        per_unit = evaluate_formula(formula, self.symbols)
        times = 1 if per == "text" else self.workload.length
        total_needed = per_unit * times if needed is None else needed
        numbers = format_formula(formula, self.symbols)
        return FlopItem(
            name=name,
            per=per,
            formula=formula,
            numbers=numbers,
            per_unit=per_unit,
            times=times,
            needed=total_needed,
        )

    def _memory_item(self, name: str, formula: str, bytes_each: int, note: str = "") -> MemoryItem:
        formula = simplify(formula)
        numbers, count = format_formula(formula, self.symbols), evaluate_formula(formula, self.symbols)
        return MemoryItem(
            name=name, formula=formula, numbers=numbers, count=count, bytes_each=bytes_each, note=note
        )

    def _constant_item(self, name: str, count: int, bytes_each: int, note: str = "") -> MemoryItem:
        return MemoryItem(
            name=name, formula="", numbers=f"{count:,}", count=count, bytes_each=bytes_each, note=note
        )


def symbol_values(model: ModelConfig, sizes: DataSizes) -> dict[str, int]:
    """Return the values of the symbols in formulas."""
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
        "(2k+1)": 2 * model.resolved_max_distance + 1,
    }


def _count_block_weights(param_budget: ParameterBudget) -> int:
    """Count the weights of linear layers in blocks, without biases."""
    rows = [(group, row) for group, row in param_budget.iter_rows() if row.role in BLOCK_ROLES]
    return sum(group.layers * row.times * row.weights for group, row in rows)


def _count_matmul_parameters(param_budget: ParameterBudget) -> int:
    """Count the parameters of matrix products, which have copies in bf16; embeddings and norms have none."""
    roles = (*BLOCK_ROLES, "recurrent", "output")
    rows = [(group, row) for group, row in param_budget.iter_rows() if row.role in roles]
    return sum(group.layers * row.times * row.per_instance for group, row in rows)
