"""Train many models of one shape as one: their parameters are rows of a matrix, and one step updates them all.

The parameters of each model, and the state of its optimizer, become views of its row. Code that validates, saves or
resumes a single model needs no change, because it sees an ordinary model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from triform.evaluation.metrics import Metrics
from triform.nn.kernels.vmap import use_vmap_attention
from triform.tasks.batch import Dataset
from triform.tasks.device_data import BatchPlan, DeviceDataset, pad_indices
from triform.tasks.evaluation import add_metric_sums
from triform.tasks.task import Task
from triform.training.batched_optimizer import build_batched_optimizer, clip_grad_norms
from triform.training.graph_cache import GraphCache, Shapes
from triform.training.muon import hidden_matrices
from triform.training.train_step import TrainStep

PAD_MULTIPLE = 64  # rows are padded to a multiple of this, so that each starts at an aligned address
MAX_EVAL_ELEMENTS = 1 << 26  # elements of the largest tensor of a validation on a CPU
EVAL_TENSOR_COPIES = 8  # a validation on a GPU needs about this many times its largest tensor


class StackedModels:
    """Takes the steps of several models at once, with `torch.vmap` over their weights.

    Args:
        train_steps: The models with their optimizers. Their tensors become views of the stacked ones.
        device_dataset: The training data on the models' device.
    """

    def __init__(self, train_steps: Sequence[TrainStep], device_dataset: DeviceDataset) -> None:
        self.train_steps, self.device_dataset = train_steps, device_dataset
        first = train_steps[0]
        self.device, self.autocast, self.n_models = first.device, first.autocast, len(train_steps)
        self.task = copy(first.task)
        self.task.model = use_vmap_attention(deepcopy(first.task.model)).train()
        self.functional_model = _FunctionalModel(self.task)
        orthogonal_names = hidden_matrices(self.task.model) if first.config.optimizer == "muon" else set()
        models = [_matrices_first(train_step.task.model, orthogonal_names) for train_step in train_steps]
        self._stack_parameters(models, len(orthogonal_names & models[0].keys()))
        self._stack_losses()
        self.updating = False  # whether weights are being changed; a failure before that has changed nothing
        self.notices: list[str] = []  # for the user; the trainers emit them
        self.graph_cache = GraphCache(self.task.model, self.device, self.notices)

    def _stack_parameters(self, models: list[dict[str, nn.Parameter]], n_orthogonal: int) -> None:
        """Copy all parameters and optimizer states into matrices, and replace them by views of these.

        Args:
            models: The parameters of each model, in the order of a row.
            n_orthogonal: The number of parameters at the start of a row that Muon updates.
        """
        names, shapes = list(models[0]), [parameter.shape for parameter in models[0].values()]
        configs = [train_step.config for train_step in self.train_steps]
        self.weights = _flatten_rows([list(model.values()) for model in models])
        n_decaying = sum(shape.numel() for shape in shapes if len(shape) >= 2)
        self.optimizer = build_batched_optimizer(configs, self.weights, n_decaying, shapes[:n_orthogonal])
        states = [
            [train_step.optimizer.state[parameter] for parameter in model.values()]
            for train_step, model in zip(self.train_steps, models, strict=True)
        ]
        self.optimizer_state: dict[str, Tensor] = {}
        for key in self.optimizer.state_names:
            values = [
                [state.get(key, torch.zeros_like(parameter)) for state, parameter in zip(*pair, strict=True)]
                for pair in zip(states, (model.values() for model in models), strict=True)
            ]
            self.optimizer_state[key] = _flatten_rows(values)
        step_counts = [[float(state.get("step", 0.0)) for state in row] for row in states]
        self.step_counts = torch.tensor(
            step_counts, dtype=torch.float32, device=self.device
        )  # (N, parameters), as torch counts
        views = {
            key: _split_views(matrix, shapes) for key, matrix in {"": self.weights, **self.optimizer_state}.items()
        }
        for row, model in enumerate(models):
            for index, parameter in enumerate(model.values()):
                parameter.data = views[""][index][row]
                states[row][index] |= {key: views[key][index][row] for key in self.optimizer.state_names_of(index)}
                if self.optimizer.uses_step_count:
                    states[row][index]["step"] = self.step_counts[row, index]
        params = [view.detach().requires_grad_() for view in views[""]]
        self.params = dict(zip(names, params, strict=True))
        self.padding = self.weights.new_zeros(self.n_models, -sum(shape.numel() for shape in shapes) % PAD_MULTIPLE)
        max_norms = [config.clip_norm or torch.inf for config in configs]
        self.max_norms = self.weights.new_tensor(max_norms)[:, None] if min(max_norms) < torch.inf else None

    def _stack_losses(self) -> None:
        """Keep losses and gradient norms on the device. `sync_losses` copies those of all models at once."""
        losses = [train_step.losses for train_step in self.train_steps]  # log_every may differ
        self.losses = nn.utils.rnn.pad_sequence(losses, batch_first=True).to(self.device)  # (N, log_every)
        self.grad_norms = torch.stack(
            [train_step.grad_norm.to(self.device) for train_step in self.train_steps]
        )  # (N)
        self.host_losses, self.host_norms = self.losses.cpu(), self.grad_norms.cpu()
        for row, train_step in enumerate(self.train_steps):
            train_step.share_buffers(self.host_losses[row], self.host_norms[row])
        self.synced = True

    def sync_losses(self) -> None:
        """Copy the losses and gradient norms to the host, where the train steps see them."""
        if not self.synced:
            self.host_losses.copy_(self.losses)
            self.host_norms.copy_(self.grad_norms)
            self.synced = True

    # -- one step of all models

    def step(self, plans: Sequence[Sequence[BatchPlan]], lrs: Sequence[float], loss_indices: Sequence[int]) -> None:
        """Take one step of every model.

        Args:
            plans: The micro-batches of each model; they are padded to one shape.
            lrs: The learning rate of each model. With 0 its weights do not change.
            loss_indices: The number of losses of each model since its last log.
        """
        micro_batches = list(zip(*plans, strict=True))  # for each micro-batch, that of each member
        shapes = tuple(common_shape(micro_batch) for micro_batch in micro_batches)
        row_indices = [
            pad_indices(plan.rows, shape[0])
            for shape, micro_batch in zip(shapes, micro_batches, strict=True)
            for plan in micro_batch
        ]
        n_predictions = [sum(plan.n_predictions for plan in member_plans) for member_plans in plans]
        inputs = np.concatenate([lrs, n_predictions, loss_indices, *row_indices])
        self.graph_cache(self._run_step, torch.from_numpy(inputs), shapes)
        self.synced = False

    def _run_step(self, inputs: Tensor, shapes: Shapes) -> None:
        """Gather the batches of `inputs` (learning rates, predictions, loss indices, rows) and update."""
        n_models, self.updating = self.n_models, False  # a failed capture may have left it set
        header = inputs[: 2 * n_models].to(self.weights.dtype)
        lrs, n_predictions = header[:n_models, None], header[n_models:]
        loss_indices = inputs[2 * n_models : 3 * n_models, None].long()
        start, grads, total_loss = 3 * n_models, self.padding, torch.zeros_like(n_predictions)
        for index, shape in enumerate(shapes):
            end = start + n_models * shape[0]
            batch = self.device_dataset.gather(inputs[start:end].long(), shape)
            tensors = {name: x.view(n_models, shape[0], *x.shape[1:]) for name, x in _batch_tensors(batch).items()}
            with self.autocast():
                losses = self._map_models(self.task.loss, batch, tensors) / n_predictions  # (N)
            gradients = torch.autograd.grad(losses.sum(), list(self.params.values()))
            flat_grads = torch.cat([*(grad.flatten(1) for grad in gradients), self.padding], dim=1)  # (N, P)
            grads = grads.add_(flat_grads) if index else flat_grads
            total_loss, start = total_loss + losses.detach(), end
        self.updating = True
        self._update(grads, lrs)
        self.updating = False
        self.losses.scatter_(1, loss_indices % self.losses.shape[1], total_loss[:, None])

    @torch.no_grad()
    def _update(self, grads: Tensor, lrs: Tensor) -> None:
        if self.max_norms is not None:
            self.grad_norms.copy_(clip_grad_norms(grads, self.max_norms))
        self.step_counts += 1
        self.optimizer.update(
            self.weights, grads, lrs, self.optimizer_state, self.step_counts[:, :1].to(grads.dtype)
        )

    def _map_models(
        self, fn: Callable[[Any], Tensor], batch: Any, tensors: dict[str, Tensor], *, shared_batch: bool = False,
        chunk_size: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Apply `fn` to the batch of each model with its weights. A `shared_batch` is the same for all models."""

        def run_member(weights: dict[str, Tensor], tensors: dict[str, Tensor]) -> Tensor:
            parameters = {path: weights[name] for path, name in self.functional_model.weight_names.items()}
            arguments = (fn, replace(batch, **tensors))
            result: Tensor = functional_call(self.functional_model, parameters, arguments, tie_weights=False)
            return result

        in_dims = (0, None if shared_batch else 0)
        results: Tensor = torch.vmap(run_member, in_dims, randomness="different", chunk_size=chunk_size)(
            self.params, tensors
        )
        return results

    # -- validation of all models

    def evaluate(self, data: Dataset) -> list[Metrics]:
        """Return the metrics of every model, equal to those of a separate evaluation."""
        self.task.model.eval()
        batch_sums = []
        with torch.no_grad(), self.autocast():
            for batch in self.task.evaluator.batches(data, quick=True):
                tensors = _batch_tensors(batch.to(self.device))
                chunk_size = self._eval_chunk_size(batch.n_positions)
                batch_sums.append(
                    self._map_models(
                        self.task.evaluator.metric_sums, batch, tensors, shared_batch=True, chunk_size=chunk_size
                    )
                )
        self.task.model.train()
        rows = zip(self.train_steps, add_metric_sums(batch_sums).tolist(), strict=True)
        with torch.inference_mode(), self.autocast():
            return [train_step.task.evaluator.compute_metrics(sums, data, quick=True) for train_step, sums in rows]

    def _eval_chunk_size(self, n_positions: int) -> int:
        """Return the number of models to evaluate at once. The output of the widest layer needs most memory."""
        widest = max(m.out_features for m in self.task.model.modules() if isinstance(m, nn.Linear))
        max_elements = MAX_EVAL_ELEMENTS
        if self.device.type == "cuda":
            max_elements = (
                torch.cuda.mem_get_info(self.device)[0] // self.weights.element_size() // EVAL_TENSOR_COPIES
            )
        return min(self.n_models, max(1, max_elements // (n_positions * widest)))


class _FunctionalModel(nn.Module):
    """A task's model as a module for `functional_call`, which runs it with the weights of one of the models."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        names = {id(parameter): name for name, parameter in task.model.named_parameters()}
        # All names of each parameter; a tied one has two. A module that is used twice is listed once, because
        # `functional_call` cannot restore a parameter that it replaced twice.
        self.weight_names = {
            f"{prefix}.{attribute}": names[id(parameter)]
            for prefix, module in self.named_modules()
            for attribute, parameter in module.named_parameters(recurse=False)
        }

    def forward(self, fn: Callable[[Any], Tensor], batch: Any) -> Tensor:
        return fn(batch)


def common_shape(plans: Sequence[BatchPlan]) -> tuple[int, ...]:
    """Return the smallest shape that each of these batches fits into."""
    return tuple(max(sizes) for sizes in zip(*(plan.shape for plan in plans), strict=True))


def _matrices_first(model: nn.Module, orthogonal_names: set[str]) -> dict[str, nn.Parameter]:
    """Return the parameters: first the matrices that Muon updates, then other matrices, then the rest."""
    return dict(
        sorted(model.named_parameters(), key=lambda item: (item[0] not in orthogonal_names, item[1].ndim < 2))
    )


def _flatten_rows(rows: list[list[Tensor]]) -> Tensor:  # N lists of tensors -> (N, P)
    padding = rows[0][0].new_zeros(-sum(tensor.numel() for tensor in rows[0]) % PAD_MULTIPLE)
    return torch.stack([torch.cat([*(tensor.detach().flatten() for tensor in row), padding]) for row in rows])


def _split_views(matrix: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:  # (N, P) -> (N, *shape) each
    sizes = [shape.numel() for shape in shapes]
    starts = accumulate(sizes, initial=0)
    return [
        matrix.narrow(1, start, size).view(-1, *shape)
        for start, size, shape in zip(starts, sizes, shapes, strict=False)
    ]


def _batch_tensors(batch: Any) -> dict[str, Tensor]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
