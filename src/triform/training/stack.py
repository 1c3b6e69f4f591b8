"""Many models of one shape as one: their parameters are the rows of a matrix, and one step moves them all.

A model's own parameters become views of its row, and so does what its optimizer keeps: whoever validates, saves or
resumes a single model need not know that it stands in a stack.
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

from triform.metrics import Scores
from triform.nn.stacked import made_for_stacks
from triform.tasks.resident import Plan, Resident, filled
from triform.tasks.task import Dataset, Task, summed
from triform.training.learner import Learner
from triform.training.replay import Replay, Shapes
from triform.training.rowwise import clip, make_rowwise

LANES = 64  # rows are filled up to a multiple of this, so that each begins where matrix units like it
MOST_JUDGED = 1 << 26  # numbers that a validation may hold at once on a CPU
COPIES = 8  # of the largest tensor of a validation


class Stack:
    def __init__(self, learners: Sequence[Learner], resident: Resident) -> None:
        self.learners, self.resident = learners, resident
        first = learners[0]
        self.device, self.precision, self.n = first.device, first.precision, len(learners)
        self.task = copy(first.task)
        self.task.model = made_for_stacks(deepcopy(first.task.model)).train()
        self.hollow = _Hollow(self.task)
        self._pile_up([_matrices_first(learner.task.model) for learner in learners])
        self._keep_count()
        self.moving = False  # whether weights are being changed: who fails before has changed nothing
        self.notices: list[str] = []  # what a user may want to know of how it went
        self.replay = Replay(self.task.model, self.device, self.notices)

    def _pile_up(self, models: list[dict[str, nn.Parameter]]) -> None:
        """Copy all parameters and what optimizers keep into matrices, and let their owners look there."""
        names, shapes = list(models[0]), [parameter.shape for parameter in models[0].values()]
        configs = [learner.config for learner in self.learners]
        self.weights = _rows([list(model.values()) for model in models])
        n_decaying = sum(shape.numel() for shape in shapes if len(shape) >= 2)
        self.rowwise = make_rowwise(configs, self.weights, n_decaying)
        states = [
            [learner.optimizer.state[parameter] for parameter in model.values()]
            for learner, model in zip(self.learners, models, strict=True)
        ]
        self.kept: dict[str, Tensor] = {}
        for key in self.rowwise.keeps:
            found = [
                [state.get(key, torch.zeros_like(parameter)) for state, parameter in zip(*pair, strict=True)]
                for pair in zip(states, (model.values() for model in models), strict=True)
            ]
            self.kept[key] = _rows(found)
        taken = [[float(state.get("step", 0.0)) for state in row] for row in states]
        self.steps = torch.tensor(
            taken, dtype=torch.float32, device=self.device
        )  # (N, parameters), as torch counts
        views = {key: _cut(matrix, shapes) for key, matrix in {"": self.weights, **self.kept}.items()}
        for row, model in enumerate(models):
            for place, parameter in enumerate(model.values()):
                parameter.data = views[""][place][row]
                states[row][place] |= {key: views[key][place][row] for key in self.kept}
                if self.rowwise.counts:
                    states[row][place]["step"] = self.steps[row, place]
        leaves = [view.detach().requires_grad_() for view in views[""]]
        self.leaves = dict(zip(names, leaves, strict=True))
        self.filling = self.weights.new_zeros(self.n, -sum(shape.numel() for shape in shapes) % LANES)
        limits = [config.clip_norm or torch.inf for config in configs]
        self.limits = self.weights.new_tensor(limits)[:, None] if min(limits) < torch.inf else None

    def _keep_count(self) -> None:
        """Losses and lengths of gradients stay on the device until someone looks; then all come at once."""
        seen = [learner.losses for learner in self.learners]  # of unequal length, where some log more often
        self.losses = nn.utils.rnn.pad_sequence(seen, batch_first=True).to(self.device)  # (N, log_every)
        self.norms = torch.stack([learner.norm.to(self.device) for learner in self.learners])  # (N)
        self.seen_losses, self.seen_norms = self.losses.cpu(), self.norms.cpu()
        for row, learner in enumerate(self.learners):
            learner.losses, learner.norm = self.seen_losses[row], self.seen_norms[row]
            learner.place = learner.place.cpu()  # the members say where a loss goes, see `step`
        self.looked = True

    def look(self) -> None:
        """Let the members see what has happened since the last look."""
        if not self.looked:
            self.seen_losses.copy_(self.losses)
            self.seen_norms.copy_(self.norms)
            self.looked = True

    # -- one step of all

    def step(self, plans: Sequence[Sequence[Plan]], rates: Sequence[float], places: Sequence[int]) -> None:
        """For each member the batches to learn from, brought to one shape, and a rate; 0 leaves it as it is.

        `places` is how many losses each has seen since its last look.
        """
        drawn = list(zip(*plans, strict=True))  # for each micro-batch, that of each member
        shapes = tuple(joint_shape(each) for each in drawn)
        rows = [filled(plan.rows, shape[0]) for shape, each in zip(shapes, drawn, strict=True) for plan in each]
        weights = [sum(plan.weight for plan in own) for own in plans]
        told = np.concatenate([rates, weights, places, *rows])
        self.replay(self._follow, torch.from_numpy(told), shapes)
        self.looked = False

    def _follow(self, told: Tensor, shapes: Shapes) -> None:
        """Gather the batches that the message names, and learn from them."""
        n, self.moving = self.n, False  # a recording that failed may have left it
        numbers = told[: 2 * n].to(self.weights.dtype)
        rates, weights = numbers[:n, None], numbers[n:]
        places = told[2 * n : 3 * n, None].long()
        start, grads, total = 3 * n, self.filling, torch.zeros_like(weights)
        for number, shape in enumerate(shapes):
            end = start + n * shape[0]
            batch = self.resident.gather(told[start:end].long(), shape)
            tensors = {name: x.view(n, shape[0], *x.shape[1:]) for name, x in _tensors(batch).items()}
            with self.precision():
                losses = self._each(self.task.loss, batch, tensors) / weights  # (N)
            found = torch.autograd.grad(losses.sum(), list(self.leaves.values()))
            part = torch.cat([*(grad.flatten(1) for grad in found), self.filling], dim=1)  # (N, P)
            grads = grads.add_(part) if number else part
            total, start = total + losses.detach(), end
        self.moving = True
        self._move(grads, rates)
        self.moving = False
        self.losses.scatter_(1, places % self.losses.shape[1], total[:, None])

    @torch.no_grad()
    def _move(self, grads: Tensor, rates: Tensor) -> None:
        if self.limits is not None:
            self.norms.copy_(clip(grads, self.limits))
        self.steps += 1
        self.rowwise.move(self.weights, grads, rates, self.kept, self.steps[:, :1].to(grads.dtype))

    def _each(
        self, work: Callable[[Any], Tensor], batch: Any, tensors: dict[str, Tensor], *, shared: bool = False,
        at_once: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Work on each member's batch with its weights; a `shared` batch is the same for all."""

        def one(weights: dict[str, Tensor], tensors: dict[str, Tensor]) -> Tensor:
            filling = {place: weights[name] for place, name in self.hollow.places.items()}
            asked = (work, replace(batch, **tensors))
            found: Tensor = functional_call(self.hollow, filling, asked, tie_weights=False)
            return found

        places = (0, None if shared else 0)
        made: Tensor = torch.vmap(one, places, randomness="different", chunk_size=at_once)(self.leaves, tensors)
        return made

    # -- validation of all

    def judge(self, data: Dataset) -> list[Scores]:
        """The scores of every member, as each would get them by itself."""
        self.task.model.eval()
        tallies = []
        with torch.no_grad(), self.precision():
            for batch in self.task.judged_by(data, quick=True):
                tensors = _tensors(batch.to(self.device))
                at_once = self._judged_at_once(batch.n_places)
                tallies.append(self._each(self.task.tally, batch, tensors, shared=True, at_once=at_once))
        self.task.model.train()
        rows = zip(self.learners, summed(tallies).tolist(), strict=True)
        with torch.inference_mode(), self.precision():
            return [learner.task.scores(sums, data, quick=True) for learner, sums in rows]

    def _judged_at_once(self, n_places: int) -> int:
        """How many members may be judged at once: the widest layer's output is what fills the memory."""
        widest = max(m.out_features for m in self.task.model.modules() if isinstance(m, nn.Linear))
        room = MOST_JUDGED
        if self.device.type == "cuda":
            room = torch.cuda.mem_get_info(self.device)[0] // self.weights.element_size() // COPIES
        return min(self.n, max(1, room // (n_places * widest)))


class _Hollow(nn.Module):
    """A task's model that is filled with the weights of one member, and then works for it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        names = {id(parameter): name for name, parameter in task.model.named_parameters()}
        # Every place that a parameter fills; tied ones fill two. A module that is used twice is named once, for
        # `functional_call` would not find its way back from filling it twice.
        self.places = {
            f"{prefix}.{attribute}": names[id(parameter)]
            for prefix, module in self.named_modules()
            for attribute, parameter in module.named_parameters(recurse=False)
        }

    def forward(self, work: Callable[[Any], Tensor], batch: Any) -> Tensor:
        return work(batch)


def joint_shape(plans: Sequence[Plan]) -> tuple[int, ...]:
    """A shape in which each of these batches has room."""
    return tuple(max(sizes) for sizes in zip(*(plan.shape for plan in plans), strict=True))


def _matrices_first(model: nn.Module) -> dict[str, nn.Parameter]:
    """In this order, what decays is a contiguous part of a row."""
    return dict(sorted(model.named_parameters(), key=lambda named: named[1].ndim < 2))


def _rows(rows: list[list[Tensor]]) -> Tensor:  # N lists of tensors -> (N, P)
    filling = rows[0][0].new_zeros(-sum(tensor.numel() for tensor in rows[0]) % LANES)
    return torch.stack([torch.cat([*(tensor.detach().flatten() for tensor in row), filling]) for row in rows])


def _cut(matrix: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:  # (N, P) -> (N, *shape) each
    sizes = [shape.numel() for shape in shapes]
    starts = accumulate(sizes, initial=0)
    return [
        matrix.narrow(1, start, size).view(-1, *shape)
        for start, size, shape in zip(starts, sizes, shapes, strict=False)
    ]


def _tensors(batch: Any) -> dict[str, Tensor]:
    named = {item.name: getattr(batch, item.name) for item in fields(batch)}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}
