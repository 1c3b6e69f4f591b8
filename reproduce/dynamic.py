"""Dynamic evaluation (Krause et al., 2018): a language model learns from the text that it has already predicted.

The text is read in adjacent windows. The model predicts all tokens of a window, and only then takes one step of
gradient descent on the loss of this window. A prediction depends on earlier text only, but unlike in an ordinary
evaluation on all of it. A copy of the model is changed, never the run.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from triform.errors import ConfigError
from triform.evaluation.baselines.ngram import FloatArray
from triform.evaluation.metrics import Metrics
from triform.models.ensemble import refuse_ensemble
from triform.nn.kernels.precision import is_reduced_precision
from triform.tasks.language_model_data import LanguageModelDataset
from triform.tasks.mixture import require_language_model
from triform.tasks.task import Task

LR_GRID = (0.003, 0.01, 0.03, 0.1, 0.3)  # learning rates that are tried on the validation data
MAX_LR_TOKENS = 20_000  # of the validation data, on which the learning rate is chosen


@dataclass(frozen=True)
class DynamicEvaluationResult:
    """The metrics of a dynamic evaluation.

    Attributes:
        name: The label of the result in tables.
        metrics: The metrics of all predictions, each made before the model has learned from its token.
        lr: The learning rate.
        losses: The loss in nats of each token except the first.
    """

    name: str
    metrics: Metrics
    lr: float
    losses: FloatArray

    def to_dict(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {"name": self.name, **self.metrics, "lr": self.lr}

    def describe(self) -> str:
        """Return a sentence for the user."""
        return (
            f"{self.name}: the model learns from the text that it has already predicted (learning rate {self.lr:g})"
        )


class DynamicEvaluation:
    """Dynamic evaluation of a language model.

    Args:
        task: The task of a trained run.
        lr: The learning rate of gradient descent. 0 chooses the best one of `LR_GRID` on the validation data.

    Raises:
        ConfigError: The run is not a single language model in fp32, or it has no validation data to choose `lr`.
    """

    def __init__(self, task: Task, lr: float = 0.0) -> None:
        self.task = require_language_model(task, "dynamic")
        refuse_ensemble(task.model, "dynamic evaluation")
        if is_reduced_precision(task.model):
            raise ConfigError("dynamic needs precision=fp32")
        self.lr = lr or self._choose_lr()

    def _choose_lr(self) -> float:
        data = self.task.text_data
        valid: LanguageModelDataset | None = data.load_validation_dataset([]) if data.config.data.train else None
        if valid is None:
            raise ConfigError(
                "the run has no validation data to choose the learning rate of dynamic; give dynamic_lr"
            )
        sample = valid.sample(MAX_LR_TOKENS)
        losses = {lr: float(self.score(sample, lr)[0].mean()) for lr in LR_GRID}
        return min(losses, key=lambda lr: losses[lr] if np.isfinite(losses[lr]) else np.inf)

    def score(self, data: LanguageModelDataset, lr: float) -> tuple[FloatArray, int]:
        """Return the loss of each token except the first, in order, and the number of correct predictions."""
        model, device = deepcopy(self.task.model).eval(), self.task.device  # without dropout
        parameters = [parameter.requires_grad_() for parameter in model.parameters()]
        tokens = torch.from_numpy(np.asarray(data.store.tokens, np.int64))
        losses, n_correct = [], 0
        for start in range(0, len(data), data.max_len):
            window = tokens[start : start + data.max_len + 1].to(device)
            with torch.enable_grad():
                logits = model.lm_head(model.hidden_states(window[None, :-1]))[0].float()  # (T, V)
                token_losses = F.cross_entropy(logits, window[1:], reduction="none")
                gradients = torch.autograd.grad(token_losses.mean(), parameters, allow_unused=True)
            losses.append(token_losses.detach().cpu().double().numpy())
            n_correct += int((logits.argmax(-1) == window[1:]).sum())
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        parameter -= lr * gradient
        return np.concatenate(losses), n_correct

    def evaluate(self, name: str = "") -> DynamicEvaluationResult:
        """Return the metrics on a file, or on the validation data of the run.

        Args:
            name: The file. Empty: the validation data.
        """
        text_data = self.task.text_data
        data: LanguageModelDataset | None
        data = text_data.load_dataset(name, []) if name else text_data.load_validation_dataset([])
        if data is None:
            raise ConfigError("this run has no validation data; name the file to evaluate")
        losses, n_correct = self.score(data, self.lr)
        sums = [float(losses.sum()), float(n_correct), float(len(losses))]
        metrics = self.task.evaluator.compute_metrics(sums, data, quick=False)
        return DynamicEvaluationResult("dynamic evaluation", metrics, self.lr, losses)
