"""What cannot be used is refused in one line that names it."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scratch_twins import MAX_LEN, MODEL_CLASSES, Twins

from triform import scratch
from triform.config import Config, DataConfig, DataSizes, ModelConfig, TokenizerConfig, TrainConfig
from triform.errors import CheckpointError, ConfigError, DataError, DivergedError, TriformError
from triform.scratch import models, weights
from triform.scratch.module import FlatParameters
from triform.scratch.supported import (
    DATA_UNRESTRICTED,
    MODEL_ALLOWED,
    MODEL_UNRESTRICTED,
    TRAIN_ALLOWED,
    TRAIN_IGNORED,
    TRAIN_UNRESTRICTED,
)

SMALL_MODEL = ModelConfig(d_model=8, d_ff=16, n_layers=1, n_heads=2)
QUICK_CONFIG = Config(
    model=SMALL_MODEL, train=TrainConfig(max_steps=2, batch_size=2), tokenizer=TokenizerConfig(kind="word")
)
UNSUPPORTED_MODEL: dict[str, Any] = {
    "positions": "rotary",
    "attention_score": "cosine",
    "norm": "rms",
    "activation": "swiglu",
    "window": 4,
    "layer_windows": (4,),
    "bigram_buckets": 9,
    "term_buckets": 9,
    "n_kv_heads": 1,
    "norm_eps": 1e-3,
    "embedding_norm": True,
    "n_segments": 2,
    "out_bias": "no",
    "pooling": "first",
    "head_activation": "tanh",
    "rotary_base": 500.0,
    "max_distance": 9,
    "n_buckets": 8,
}
UNSUPPORTED_TRAIN: dict[str, Any] = {
    "objective": "masked",
    "token_cutoff": 0.1,
    "optimizer": "sgd",
    "schedule": "plateau",
    "precision": "bf16",
    "grad_accumulation": 2,
    "max_minutes": 5.0,
    "r_drop": 1.0,
    "ema_decay": 0.9,
    "refit_linear_part": True,
    "distill_from": "a run",
    "distill_weight": 0.9,
    "distill_temperature": 4.0,
    "layer_decay": 0.5,
    "freeze_layers": 1,
    "auto_batch": True,
    "parallel": "ddp",
    "exact": True,
    "init_from": "a run",
    "embeddings": "vectors.bin",
}
UNSUPPORTED_DATA: dict[str, Any] = {
    "train": "rows.csv",
    "valid": "rows.csv",
    "text_column": "2",
    "label_column": "1",
    "source_column": "1",
    "target_column": "2",
    "header": "no",
    "delimiter": "semicolon",
    "valid_fraction": 0.3,
    "valid_name": "dev",
    "extra": ("far.csv",),
    "monitor": ("far=far.csv",),
    "train_max_len": 8,
}


def format_value(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("name", UNSUPPORTED_MODEL)
def test_a_setting_of_the_model_that_is_not_known_is_named(name: str) -> None:
    config = replace(SMALL_MODEL, **{name: UNSUPPORTED_MODEL[name]})
    with pytest.raises(
        ConfigError, match=re.escape(f"model.{name}={format_value(UNSUPPORTED_MODEL[name])} is not supported")
    ):
        models.TransformerDecoder(config, DataSizes(vocab_size=5, max_len=4))
    assert MODEL_ALLOWED.keys() <= {*UNSUPPORTED_MODEL, "kind"}
    # The last is for rotary positions alone.
    known = {*MODEL_UNRESTRICTED, *UNSUPPORTED_MODEL, "kind", "rotary_scaling"}
    assert {field.name for field in fields(ModelConfig)} == known, "none is left out in silence"


@pytest.mark.parametrize(
    "settings",
    [{"norm_eps": 1e-5}, {"out_bias": "yes"}, {"bias": False, "out_bias": "no"}, {"layer_windows": (-1,)}],
)
def test_a_setting_given_the_value_it_has_anyway_is_accepted(settings: dict[str, Any]) -> None:
    explicit = replace(SMALL_MODEL, **settings)
    implicit = replace(SMALL_MODEL, bias=explicit.bias)
    built = [
        models.TransformerDecoder(config, DataSizes(vocab_size=5, max_len=4)) for config in (explicit, implicit)
    ]
    assert built[0].named_parameters().keys() == built[1].named_parameters().keys()
    scratch.TextClassifier(replace(QUICK_CONFIG, model=explicit)).fit(["a", "b"], ["x", "y"])


@pytest.mark.parametrize("name", UNSUPPORTED_TRAIN)
def test_a_way_of_training_that_is_not_known_is_named(name: str) -> None:
    train = replace(QUICK_CONFIG.train, **{name: UNSUPPORTED_TRAIN[name]})
    with pytest.raises(ConfigError, match=re.escape(f"train.{name}={UNSUPPORTED_TRAIN[name]} is not supported")):
        scratch.TextClassifier(replace(QUICK_CONFIG, train=train)).fit(["a", "b"], ["x", "y"])
    assert TRAIN_ALLOWED.keys() <= UNSUPPORTED_TRAIN.keys()
    others = {field.name for field in fields(TrainConfig)} - {
        *TRAIN_UNRESTRICTED,
        *TRAIN_IGNORED,
        *UNSUPPORTED_TRAIN,
    }
    others.remove("simcut")  # it needs train.token_cutoff, which is refused
    assert all(name.startswith("lora") for name in others), others


@pytest.mark.parametrize("name", UNSUPPORTED_DATA)
def test_where_files_lie_is_nothing_to_a_learner_that_is_given_its_data(name: str) -> None:
    config = replace(QUICK_CONFIG, data=DataConfig(**{name: UNSUPPORTED_DATA[name]}))
    with pytest.raises(ConfigError, match=re.escape(f"data.{name}={UNSUPPORTED_DATA[name]} applies only to files")):
        scratch.TextClassifier(config).fit(["a", "b"], ["x", "y"])
    others = {field.name for field in fields(DataConfig)} - {*DATA_UNRESTRICTED, *UNSUPPORTED_DATA}
    assert others == {
        "extra_tag",
        "source",
        "target",
        "valid_source",
        "valid_target",
    }, "of translate: tried by themselves"


def test_aligned_files_are_nothing_to_a_translator_that_is_given_its_data() -> None:
    for first, second in (("source", "target"), ("valid_source", "valid_target")):
        config = replace(QUICK_CONFIG, task="translate", data=DataConfig(**{first: "a", second: "b"}))
        with pytest.raises(ConfigError, match=rf"data\.{first}=a applies only to files"):
            scratch.Translator(config).fit(["a", "b"], ["x", "y"])


def test_settings_without_meaning_here_change_nothing() -> None:
    ignored = {"eval_every": 1, "checkpoint_every": 1, "log_every": 1, "momentum": 0.1, "plateau_factor": 0.9}
    ignored |= {"plateau_patience": 1, "patience": 3, "eval_train": 2, "baseline": False, "mask_rate": 0.5}
    assert ignored.keys() == set(TRAIN_IGNORED)
    with_ignored = replace(
        QUICK_CONFIG, train=replace(QUICK_CONFIG.train, **ignored), data=DataConfig(valid_fraction=0.0)
    )
    losses = [
        scratch.TextClassifier(config).fit(["a b", "b"], ["x", "y"]).losses
        for config in (QUICK_CONFIG, with_ignored)
    ]
    assert losses[0] == losses[1]


def test_a_setting_that_must_be_empty_says_so() -> None:
    config = replace(QUICK_CONFIG, train=replace(QUICK_CONFIG.train, init_from="x"))
    with pytest.raises(ConfigError, match=r"train\.init_from=x is not supported .* \(it must be empty\)"):
        scratch.TextClassifier(config).fit(["a", "b"], ["x", "y"])


def test_sizes_left_open_and_vocabularies_that_are_empty_are_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.n_layers=0 is not supported"):
        models.TransformerDecoder(replace(SMALL_MODEL, n_layers=0), DataSizes(vocab_size=5, max_len=4))
    with pytest.raises(ConfigError, match="the vocabulary is empty"):
        models.TransformerDecoder(SMALL_MODEL, DataSizes(vocab_size=0, max_len=4))
    with pytest.raises(ConfigError, match="max_len=0 is too small"):
        models.TransformerDecoder(SMALL_MODEL, DataSizes(vocab_size=5, max_len=0))
    with pytest.raises(ConfigError, match="a classifier needs at least two labels"):
        models.EncoderClassifier(SMALL_MODEL, DataSizes(vocab_size=5, max_len=4, n_labels=1))
    with pytest.raises(DataError, match="no word occurs 1 times or more"):
        scratch.TextClassifier(QUICK_CONFIG).fit([" ", "  "], ["x", "y"])
    with pytest.raises(DataError, match="there is no text to train a tokenizer on"):
        scratch.Translator(QUICK_CONFIG).fit(["", ""], ["", ""])


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_tokens_that_do_not_fit_are_told_with_their_shape(architecture: str) -> None:
    twins = Twins(architecture, {})
    good = twins.inputs["tokens"]
    for bad, message in (
        (good[0], rf"found int64 of shape \({good.shape[1]},\)"),
        (good * 1.0, "found float64"),
        (good[:, :0], r"must be a non-empty array"),
        (np.repeat(good, 3, axis=1), rf"longer than data\.max_len={MAX_LEN}"),
        (good + 11, r"token \d+ is not in the vocabulary, which has ids 0 to 10"),
        (good - 11, r"token -\d+ is not in the vocabulary"),
    ):
        with pytest.raises(DataError, match=message):
            twins.ours(bad)


def test_masks_and_targets_that_do_not_fit_are_told_with_their_shapes() -> None:
    encoder, decoder, seq2seq = (Twins(architecture, {}) for architecture in MODEL_CLASSES)
    with pytest.raises(DataError, match=r"keep has shape \(3, 5\), but the tokens have shape \(3, 6\)"):
        encoder.ours(encoder.inputs["tokens"], encoder.inputs["keep"][:, :5])
    with pytest.raises(DataError, match=r"targets have shape \(2,\), expected \(3,\)"):
        encoder.ours.loss(encoder.inputs["tokens"], np.array([0, 1]))
    with pytest.raises(DataError, match="targets must be from 0 to 2, found 0 to 3"):
        encoder.ours.loss(encoder.inputs["tokens"], np.array([0, 1, 3]))
    with pytest.raises(DataError, match=r"targets have shape \(3, 4\), expected \(3, 5\)"):
        decoder.ours.loss(decoder.inputs["tokens"], decoder.targets["expected"][:, :4])
    with pytest.raises(DataError, match=r"as many sources \(3, 6\) as targets \(2, 5\)"):
        seq2seq.ours(seq2seq.inputs["source"], seq2seq.inputs["target"][:2])


def test_data_that_does_not_fit_is_told() -> None:
    classifier, language_model, translator = (
        estimator_class(QUICK_CONFIG)
        for estimator_class in (scratch.TextClassifier, scratch.LanguageModel, scratch.Translator)
    )
    with pytest.raises(DataError, match="texts has 2 texts but labels has 1; they must have the same length"):
        classifier.fit(["a", "b"], ["x"])
    with pytest.raises(DataError, match="there are no sources to train on"):
        translator.fit([], [])
    with pytest.raises(DataError, match="texts is a single text, 'abc'; pass a list of texts"):
        classifier.fit("abc", "abc")
    with pytest.raises(DataError, match=r"texts: row 1 is 3 \(int\); every row must be a text"):
        classifier.fit(["a", 3], ["x", "y"])
    with pytest.raises(DataError, match="there is only one label, 'x'; a classifier needs at least two labels"):
        classifier.fit(["a", "b"], ["x", "x"])
    config = replace(QUICK_CONFIG, data=DataConfig(labels=("x", "y")))
    with pytest.raises(DataError, match=r"label 'z' is not among data\.labels: x, y"):
        scratch.TextClassifier(config).fit(["a", "b"], ["x", "z"])
    with pytest.raises(DataError, match=r"only 3 tokens to train on, and data\.max_len=9 needs more"):
        scratch.LanguageModel(replace(QUICK_CONFIG, data=DataConfig(max_len=9))).fit("a b c")
    for estimator in (classifier, language_model, translator):
        fresh = type(estimator)(QUICK_CONFIG)
        with pytest.raises(DataError, match="this model is not fitted yet; call fit first"):
            fresh.predict(["a"])
        with pytest.raises(DataError, match="this model is not fitted yet"):
            fresh.save("nowhere")


def test_a_prompt_with_unknown_words_is_refused_and_no_texts_give_no_answers() -> None:
    language_model = scratch.LanguageModel(QUICK_CONFIG).fit("a b c d e f g h " * 9)
    with pytest.raises(DataError, match="the prompt contains text that is not in the vocabulary: 'wings'"):
        language_model.generate(["a wings"])
    assert language_model.generate([]) == []
    assert scratch.TextClassifier(QUICK_CONFIG).fit(["a", "b"], ["x", "y"]).predict([]) == []
    assert scratch.Translator(QUICK_CONFIG).fit(["a", "b"], ["x", "y"]).translate([]) == []


def test_a_loss_that_is_no_number_stops_the_learning() -> None:
    diverging = replace(
        QUICK_CONFIG, train=replace(QUICK_CONFIG.train, lr=1e30, max_steps=50, warmup_steps=0, clip_norm=0.0)
    )
    with pytest.raises(DivergedError, match=r"is not finite at step \d+; lower train\.lr"):
        scratch.TextClassifier(diverging).fit(["a b", "b c"] * 4, ["x", "y"] * 4)


def test_a_step_that_goes_too_far_is_told_even_when_it_is_the_last() -> None:
    diverging = replace(
        QUICK_CONFIG, train=replace(QUICK_CONFIG.train, lr=1e38, max_steps=1, warmup_steps=0, clip_norm=0.0)
    )
    estimator = scratch.TextClassifier(diverging)
    with pytest.raises(DivergedError, match=r"the loss is not finite after the last step, 1"):
        estimator.fit(["a b", "b c"] * 4, ["x", "y"] * 4)
    with pytest.raises(DataError, match="is not fitted yet"):
        estimator.predict(["a"])


def test_a_fit_that_fails_leaves_the_learner_as_it_was(tmp_path: Path) -> None:
    classifier = scratch.TextClassifier(QUICK_CONFIG).fit(["a b", "b c"], ["x", "y"])
    language_model = scratch.LanguageModel(QUICK_CONFIG).fit("a b c d e f g h " * 9)
    translator = scratch.Translator(QUICK_CONFIG).fit(["a b", "b"], ["x y", "y"])
    for estimator, bad_data in (
        (classifier, (["new words"], ["z"])),
        (language_model, ("p",)),
        (translator, (["", ""], ["", ""])),
    ):
        before, losses = estimator.predict(["a", "b"]), estimator.losses
        with pytest.raises(TriformError):
            estimator.fit(*bad_data)
        assert estimator.predict(["a", "b"]) == before
        assert estimator.losses is losses
        estimator.save(tmp_path / estimator.task)
        assert scratch.load(tmp_path / estimator.task).predict(["a", "b"]) == before
    before = classifier.weights.value.copy()
    classifier.initial_config = replace(
        classifier.initial_config, train=replace(QUICK_CONFIG.train, lr=1e38, warmup_steps=0, clip_norm=0.0)
    )
    with pytest.raises(DivergedError):
        classifier.fit(["a b", "b c"], ["x", "y"])
    np.testing.assert_array_equal(classifier.weights.value, before)


def test_whatever_can_be_walked_over_is_taken_and_nothing_else() -> None:
    texts, labels = ["a b", "b c", "c d"], ["x", "y", "x"]
    from_lists = scratch.TextClassifier(QUICK_CONFIG).fit(texts, labels)
    from_iterators = scratch.TextClassifier(QUICK_CONFIG).fit((text for text in texts), iter(labels))
    assert from_iterators.losses == from_lists.losses
    assert from_iterators.predict(text for text in texts) == from_lists.predict(texts)
    language_model = scratch.LanguageModel(QUICK_CONFIG).fit(text * 9 for text in texts)
    translator = scratch.Translator(QUICK_CONFIG).fit(iter(texts), iter(labels))
    for invalid in (None, 5, np.array(5)):
        for call in (from_lists.predict, language_model.fit, language_model.generate, translator.translate):
            with pytest.raises(DataError, match=r"(texts|prompts) is .*(pass a list of texts|one dimension)"):
                call(invalid)
        with pytest.raises(DataError, match=r"labels is .*(pass a list of texts|one dimension)"):
            from_lists.fit(texts, invalid)


def test_labels_are_plain_strings_whatever_held_them() -> None:
    estimator = scratch.TextClassifier(QUICK_CONFIG).fit(np.array(["a b", "b c", "d"]), np.array(["x", " y", "y"]))
    assert estimator.labels == ("x", "y")
    assert all(type(label) is str for label in (*estimator.labels, *estimator.predict(["a", "b"])))


def test_labels_that_are_none_are_told_with_their_row() -> None:
    texts = ["a", "b", "c"]
    with pytest.raises(DataError, match=r"labels: row 1 is 1 \(int\)"):
        scratch.TextClassifier(QUICK_CONFIG).fit(texts, ["0", 1, 0])
    with pytest.raises(DataError, match=r"labels: row 0 is True \(bool\)"):
        scratch.TextClassifier(QUICK_CONFIG).fit(texts, [True, False, True])
    with pytest.raises(DataError, match="the label of row 3 is empty"):
        scratch.TextClassifier(QUICK_CONFIG).fit(texts, ["x", "y", " "])
    for labels in (("x", "x", "y"), ("x", "y", "")):
        config = replace(QUICK_CONFIG, data=DataConfig(labels=labels))
        with pytest.raises(ConfigError, match=r"data\.labels=.* must be distinct, non-empty names"):
            scratch.TextClassifier(config).fit(texts, ["x", "y", "x"])


@pytest.mark.parametrize("seed", [-5, 1.5, "x", 2**32])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    language_model = scratch.LanguageModel(QUICK_CONFIG).fit("a b c d e f g h " * 9)
    with pytest.raises(ConfigError, match=rf"seed='?{re.escape(str(seed))}'? must"):
        language_model.generate(["a"], seed=seed)


def test_the_seed_of_the_settings_is_a_whole_number() -> None:
    with pytest.raises(ConfigError, match=r"seed=1\.5 must be a whole number"):
        scratch.TextClassifier(replace(QUICK_CONFIG, seed=1.5))


@pytest.mark.parametrize("architecture", MODEL_CLASSES)
def test_lists_do_as_well_as_arrays(architecture: str) -> None:
    twins = Twins(architecture, {})
    lists = {name: array.tolist() for name, array in (twins.inputs | twins.targets).items()}
    assert twins.ours.loss(**lists)[0] == twins.ours.loss(**twins.inputs, **twins.targets)[0]
    (tokens, *_) = twins.inputs
    for bad, message in ((None, r"found object of shape \(\)"), ([[1, 2], [3]], "rows of equal length")):
        inputs = twins.inputs | {tokens: bad, **({"target": bad} if architecture == "seq2seq" else {})}
        inputs = {name: array for name, array in inputs.items() if "keep" not in name}
        with pytest.raises(DataError, match=message):
            twins.ours(**inputs)


@pytest.mark.parametrize("architecture", MODEL_CLASSES)
def test_targets_must_be_whole_numbers_and_smoothing_a_share(architecture: str) -> None:
    twins = Twins(architecture, {})
    ((name, targets),) = twins.targets.items()
    with pytest.raises(DataError, match="targets must be integers, found float64"):
        twins.ours.loss(**twins.inputs, **{name: targets * 1.0})
    for share in (2.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match=rf"smoothing={share} must be between 0 and 1"):
            twins.ours.loss(**twins.inputs, **twins.targets, smoothing=share)


def test_a_model_without_weights_and_sizes_below_nothing_are_told() -> None:
    sizes = DataSizes(vocab_size=5, max_len=4, n_labels=2)
    for model_class, _ in MODEL_CLASSES.values():
        inputs = [np.zeros((1, 2), int)] * (2 if model_class is models.EncoderDecoder else 1)
        with pytest.raises(DataError, match=r"no weights yet; allocate them with FlatParameters\(model\)"):
            model_class(SMALL_MODEL, sizes)(*inputs)
    with pytest.raises(ConfigError, match="target_vocab_size=-2 must be at least 1, or 0"):
        models.EncoderDecoder(SMALL_MODEL, replace(sizes, target_vocab_size=-2))


def test_weights_that_cannot_be_kept_are_refused_before_any_is_written() -> None:
    model = models.TransformerDecoder(SMALL_MODEL, DataSizes(vocab_size=5, max_len=4))
    parameters = FlatParameters(model)
    # Lists will do.
    weights.load_state_dict(
        parameters, {name: parameter.value.tolist() for name, parameter in parameters.named.items()}
    )
    last = list(parameters.named)[-1]
    for bad, message in (
        (np.full(parameters.named[last].shape, 1e300), f"{last} contains NaN or infinity"),
        (np.full(parameters.named[last].shape, 1 + 1j), f"{last} must contain real numbers, found complex128"),
        (np.full(parameters.named[last].shape, "a"), f"{last} must contain real numbers, found <U1"),
        ([1.0], rf"{last} has shape \(1,\), expected"),
    ):
        ones = {name: np.ones(parameter.shape) for name, parameter in parameters.named.items()}
        with pytest.raises(CheckpointError, match=message):
            weights.load_state_dict(parameters, {**ones, last: bad})
        assert not parameters.value.any()
