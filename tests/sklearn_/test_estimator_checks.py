"""scikit-learn's own checks.

They give numbers, so scikit-learn itself leaves out nearly all of them for what reads texts. Here each estimator is
put through every one with its numbers spoken as words (`spoken.py`). scikit-learn itself skips those that want what
is not there: array API input (one for each estimator) and pandas (one). Those that need no data are put to the
estimators as they are.
"""

from __future__ import annotations

from typing import Any

import pytest
from numbers_as_text import (
    NumericInputClassifier,
    NumericInputLanguageModel,
    NumericInputTranslator,
    NumericInputVectorizer,
)
from sklearn.exceptions import SkipTestWarning
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from triform.sklearn import LanguageModel, TextClassifier, TextVectorizer, Translator

TINY: dict[str, Any] = {
    "d_model": 8,
    "n_layers": 1,
    "n_heads": 1,
    "max_steps": 2,
    "device": "cpu",
    "random_state": 0,
}
# A check wants 83 % of three blobs.
TINY_LONGER_TRAINING = TINY | {"d_model": 16, "max_steps": 16, "learning_rate": 0.03}
CHECKS_WITHOUT_DATA = (
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


@parametrize_with_checks(
    [
        NumericInputClassifier(**TINY_LONGER_TRAINING),
        NumericInputVectorizer(**TINY),
        NumericInputLanguageModel(**TINY),
        NumericInputTranslator(**TINY),
    ]
)
def test_an_estimator_that_reads_numbers_as_words_passes_every_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("name", CHECKS_WITHOUT_DATA)
@pytest.mark.parametrize("kind", [TextClassifier, LanguageModel, Translator, TextVectorizer])
def test_the_estimators_themselves_pass_what_needs_no_data(kind: Any, name: str) -> None:
    getattr(estimator_checks, name)(kind.__name__, kind())


@pytest.mark.parametrize("kind", [TextClassifier, LanguageModel, Translator, TextVectorizer])
def test_scikit_learn_knows_that_they_read_texts(kind: Any) -> None:
    with pytest.warns(SkipTestWarning, match="string=True"):
        results = estimator_checks.check_estimator(kind())
    assert {result["status"] for result in results} == {"passed"}
