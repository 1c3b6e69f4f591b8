"""Pretraining on texts without labels: an encoder predicts masked tokens, an encoder-decoder restores noisy texts.

A classifier or a translator then starts from the run (`train.init_from`). A decoder needs no other task:
`generate` learns from texts without labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from triform.config import Config, DecodeConfig
from triform.data.readers import LabelledText
from triform.errors import ConfigError, DataError
from triform.evaluation.details import DetailedMetrics
from triform.evaluation.metrics import Metrics, perplexity
from triform.generation.backend import check_finite
from triform.models.factory import build_masked_lm
from triform.models.masked import MaskedLM
from triform.nn.kernels.dispatch import use_fast_kernels
from triform.nn.layouts import pad
from triform.tasks.evaluation import Evaluator, token_metric_sums
from triform.tasks.noise import MaskedTokens, Noise, build_noise, evaluation_generator
from triform.tasks.prediction import (
    Alternative,
    Keep,
    Prediction,
    Predictor,
    truncate_with_notes,
    unknown_word_notes,
)
from triform.tasks.pretraining_data import DenoisingData, MaskedTextBatch, MaskedTextData, MaskedTextDataset
from triform.tasks.task import Task
from triform.tasks.translate import Translate
from triform.tasks.translation_data import TranslationBatch, TranslationDataset
from triform.world import SINGLE_PROCESS, World

MASK_TEXT = "<mask>"  # in the texts of `predict`
BATCH_TEXTS = 64  # texts whose masks are filled in together


def refuse_pretraining(config: Config, purpose: str) -> None:
    """Raise `ConfigError` if a run was only pretrained. `purpose` says what needs a model for its task."""
    if config.train.objective != "auto":
        raise ConfigError(
            f"this run was only pretrained (train.objective={config.train.objective}), and {purpose} needs a model "
            f"for {config.task}; train one with `triform train {config.task} --from RUN`"
        )


def token_metrics(sums: list[float]) -> Metrics:
    """Return the metrics of token predictions from the summed loss, the correct tokens and the predictions."""
    total_loss, n_correct, n_predictions = sums
    return {
        "loss": total_loss / n_predictions,
        "perplexity": perplexity(total_loss / n_predictions),
        "token_accuracy": n_correct / n_predictions,
        "tokens": int(n_predictions),
    }


class PretrainingEvaluator(Evaluator):
    """Abstract base class of evaluators of noisy texts. Every evaluation has the same noise."""

    report_size = 2_000

    def compute_metrics(
        self,
        sums: list[float],
        data: MaskedTextDataset | TranslationDataset,
        *,
        quick: bool,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> Metrics:
        return token_metrics(sums)

    def evaluate_with_details(
        self,
        data: MaskedTextDataset | TranslationDataset,
        *,
        read_examples: Callable[[], Iterable[LabelledText]],
        n_examples: int,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> DetailedMetrics:
        return DetailedMetrics(self.evaluate(data, world=world))


@dataclass(frozen=True)
class MaskedTokenEvaluator(PretrainingEvaluator):
    """Evaluator of masked language models: the loss of the masked tokens."""

    task: MaskedLanguageModel

    def metric_sums(self, batch: MaskedTextBatch) -> Tensor:
        task, generator = self.task, evaluation_generator(batch.tokens.device)
        masked = task.noise.mask_tokens(batch.tokens, batch.keep, batch.n_masked, generator)
        states = task.masked_states(batch, masked)
        return token_metric_sums(states, task.model.lm_head, masked.targets, task.tokenizer.vocab_size)


@dataclass(frozen=True)
class MaskFiller(Predictor):
    """Predictor of masked tokens: writes the most probable token for each `<mask>` of a text."""

    task: MaskedLanguageModel

    @torch.inference_mode()
    def predict(
        self,
        texts: Sequence[str],
        *,
        decode: DecodeConfig | None = None,
        seed: int | None = None,
        top: int = 0,
        keep: Keep | None = None,
        rows: Sequence[int] | None = None,
    ) -> list[Prediction]:
        predictions: list[Prediction] = []
        for start in range(0, len(texts), BATCH_TEXTS):
            predictions += self._predict_batch(texts[start : start + BATCH_TEXTS], top, keep)
        return predictions

    def _predict_batch(self, texts: Sequence[str], top: int, keep: Keep | None) -> list[Prediction]:
        task, tokenizer = self.task, self.task.tokenizer
        encoded = [self._encode(text, keep) for text in texts]
        tokens, padding = pad([row for row, _ in encoded], fill=tokenizer.special_tokens.pad_or_zero)
        tokens = tokens.to(task.device)
        logits = task.model.eval()(tokens, None if padding is None else padding.to(task.device)).float()
        check_finite(logits)
        banned = {*tokenizer.banned_tokens, task.noise.mask_token}
        logits[..., list(banned)] = -torch.inf
        n_best = min(max(1, top), logits.shape[-1] - len(banned))
        probabilities, best = logits.softmax(-1).topk(n_best, dim=-1)  # (B, T, n_best)
        predictions = []
        for index, (text, (row, notes)) in enumerate(zip(texts, encoded, strict=True)):
            masks = [position for position, token in enumerate(row) if token == task.noise.mask_token]
            if not masks:
                raise DataError(f"the part of the text that the model reads has no {MASK_TEXT}")
            filled = list(row)
            for position in masks:
                filled[position] = int(best[index, position, 0])
            first = zip(best[index, masks[0]].tolist(), probabilities[index, masks[0]].tolist(), strict=True)
            alternatives = [Alternative(text=tokenizer.format_piece(token), probability=p) for token, p in first]
            predictions.append(
                Prediction(
                    input=text,
                    output=tokenizer.decode(filled),
                    alternatives=tuple(alternatives[:top]),
                    cut=bool(notes),
                    notes=(*unknown_word_notes(text.replace(MASK_TEXT, " "), tokenizer), *notes),
                )
            )
        return predictions

    def _encode(self, text: str, keep: Keep | None) -> tuple[list[int], list[str]]:
        """Return the tokens of a text with mask tokens, and notes.

        Raises:
            DataError: The text has no mask.
        """
        if MASK_TEXT not in text:
            raise DataError(
                f"a pretrained encoder fills in {MASK_TEXT}, and the text has none: write it in place of a word; "
                "for labels, train a classifier with `triform train classify --from RUN`"
            )
        tokenizer, tokens = self.task.tokenizer, list[int]()
        for index, part in enumerate(text.split(MASK_TEXT)):
            tokens += [self.task.noise.mask_token] * bool(index)
            # The space before a word is a part of its token in most vocabularies, and so a part of the mask.
            tokens += tokenizer.encode(part.rstrip(" "))
        special, max_len = tokenizer.special_tokens, self.task.config.data.max_len
        return truncate_with_notes(tokens, max_len, "text", special, keep_last=keep == "last")

    def sample_predictions(self, data: MaskedTextDataset) -> list[dict[str, str]]:
        """Return a few texts with one masked word each, and the texts that the model writes."""
        texts = [text for row in self.task.data.iter_examples() if len((text := row.text).split()) > 2]
        samples = []
        for text in texts[:: max(1, len(texts) // 8)][:8]:
            words = text.split(" ")
            words[len(words) // 2] = MASK_TEXT
            masked = " ".join(words)
            samples.append(
                {"input": masked, "output": self.predict([masked], keep="first")[0].output, "expected": text}
            )
        return samples


class MaskedLanguageModel(Task):
    """Pretraining of the encoder of a classifier: `train.objective=masked`."""

    name = "classify"
    unit = "texts"
    metric = "perplexity"
    higher_is_better = False
    shown_metrics = ("perplexity", "token_accuracy")
    data_class = MaskedTextData
    model: MaskedLM

    def build_model(self) -> MaskedLM:
        return use_fast_kernels(build_masked_lm(self.config.model, self.sizes))

    @cached_property
    def noise(self) -> Noise:
        """The noise of the vocabulary."""
        return build_noise(self.tokenizer, self.config.train.mask_rate)

    @property
    def evaluator(self) -> MaskedTokenEvaluator:
        return MaskedTokenEvaluator(self)

    @property
    def predictor(self) -> MaskFiller:
        return MaskFiller(self)

    def masked_states(self, batch: MaskedTextBatch, masked: MaskedTokens) -> Tensor:  # (B, K, D)
        """Return the states at the masked positions, which the head reads."""
        return masked.select(self.model.encoder(masked.tokens, batch.keep))

    def loss(self, batch: MaskedTextBatch) -> Tensor:
        masked = self.noise.mask_tokens(batch.tokens, batch.keep, batch.n_masked)
        states = self.masked_states(batch, masked)
        return self.model.head_loss(states, self.model.lm_head, masked.targets, self.config.train.label_smoothing)


@dataclass(frozen=True)
class DenoisingEvaluator(PretrainingEvaluator):
    """Evaluator of denoising: the loss of the original tokens."""

    task: Denoise

    def metric_sums(self, batch: TranslationBatch) -> Tensor:
        task, generator = self.task, evaluation_generator(batch.source.device)
        states = task.decoder_states(task.add_noise(batch, generator))
        return token_metric_sums(states, task.model.lm_head, batch.targets, task.tokenizer.vocab_size)


class Denoise(Translate):
    """Pretraining of a translator: `train.objective=denoise`."""

    unit = "texts"
    metric = "perplexity"
    higher_is_better = False
    shown_metrics = ("perplexity", "token_accuracy")
    data_class = DenoisingData

    @cached_property
    def noise(self) -> Noise:
        """The noise of the vocabulary."""
        return build_noise(self.tokenizer, self.config.train.mask_rate)

    @property
    def evaluator(self) -> DenoisingEvaluator:  # type: ignore[override]
        return DenoisingEvaluator(self)

    def add_noise(self, batch: TranslationBatch, generator: torch.Generator | None = None) -> TranslationBatch:
        """Return a batch with noisy sources."""
        source, keep = self.noise.corrupt(batch.source, batch.source_keep, generator)
        return replace(batch, source=source, source_keep=keep)

    def loss(self, batch: TranslationBatch) -> Tensor:
        return super().loss(self.add_noise(batch))
