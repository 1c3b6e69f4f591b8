"""The Transformer in NumPy, with a backward pass written by hand for every layer.

It uses neither torch nor automatic differentiation. Parameters have the names of the torch models, so both
implementations can use the same weights and run folders. `docs/scratch.md` explains the code layer by layer.
"""

from triform.scratch.estimators import LanguageModel, TextClassifier, Translator
from triform.scratch.loading import load

__all__ = ["LanguageModel", "TextClassifier", "Translator", "load"]
