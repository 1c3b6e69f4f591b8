"""Word vectors: train, look up, evaluate, draw, load and save them. See docs/vectors.md."""

from triform.vectors.evaluation import VectorEvaluation, evaluate_analogies, evaluate_similarity
from triform.vectors.word2vec import Word2VecConfig, Word2VecResult, train_word2vec
from triform.vectors.word_vectors import WordVectors

__all__ = [
    "VectorEvaluation",
    "Word2VecConfig",
    "Word2VecResult",
    "WordVectors",
    "evaluate_analogies",
    "evaluate_similarity",
    "train_word2vec",
]
