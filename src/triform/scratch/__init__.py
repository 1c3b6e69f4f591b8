"""A Transformer in NumPy alone: every forward pass with its backward pass written by hand beside it.

No torch and no automatic differentiation. The parameters have the names of the torch models, so weights move both
ways; `docs/scratch.md` walks through it.
"""

from triform.scratch.estimators import LanguageModel, TextClassifier, Translator, load

__all__ = ["LanguageModel", "TextClassifier", "Translator", "load"]
