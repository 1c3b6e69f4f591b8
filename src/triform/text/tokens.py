"""Rows of tokens, and the special tokens around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SPECIAL_TOKENS = (
    "<pad>",
    "<unk>",
    "<bos>",
    "<eos>",
)  # the first tokens of a vocabulary that Triform trains; WordPiece has BERT's names
PAD, UNK, BOS, EOS = range(4)


class TokenRows(NamedTuple):
    """The tokens of many texts in one array, and the number of tokens of each text.

    Attributes:
        tokens: The ids of all texts, one text after the other.
        lengths: The number of tokens of each text.

    >>> rows = TokenRows(np.array([7, 8, 9]), np.array([2, 1]))
    >>> rows.wrap([1], [2]).tokens.tolist()
    [1, 7, 8, 2, 1, 9, 2]
    """

    tokens: NDArray[Any]  # unsigned integers
    lengths: NDArray[np.int64]

    def append_token(self, token: int, row_mask: NDArray[np.bool_]) -> TokenRows:
        """Return the rows with one more token at the end of those that the mask selects.

        Args:
            token: The token.
            row_mask: True for the rows that get the token.

        Returns:
            New rows; these are not changed.
        """
        ends = np.cumsum(self.lengths)[row_mask]
        return TokenRows(np.insert(self.tokens, ends, token), self.lengths + row_mask) if len(ends) else self

    def wrap(self, before: Sequence[int], after: Sequence[int]) -> TokenRows:
        """Return the rows with the same tokens added before and after each of them.

        Args:
            before: Tokens for the start of every row.
            after: Tokens for the end of every row.

        Returns:
            New rows; these are not changed.
        """
        ends = np.cumsum(self.lengths)[:, None]
        starts = ends - self.lengths[:, None]
        positions = np.hstack([starts.repeat(len(before), 1), ends.repeat(len(after), 1)])
        tokens = np.tile(np.array([*before, *after], self.tokens.dtype), len(positions))
        return TokenRows(np.insert(self.tokens, positions.ravel(), tokens), self.lengths + positions.shape[1])


class SpecialTokens(NamedTuple):
    """The ids of the special tokens. A token that is not in the vocabulary is None.

    Attributes:
        pad: Padding.
        unk: A word or character that is not in the vocabulary.
        bos: The start of a text.
        eos: The end of a text.
        before: The tokens that an encoder expects before a text.
        after: The tokens that an encoder expects after a text.
    """

    pad: int | None = PAD
    unk: int | None = UNK
    bos: int | None = BOS
    eos: int | None = EOS
    before: tuple[int, ...] = ()  # the tokens that an encoder expects before a text; `after`: those after it
    after: tuple[int, ...] = ()

    @property
    def pad_or_zero(self) -> int:
        """The token that fills rows up: padding or, without it, token 0, which is masked as well."""
        return 0 if self.pad is None else self.pad

    @property
    def eos_or_bos(self) -> int | None:
        """The token that separates texts: EOS or, without it, BOS."""
        return self.bos if self.eos is None else self.eos

    @property
    def end_token(self) -> int:
        """The token that stands for an empty text."""
        return next((token for token in (self.eos_or_bos, self.unk) if token is not None), self.pad_or_zero)

    @property
    def start_token(self) -> int:
        """The first token that a decoder reads."""
        return self.end_token if self.bos is None else self.bos

    @property
    def unk_or_pad(self) -> int:
        """The token without meaning: the unknown token or, without it, padding."""
        return next((token for token in (self.unk, self.pad) if token is not None), self.end_token)

    def wrap_rows(self, rows: TokenRows) -> TokenRows:
        """Add the special tokens to rows, as a model reads them.

        Args:
            rows: Texts without special tokens.

        Returns:
            New rows, none of them empty.
        """
        if self.before or self.after:
            return rows.wrap(self.before, self.after)
        return rows.append_token(self.end_token, rows.lengths == 0)

    def truncate(self, row: NDArray[Any], max_len: int, *, keep_last: bool = False) -> NDArray[Any]:
        """Truncate a row to the first or the last tokens of its text, and keep the special tokens around it.

        Args:
            row: A text with its special tokens.
            max_len: The number of tokens to keep, special tokens included.
            keep_last: Keep the end of the text instead of its start.

        Returns:
            At most `max_len` tokens.
        """
        if keep_last and len(row) > max_len:
            return np.concatenate([row[: len(self.before)], row[len(row) - max_len + len(self.before) :]])
        if len(row) <= max_len or not self.after:
            return row[:max_len]
        return np.concatenate([row[: max_len - len(self.after)], np.array(self.after, row.dtype)])

    def wrap(self, tokens: Sequence[int], max_len: int = 0) -> list[int]:
        """Add the special tokens to one text.

        Args:
            tokens: A text without special tokens.
            max_len: The number of tokens to keep, special tokens included; 0 keeps all.

        Returns:
            The text with its special tokens, never empty.

        >>> SpecialTokens(before=(1,), after=(2,)).wrap([7, 8, 9], max_len=4)
        [1, 7, 8, 2]
        """
        content = tokens[: max(0, max_len - len(self.before) - len(self.after))] if max_len else tokens
        return [*self.before, *content, *self.after] or [self.end_token]


DEFAULT_SPECIAL_TOKENS = SpecialTokens()
