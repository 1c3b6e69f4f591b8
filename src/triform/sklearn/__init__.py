"""Triform as scikit-learn estimators; docs/sklearn.md shows them at work."""

from __future__ import annotations

from triform.errors import install_command

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"triform.sklearn needs scikit-learn ({error}); install it with {install_command('sklearn')}",
        name=error.name,
    ) from None

from triform.sklearn.classifier import TextClassifier
from triform.sklearn.language_model import LanguageModel
from triform.sklearn.translator import Translator
from triform.sklearn.validation import InputError
from triform.sklearn.vectorizer import TextVectorizer

__all__ = ["InputError", "LanguageModel", "TextClassifier", "TextVectorizer", "Translator"]
