"""Generate: a decoder learns to go on with a text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from triform.analysis.host_memory import require_memory
from triform.config import Config, DataSizes, DecodeConfig
from triform.config.settings import Settings, build_config
from triform.data import builtin_sets
from triform.data.readers import TextChunk, count_units, filter_lines, is_running_text, read_chunks, read_lines
from triform.data.token_cache import TokenCache
from triform.data.token_store import TokenStore
from triform.errors import DataError
from triform.evaluation import baselines
from triform.evaluation.metrics import Metrics, bits_per_byte, perplexity
from triform.generation.beam import StoppingCriteria
from triform.generation.recurrent import build_decoder_adapter
from triform.generation.sampling import row_seeds
from triform.generation.search import generate
from triform.models.factory import AnyDecoder, build_decoder
from triform.nn.loss import lm_training_loss
from triform.progress import track_progress
from triform.tasks.defaults import resolve_defaults, resolve_tokenizer_kind
from triform.tasks.language_model_data import LanguageModelBatch, LanguageModelDataset
from triform.tasks.leaks import leak_warnings, same_text_warnings
from triform.tasks.learned_tokenizers import reader_options, train_or_load_tokenizer
from triform.tasks.task import (
    ExplanationInput,
    Prediction,
    PreparedTask,
    Task,
    format_word_list,
    iter_chunks,
    load_saved_tokenizer,
    token_metric_sums,
    truncate_with_notes,
    truncation_notes,
    unknown_word_notes,
    validate_not_empty,
)
from triform.text import Tokenizer, encode_stream

QUICK_BATCHES = 32  # half a million tokens: enough to judge by, whatever the size of the text

MAX_PROMPT_LINES = 1_000  # of held-out text that are looked at for prompts to show in the report


class Generate(Task):
    name = "generate"
    unit = "tokens"
    metric = "perplexity"
    higher_is_better = False
    model: AnyDecoder

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config)
        self.tokenizer = tokenizer
        self.sizes = DataSizes(vocab_size=tokenizer.vocab_size, max_len=config.data.max_len)
        require_memory(config, self.sizes)
        self.model = build_decoder(config.model, self.sizes)

    @classmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> PreparedTask:
        data = config.data
        train_name = builtin_sets.resolve_path(data.train, "generate")
        valid_name = data.valid or builtin_sets.validation_path(train_name)
        config = build_config({"data.train": train_name, "data.valid": valid_name}, config)
        notices: list[str] = []
        cache = TokenCache([train_name], folder / "tokens", notices)
        split_point = find_split_point(config)

        def training_pieces() -> Iterator[TextChunk]:
            return read_chunks(train_name, data, stop=split_point)

        n_characters = count_training_characters(config, split_point, cache)
        config = resolve_tokenizer_kind(config, n_characters)
        if resume:
            tokenizer = load_saved_tokenizer(folder)
        else:
            texts = (piece.text for piece in training_pieces())  # read when asked for
            tokenizer = train_or_load_tokenizer(
                cache, config.tokenizer, [split_point, reader_options(data)], texts, n_characters
            )
            if not config.train.init_from:  # the model never sees what an imported tokenizer puts around a text
                tokenizer.special_tokens = tokenizer.special_tokens._replace(before=(), after=())
        store, n_bytes = encode_pieces_cached(
            cache, "train", training_pieces, tokenizer, [split_point, reader_options(data)]
        )

        max_len = data.max_len or max(2, min(128, store.n_tokens // 4))
        if store.n_tokens <= max_len:
            raise DataError(
                f"has only {store.n_tokens} tokens to train on; data.max_len={max_len} needs more: "
                "lower it or give more text",
                path=train_name,
            )
        data_settings: Settings = {"data.max_len": max_len, "tokenizer.vocab_size": tokenizer.vocab_size}
        task = cls(resolve_defaults(config, store.n_tokens, data_settings), tokenizer)
        valid = task.load_validation_dataset(notices, folder)
        return PreparedTask(
            task=task, train=LanguageModelDataset(store, n_bytes, max_len), valid=valid, notices=tuple(notices)
        )

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        return cls(config, load_saved_tokenizer(folder))

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")

    def load_dataset(
        self, name: str, notices: list[str], lines: Container[int] | None = None
    ) -> LanguageModelDataset:
        pieces = read_chunks(name, self.config.data)
        if lines is not None and is_running_text(name):  # what is left of it, put together
            pieces = (TextChunk(f"{text}\n", False, line) for line, text in read_lines(name) if line in lines)
        return self._build_dataset(name, encode_pieces(filter_lines(pieces, lines), self.tokenizer), notices)

    def load_validation_dataset(
        self, notices: list[str], folder: Path | None = None
    ) -> LanguageModelDataset | None:
        data = self.config.data
        if data.valid:
            return self.load_dataset(data.valid, notices)
        split_point = find_split_point(self.config)
        if split_point is None:
            return None

        def validation_pieces() -> Iterator[TextChunk]:
            return read_chunks(data.train, data, start=split_point)

        if folder is None:
            encoded = encode_pieces(validation_pieces(), self.tokenizer)
        else:
            cache = TokenCache([data.train], folder / "tokens", notices)
            encoded = encode_pieces_cached(
                cache, "valid", validation_pieces, self.tokenizer, [split_point, reader_options(data)]
            )
        return self._build_dataset(data.train, encoded, notices)

    def iter_examples(self, name: str = "") -> Iterator[TextChunk]:
        name = name or self.config.data.valid
        return read_chunks(name, self.config.data) if name else iter_split_pieces(self.config, held_out=True)

    def fit_baselines(self) -> baselines.FittedBaselines:
        return baselines.fit_baselines(
            "generate",
            iter_split_pieces(self.config, held_out=False),
            tokenize=self.tokenizer.encode,
            vocab_size=self.tokenizer.vocab_size,
            lossless=self.tokenizer.lossless,
            eos_id=self.tokenizer.special_tokens.eos_or_bos,
        )

    def find_leaks(self, folder: Path) -> list[str]:
        data = self.config.data
        if is_running_text(data.train) or (data.valid and is_running_text(data.valid)):
            return same_text_warnings(data.train, data.valid)
        cache = TokenCache([data.train], folder / "tokens", [])
        cache_key = [find_split_point(self.config), reader_options(data)]
        train_texts, valid_texts = (
            (piece.text for piece in pieces)
            for pieces in (iter_split_pieces(self.config, held_out=False), self.iter_examples())
        )
        return leak_warnings(cache, data.valid, cache_key, train_texts, valid_texts)

    def _build_dataset(
        self, name: str, encoded: tuple[TokenStore, int], notices: list[str]
    ) -> LanguageModelDataset:
        store, n_bytes = encoded
        if store.n_tokens < 2:
            raise DataError("has fewer than two tokens to evaluate on; give more text", path=name)
        unk = self.tokenizer.unk
        if unk is not None and (n_unknown := store.count(unk)):
            message = f"{n_unknown} of {store.n_tokens} tokens are not in the vocabulary"
            notices.append(f"{name}: {message} ({self.tokenizer.vocabulary[unk]})")
        return LanguageModelDataset(store, n_bytes, self.config.data.max_len)

    def loss(self, batch: LanguageModelBatch) -> Tensor:
        def compute_hidden_states() -> Tensor:  # (B, T, D)
            return self.model.hidden_states(batch.tokens)

        return lm_training_loss(compute_hidden_states, self.model.lm_head, batch.targets, self.config.train)

    def evaluation_batches(self, data: LanguageModelDataset, *, quick: bool) -> Iterator[LanguageModelBatch]:
        dataset = data.with_long_windows() if self.config.model.is_recurrent else data
        n_batches = min(QUICK_BATCHES, dataset.n_batches()) if quick else dataset.n_batches()
        return track_progress(islice(dataset.batches(), n_batches), "validating", n_batches)

    def metric_sums(self, batch: LanguageModelBatch) -> Tensor:
        hidden_states = self.model.hidden_states(batch.tokens)
        return token_metric_sums(hidden_states, self.model.lm_head, batch.targets, self.tokenizer.vocab_size)

    def compute_metrics(
        self, sums: list[float], data: LanguageModelDataset, *, quick: bool, decode: DecodeConfig | None = None
    ) -> Metrics:
        total_loss, n_correct, n_predictions = sums
        n_bytes = (
            data.n_bytes * n_predictions / len(data)
        )  # words leave out spaces, so their bytes cannot be counted
        return {
            "loss": total_loss / n_predictions,
            "perplexity": perplexity(total_loss / n_predictions),
            **({"bits_per_byte": bits_per_byte(total_loss, n_bytes)} if self.tokenizer.lossless else {}),
            "token_accuracy": n_correct / n_predictions,
            "tokens": int(n_predictions),
        }

    def predict(
        self, texts: Sequence[str], *, decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[Prediction]:
        prompts = [self._encode_prompt(text) for text in texts]
        seeds = row_seeds(self.config.seed if seed is None else seed, range(len(texts)))
        generated = self._generate(prompts, seeds, decode)
        return [self._build_prediction(*fields) for fields in zip(texts, prompts, generated, strict=True)]

    def _build_prediction(self, text: str, prompt: list[int], generated: list[int]) -> Prediction:
        max_read = len(prompt) if self.config.model.is_recurrent else self.config.data.max_len
        notes = truncation_notes(len(prompt), max_read, "prompt", keep_last=True)
        empty_notes = () if text else ("the prompt is empty, so the model starts a new text",)
        output = self._decode_continuation(prompt, generated)
        return Prediction(input=text, output=output, cut=bool(notes), notes=(*empty_notes, *notes))

    def _encode_prompt(self, text: str) -> list[int]:
        """A prompt as tokens; an empty one starts a new line or, failing that, a new document."""
        if unknown := self.tokenizer.find_unknown(text):
            if self.tokenizer.kind == "imported":
                remedy = "leave it out; the imported tokenizer has no token for it"
            else:
                remedy = "leave it out, or train with tokenizer.kind=bpe, which knows every text"
            raise DataError(
                f"the prompt has what the model never saw in training: {format_word_list(unknown)}; {remedy}"
            )
        special = self.tokenizer.special_tokens
        if special.before:
            return [*special.before, *self.tokenizer.encode(text)]
        tokens, blank_prompt = self.tokenizer.encode(text), [special.end_token]
        return (
            tokens
            or (blank_prompt if self.tokenizer.find_unknown("\n") else self.tokenizer.encode("\n"))
            or blank_prompt
        )

    def _decode_continuation(self, prompt: list[int], tokens: list[int]) -> str:
        """The continuation alone: what decoding adds to the prompt, so that spaces between words are right."""
        prompt_text, full_text = self.tokenizer.decode(prompt), self.tokenizer.decode(prompt + tokens)
        return full_text[len(prompt_text) :] if full_text.startswith(prompt_text) else self.tokenizer.decode(tokens)

    def _generate(
        self, prompts: list[list[int]], seeds: list[int], decode: DecodeConfig | None = None
    ) -> list[list[int]]:
        self.model.eval()
        decode = decode or self.config.decode
        limit = decode.max_new_tokens or 200
        stopping = self._stopping_criteria((limit,) * len(prompts))
        adapter = build_decoder_adapter(self.model, self.config.data.max_len)
        return generate(adapter, prompts, decode, stopping, default_strategy="sample", seeds=seeds)

    def _stopping_criteria(self, limits: tuple[int, ...]) -> StoppingCriteria:
        """A vocabulary without an end token has texts that end only at their limit."""
        end = self.tokenizer.special_tokens.eos_or_bos
        return StoppingCriteria(eos=-1 if end is None else end, limits=limits, banned=self.tokenizer.banned_tokens)

    def build_explanation_input(self, text: str, target: str = "", max_new_tokens: int = 0) -> ExplanationInput:
        """The text, then `target`, or the `n_new` tokens that the model finds most likely to follow."""
        validate_not_empty(text)
        prompt = [*self.tokenizer.special_tokens.before, *self.tokenizer.encode(text)]
        if not target and max_new_tokens:
            stopping = self._stopping_criteria((max_new_tokens,))
            adapter = build_decoder_adapter(self.model.eval(), self.config.data.max_len)
            decode_config = replace(self.config.decode, strategy="greedy")
            generated = generate(adapter, [prompt], decode_config, stopping, default_strategy="greedy", seeds=[0])[
                0
            ]
        else:
            generated = self.tokenizer.encode(target)
        # as in decoding, the newest tokens are what the model goes by
        tokens, notes = truncate_with_notes(prompt + generated, self.config.data.max_len, "text", keep_last=True)
        notes += [*unknown_word_notes(text, self.tokenizer), *unknown_word_notes(target, self.tokenizer)]
        pieces = self.tokenizer.format_pieces(tokens)
        return ExplanationInput(
            inputs=(torch.tensor([tokens], device=self.device),),
            pieces={"decoder": (pieces, pieces)},
            prediction=Prediction(input=text, output=self._decode_continuation(prompt, generated)),
            notes=tuple(notes),
        )

    def sample_predictions(self, data: LanguageModelDataset) -> list[dict[str, str]]:
        is_reversible = self.tokenizer.lossless and not self.config.tokenizer.lowercase
        prompts = self._decoded_prompts(data) if is_reversible else self._original_prompts()
        return [
            {"input": prediction.input, "output": prediction.output} for prediction in self.predict(["", *prompts])
        ]

    def _decoded_prompts(self, data: LanguageModelDataset) -> list[str]:
        starts = np.linspace(0, max(0, len(data) - 17), num=3, dtype=np.int64)
        prompts = [self.tokenizer.decode(data.store.tokens[start : start + 16].tolist()) for start in starts]
        return [prompt for prompt in prompts if prompt and not self.tokenizer.find_unknown(prompt)]

    def _original_prompts(self) -> list[str]:
        """The first words of a few lines: decoding their tokens would not give the text back."""
        lines = (line.split(maxsplit=8)[:8] for piece in self.iter_examples() for line in piece.text.splitlines())
        prompts = [" ".join(words) for words in islice(lines, MAX_PROMPT_LINES) if words]
        usable = [prompt for prompt in prompts if not self.tokenizer.find_unknown(prompt)]
        return usable[:: max(1, len(usable) // 3)][:3]


def find_split_point(config: Config) -> int | None:
    """Where training text ends and held-out text begins, in characters or documents; None: all is for training."""
    data = config.data
    if data.valid or not data.valid_fraction:
        return None
    units = count_units(data.train, data)
    if units < 2:
        raise DataError(
            "is one document: nothing can be held out; give --valid, or data.valid_fraction=0", path=data.train
        )
    return max(1, int((1 - data.valid_fraction) * units))


def iter_split_pieces(config: Config, *, held_out: bool) -> Iterator[TextChunk]:
    """The text to train on, or what was held out of the same file."""
    split_point = find_split_point(config)
    if not held_out:
        yield from read_chunks(config.data.train, config.data, stop=split_point)
    elif split_point is not None:
        yield from read_chunks(config.data.train, config.data, start=split_point)


def count_training_characters(config: Config, split_point: int | None, cache: TokenCache) -> int:
    """How many characters there are to train on."""
    name, data = config.data.train, config.data
    if is_running_text(name):
        return split_point or count_units(name, data)
    return cache.get_or_compute(
        ["characters", split_point, reader_options(data)],
        lambda: sum(len(piece.text) for piece in read_chunks(name, data, stop=split_point)),
    )


def encode_pieces(
    pieces: Iterator[TextChunk], tokenizer: Tokenizer, *, path: Path | None = None
) -> tuple[TokenStore, int]:
    """Pieces as one stream of tokens, an end token after each document, and how many bytes of text they were."""
    n_bytes = 0
    document_ends: deque[list[bool]] = deque()

    def text_chunks() -> Iterator[list[str]]:
        nonlocal n_bytes
        for chunk in iter_chunks(pieces, count_characters=lambda piece: len(piece.text)):
            n_bytes += sum(len(piece.text.encode()) for piece in chunk)
            document_ends.append([piece.ends_document for piece in chunk])
            yield [piece.text for piece in chunk]

    encoded = encode_stream(tokenizer, text_chunks())
    end = tokenizer.special_tokens.eos_or_bos
    closed_rows = (
        rows if end is None else rows.append_token(end, np.array(document_ends.popleft(), bool)) for rows in encoded
    )
    store = TokenStore.build_from_batches(closed_rows, vocab_size=tokenizer.vocab_size, path=path)
    return store, n_bytes


def encode_pieces_cached(
    cache: TokenCache, name: str, pieces: Callable[[], Iterator[TextChunk]], tokenizer: Tokenizer, cache_key: object
) -> tuple[TokenStore, int]:
    """The same on disk, and not again where it was done before; `what` tells the pieces from others of the file."""

    def write_files(folder: Path) -> None:
        np.save(folder / f"{name}.bytes.npy", encode_pieces(pieces(), tokenizer, path=folder / name)[1])

    def read_files(folder: Path) -> tuple[TokenStore, int]:
        return TokenStore.open(folder / name), int(np.load(folder / f"{name}.bytes.npy", allow_pickle=False))

    return cache.open_entry(["generate", name, cache_key, tokenizer.to_json()], write_files, read_files)
