"""Language modelling: a decoder learns to continue a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triform.config import Config, DecodeConfig, DecodingStrategy
from triform.data.folders import folder_kind
from triform.data.readers import TextChunk
from triform.data.shards import is_shard_location
from triform.errors import DataError, TriformError
from triform.evaluation.details import DetailedMetrics
from triform.evaluation.loss_details import LossSums, build_loss_details
from triform.evaluation.metrics import Metrics, bits_per_byte, perplexity
from triform.generation.adapters import GenerationAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.next_tokens import top_next_tokens
from triform.generation.scheduler import build_decoder_adapter, generate, resolve_strategy, row_seeds
from triform.models.factory import AnyDecoder, build_decoder
from triform.nn.kernels.dispatch import use_fast_kernels
from triform.nn.loss import IGNORE_INDEX
from triform.progress import track_progress
from triform.tasks.evaluation import TokenEvaluator, gather_metric_sums, iter_logits, share_items, token_sums
from triform.tasks.language_model_data import (
    EVAL_TOKENS,
    LanguageModelBatch,
    LanguageModelData,
    LanguageModelDataset,
)
from triform.tasks.losses import lm_training_loss, token_cutoff
from triform.tasks.prediction import (
    Alternative,
    Keep,
    Prediction,
    Predictor,
    format_nearest,
    format_word_list,
    truncate_with_notes,
    unknown_word_notes,
)
from triform.tasks.sharded_text import ShardedTextData
from triform.tasks.task import Task
from triform.world import SINGLE_PROCESS, World, gather_values

QUICK_BATCHES = 8  # batches of a validation during training: 131,072 tokens
DEFAULT_NEW_TOKENS = 200
MAX_PROMPT_LINES = 1_000  # lines of validation text from which the prompts of the report are chosen


@dataclass(frozen=True)
class TextGenerator(Predictor):
    """Predictor that continues prompts."""

    task: Generate
    default_strategy: ClassVar[DecodingStrategy] = "sample"

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
        prompts = [self.encode_prompt(text) for text in texts]
        read = [self._read_part(prompt, keep) for prompt in prompts]
        if keep == "first":
            prompts = [prompt for prompt, _ in read]
        generated = self.generate([prompt for prompt, _ in read], decode=decode, seed=seed, rows=rows)
        alternatives = self._next_tokens([prompt for prompt, _ in read], top) if top else [()] * len(texts)
        return [
            Prediction(
                input=text,
                output=self.decode_continuation(prompt, tokens),
                alternatives=next_tokens,
                cut=bool(notes),
                notes=(*self._prompt_notes(text, prompt), *notes),
            )
            for text, prompt, (_, notes), tokens, next_tokens in zip(
                texts, prompts, read, generated, alternatives, strict=True
            )
        ]

    def _prompt_notes(self, text: str, prompt: list[int]) -> list[str]:
        if not text:
            return ["the prompt is empty, so the model starts a new text"]
        return unknown_word_notes(text, self.task.tokenizer) if self.task.tokenizer.unk in prompt else []

    def _read_part(self, prompt: list[int], keep: Keep | None) -> tuple[list[int], list[str]]:
        """Return the part of a prompt that the model reads, and a note if that is not all of it."""
        max_len = self.task.config.data.max_len
        if len(prompt) <= max_len or self.task.config.model.is_recurrent:
            return prompt, []
        return truncate_with_notes(prompt, max_len, "prompt", keep_last=keep != "first")

    def _next_tokens(self, prompts: list[list[int]], top: int) -> list[tuple[Alternative, ...]]:
        """Return the `top` most probable next tokens of each prompt."""
        rows = top_next_tokens(self.build_adapter(), prompts, top, self.constraints.banned)
        text_of = self.task.tokenizer.format_piece
        return [tuple(Alternative(text=text_of(token), probability=p) for token, p in row) for row in rows]

    def generate(
        self,
        prompts: list[list[int]],
        *,
        decode: DecodeConfig | None = None,
        seed: int | None = None,
        rows: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Return the tokens that continue each prompt. See `predict` for the other arguments."""
        config = self.task.config
        decode = resolve_strategy(decode or config.decode, self.default_strategy)
        max_new_tokens = decode.max_new_tokens or DEFAULT_NEW_TOKENS
        seeds = row_seeds(config.seed if seed is None else seed, range(len(prompts)) if rows is None else rows)
        requests = [
            Request(prompt, max_new_tokens, row_seed, decode)
            for prompt, row_seed in zip(prompts, seeds, strict=True)
        ]
        return generate(self.build_adapter(), requests, self.constraints)

    def build_adapter(self) -> GenerationAdapter:
        """Return the model as the scheduler uses it."""
        return build_decoder_adapter(self.task.model.eval(), self.task.config.data.max_len)

    @property
    def constraints(self) -> TokenConstraints:
        """The end token and the banned tokens."""
        return self.task.token_constraints

    def encode_prompt(self, text: str) -> list[int]:
        """Encode a prompt. An empty one becomes a newline or, if the vocabulary has none, an end token.

        Unknown words of a word vocabulary become its unknown token.

        Raises:
            DataError: A character is not in the vocabulary.
        """
        tokenizer = self.task.tokenizer
        if tokenizer.kind != "word" and (unknown := tokenizer.find_unknown(text)):
            if tokenizer.kind == "imported":
                remedy = "remove it; the imported tokenizer has no token for it"
            else:
                remedy = "remove it, or train with tokenizer.kind=bpe, which encodes every text"
            raise DataError(
                f"the prompt contains text that is not in the vocabulary: {format_word_list(unknown)}"
                f"{format_nearest(unknown, tokenizer)}; {remedy}"
            )
        special, tokens = tokenizer.special_tokens, tokenizer.encode(text)
        if special.before:
            return [*special.before, *tokens]
        if not tokens and not tokenizer.find_unknown("\n"):
            tokens = tokenizer.encode("\n")
        return tokens or [special.end_token]

    def decode_continuation(self, prompt: list[int], tokens: list[int]) -> str:
        """Return the text that the tokens add to the prompt, with the right spaces between words."""
        decode = self.task.tokenizer.decode
        prompt_text, full_text = decode(prompt), decode(prompt + tokens)
        return full_text[len(prompt_text) :] if full_text.startswith(prompt_text) else decode(tokens)

    def sample_predictions(self, data: LanguageModelDataset) -> list[dict[str, str]]:
        is_reversible = self.task.tokenizer.lossless and not self.task.config.tokenizer.lowercase
        prompts = self._decoded_prompts(data) if is_reversible else self._original_prompts()
        predictions = self.predict(["", *prompts])
        return [{"input": prediction.input, "output": prediction.output} for prediction in predictions]

    def _decoded_prompts(self, data: LanguageModelDataset) -> list[str]:
        tokenizer = self.task.tokenizer
        starts = np.linspace(0, max(0, len(data) - 17), num=3, dtype=np.int64)
        prompts = [tokenizer.decode(data.store.tokens[start : start + 16].tolist()) for start in starts]
        return [prompt for prompt in prompts if prompt and not tokenizer.find_unknown(prompt)]

    def _original_prompts(self) -> list[str]:
        """Return the first words of a few lines, for tokenizers that are not lossless."""
        examples = self.task.data.iter_examples()
        lines = (line.split(maxsplit=8)[:8] for chunk in examples for line in chunk.text.split("\n"))
        prompts = [" ".join(words) for words in islice(lines, MAX_PROMPT_LINES) if words]
        usable = [prompt for prompt in prompts if not self.task.tokenizer.find_unknown(prompt)]
        return usable[:: max(1, len(usable) // 3)][:3]


@dataclass(frozen=True)
class LanguageModelEvaluator(TokenEvaluator):
    """Evaluator of language models: loss per token, perplexity and bits per byte."""

    task: Generate
    report_size = 65_536

    def n_quick_examples(self, data: LanguageModelDataset) -> int:
        width = self._windows(data).max_len
        return min(len(data), QUICK_BATCHES * max(1, EVAL_TOKENS // width) * width)

    def _windows(self, data: LanguageModelDataset) -> LanguageModelDataset:
        return data.with_long_windows() if self.task.config.model.is_recurrent else data

    def batches(self, data: LanguageModelDataset, *, quick: bool) -> Iterator[LanguageModelBatch]:
        dataset = self._windows(data)
        n_batches = min(QUICK_BATCHES, dataset.n_batches()) if quick else dataset.n_batches()
        return track_progress(islice(dataset.batches(), n_batches), "validating", n_batches)

    def hidden_states(self, batch: LanguageModelBatch) -> Tensor:
        return self.task.model.hidden_states(batch.tokens)

    def compute_metrics(
        self,
        sums: list[float],
        data: LanguageModelDataset,
        *,
        quick: bool,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> Metrics:
        total_loss, n_correct, n_predictions = sums
        n_bytes = data.n_bytes * n_predictions / len(data)  # used only for lossless tokenizers
        return {
            "loss": total_loss / n_predictions,
            "perplexity": perplexity(total_loss / n_predictions),
            **({"bits_per_byte": bits_per_byte(total_loss, n_bytes)} if self.task.tokenizer.lossless else {}),
            "token_accuracy": n_correct / n_predictions,
            "tokens": int(n_predictions),
        }

    @torch.inference_mode()
    def evaluate_with_details(
        self,
        data: LanguageModelDataset,
        *,
        read_examples: Callable[[], Iterable[TextChunk]],
        n_examples: int,
        decode: DecodeConfig | None = None,
        world: World = SINGLE_PROCESS,
    ) -> DetailedMetrics:
        dataset = self._windows(data)
        loss_sums = LossSums(dataset.max_len, self.task.tokenizer.vocab_size)
        self.task.model.eval()

        def batch_sums() -> Iterator[Tensor]:
            for batch in share_items(self.batches(data, quick=False), world):
                yield self._add_token_losses(batch.to(self.task.device), loss_sums)

        sums = gather_metric_sums(batch_sums(), world)
        if world.size > 1:
            gathered = gather_values(loss_sums.to_lists())
            loss_sums = LossSums(dataset.max_len, self.task.tokenizer.vocab_size)
            for lists in gathered:
                loss_sums.add_lists(lists)
        counts, note = None, ""
        try:
            counts = self.task.text_data.count_training_tokens()
        except TriformError as error:  # the training data may be gone, or the model may be imported
            note = str(error)
        return DetailedMetrics(
            self.compute_metrics(sums, data, quick=False), build_loss_details(loss_sums, counts, note)
        )

    def _add_token_losses(self, batch: LanguageModelBatch, loss_sums: LossSums) -> Tensor:
        """Add the losses of a batch to `loss_sums`, and return its `metric_sums`."""
        states, vocab_size = self.hidden_states(batch), self.task.tokenizer.vocab_size
        n_context = torch.arange(1, batch.tokens.shape[1] + 1).expand(batch.tokens.shape).flatten()
        sums = []
        for rows, logits, targets in iter_logits(states, self.task.model.lm_head, batch.targets, vocab_size):
            sums.append(token_sums(logits, targets))
            losses = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE_INDEX, reduction="none").cpu()
            is_scored = targets.cpu() != IGNORE_INDEX
            predictions = (n_context[rows][is_scored], targets.cpu()[is_scored], losses[is_scored])
            loss_sums.add(*(tensor.numpy() for tensor in predictions))
        return torch.stack(sums).sum(dim=0)

    @torch.inference_mode()
    def position_losses(self, data: LanguageModelDataset) -> list[float] | None:
        """Return the mean loss at each position of a window; None if the text is shorter than a window."""
        task, width = self.task, data.max_len
        task.model.eval()
        totals, n_windows = torch.zeros(width, dtype=torch.float64, device=task.device), 0
        for batch in data.batches():
            if batch.tokens.shape[1] == width:  # the last window is shorter
                logits = task.model(batch.tokens.to(task.device)).float()  # (B, T, V)
                targets = batch.targets.to(task.device).flatten()
                losses = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
                totals += losses.view(-1, width).sum(dim=0)
                n_windows += len(batch.tokens)
        mean_losses: list[float] = (totals / max(1, n_windows)).tolist()
        return mean_losses if n_windows else None


class Generate(Task):
    """Language modelling."""

    name = "generate"
    unit = "tokens"
    metric = "perplexity"
    higher_is_better = False
    shown_metrics = ("perplexity",)
    data_class = LanguageModelData
    model: AnyDecoder

    @classmethod
    def choose_data_class(cls, config: Config) -> type[LanguageModelData]:
        is_shards = is_shard_location(config.data.train) and folder_kind(config.data.train) is None
        return ShardedTextData if is_shards else LanguageModelData

    def build_model(self) -> AnyDecoder:
        return use_fast_kernels(build_decoder(self.config.model, self.sizes))

    @property
    def text_data(self) -> LanguageModelData:
        """The data of the task, with what only text for language models has."""
        return self.choose_data_class(self.config)(self.config, self.tokenizers)

    @cached_property
    def token_constraints(self) -> TokenConstraints:
        """The end token and the banned tokens. Without an end token, texts end only at their length limit."""
        eos = self.tokenizer.special_tokens.eos_or_bos
        return TokenConstraints(eos=-1 if eos is None else eos, banned=self.tokenizer.banned_tokens)

    @property
    def evaluator(self) -> LanguageModelEvaluator:
        return LanguageModelEvaluator(self)

    @property
    def predictor(self) -> TextGenerator:
        return TextGenerator(self)

    def loss(self, batch: LanguageModelBatch) -> Tensor:
        def compute_hidden_states() -> Tensor:  # (B, T, D)
            return self.model.hidden_states(batch.tokens)

        train = self.config.train
        teacher_logits = None if self.teacher is None else self.teacher_logits(batch.tokens)
        with token_cutoff(self.model, train):
            return lm_training_loss(compute_hidden_states, self.model, batch.targets, train, teacher_logits)
