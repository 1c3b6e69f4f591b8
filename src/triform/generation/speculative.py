"""Speculative decoding: tokens are drafted without the model, and the model verifies several of them in one pass.

On a CPU, a decode step spends most of its time reading the weights, so feeding several tokens at once costs much
less than feeding them one after the other. `NgramDrafter` looks up the end of the text in the text itself and
drafts what followed there, which needs no second model. `SpeculativeBackend` feeds the draft with the newest token,
keeps the drafted tokens that greedy decoding chooses too, and rewinds the cache to the last of them. The generated
tokens are those of greedy decoding.

The drafter counts how often its drafts come true, also in steps in which nothing is drafted. A draft is as long as
these counts say that it pays, so text that does not repeat is decoded as without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triform.generation.adapters import CachedStepper, DecoderAdapter, GenerationAdapter
from triform.generation.backend import EagerBackend, Row, TokenPicker, check_finite
from triform.nn.kernels.int8 import Int8Linear

MATCH_LENGTHS = (12, 8, 6, 4, 3, 2)  # tokens at the end of the text that are looked up, the longest first
MAX_INDEXED_GRAMS = 1 << 19  # tens of MB; when there are more, looking up starts anew
INITIAL_HIT_RATE = 0.5  # too low to draft: the first matches of a text are only counted
HIT_RATE_DECAY = 0.1  # the weight of the newest token in a hit rate
PASS_COST, TOKEN_COST = 1.5, 0.15  # of verifying, in decode steps: once, and for each token that is fed


def draft_unavailable_reason(adapter: GenerationAdapter) -> str:
    """Return why drafts are not used with a model, or an empty string if they are."""
    if not isinstance(adapter, DecoderAdapter):
        return "it applies to a single language model that is a Transformer"
    if adapter.device.type != "cpu":
        return f"on {adapter.device.type}, tokens are decoded one by one"
    # Lower precisions round so much that rows which are computed together can change the most likely token.
    if any(isinstance(module, Int8Linear) for module in adapter.model.modules()):
        return "it needs fp32, and this model computes in int8"
    if adapter.model.lm_head.weight.dtype == torch.bfloat16:
        return "it needs fp32, and this model computes in bf16"
    return ""


class NgramDrafter:
    """Drafts the continuation of a text from earlier places in it that end alike.

    Args:
        tokens: The text so far.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self.followers: dict[tuple[int, ...], int] = {}  # by n-gram: the index of the token after its latest place
        self.hit_rates = [INITIAL_HIT_RATE] * (MATCH_LENGTHS[0] + 1)  # by the length of the match
        self.draft: list[int] = []
        self.match_length = 0
        for token in tokens:
            self._append(token)

    def propose(self, max_tokens: int) -> list[int]:
        """Return the tokens to verify, at most `max_tokens` and as many as are expected to pay, possibly none."""
        self.draft, self.match_length = [], 0
        for length in MATCH_LENGTHS:
            index = self.followers.get(tuple(self.tokens[-length:]))
            if index is not None:
                self.match_length = length
                n_known = len(self.tokens) - index  # a draft that is longer repeats them
                self.draft = [self.tokens[index + offset % n_known] for offset in range(max_tokens)]
                break
        return self.draft[: self._best_length()]

    def _best_length(self) -> int:
        """Return how many of the drafted tokens give the most tokens for the time of a pass."""
        best_length, best_speed = 0, 1.0  # a decode step gives one token
        n_expected = probability = 1.0
        for length in range(1, len(self.draft) + 1):
            probability *= self.hit_rates[self._rate_index(length - 1)]
            n_expected += probability
            speed = n_expected / (PASS_COST + TOKEN_COST * (length + 1))
            if speed > best_speed:
                best_length, best_speed = length, speed
        return best_length

    def _rate_index(self, offset: int) -> int:
        """Return the length of the match for a drafted token: those before it belong to the match then."""
        return min(self.match_length + offset, MATCH_LENGTHS[0])

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens that the model chose, and count those that were drafted."""
        for offset, (drafted, token) in enumerate(zip(self.draft, tokens, strict=False)):
            index = self._rate_index(offset)
            self.hit_rates[index] += HIT_RATE_DECAY * ((drafted == token) - self.hit_rates[index])
            if drafted != token:
                break
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        if len(self.followers) > MAX_INDEXED_GRAMS:
            self.followers.clear()
        for length in MATCH_LENGTHS:
            if length <= len(self.tokens):
                self.followers[tuple(self.tokens[-length:])] = len(self.tokens)
        self.tokens.append(token)


class SpeculativeBackend(EagerBackend):
    """Takes several steps at once while one text is decoded greedily and its request allows drafts.

    All other batches, and requests for log probabilities, are decoded one step at a time.
    """

    stepper: CachedStepper

    def __init__(self, adapter: DecoderAdapter, picker: TokenPicker, max_rows: int) -> None:
        super().__init__(adapter, picker, max_rows)
        self.adapter = adapter
        self.drafter: NgramDrafter | None = None
        self.drafted_row: Row | None = None  # whose text the drafter knows
        self.n_known = 0  # generated tokens of the row that the drafter knows

    def step(self) -> list[Row]:
        row = self._only_row()
        if row is None:
            return super().step()
        draft = self._update_drafter(row).propose(self._max_draft(row))
        return self._verify(row, draft) if draft else super().step()

    def _update_drafter(self, row: Row) -> NgramDrafter:
        """Return the drafter of this row, after telling it the tokens that were generated since the last call."""
        if self.drafter is None or self.drafted_row is not row:
            prompt = self.adapter.initial_tokens(row.request.tokens)
            self.drafter, self.drafted_row = NgramDrafter([*prompt, *row.output]), row
        else:
            self.drafter.extend(row.output[self.n_known :])
        self.n_known = row.n_steps
        return self.drafter

    def _only_row(self) -> Row | None:
        """Return the row to draft for, if it is alone in the batch and has been prefilled."""
        if len(self.rows) != 1 or self.joining or self.stepper.keep is not None:
            return None
        row = self.rows[0]
        if row is None or row.request.n_logprobs or row.request.decode.strategy != "greedy":
            return None
        return row if row.request.decode.draft_tokens else None

    def _max_draft(self, row: Row) -> int:
        """Return how many tokens may be drafted: the context and the limit of the text hold them all."""
        n_free, n_wanted = self.adapter.max_len - row.context_len, row.request.max_new_tokens - row.n_steps - 1
        return min(row.request.decode.draft_tokens, n_free, n_wanted)

    def _verify(self, row: Row, draft: list[int]) -> list[Row]:
        """Feed the newest token and the draft, and record the drafted tokens that are right and the one after."""
        assert self.tokens is not None
        fed_tokens = torch.cat([self.tokens, self.tokens.new_tensor([draft])], dim=1)  # (1, T)
        logits = self.stepper.step_several(fed_tokens)  # (1, T, V)
        self.picker.prepare(self.rows, 1)
        greedy_tokens, _ = self.picker.pick(logits, self.first_step)  # (1, T)
        n_right = _count_leading_matches(greedy_tokens[0], draft)
        check_finite(logits[:, : n_right + 1])
        self.stepper.rewind(len(draft) - n_right)
        greedy_tokens = greedy_tokens[:, : n_right + 1]
        self.tokens = greedy_tokens[:, -1:]
        self.picker.record(self.rows, greedy_tokens.T[:, :, None], None)
        return [row]


def _count_leading_matches(greedy_tokens: Tensor, draft: Sequence[int]) -> int:
    for index, (token, drafted) in enumerate(zip(greedy_tokens.tolist(), draft, strict=False)):
        if token != drafted:
            return index
    return len(draft)
