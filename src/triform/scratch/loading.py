"""Open a run folder as an estimator of `triform.scratch`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from triform.config import Config, DataConfig
from triform.errors import ConfigError
from triform.io.run_layout import MODEL_FILE
from triform.scratch import run_folder, weights
from triform.scratch.estimators import LanguageModel, TextClassifier, Translator
from triform.scratch.numpy_estimator import NumpyEstimator
from triform.scratch.supported import check_tokenizer, resolve_defaults
from triform.text import load_tokenizer

ESTIMATORS: dict[str, type[NumpyEstimator]] = {
    estimator_class.task: estimator_class for estimator_class in (TextClassifier, LanguageModel, Translator)
}


def load(path: str | Path, *, verify: bool = True) -> TextClassifier | LanguageModel | Translator:
    """Open a run folder that `triform.scratch` or `triform train` wrote.

    Args:
        path: The run folder.
        verify: Compare the files with their digests.

    Returns:
        The estimator of the run's task, ready to predict.

    Raises:
        CheckpointError: The folder is not a run folder, or is damaged.
        ConfigError: The run uses a setting that the NumPy models do not support.

    >>> load("no/such/run")
    Traceback (most recent call last):
    ...
    triform.errors.CheckpointError: no/such/run: no such run folder
    """
    run_path = Path(path)
    config = run_folder.read_config(run_path, verify=verify)
    try:
        estimator = ESTIMATORS[config.task](config)
        has_two_tokenizers = config.task == "translate" and not config.tokenizer.joint_vocab
        file_names = (
            ["tokenizer.source.json", "tokenizer.target.json"] if has_two_tokenizers else ["tokenizer.json"]
        )
        estimator.tokenizers = {file_name: load_tokenizer(run_path / file_name) for file_name in file_names}
        for tokenizer in estimator.tokenizers.values():
            check_tokenizer(tokenizer)
        estimator.build_model()
        estimator.initial_config = clear_data_settings(config)
    except ConfigError as error:
        raise ConfigError(f"{run_path}: {error}") from None
    model_path = run_path / MODEL_FILE
    weights.load_state_dict(estimator.weights, weights.load_tensors(model_path), str(model_path))
    assert isinstance(estimator, TextClassifier | LanguageModel | Translator)
    return estimator


def clear_data_settings(config: Config) -> Config:
    """Return the settings of a run without those that were derived from its data."""
    return resolve_defaults(replace(config, data=DataConfig(), tokenizer=replace(config.tokenizer, vocab_size=0)))
