"""Turn the tokens of a growing text into pieces of text that never change again.

A token may end in the middle of a character, and words of some vocabularies join the next one in ways that only the
next token shows. Such text is held back until it is stable. So is text that may be the beginning of a stop string.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triform.generation.backend import TokenLogprobs
from triform.text import Tokenizer
from triform.text.base import REPLACEMENT

MAX_INCOMPLETE = 3  # replacement characters at the end of a text that more bytes may turn into one character
TAIL_TOKENS = 8  # tokens before a new one that decide how it is written
MAX_WINDOW_TOKENS = 64  # that are decoded again with every new token
EXACT_STEPS = 256  # a text without exact decoding is decoded again whenever it has grown by this fraction


@dataclass(frozen=True)
class TokenInfo:
    """A generated token: the text that it adds, its log probability, and the most probable tokens at its place."""

    token: int
    text: str
    logprob: float | None = None  # None if the request did not ask for it
    alternatives: tuple[tuple[int, str, float], ...] = ()  # token, text and log probability, the best first


class TextStream:
    """The text of one request.

    Args:
        tokenizer: Decodes the generated tokens.
        prompt: The tokens that the text continues.
        stop: The text ends before the first of these strings.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.prompt, self.stop = tokenizer, list(prompt), stop
        self.tokens: list[int] = []
        self.stopped = False  # whether a stop string was found
        self.n_released = 0  # characters that `pop` has returned
        self._stable = 0  # characters that do not change any more; those not released are in `_pending`
        self._pending = ""
        self._infos: deque[tuple[TokenInfo, int]] = deque()  # not released: with the length of the text after it
        self._token_text = ""  # text that was released, but not with a token
        self._decoder = _WindowDecoder(self) if tokenizer.lossless else _FullDecoder(self)

    def append(self, token: int, logprobs: TokenLogprobs | None = None) -> None:
        """Add a token, unless the text has stopped."""
        if self.stopped:
            return
        alternatives: tuple[tuple[int, str, float], ...] = ()
        if logprobs is not None:
            alternatives = tuple(
                (alternative, self._text_of(alternative), value) for alternative, value in logprobs.alternatives
            )
        self.tokens.append(token)
        self._add_stable(self._decoder.append(token))
        info = TokenInfo(token, "", None if logprobs is None else logprobs.logprob, alternatives)
        self._infos.append((info, self._decoder.length))

    def _text_of(self, token: int) -> str:
        """Return the text that a token would add, or a readable form of it if that is no complete character."""
        tail = [*self.prompt[-TAIL_TOKENS:], *self.tokens[-TAIL_TOKENS:]][-TAIL_TOKENS:]
        before, after = self.tokenizer.decode(tail), self.tokenizer.decode([*tail, token])
        text = after[len(before) :]
        return self.tokenizer.format_piece(token) if not text or REPLACEMENT in text else text

    def _add_stable(self, text: str) -> None:
        self._pending += text
        self._stable += len(text)
        positions = [self._pending.find(stop) for stop in self.stop]
        stop_positions = [position for position in positions if position >= 0]
        if stop_positions:
            self._pending, self.stopped = self._pending[: min(stop_positions)], True

    def pop(self) -> tuple[str, tuple[TokenInfo, ...]]:
        """Return the new text that is stable and cannot belong to a stop string, and its tokens."""
        n_held = 0 if self.stopped else max((_overlap(self._pending, stop) for stop in self.stop), default=0)
        n_free = len(self._pending) - n_held
        text, self._pending = self._pending[:n_free], self._pending[n_free:]
        # A token that ends within a character waits for the token that completes it.
        start, self.n_released, n_tokens = self._start(), self.n_released + len(text), 0
        for index, (_, end) in enumerate(self._infos, 1):
            if start < end <= self.n_released:
                n_tokens = index
        return text, self._pop_infos(text, n_tokens)

    def finish(self) -> tuple[str, tuple[TokenInfo, ...]]:
        """Return all text that `pop` has not returned yet, and its tokens, when no token follows."""
        if not self.stopped:
            self._add_stable(self.full_text(self.tokens)[self._stable :])
        text, self._pending = self._pending, ""
        start, self.n_released, n_tokens = self._start(), self.n_released + len(text), 0
        for _, end in self._infos:
            n_tokens += not self.stopped or start < self.n_released
            start = end
        if n_tokens:  # the last one has all the rest
            self._infos[n_tokens - 1] = (self._infos[n_tokens - 1][0], self.n_released)
        return text, self._pop_infos(text, n_tokens)

    def _start(self) -> int:
        """Return the length of the text that was released with its tokens."""
        return self.n_released - len(self._token_text)

    def _pop_infos(self, text: str, n_tokens: int) -> tuple[TokenInfo, ...]:
        """Return the next tokens, each with its part of the text that was released."""
        self._token_text += text
        infos = []
        for _ in range(n_tokens):
            info, end = self._infos.popleft()
            length = max(0, end - self._start())
            infos.append(replace(info, text=self._token_text[:length]))
            self._token_text = self._token_text[length:]
        return tuple(infos)

    def full_text(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens add to the prompt."""
        decode = self.tokenizer.decode
        prompt_text, full_text = decode(self.prompt), decode([*self.prompt, *tokens])
        return full_text[len(prompt_text) :] if full_text.startswith(prompt_text) else decode(tokens)

    def cut(self, text: str) -> str:
        """Return the part of a text before the first stop string."""
        positions = [text.find(stop) for stop in self.stop if stop in text]
        return text[: min(positions)] if positions else text


class _WindowDecoder:
    """Decodes the last tokens again with each new one. For tokenizers that restore a text exactly."""

    def __init__(self, stream: TextStream) -> None:
        self.decode = stream.tokenizer.decode
        self.window = stream.prompt[-TAIL_TOKENS:]
        if self.decode(self.window).endswith(REPLACEMENT):  # the prompt ends within a character
            self.window = []
        self.n_read = len(self.decode(self.window))  # characters of the window that were returned
        self.length = 0

    def append(self, token: int) -> str:
        """Return the text that a token adds."""
        self.window.append(token)
        text = _strip_incomplete(self.decode(self.window))[self.n_read :]
        self.n_read += len(text)
        self.length += len(text)
        if len(self.window) > MAX_WINDOW_TOKENS:
            self.window = self.window[-TAIL_TOKENS:]
            self.n_read = len(_strip_incomplete(self.decode(self.window)))
        return text


class _FullDecoder:
    """Decodes the whole text again. Text is stable when the next two tokens did not change it.

    A long text is not decoded with every token, so that the work stays proportional to its length.
    """

    def __init__(self, stream: TextStream) -> None:
        self.stream = stream
        self.texts: deque[str] = deque([""], maxlen=3)  # the last ones
        self.n_decoded = self.n_stable = self.length = 0

    def append(self, token: int) -> str:
        """Return the text that is stable now and was not before."""
        n_tokens = len(self.stream.tokens)
        if n_tokens - self.n_decoded < n_tokens / EXACT_STEPS:
            return ""
        self.n_decoded = n_tokens
        self.texts.append(_strip_incomplete(self.stream.full_text(self.stream.tokens)))
        self.length = len(self.texts[-1])
        if len(self.texts) < 3:
            return ""
        stable = _common_prefix(*(text[self.n_stable :] for text in self.texts))
        self.n_stable += len(stable)
        return stable


def _common_prefix(*texts: str) -> str:
    first, last = min(texts), max(texts)
    differing = (index for index, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return first[: next(differing, len(first))]


def _strip_incomplete(text: str) -> str:
    """Remove replacement characters at the end that the next bytes may turn into a character."""
    n = 0
    while n < MAX_INCOMPLETE and n < len(text) and text[-1 - n] == REPLACEMENT:
        n += 1
    return text[: len(text) - n]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that is the beginning of a stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
