"""Word vectors: learned from plain text, looked up, judged, drawn, kept; docs/vectors.md shows them at work."""

from triform.vectors.judge import Judged, judge_analogies, judge_pairs
from triform.vectors.table import WordVectors
from triform.vectors.word2vec import Learned, Recipe, learn

__all__ = ["Judged", "Learned", "Recipe", "WordVectors", "judge_analogies", "judge_pairs", "learn"]
