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

from triform import baselines
from triform.config import Config, DecodeConfig, Sizes
from triform.data import sets
from triform.data.cache import TokenCache
from triform.data.readers import Piece, count_units, is_running_text, on_lines, read_lines, read_pieces
from triform.data.store import TokenStore
from triform.decode.beam import Ending
from triform.decode.carried import decoder_form
from triform.decode.choose import row_seeds
from triform.decode.search import run_search
from triform.errors import DataError
from triform.metrics import Scores, bits_per_byte, perplexity
from triform.models.host_memory import require_memory
from triform.models.kinds import AnyDecoder, make_decoder
from triform.nn.vocabulary import learning_loss
from triform.progress import tracked
from triform.settings import Settings, build
from triform.tasks.defaults import settle, with_tokenizer
from triform.tasks.leaks import leak_notices, same_text_notices
from triform.tasks.learned import layout, learned_tokenizer
from triform.tasks.task import (
    Look,
    Prediction,
    Prepared,
    Task,
    check_not_empty,
    chunks,
    cut_note,
    listed,
    saved_tokenizer,
    seen_part,
    token_tally,
    unknown_note,
)
from triform.tasks.windows import Stream, Windows
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
        self.sizes = Sizes(vocab_size=tokenizer.vocab_size, max_len=config.data.max_len)
        require_memory(config, self.sizes)
        self.model = make_decoder(config.model, self.sizes)

    @classmethod
    def _prepare(cls, config: Config, folder: Path, *, resume: bool) -> Prepared:
        data = config.data
        train_name = sets.named(data.train, "generate")
        valid_name = data.valid or sets.validation_of(train_name)
        config = build({"data.train": train_name, "data.valid": valid_name}, config)
        notices: list[str] = []
        cache = TokenCache([train_name], folder / "tokens", notices)
        stop = training_part(config)

        def pieces() -> Iterator[Piece]:
            return read_pieces(train_name, data, stop=stop)

        n_characters = count_text(config, stop, cache)
        config = with_tokenizer(config, n_characters)
        if resume:
            tokenizer = saved_tokenizer(folder)
        else:
            texts = (piece.text for piece in pieces())  # read when asked for
            tokenizer = learned_tokenizer(cache, config.tokenizer, [stop, layout(data)], texts, n_characters)
            if not config.train.base:  # the model never sees what an imported tokenizer puts around a text
                tokenizer.special = tokenizer.special._replace(before=(), after=())
        store, n_bytes = encode_once(cache, "train", pieces, tokenizer, [stop, layout(data)])

        max_len = data.max_len or max(2, min(128, store.total // 4))
        if store.total <= max_len:
            raise DataError(
                f"has only {store.total} tokens to train on; data.max_len={max_len} needs more: "
                "lower it or give more text",
                path=train_name,
            )
        found: Settings = {"data.max_len": max_len, "tokenizer.vocab_size": tokenizer.vocab_size}
        task = cls(settle(config, store.total, found), tokenizer)
        valid = task.held_out(notices, folder)
        return Prepared(task=task, train=Stream(store, n_bytes, max_len), valid=valid, notices=tuple(notices))

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        return cls(config, saved_tokenizer(folder))

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")

    def read(self, name: str, notices: list[str], lines: Container[int] | None = None) -> Stream:
        pieces = read_pieces(name, self.config.data)
        if lines is not None and is_running_text(name):  # what is left of it, put together
            pieces = (Piece(f"{text}\n", False, line) for line, text in read_lines(name) if line in lines)
        return self._stream(name, encode(on_lines(pieces, lines), self.tokenizer), notices)

    def held_out(self, notices: list[str], folder: Path | None = None) -> Stream | None:
        data = self.config.data
        if data.valid:
            return self.read(data.valid, notices)
        stop = training_part(self.config)
        if stop is None:
            return None

        def pieces() -> Iterator[Piece]:
            return read_pieces(data.train, data, start=stop)

        if folder is None:
            encoded = encode(pieces(), self.tokenizer)
        else:
            cache = TokenCache([data.train], folder / "tokens", notices)
            encoded = encode_once(cache, "valid", pieces, self.tokenizer, [stop, layout(data)])
        return self._stream(data.train, encoded, notices)

    def rows(self, name: str = "") -> Iterator[Piece]:
        name = name or self.config.data.valid
        return read_pieces(name, self.config.data) if name else own_pieces(self.config, held=True)

    def baselines(self) -> baselines.Fitted:
        return baselines.fit(
            "generate",
            own_pieces(self.config, held=False),
            tokenize=self.tokenizer.encode,
            vocab_size=self.tokenizer.vocab_size,
            lossless=self.tokenizer.lossless,
            end=self.tokenizer.special.end,
        )

    def shared_texts(self, folder: Path) -> list[str]:
        data = self.config.data
        if is_running_text(data.train) or (data.valid and is_running_text(data.valid)):
            return same_text_notices(data.train, data.valid)
        cache = TokenCache([data.train], folder / "tokens", [])
        what = [training_part(self.config), layout(data)]
        learned, judged = (
            (piece.text for piece in pieces) for pieces in (own_pieces(self.config, held=False), self.rows())
        )
        return leak_notices(cache, data.valid, what, learned, judged)

    def _stream(self, name: str, encoded: tuple[TokenStore, int], notices: list[str]) -> Stream:
        store, n_bytes = encoded
        if store.total < 2:
            raise DataError("has fewer than two tokens to evaluate on; give more text", path=name)
        unk = self.tokenizer.unk
        if unk is not None and (unknown := store.count(unk)):
            lacking = f"{unknown} of {store.total} tokens are not in the vocabulary"
            notices.append(f"{name}: {lacking} ({self.tokenizer.vocabulary[unk]})")
        return Stream(store, n_bytes, self.config.data.max_len)

    def loss(self, batch: Windows) -> Tensor:
        def states() -> Tensor:  # (B, T, D)
            return self.model.states(batch.tokens)

        return learning_loss(states, self.model.head, batch.targets, self.config.train)

    def judged_by(self, data: Stream, *, quick: bool) -> Iterator[Windows]:
        read = data.carried() if self.config.model.is_recurrent else data
        n_batches = min(QUICK_BATCHES, read.n_batches()) if quick else read.n_batches()
        return tracked(islice(read.batches(), n_batches), "validating", n_batches)

    def tally(self, batch: Windows) -> Tensor:
        states = self.model.states(batch.tokens)
        return token_tally(states, self.model.head, batch.targets, self.tokenizer.vocab_size)

    def scores(self, sums: list[float], data: Stream, *, quick: bool, decode: DecodeConfig | None = None) -> Scores:
        nats, hits, weight = sums
        n_bytes = data.n_bytes * weight / len(data)  # words leave out spaces, so their bytes cannot be counted
        return {
            "loss": nats / weight,
            "perplexity": perplexity(nats / weight),
            **({"bits_per_byte": bits_per_byte(nats, n_bytes)} if self.tokenizer.lossless else {}),
            "token_accuracy": hits / weight,
            "tokens": int(weight),
        }

    def predict(
        self, texts: Sequence[str], *, decode: DecodeConfig | None = None, seed: int | None = None
    ) -> list[Prediction]:
        prompts = [self._prompt(text) for text in texts]
        seeds = row_seeds(self.config.seed if seed is None else seed, range(len(texts)))
        written = self._continue(prompts, seeds, decode)
        return [self._prediction(*each) for each in zip(texts, prompts, written, strict=True)]

    def _prediction(self, text: str, prompt: list[int], written: list[int]) -> Prediction:
        n_read = len(prompt) if self.config.model.is_recurrent else self.config.data.max_len
        cut = cut_note(len(prompt), n_read, "prompt", newest=True)
        empty = () if text else ("the prompt is empty, so the model starts a new text",)
        output = self._output(prompt, written)
        return Prediction(input=text, output=output, cut=bool(cut), notes=(*empty, *cut))

    def _prompt(self, text: str) -> list[int]:
        """A prompt as tokens; an empty one starts a new line or, failing that, a new document."""
        if unknown := self.tokenizer.unknown(text):
            if self.tokenizer.kind == "imported":
                remedy = "leave it out; the imported tokenizer has no token for it"
            else:
                remedy = "leave it out, or train with tokenizer.kind=bpe, which knows every text"
            raise DataError(f"the prompt has what the model never saw in training: {listed(unknown)}; {remedy}")
        special = self.tokenizer.special
        if special.before:
            return [*special.before, *self.tokenizer.encode(text)]
        tokens, blank = self.tokenizer.encode(text), [special.blank]
        return tokens or (blank if self.tokenizer.unknown("\n") else self.tokenizer.encode("\n")) or blank

    def _output(self, prompt: list[int], tokens: list[int]) -> str:
        """The continuation alone: what decoding adds to the prompt, so that spaces between words are right."""
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode(prompt + tokens)
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(tokens)

    def _continue(
        self, prompts: list[list[int]], seeds: list[int], decode: DecodeConfig | None = None
    ) -> list[list[int]]:
        self.model.eval()
        decode = decode or self.config.decode
        limit = decode.max_new_tokens or 200
        ending = self._ending((limit,) * len(prompts))
        form = decoder_form(self.model, self.config.data.max_len)
        return run_search(form, prompts, decode, ending, default="sample", seeds=seeds)

    def _ending(self, limits: tuple[int, ...]) -> Ending:
        """A vocabulary without an end token has texts that end only at their limit."""
        end = self.tokenizer.special.end
        return Ending(eos=-1 if end is None else end, limits=limits, banned=self.tokenizer.never_written)

    def look(self, text: str, target: str = "", n_new: int = 0) -> Look:
        """The text, then `target`, or the `n_new` tokens that the model finds most likely to follow."""
        check_not_empty(text)
        prompt = [*self.tokenizer.special.before, *self.tokenizer.encode(text)]
        if not target and n_new:
            ending = self._ending((n_new,))
            form = decoder_form(self.model.eval(), self.config.data.max_len)
            how = replace(self.config.decode, strategy="greedy")
            written = run_search(form, [prompt], how, ending, default="greedy", seeds=[0])[0]
        else:
            written = self.tokenizer.encode(target)
        # as in decoding, the newest tokens are what the model goes by
        tokens, notes = seen_part(prompt + written, self.config.data.max_len, "text", newest=True)
        notes += [*unknown_note(text, self.tokenizer), *unknown_note(target, self.tokenizer)]
        pieces = self.tokenizer.pieces(tokens)
        return Look(
            inputs=(torch.tensor([tokens], device=self.device),),
            pieces={"decoder": (pieces, pieces)},
            prediction=Prediction(input=text, output=self._output(prompt, written)),
            notes=tuple(notes),
        )

    def samples(self, data: Stream) -> list[dict[str, str]]:
        exact = self.tokenizer.lossless and not self.config.tokenizer.lowercase
        prompts = self._decoded_prompts(data) if exact else self._original_prompts()
        return [{"input": made.input, "output": made.output} for made in self.predict(["", *prompts])]

    def _decoded_prompts(self, data: Stream) -> list[str]:
        starts = np.linspace(0, max(0, len(data) - 17), num=3, dtype=np.int64)
        prompts = [self.tokenizer.decode(data.store.tokens[start : start + 16].tolist()) for start in starts]
        return [prompt for prompt in prompts if prompt and not self.tokenizer.unknown(prompt)]

    def _original_prompts(self) -> list[str]:
        """The first words of a few lines: decoding their tokens would not give the text back."""
        lines = (line.split(maxsplit=8)[:8] for piece in self.rows() for line in piece.text.splitlines())
        prompts = [" ".join(words) for words in islice(lines, MAX_PROMPT_LINES) if words]
        usable = [prompt for prompt in prompts if not self.tokenizer.unknown(prompt)]
        return usable[:: max(1, len(usable) // 3)][:3]


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


def own_pieces(config: Config, *, held: bool) -> Iterator[Piece]:
    """The text to train on, or what was held out of the same file."""
    cut = training_part(config)
    if not held:
        yield from read_pieces(config.data.train, config.data, stop=cut)
    elif cut is not None:
        yield from read_pieces(config.data.train, config.data, start=cut)


def count_text(config: Config, stop: int | None, cache: TokenCache) -> int:
    """How many characters there are to train on."""
    name, data = config.data.train, config.data
    if is_running_text(name):
        return stop or count_units(name, data)
    return cache.recall(
        ["characters", stop, layout(data)],
        lambda: sum(len(piece.text) for piece in read_pieces(name, data, stop=stop)),
    )


def encode(pieces: Iterator[Piece], tokenizer: Tokenizer, *, path: Path | None = None) -> tuple[TokenStore, int]:
    """Pieces as one stream of tokens, an end token after each document, and how many bytes of text they were."""
    n_bytes = 0
    ends: deque[list[bool]] = deque()

    def parts() -> Iterator[list[str]]:
        nonlocal n_bytes
        for chunk in chunks(pieces, characters=lambda piece: len(piece.text)):
            n_bytes += sum(len(piece.text.encode()) for piece in chunk)
            ends.append([piece.ends for piece in chunk])
            yield [piece.text for piece in chunk]

    encoded = encode_stream(tokenizer, parts())
    end = tokenizer.special.end
    closed = (found if end is None else found.followed_by(end, np.array(ends.popleft(), bool)) for found in encoded)
    store = TokenStore.build_rows(closed, vocab_size=tokenizer.vocab_size, path=path)
    return store, n_bytes


def encode_once(
    cache: TokenCache, name: str, pieces: Callable[[], Iterator[Piece]], tokenizer: Tokenizer, what: object
) -> tuple[TokenStore, int]:
    """The same on disk, and not again where it was done before; `what` tells the pieces from others of the file."""

    def make(folder: Path) -> None:
        np.save(folder / f"{name}.bytes.npy", encode(pieces(), tokenizer, path=folder / name)[1])

    def read(folder: Path) -> tuple[TokenStore, int]:
        return TokenStore.open(folder / name), int(np.load(folder / f"{name}.bytes.npy", allow_pickle=False))

    return cache.open(["generate", name, what, tokenizer.to_json()], make, read)
