"""The Transformer in NumPy: every layer has its backward pass written by hand beside its forward pass.

There is no torch and no automatic differentiation. Parameters have the names of the torch models, so both sides can
use the same weights and run folders. `docs/scratch.md` explains the code layer by layer.
"""

from triform.scratch.estimators import LanguageModel, TextClassifier, Translator, load

__all__ = ["LanguageModel", "TextClassifier", "Translator", "load"]
