"""Translation: an encoder-decoder translates sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from triform.config import Config, DataSizes, DecodeConfig, DecodingStrategy
from triform.data.readers import TextPair
from triform.errors import ConfigError
from triform.evaluation.details import DetailedMetrics
from triform.evaluation.metrics import Metrics, compute_translation_metrics
from triform.evaluation.sentence_details import build_sentence_details
from triform.generation.adapters import GenerationAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.scheduler import build_seq2seq_adapter, generate, resolve_strategy, row_seeds, search_n_best
from triform.models.factory import AnySeq2Seq, build_seq2seq
from triform.nn.kernels.dispatch import use_fast_kernels
from triform.tasks.evaluation import TokenEvaluator
from triform.tasks.losses import lm_training_loss, token_cutoff
from triform.tasks.prediction import (
    Alternative,
    Keep,
    Prediction,
    Predictor,
    empty_text_notes,
    truncate_with_notes,
)
from triform.tasks.task import Task
from triform.tasks.translation_data import TranslationBatch, TranslationData, TranslationDataset
from triform.text import Tokenizer
from triform.world import SINGLE_PROCESS, World

DEFAULT_BATCH_SIZE = 16  # pairs in a batch for which padding is counted, if batches are counted in tokens
QUICK_PAIRS = 400  # pairs that are translated at each validation during training
MIN_BLEU = 1.0  # below this, differences in BLEU come from a few n-grams that agree by chance


@dataclass(frozen=True)
class TextTranslator(Predictor):
    """Predictor of translations."""

    task: Translate
    default_strategy: ClassVar[DecodingStrategy] = "beam"

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
        tokenizer, max_len = self.task.source_tokenizer, self.task.config.data.max_len
        encoded = tokenizer.encode_batch(texts)
        special, keep_last = tokenizer.special_tokens, keep == "last"
        truncated = [
            truncate_with_notes(tokens, max_len, "text", special, keep_last=keep_last) for tokens in encoded
        ]
        sources = [source for source, _ in truncated]
        if top:
            alternatives = self._n_best(sources, decode or self.task.config.decode, top)
            outputs = [n_best[0].text if n_best else "" for n_best in alternatives]
        else:
            alternatives = [()] * len(texts)
            generated = self.generate(sources, decode=decode, seed=seed, rows=rows)
            outputs = [self.task.target_tokenizer.decode(target) for target in generated]
        return [
            Prediction(
                input=text,
                output=output,
                alternatives=n_best,
                cut=bool(notes),
                notes=(*empty_text_notes(text, tokens, tokenizer), *notes),
            )
            for text, tokens, (_, notes), output, n_best in zip(
                texts, encoded, truncated, outputs, alternatives, strict=True
            )
        ]

    def _n_best(self, sources: list[list[int]], decode: DecodeConfig, top: int) -> list[tuple[Alternative, ...]]:
        """Return the `top` best hypotheses of beam search for each source."""
        if decode.strategy not in ("auto", "beam"):
            raise ConfigError(
                f"top={top} needs beam search, and decode.strategy is {decode.strategy}; set it to beam"
            )
        if top > decode.beam_size:
            raise ConfigError(
                f"top={top} is more than the {decode.beam_size} hypotheses of beam search; "
                f"set decode.beam_size to {top} or more"
            )
        requests = self._build_requests(sources, decode)
        decode_text = self.task.target_tokenizer.decode
        return [
            tuple(Alternative(text=decode_text(tokens), score=score) for tokens, score in hypotheses)
            for hypotheses in search_n_best(self.build_adapter(), requests, self.constraints, n_best=top)
        ]

    def generate(
        self,
        sources: list[list[int]],
        *,
        decode: DecodeConfig | None = None,
        seed: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Return the tokens that translate each source. See `predict` for the other arguments."""
        requests = self._build_requests(sources, decode or self.task.config.decode, seed, rows)
        return generate(self.build_adapter(), requests, self.constraints)

    def _build_requests(
        self,
        sources: list[list[int]],
        decode: DecodeConfig,
        seed: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> list[Request]:
        config, decode = self.task.config, resolve_strategy(decode, self.default_strategy)
        max_target_len = config.data.max_len - 1
        limits = (min(max_target_len, decode.max_new_tokens or 2 * len(source) + 16) for source in sources)
        seeds = row_seeds(config.seed if seed is None else seed, range(len(sources)) if rows is None else rows)
        return [Request(*fields, decode) for fields in zip(sources, limits, seeds, strict=True)]

    def build_adapter(self) -> GenerationAdapter:
        """Return the model as the scheduler uses it."""
        start_token = self.task.target_tokenizer.special_tokens.start_token
        return build_seq2seq_adapter(self.task.model.eval(), self.task.config.data.max_len, start_token)

    @property
    def constraints(self) -> TokenConstraints:
        """The end token and the banned tokens."""
        tokenizer = self.task.target_tokenizer
        return TokenConstraints(eos=tokenizer.special_tokens.end_token, banned=tokenizer.banned_tokens)

    def sample_predictions(self, data: TranslationDataset) -> list[dict[str, str]]:
        pairs = data.raw_pairs[:: max(1, len(data.raw_pairs) // 8)][:8]
        predictions = self.predict([pair.source for pair in pairs])
        return [
            {"input": pair.source, "output": prediction.output, "expected": pair.target}
            for pair, prediction in zip(pairs, predictions, strict=True)
        ]


@dataclass(frozen=True)
class TranslationEvaluator(TokenEvaluator):
    """Evaluator of translation: loss per target token, and BLEU and chrF of generated translations."""

    task: Translate
    report_size = 100

    def n_quick_examples(self, data: TranslationDataset) -> int:
        return min(QUICK_PAIRS, len(data.raw_pairs))

    def hidden_states(self, batch: TranslationBatch) -> Tensor:
        return self.task.decoder_states(batch)

    def compute_metrics(
        self,
        sums: list[float],
        data: TranslationDataset,
        *,
        quick: bool,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> Metrics:
        metrics = self._token_metrics(sums, data)
        if not math.isfinite(metrics["loss"]):  # such a model cannot decode; the caller reports it
            return metrics
        references = data.raw_pairs[: QUICK_PAIRS if quick else None]
        decode = decode or self.task.config.decode
        outputs = self._translate(references, replace(decode, strategy="greedy") if quick else decode, world)
        translation_metrics = compute_translation_metrics(outputs, [pair.target for pair in references])
        return {**metrics, **translation_metrics, "pairs": len(data)}

    def _translate(self, pairs: Sequence[TextPair], decode: DecodeConfig, world: World) -> list[str]:
        sources = [pair.source for pair in pairs]
        predictions = self.task.predictor.predict_in_parallel(sources, world, decode=decode)
        return [prediction.output for prediction in predictions]

    @torch.inference_mode()
    def evaluate_with_details(
        self,
        data: TranslationDataset,
        *,
        read_examples: Callable[[], Iterable[TextPair]],
        n_examples: int,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> DetailedMetrics:
        metrics = self._token_metrics(self.sum_metrics(data, world=world), data)
        if not math.isfinite(metrics["loss"]):
            return DetailedMetrics(metrics)
        pairs = data.raw_pairs
        outputs = self._translate(pairs, decode or self.task.config.decode, world)
        sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
        metrics |= {**compute_translation_metrics(outputs, references), "pairs": len(data)}
        lines = [pair.line for pair in pairs]
        details = build_sentence_details(lines, sources, references, outputs, n_examples)
        return DetailedMetrics(metrics, details)

    def teacher_forced_metrics(self, data: TranslationDataset) -> Metrics:
        """Return loss and accuracy when each token is predicted from the true tokens before it."""
        return self._token_metrics(self.sum_metrics(data), data)

    def _token_metrics(self, sums: list[float], data: TranslationDataset) -> Metrics:
        total_loss, n_correct, n_predictions = sums
        n_padding = data.count_padding(self.task.config.train.batch_size or DEFAULT_BATCH_SIZE)
        return {
            "loss": total_loss / n_predictions,
            "token_accuracy": n_correct / n_predictions,
            "token_accuracy_with_padding": (n_correct + n_padding) / (n_predictions + n_padding),
        }

    def is_better(self, metrics: Metrics, best: Metrics | None) -> bool:
        """Compare by BLEU. If both are near zero, the lower loss wins."""
        if best is not None and max(metrics["bleu"], best["bleu"]) < MIN_BLEU:
            return metrics["loss"] < best["loss"]
        return super().is_better(metrics, best)


class Translate(Task):
    """Translation."""

    name = "translate"
    unit = "pairs"
    metric = "bleu"
    higher_is_better = True
    shown_metrics = ("token_accuracy", "bleu")
    data_class = TranslationData
    model: AnySeq2Seq

    def __init__(self, config: Config, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> None:
        if target_tokenizer.special_tokens.eos_or_bos is None:
            raise ConfigError("translate needs a tokenizer with an end token, and this vocabulary has none")
        super().__init__(config, source_tokenizer, target_tokenizer)

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the source text."""
        return self.tokenizer

    def _data_sizes(self) -> DataSizes:
        target_vocab_size = 0 if self.config.tokenizer.joint_vocab else self.target_tokenizer.vocab_size
        return replace(super()._data_sizes(), target_vocab_size=target_vocab_size)

    def build_model(self) -> AnySeq2Seq:
        return use_fast_kernels(build_seq2seq(self.config.model, self.sizes))

    def decoder_states(self, batch: TranslationBatch) -> Tensor:  # (B, T, D)
        """Return the input of the language-model head."""
        encoder_states = self.model.encoder(batch.source, batch.source_keep)  # (B, S, D)
        return self.model.decoder_states(batch.decoder_input, encoder_states, batch.source_keep)

    @property
    def evaluator(self) -> TranslationEvaluator:
        return TranslationEvaluator(self)

    @property
    def predictor(self) -> TextTranslator:
        return TextTranslator(self)

    def loss(self, batch: TranslationBatch) -> Tensor:
        with token_cutoff(self.model, self.config.train):
            return self._loss(batch)

    def _loss(self, batch: TranslationBatch) -> Tensor:
        inputs = batch.source, batch.decoder_input, batch.source_keep
        teacher_logits = None if self.teacher is None else self.teacher_logits(*inputs)
        return lm_training_loss(
            lambda: self.decoder_states(batch), self.model, batch.targets, self.config.train, teacher_logits
        )
