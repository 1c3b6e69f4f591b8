"""A linear classifier over the terms of a text and over the characters of its words.

Terms are the tokens and the pairs of neighbouring tokens. They have the weights of TF-IDF: (1 + ln(count)) · idf,
divided by the length of this vector. Pairs are hashed, so different pairs may share a weight. A term with an idf of
0 counts for nothing.

The n-grams of the characters of all words form a second vector, count · idf, which is divided by its length too.
The model does not store n-grams: their products with the weights add up to logits of each token, and a random
projection of a token's n-grams is enough for the length (Johnson and Lindenstrauss, 1984).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triform.config import DataSizes, ModelConfig
from triform.config.model import NGRAM_PROJECTION_SIZE
from triform.models.encoder import Classifier
from triform.nn.embedding import hash_bigrams
from triform.nn.layouts import BatchLayout, LayoutLike, PaddedLayout, as_layout


class TermCounts(NamedTuple):
    """The terms of each text, one for each occurrence.

    Attributes:
        ids: Tokens first, then hashed pairs (B, N).
        counts: How often the text has the term of this occurrence (B, N).
        frequencies: Its sublinear frequency divided by its count, so that a sum over all occurrences gives the
            frequency; 0 for padding (B, N).
    """

    ids: Tensor
    counts: Tensor
    frequencies: Tensor


class TermClassifier(nn.Module):
    """A linear classifier over terms, and the weights of the two classifiers.

    No gradient step changes these weights: they are the solutions of convex problems (`training/linear_part.py`).

    Args:
        vocab_size: The number of tokens.
        n_buckets: The number of buckets for pairs of tokens.
        n_labels: The number of labels.
    """

    def __init__(self, vocab_size: int, n_buckets: int, n_labels: int) -> None:
        super().__init__()
        self.vocab_size, self.n_buckets = vocab_size, n_buckets
        n_terms = vocab_size + n_buckets
        self.idf = nn.Parameter(torch.zeros(n_terms), requires_grad=False)
        self.weight = nn.Parameter(torch.zeros(n_terms, n_labels), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(n_labels), requires_grad=False)
        self.ngram_logits = nn.Parameter(torch.zeros(vocab_size, n_labels), requires_grad=False)
        self.ngram_projection = nn.Parameter(torch.zeros(vocab_size, NGRAM_PROJECTION_SIZE), requires_grad=False)
        self.mixture = nn.Parameter(torch.ones(2), requires_grad=False)  # of the encoder, of the terms

    def forward(self, logits: Tensor, tokens: Tensor, layout: BatchLayout) -> Tensor:  # (B, labels) -> (B, labels)
        """Return the weighted sum of the encoder's logits and those of the linear classifier."""
        return self.mixture[0] * logits + self.mixture[1] * self.term_logits(tokens, layout)

    def term_logits(self, tokens: Tensor, layout: BatchLayout) -> Tensor:  # (B, T) -> (B, labels)
        """Return the logits of the linear classifier alone."""
        ids, values = self.features(tokens, layout)
        of_terms = F.embedding_bag(ids, self.weight, mode="sum", per_sample_weights=values)
        return of_terms + self.token_ngram_logits(tokens, layout).sum(dim=1) + self.bias

    def contributions(self, tokens: Tensor, layout: BatchLayout) -> Tensor:  # (B, T) -> (B, T, labels)
        """Return what each token contributes to the logits; a pair contributes one half to each of its tokens."""
        ids, values = self.features(tokens, layout)
        of_tokens, of_pairs = (self.mixture[1] * values[:, :, None] * self.weight[ids]).chunk(2, dim=1)
        of_ngrams = self.mixture[1] * self.token_ngram_logits(tokens, layout)
        return of_tokens + of_ngrams + (of_pairs + F.pad(of_pairs[:, 1:], (0, 0, 0, 1))) / 2

    def token_ngram_logits(self, tokens: Tensor, layout: BatchLayout) -> Tensor:  # (B, T) -> (B, T, labels)
        """Return what the characters of each token add to the logits."""
        tokens, keep = split_texts(tokens, layout)
        projected = (self.ngram_projection[tokens] * keep[:, :, None]).sum(dim=1)  # (B, projection)
        length = projected.norm(dim=1).clamp(min=torch.finfo(projected.dtype).tiny)
        return self.ngram_logits[tokens] * (keep / length[:, None])[:, :, None]

    def features(self, tokens: Tensor, layout: BatchLayout) -> tuple[Tensor, Tensor]:  # -> (B, N), (B, N)
        """Return the terms of each text, one for each occurrence, and their values, which add up to TF-IDF."""
        ids, counts, frequencies = self.count_terms(tokens, layout)
        values = frequencies * self.idf[ids]
        norms = (values.square() * counts).sum(dim=1, keepdim=True).sqrt()
        return ids, values / norms.clamp(min=torch.finfo(values.dtype).tiny)

    def count_terms(self, tokens: Tensor, layout: BatchLayout) -> TermCounts:
        """Count the terms of each text."""
        tokens, keep = split_texts(tokens, layout)  # (B, T)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        pairs = hash_bigrams(tokens, positions, self.n_buckets)
        keep_pairs = keep & (positions > 0)
        counts = torch.cat([_count_equal(tokens, keep), _count_equal(pairs, keep_pairs)], dim=1).to(self.idf.dtype)
        frequencies = (1 + counts.log()) / counts * torch.cat([keep, keep_pairs], dim=1)
        return TermCounts(torch.cat([tokens, self.vocab_size + pairs], dim=1), counts, frequencies)


def _count_equal(ids: Tensor, keep: Tensor) -> Tensor:  # (B, T) -> (B, T)
    """Return how often each id that is kept occurs in its row; the others are counted together.

    Equal ids are neighbours after sorting, so this takes less time and memory than comparing all pairs.
    """
    sorted_ids, order = ids.masked_fill(~keep, -1).sort(dim=1)
    is_other = F.pad(sorted_ids[:, 1:] != sorted_ids[:, :-1], (1, 0))  # than the id before
    groups = is_other.long().cumsum(dim=1)
    sizes = torch.zeros_like(ids).scatter_add(1, groups, torch.ones_like(ids))
    return torch.zeros_like(ids).scatter(1, order, sizes.gather(1, groups))


def split_texts(tokens: Tensor, layout: BatchLayout) -> tuple[Tensor, Tensor]:  # -> (B, T), (B, T)
    """Return the tokens with one text in each row, and a mask that is True for real tokens."""
    ones = torch.ones_like(tokens, dtype=torch.bool)
    if isinstance(layout, PaddedLayout):
        return tokens, ones if layout.keep is None else layout.keep
    return layout.to_padded(tokens), layout.to_padded(ones)


class WideClassifier(Classifier):
    """A classifier with a linear part beside the encoder (wide and deep).

    Nothing is added while the model trains, so that the encoder learns from the texts what it would learn alone.
    The linear part fits its training texts already and would leave it nothing to learn.
    """

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__(config, sizes)
        self.linear_part = TermClassifier(sizes.vocab_size, config.term_buckets, sizes.n_labels)

    def forward(self, tokens: Tensor, keep: LayoutLike = None, segments: Tensor | None = None) -> Tensor:
        logits = super().forward(tokens, keep, segments)
        return logits if self.training else self.linear_part(logits, tokens, as_layout(keep))
