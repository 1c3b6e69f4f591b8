"""The choices of a completion in the dialect of OpenAI: text, log probabilities and the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec
import torch

from triform.generation.backend import TokenLogprobs
from triform.serving.generated_texts import GeneratedText
from triform.serving.text_stream import TextStream
from triform.serving.worker import GenerationUpdate, TokenInfo

if TYPE_CHECKING:
    from triform.run import Run


class Logprobs(msgspec.Struct, kw_only=True):
    """The tokens of a text with their log probabilities, the most probable tokens at each place, and offsets."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] = []


class Choice(msgspec.Struct, kw_only=True):
    """One continuation, or what is new of it."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it, and as text."""

    tokens: list[int]
    text: str


@dataclass(kw_only=True)
class ChoiceBuilder:
    """One continuation of a prompt.

    Args:
        index: The number of the choice.
        prompt: What it continues.
        echo: Whether the text starts with the prompt.
        n_logprobs: The number of alternatives to report with each token; None for no log probabilities.
        prompt_tokens: The tokens of the prompt with their log probabilities, if the text starts with them.
    """

    index: int
    prompt: Prompt
    echo: bool
    n_logprobs: int | None
    prompt_tokens: Sequence[TokenInfo] = ()
    generated: GeneratedText = field(default_factory=GeneratedText)
    n_characters: int = 0  # of the tokens that have been reported

    def full_choice(self) -> Choice:
        """Return the continuation when it is complete."""
        return Choice(
            index=self.index,
            text=(self.prompt.text if self.echo else "") + self.generated.text,
            logprobs=self._logprobs([*self.prompt_tokens, *self.generated.tokens]),
            finish_reason=self.generated.finish_reason or "length",
        )

    def prompt_choice(self, *, is_complete: bool) -> Choice:
        """Return the prompt as the first part of a stream. It is the only one if nothing is generated."""
        return Choice(
            index=self.index,
            text=self.prompt.text if self.echo else "",
            logprobs=self._logprobs(self.prompt_tokens),
            finish_reason="length" if is_complete else None,
        )

    def add(self, update: GenerationUpdate) -> Choice | None:
        """Add what is new, and return it as a part of a stream; None if there is nothing to show."""
        self.generated.add(update)
        if not update.text and not update.tokens and update.finish_reason is None:
            return None
        logprobs = self._logprobs(update.tokens)
        return Choice(index=self.index, text=update.text, logprobs=logprobs, finish_reason=update.finish_reason)

    def _logprobs(self, tokens: Sequence[TokenInfo]) -> Logprobs | None:
        if self.n_logprobs is None:
            return None
        result = Logprobs(top_logprobs=[] if self.n_logprobs else None)
        for info in tokens:
            result.tokens.append(info.text)
            result.token_logprobs.append(info.logprob)
            result.text_offset.append(self.n_characters)
            self.n_characters += len(info.text)
            if result.top_logprobs is not None:
                best = {text: logprob for _, text, logprob in info.alternatives[: self.n_logprobs]}
                result.top_logprobs.append(best if info.logprob is not None else None)
        return result


def score_prompt(run: Run, tokens: list[int], n: int) -> tuple[TokenInfo, ...]:
    """Return the tokens of a prompt with their log probabilities and the `n` most probable tokens at each place.

    The first token has none, because nothing comes before it.
    """
    with run.inference_context(), torch.inference_mode():
        inputs = torch.tensor([tokens], device=run.task.device)
        logprobs = run.task.model.eval()(inputs)[0, :-1].float().log_softmax(-1)  # (T - 1, V)
        values = logprobs.gather(-1, inputs[0, 1:, None])[:, 0].tolist()
        best = logprobs.topk(min(n, logprobs.shape[-1]))
        best_tokens, best_values = best.indices.tolist(), best.values.tolist()
    stream = TextStream(run.task.tokenizer)
    stream.append(tokens[0])
    for index, token in enumerate(tokens[1:]):
        alternatives = list(zip(best_tokens[index], best_values[index], strict=True))
        stream.append(token, TokenLogprobs(values[index], alternatives))
    return stream.finish()[1]
