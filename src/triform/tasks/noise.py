"""Random noise for pretraining: masked tokens to predict, and noisy copies of texts to restore.

The random numbers are those of torch, as for dropout, so a resumed run continues with the same masks. An evaluation
passes a generator with a fixed seed and masks the same tokens each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triform.errors import ConfigError
from triform.nn.loss import IGNORE_INDEX
from triform.text import SpecialTokens, Tokenizer

MASK_NAMES = ("[MASK]", "<mask>")  # of imported vocabularies
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # of the tokens to predict; the others stay as they are (Devlin et al., 2019)
DROP_RATE = 0.1  # of the tokens of a noisy text
MAX_MOVE = 3.0  # a token of a noisy text moves by fewer than this number of positions


def find_mask_token(tokenizer: Tokenizer) -> int:
    """Return the token that stands for a masked one: that of the vocabulary or, without one, the padding token.

    No text contains the padding token, and the padding of a batch is never read.

    Raises:
        ConfigError: The vocabulary has neither.
    """
    ids = {piece: token for token, piece in enumerate(tokenizer.vocabulary) if piece in MASK_NAMES}
    if ids and tokenizer.kind == "imported":
        return next(ids[name] for name in MASK_NAMES if name in ids)
    if tokenizer.pad is None:
        raise ConfigError(
            "pretraining needs a vocabulary with a mask token or a padding token; this one has neither"
        )
    return tokenizer.pad


def count_masked(lengths: NDArray[np.int64], mask_rate: float, special: SpecialTokens) -> NDArray[np.int64]:
    """Return how many tokens of texts with these lengths are masked: a fraction of each text, but at least one.

    Args:
        lengths: The numbers of tokens, with special tokens around the texts.
        mask_rate: The fraction of the tokens, without special tokens.
        special: The special tokens.

    Example:
        >>> count_masked(np.array([2, 10, 20]), 0.15, SpecialTokens())
        array([1, 2, 3])
    """
    n_tokens = lengths - len(special.before) - len(special.after)
    return np.maximum(1, np.floor(mask_rate * n_tokens + 0.5).astype(np.int64))


@dataclass(frozen=True)
class MaskedTokens:
    """Tokens of which some are masked, and the masked ones.

    Attributes:
        tokens: What the model reads (B, T).
        positions: The positions to predict (B, K).
        targets: The tokens at these positions (B, K). Those of texts with fewer masked tokens are `IGNORE_INDEX`.
    """

    tokens: Tensor
    positions: Tensor
    targets: Tensor

    def select(self, states: Tensor) -> Tensor:  # (B, T, D) -> (B, K, D)
        """Return the states at the positions to predict."""
        return states.gather(1, self.positions[:, :, None].expand(-1, -1, states.shape[2]))


@dataclass(frozen=True)
class Noise:
    """The noise of a vocabulary.

    Args:
        mask_token: The token that stands for a masked one.
        vocab_size: The number of tokens.
        special: The special tokens, which are not changed.
        mask_rate: `train.mask_rate`.
    """

    mask_token: int
    vocab_size: int
    special: SpecialTokens
    mask_rate: float

    def mask_tokens(
        self, tokens: Tensor, keep: Tensor | None, n_masked: Tensor, generator: torch.Generator | None = None
    ) -> MaskedTokens:
        """Mask a number of random tokens of each text, as BERT does.

        Args:
            tokens: Token ids (B, T).
            keep: True for real tokens (B, T); None means no padding.
            n_masked: The number of tokens of each text to mask (B).
            generator: The source of random numbers; None: that of torch.
        """
        priority = self._uniform(tokens, generator)
        priority = torch.where(self._is_special(tokens), -1.0, priority)
        priority = priority if keep is None else torch.where(keep, priority, -2.0)
        n_slots = max(1, int(self.mask_rate * tokens.shape[1] + 0.5))
        positions = priority.topk(n_slots, dim=1).indices  # (B, K)
        is_used = torch.arange(n_slots, device=tokens.device) < n_masked[:, None]
        originals = tokens.gather(1, positions)
        choice = self._uniform(originals, generator)
        random_tokens = (self._uniform(originals, generator) * self.vocab_size).long()
        replaced = torch.where(choice < MASK_SHARE, self.mask_token, originals)
        replaced = torch.where(choice >= 1 - RANDOM_SHARE, random_tokens, replaced)
        masked = tokens.scatter(1, positions, torch.where(is_used, replaced, originals))
        return MaskedTokens(masked, positions, torch.where(is_used, originals, IGNORE_INDEX))

    def corrupt(
        self, tokens: Tensor, keep: Tensor | None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a noisy copy of texts: tokens are masked, others dropped, and the rest moves a little.

        Args:
            tokens: Token ids (B, S).
            keep: True for real tokens (B, S); None means no padding.
            generator: The source of random numbers; None: that of torch.

        Returns:
            The noisy tokens (B, S), and which of them are real (B, S).
        """
        index = torch.arange(tokens.shape[1], device=tokens.device)
        is_special = self._is_special(tokens)
        is_masked = (self._uniform(tokens, generator) < self.mask_rate) & ~is_special
        is_dropped = (self._uniform(tokens, generator) < DROP_RATE) & ~is_special & (index > 0)
        move = torch.where(
            is_special,
            torch.where(index < len(self.special.before), 0.0, MAX_MOVE),
            MAX_MOVE * self._uniform(tokens, generator),
        )
        is_real = ~is_dropped if keep is None else keep & ~is_dropped
        order = torch.where(is_real, index + move, torch.inf).argsort(dim=1, stable=True)
        noisy = torch.where(is_masked, self.mask_token, tokens).gather(1, order)
        return noisy, is_real.gather(1, order)

    def _is_special(self, tokens: Tensor) -> Tensor:
        special_ids = (*self.special.before, *self.special.after)
        result = torch.zeros_like(tokens, dtype=torch.bool)
        for token in dict.fromkeys(special_ids):
            result = result | (tokens == token)
        return result

    @staticmethod
    def _uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.rand(like.shape, device=like.device, generator=generator)


def build_noise(tokenizer: Tokenizer, mask_rate: float) -> Noise:
    """Return the noise of a tokenizer's vocabulary."""
    return Noise(find_mask_token(tokenizer), tokenizer.vocab_size, tokenizer.special_tokens, mask_rate)


def evaluation_generator(device: Any) -> torch.Generator:
    """Return a generator with a fixed seed, so that every evaluation masks the same tokens."""
    return torch.Generator(device).manual_seed(0)
