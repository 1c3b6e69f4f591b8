"""Generate: a decoder learns to go on with a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from triform.config import Config, Sizes, TrainConfig
from triform.data import sets
from triform.data.loader import Indices, RandomWindows, Sampler
from triform.data.readers import Piece, count_units, read_pieces
from triform.data.store import TokenStore
from triform.decode.beam import Ending
from triform.decode.choose import row_seeds
from triform.decode.forms import DecoderForm
from triform.decode.search import run_search
from triform.errors import DataError
from triform.metrics import Scores, bits_per_byte, perplexity
from triform.models.decoder import Decoder
from triform.nn.vocabulary import cross_entropy, vocabulary_loss
from triform.settings import Settings, build
from triform.tasks.defaults import settle, with_tokenizer
from triform.tasks.resident import Plan, fits, sent
from triform.tasks.task import (
    NEVER_WRITTEN,
    Batch,
    Look,
    Prediction,
    Prepared,
    Task,
    check_not_empty,
    chunks,
    saved_tokenizer,
    seen_part,
    unknown_note,
)
from triform.text import EOS, UNK, Tokenizer, train_tokenizer

EVAL_TOKENS = 16_384
QUICK_BATCHES = 32  # half a million tokens: enough to judge by, whatever the size of the text


@dataclass(frozen=True, kw_only=True)
class Windows(Batch):
    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T): the tokens shifted by one


class Stream:
    """One long row of tokens. Training draws windows anywhere in it; evaluation goes through it once."""

    def __init__(self, store: TokenStore, n_bytes: int, max_len: int) -> None:
        self.store, self.n_bytes, self.max_len = store, n_bytes, max_len

    def __len__(self) -> int:
        """Predictions: every token but the first."""
        return max(0, self.store.total - 1)

    def sampler(self, train: TrainConfig, seed: int) -> Sampler:
        rows = train.batch_size or max(1, train.batch_tokens // self.max_len)
        return RandomWindows(self.store.total - self.max_len, width=self.max_len, batch_size=rows, seed=seed)

    def batch(self, indices: Indices) -> Windows:
        return self._windows(indices, self.max_len)

    def _windows(self, starts: Indices, width: int) -> Windows:
        places = starts[:, None] + np.arange(width + 1)
        table = torch.from_numpy(self.store.tokens[places].astype(np.int64))  # (B, T + 1)
        size = len(starts) * width
        return Windows(tokens=table[:, :-1], targets=table[:, 1:], weight=size, n_tokens=size, n_places=size)

    def on(self, device: torch.device, train: TrainConfig) -> ResidentStream | None:
        return ResidentStream(self, device) if fits(self.store) else None

    def batches(self) -> Iterator[Windows]:
        """Windows side by side; the last, shorter one by itself."""
        starts = np.arange(0, len(self) - self.max_len + 1, self.max_len)
        for chunk in chunks(starts, max(1, EVAL_TOKENS // self.max_len)):
            yield self._windows(np.array(chunk), self.max_len)
        if rest := len(self) % self.max_len:
            yield self._windows(np.array([len(self) - rest]), rest)


class ResidentStream:
    """The same on a device. All windows are of one width and nothing is padded, so there is one shape."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self.width = stream.max_len
        self.tokens = sent(stream.store.tokens, device)

    def plan(self, indices: Indices) -> Plan:
        size = len(indices) * self.width
        return Plan((len(indices), self.width), indices, size, size, size)

    def gather(self, rows: Tensor, shape: tuple[int, ...]) -> Windows:
        table = self.tokens[rows[:, None] + torch.arange(shape[1] + 1, device=rows.device)].long()  # (B, T + 1)
        return Windows(tokens=table[:, :-1], targets=table[:, 1:])


class Generate(Task):
    name = "generate"
    unit = "tokens"
    metric = "perplexity"
    higher_is_better = False
    model: Decoder

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config)
        self.tokenizer = tokenizer
        self.model = Decoder(config.model, Sizes(vocab_size=tokenizer.vocab_size, max_len=config.data.max_len))

    @classmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> Prepared:
        data = config.data
        train_name = sets.named(data.train, "generate")
        valid_name = data.valid or sets.validation_of(train_name)
        config = build({"data.train": train_name, "data.valid": valid_name}, config)
        stop = training_part(config)

        n_characters = sum(len(piece.text) for piece in read_pieces(train_name, data, stop=stop))
        config = with_tokenizer(config, n_characters)
        texts = (piece.text for piece in read_pieces(train_name, data, stop=stop))
        tokenizer = saved_tokenizer(folder) if resume else train_tokenizer(config.tokenizer, texts, name=train_name)
        path = folder / "tokens" / "train"
        store, n_bytes = encode(read_pieces(train_name, data, stop=stop), tokenizer, path=path)

        max_len = data.max_len or max(2, min(128, store.total // 4))
        if store.total <= max_len:
            raise DataError(
                f"has only {store.total} tokens to train on; data.max_len={max_len} needs more: "
                "lower it or give more text",
                path=train_name,
            )
        found: Settings = {"data.max_len": max_len, "tokenizer.vocab_size": tokenizer.vocab_size}
        task = cls(settle(config, store.total, found), tokenizer)
        notices: list[str] = []
        valid = task.held_out(notices, folder)
        return Prepared(task=task, train=Stream(store, n_bytes, max_len), valid=valid, notices=tuple(notices))

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        return cls(config, saved_tokenizer(folder))

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")

    def read(self, name: str, notices: list[str]) -> Stream:
        return self._stream(name, read_pieces(name, self.config.data), notices)

    def held_out(self, notices: list[str], folder: Path | None = None) -> Stream | None:
        data = self.config.data
        if data.valid:
            return self.read(data.valid, notices)
        stop = training_part(self.config)
        if stop is None:
            return None
        pieces = read_pieces(data.train, data, start=stop)
        return self._stream(data.train, pieces, notices, folder and folder / "tokens" / "valid")

    def _stream(self, name: str, pieces: Iterator[Piece], notices: list[str], path: Path | None = None) -> Stream:
        store, n_bytes = encode(pieces, self.tokenizer, path=path)
        if store.total < 2:
            raise DataError("fewer than two tokens are left for validation; give more text", path=name)
        if unknown := int((store.tokens == UNK).sum()):
            notices.append(f"{name}: {unknown} of {store.total} tokens were never seen in training (<unk>)")
        return Stream(store, n_bytes, self.config.data.max_len)

    def loss(self, batch: Windows) -> Tensor:
        states = self.model.states(batch.tokens)  # (B, T, D)
        return vocabulary_loss(states, self.model.head, batch.targets, self.config.train.label_smoothing)

    @torch.inference_mode()
    def evaluate(self, data: Stream, *, quick: bool = False) -> Scores:
        self.model.eval()
        nats, hits, weight = 0.0, 0, 0
        for batch in islice(data.batches(), QUICK_BATCHES if quick else None):
            batch = batch.to(self.device)
            scores = self.model(batch.tokens)
            nats += cross_entropy(scores, batch.targets, 0.0).item()
            hits += int((scores.argmax(-1) == batch.targets).sum())
            weight += batch.weight
        n_bytes = data.n_bytes * weight / len(data)  # words leave out spaces, so their bytes cannot be counted
        return {
            "loss": nats / weight,
            "perplexity": perplexity(nats / weight),
            **({"bits_per_byte": bits_per_byte(nats, n_bytes)} if self.tokenizer.lossless else {}),
            "token_accuracy": hits / weight,
            "tokens": weight,
        }

    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        prompts = [self._prompt(text) for text in texts]
        written = self._continue(prompts, row_seeds(self.config.seed, range(len(texts))))
        return [
            Prediction(input=text, output=self._output(prompt, tokens))
            for text, prompt, tokens in zip(texts, prompts, written, strict=True)
        ]

    def _prompt(self, text: str) -> list[int]:
        """A prompt as tokens; an empty one starts a new line or, failing that, a new document."""
        if unknown := self.tokenizer.unknown(text):
            shown = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            raise DataError(
                f"the prompt has what the model never saw in training: {shown}; "
                "leave it out, or train with tokenizer.kind=bpe, which knows every text"
            )
        tokens = self.tokenizer.encode(text)
        return tokens or ([EOS] if self.tokenizer.unknown("\n") else self.tokenizer.encode("\n")) or [EOS]

    def _output(self, prompt: list[int], tokens: list[int]) -> str:
        """The continuation alone: what decoding adds to the prompt, so that spaces between words are right."""
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode(prompt + tokens)
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(tokens)

    def _continue(self, prompts: list[list[int]], seeds: list[int]) -> list[list[int]]:
        self.model.eval()
        decode = self.config.decode
        limit = decode.max_new_tokens or 200
        ending = Ending(eos=EOS, limits=(limit,) * len(prompts), banned=NEVER_WRITTEN)
        form = DecoderForm(self.model, self.config.data.max_len)
        return run_search(form, prompts, decode, ending, default="sample", seeds=seeds)

    def look(self, text: str, target: str = "", n_new: int = 0) -> Look:
        """The text, then `target`, or the `n_new` tokens that the model finds most likely to follow."""
        check_not_empty(text)
        prompt = self.tokenizer.encode(text)
        if not target and n_new:
            ending = Ending(eos=EOS, limits=(n_new,), banned=NEVER_WRITTEN)
            form = DecoderForm(self.model.eval(), self.config.data.max_len)
            how = replace(self.config.decode, strategy="greedy")
            written = run_search(form, [prompt], how, ending, default="greedy", seeds=[0])[0]
        else:
            written = self.tokenizer.encode(target)
        # as in decoding, the newest tokens are what the model goes by
        tokens, notes = seen_part(prompt + written, self.config.data.max_len, "text", newest=True)
        notes += unknown_note(self.tokenizer.unknown(text) + self.tokenizer.unknown(target))
        pieces = self.tokenizer.pieces(tokens)
        return Look(
            inputs=(torch.tensor([tokens], device=self.device),),
            pieces={"decoder": (pieces, pieces)},
            prediction=Prediction(input=text, output=self._output(prompt, written)),
            notes=tuple(notes),
        )

    def samples(self, data: Stream) -> list[dict[str, str]]:
        starts = np.linspace(0, max(0, len(data) - 17), num=3, dtype=np.int64)
        prompts = [self.tokenizer.decode(data.store.tokens[start : start + 16].tolist()) for start in starts]
        usable = ["", *(prompt for prompt in prompts if prompt and not self.tokenizer.unknown(prompt))]
        return [{"input": made.input, "output": made.output} for made in self.predict(usable)]


def training_part(config: Config) -> int | None:
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


def encode(pieces: Iterator[Piece], tokenizer: Tokenizer, *, path: Path | None = None) -> tuple[TokenStore, int]:
    """Pieces as one stream of tokens, an end token after each document, and how many bytes of text they were."""
    n_bytes = 0

    def sequences() -> Iterator[list[int]]:
        nonlocal n_bytes
        for chunk in chunks(pieces, characters=lambda piece: len(piece.text)):
            n_bytes += sum(len(piece.text.encode()) for piece in chunk)
            texts = [piece.text for piece in chunk]  # one long text is cut and shared among the cores
            encoded = tokenizer.encode_batch(texts) if len(texts) > 1 else [tokenizer.encode(texts[0])]
            for piece, tokens in zip(chunk, encoded, strict=True):
                yield [*tokens, EOS] if piece.ends else tokens

    store = TokenStore.build(sequences(), vocab_size=tokenizer.vocab_size, path=path)
    return store, n_bytes
