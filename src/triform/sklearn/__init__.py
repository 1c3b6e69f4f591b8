"""Triform as scikit-learn estimators. See docs/sklearn.md for a guide."""

from __future__ import annotations

from triform.sklearn.classifier import TextClassifier
from triform.sklearn.language_model import LanguageModel
from triform.sklearn.translator import Translator
from triform.sklearn.validation import InputError
from triform.sklearn.vectorizer import TextVectorizer

__all__ = ["InputError", "LanguageModel", "TextClassifier", "TextVectorizer", "Translator"]
