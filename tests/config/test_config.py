"""Settings: frozen, named, checked; in and out of TOML; and the presets with the reports' own numbers."""

from __future__ import annotations

import tomllib
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triform import config as settings_module
from triform.config import (
    Config,
    DataConfig,
    DataSizes,
    DecodeConfig,
    ModelConfig,
    OptimizerKind,
    ScheduleKind,
    TaskName,
    TokenizerConfig,
    TokenizerKind,
    TrainConfig,
)
from triform.config.bounds import BOUNDS
from triform.config.presets import REPORTED_SIZES, SIZE_PRESETS, SYSTEM_PRESETS, preset
from triform.config.settings import (
    DEFAULTS,
    SETTING_TYPES,
    build_config,
    coerce_setting,
    describe_differences,
    flatten_config,
    merge_settings,
    non_default_settings,
    parse_assignments,
    parse_settings,
    read_settings,
    split_number_or_word,
    suggest_name,
    to_toml,
)
from triform.errors import ConfigError
from triform.io.run_layout import LAST_CONFIG_KEY
from triform.tasks import TASKS
from triform.text import TOKENIZERS
from triform.training.optim import SCHEDULES, build_optimizer, build_schedule

SECTIONS = {
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "model": ModelConfig,
    "train": TrainConfig,
    "decode": DecodeConfig,
}


def settings_of_type(setting_type: Any) -> list[str]:
    return [
        name for name, hint in SETTING_TYPES.items() if hint is setting_type or get_origin(hint) is setting_type
    ]


# -- frozen and keyword-only


@pytest.mark.parametrize("kind", [Config, DataSizes, *SECTIONS.values()])
def test_settings_are_frozen_and_given_by_name(kind: type) -> None:
    assert is_dataclass(kind)
    assert all(field.kw_only for field in fields(kind))
    instance = DataSizes(vocab_size=9, max_len=2) if kind is DataSizes else kind()
    with pytest.raises(FrozenInstanceError):
        setattr(instance, fields(kind)[0].name, 1)
    with pytest.raises(TypeError):
        kind(1)


def test_every_setting_has_a_dotted_name_and_a_default_of_its_own_type() -> None:
    assert set(SETTING_TYPES) == set(DEFAULTS) == set(flatten_config(Config()))
    for name, value in DEFAULTS.items():
        assert coerce_setting(name, value) == value, name


# -- every check refuses a wrong value and names the setting

INVALID_VALUES = [
    *((f"data.{name}", -1) for name in ("max_len", "train_max_len")),
    *(("data.valid_fraction", value) for value in (-0.1, 0.6)),
    ("tokenizer.vocab_size", -1),
    ("tokenizer.min_count", 0),
    *((f"model.{name}", -1) for name in ("d_model", "d_ff", "n_layers", "n_heads", "n_kv_heads", "head_hidden")),
    *((f"model.{name}", -1) for name in ("max_distance", "bigram_buckets", "term_buckets", "n_segments")),
    ("model.norm_eps", -1e-5),
    *(("model.rotary_scaling", value) for value in ((0.0,), (2.0, 1.0), (8.0, 4.0, 1.0, 64.0), (2.0,))),
    ("model.n_buckets", 3),
    *(("model.rotary_base", value) for value in (1.0, 0.0, -5.0)),
    *(("model.window", value) for value in (-2, 0)),
    *(("model.layer_windows", value) for value in ((0,), (8, 0), (-2,), (-1, -7))),
    *((f"model.{name}", value) for name in ("dropout", "attention_dropout") for value in (-0.01, 0.96)),
    *((f"train.{name}", -0.5) for name in ("lr", "weight_decay", "clip_norm", "epochs", "max_minutes")),
    *((f"train.{name}", -1) for name in ("batch_size", "batch_tokens", "max_steps")),
    *((f"train.{name}", -1) for name in ("eval_every", "checkpoint_every", "log_every", "plateau_patience")),
    ("train.grad_accumulation", 0),
    ("train.warmup_steps", -2),
    ("train.patience", -2),
    ("train.eval_train", -2),
    *(("train.label_smoothing", value) for value in (-0.1, 0.91)),
    *((f"train.{name}", value) for name in ("min_lr_ratio", "momentum") for value in (-0.1, 1.1)),
    *(("train.plateau_factor", value) for value in (0.0, 1.0)),
    *(("train.layer_decay", value) for value in (0.0, 1.1)),
    ("train.freeze_layers", -2),
    ("train.lora_rank", -1),
    ("train.lora_alpha", -0.5),
    *(("train.lora_dropout", value) for value in (-0.1, 1.0)),
    ("train.mask_rate", 0.0),
    *(("train.token_cutoff", value) for value in (-0.1, 0.91)),
    ("train.simcut", -0.5),
    ("train.r_drop", -0.5),
    *(("train.distill_weight", value) for value in (-0.1, 1.1)),
    ("train.distill_temperature", 0.0),
    *(("train.ema_decay", value) for value in (-0.1, 1.0)),
    ("tokenizer.max_vocab_size", 0),
    *(("tokenizer.bpe_dropout", value) for value in (-0.1, 0.6)),
    *(("train.betas", value) for value in ((0.9,), (0.9, 1.0), (-0.1, 0.9), (0.1, 0.2, 0.3))),
    *(("decode.temperature", value) for value in (0.0, -1.0)),
    *(("decode.top_p", value) for value in (0.0, 1.01)),
    *((f"decode.{name}", -1) for name in ("top_k", "max_new_tokens")),
    ("decode.length_penalty", -0.1),
    ("decode.beam_size", 0),
    *(("seed", value) for value in (-1, 2**32)),
]


@pytest.mark.parametrize(("name", "value"), INVALID_VALUES)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config({name: value})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_number_has_a_range() -> None:
    assert {*settings_of_type(int), *settings_of_type(float)} <= {name for name, _ in INVALID_VALUES}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, value in INVALID_VALUES if isinstance(value, int)]
)
def test_the_smallest_good_value_is_accepted(name: str, value: int) -> None:
    smallest = value + 1 if value < 2**32 else value - 1
    assert flatten_config(build_config({name: smallest}))[name] == smallest


def test_a_width_that_heads_do_not_divide_is_refused_with_two_that_they_do() -> None:
    with pytest.raises(ConfigError, match=r"model\.d_model=100 .* model\.n_heads=8; try d_model=96 or 104"):
        ModelConfig(d_model=100, n_heads=8)
    with pytest.raises(ConfigError, match="try d_model=8"):
        ModelConfig(d_model=3, n_heads=8)
    assert ModelConfig(d_model=96, n_heads=8).head_dim == 12


def test_sinusoids_need_an_even_width() -> None:
    for kind in ("sinusoidal", "sinusoidal_halves"):
        with pytest.raises(ConfigError, match=rf"model\.positions={kind} needs an even model\.d_model, not 15"):
            ModelConfig(d_model=15, positions=kind)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "alibi", "relative", "t5", "none"])
def test_only_rotary_needs_an_even_head(positions: Any) -> None:
    assert ModelConfig(d_model=12, n_heads=4, positions=positions).head_dim == 3
    with pytest.raises(
        ConfigError, match=r"positions=rotary needs an even head size; model\.d_model / model\.n_heads is 3"
    ):
        ModelConfig(d_model=12, n_heads=4, positions="rotary")
    assert ModelConfig(d_model=16, n_heads=4, positions="rotary").head_dim == 4


def test_heads_are_shared_by_groups_of_one_size() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig(d_model=48, n_heads=12, n_kv_heads=5)
    message = str(caught.value)
    assert "model.n_heads=12 is not divisible by model.n_kv_heads=5" in message
    assert message.endswith("choose from 1, 2, 3, 4, 6, 12")
    for count in (1, 2, 3, 4, 6, 12):
        assert ModelConfig(d_model=48, n_heads=12, n_kv_heads=count).kv_heads == count
    assert ModelConfig(d_model=48, n_heads=12).kv_heads == 12
    with pytest.raises(ConfigError, match=r"n_kv_heads=24"):
        ModelConfig(d_model=48, n_heads=12, n_kv_heads=24)


@pytest.mark.parametrize("assignment", ["model.window=0", "model.layer_windows=0", "model.layer_windows=4,0"])
def test_a_window_of_nothing_is_refused_with_what_to_write_instead(assignment: str) -> None:
    with pytest.raises(ConfigError, match=r"is too small; a window must be at least 1, or -1 for no limit"):
        build_config(parse_assignments([assignment, "model.n_layers=2"]))


@pytest.mark.parametrize("width", [-2, -3, -100])
def test_only_minus_one_means_no_window(width: int) -> None:
    for setting in ({"model.window": width}, {"model.layer_windows": (width,)}):
        with pytest.raises(ConfigError, match=rf"={width} must be between -1 and"):
            build_config(setting)
    assert build_config({"model.window": -1}).model.window == -1


def test_a_pattern_of_windows_fits_the_layers_or_is_refused() -> None:
    for layers, pattern, widths in ((4, (8, -1), (8, -1, 8, -1)), (3, (2,), (2, 2, 2)), (2, (1, 2), (1, 2))):
        assert ModelConfig(n_layers=layers, layer_windows=pattern).windows == widths
    assert ModelConfig(n_layers=3, window=5).windows == (5, 5, 5)
    assert ModelConfig(n_layers=3).windows == (-1, -1, -1)
    for layers, pattern in ((3, (8, -1)), (2, (1, 2, 3)), (5, (1, 1))):
        with pytest.raises(ConfigError) as caught:
            ModelConfig(n_layers=layers, layer_windows=pattern)
        message = str(caught.value)
        assert f"model.layer_windows={list(pattern)}" in message
        assert f"model.n_layers={layers}" in message
        assert "must be a multiple" in message


def test_additive_scores_refuse_positions_that_change_a_dot_product() -> None:
    for positions in ("rotary", "relative"):
        with pytest.raises(ConfigError) as caught:
            ModelConfig(attention_score="additive", positions=positions)
        assert f"model.positions={positions} does not work with model.attention_score=additive" in str(caught.value)
        assert "use the positions t5, alibi, learned or sinusoidal" in str(caught.value)
    for positions in ("t5", "alibi", "learned", "sinusoidal", "none"):
        assert ModelConfig(attention_score="additive", positions=positions).positions == positions


@pytest.mark.parametrize("task", ["generate", "translate"])
def test_a_decoder_may_not_read_ahead(task: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"model\.attention_direction=full would let the decoder .* for {task}, use auto or causal",
    ):
        build_config({"task": task, "model.attention_direction": "full"})
    for direction in ("auto", "causal"):
        assert (
            build_config({"task": task, "model.attention_direction": direction}).model.attention_direction
            == direction
        )
    for direction in ("auto", "causal", "full"):
        assert (
            build_config({"task": "classify", "model.attention_direction": direction}).model.attention_direction
            == direction
        )


def test_t5_buckets_are_even_and_reach_beyond_the_exact_ones() -> None:
    with pytest.raises(ConfigError, match=r"model\.n_buckets=9 must be even: one half is for each direction"):
        ModelConfig(positions="t5", n_buckets=9)
    with pytest.raises(
        ConfigError, match=r"model\.max_distance=16 is too small: .*n_buckets=32 it must be above 16"
    ):
        ModelConfig(positions="t5", max_distance=16)
    with pytest.raises(ConfigError, match=r"model\.max_distance=128 is too small: .*n_buckets=300"):
        ModelConfig(positions="t5", n_buckets=300)
    assert ModelConfig(positions="t5", max_distance=17).max_distance == 17
    assert ModelConfig(positions="relative", max_distance=3).max_distance == 3  # no buckets there


@pytest.mark.parametrize(
    ("settings", "both"),
    [
        ({"train.batch_size": 4, "train.batch_tokens": 100}, ("train.batch_size", "train.batch_tokens")),
        ({"train.max_steps": 4, "train.epochs": 1.0}, ("train.max_steps", "train.epochs")),
        ({"model.window": 4, "model.layer_windows": (2, -1)}, ("model.window", "model.layer_windows")),
        ({"task": "translate", "data.source": "a"}, ("data.source", "data.target")),
        ({"task": "translate", "data.target": "a"}, ("data.source", "data.target")),
        ({"data.valid_source": "a"}, ("data.valid_source", "data.valid_target")),
        ({"data.source": "a", "data.target": "b"}, ("data.source", "data.target")),
        ({"train.lora_rank": 4}, ("train.lora_rank", "train.init_from")),
        ({"task": "translate", "decode.mix": ("ngram",)}, ("decode.mix", "translate")),
        (
            {"task": "generate", "decode.mix": ("ngram",), "data.train": "a.txt", "data.valid_fraction": 0.0},
            ("decode.mix", "data.valid_fraction"),
        ),
        (
            {"task": "generate", "decode.mix": ("ngram",), "decode.strategy": "beam"},
            ("decode.mix", "decode.strategy"),
        ),
        ({"train.embeddings": "v.bin", "train.init_from": "a"}, ("--embeddings", "--from")),
        (
            {"train.lora_rank": 4, "train.init_from": "a", "train.freeze_layers": 1},
            ("train.lora_rank", "train.freeze_layers"),
        ),
    ],
)
def test_settings_that_do_not_go_together_are_both_named(settings: dict[str, Any], both: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(settings)
    assert all(name in str(caught.value) for name in both)


# -- `--set`: text in, the field's type out


@pytest.mark.parametrize("name", settings_of_type(int))
def test_whole_numbers_are_read_from_text(name: str) -> None:
    assert parse_assignments([f"{name}=7"]) == {name: 7}
    assert parse_assignments([f" {name} = 1_000 "]) == {name: 1000}
    for wrong in ("x", "1.5", "1e3", "", "true"):
        with pytest.raises(ConfigError, match=rf"{name}='{wrong}' must be a whole number"):
            parse_assignments([f"{name}={wrong}"])


@pytest.mark.parametrize("name", settings_of_type(float))
def test_numbers_are_read_from_text(name: str) -> None:
    assert parse_assignments([f"{name}=2.5e-1"]) == {name: 0.25}
    parsed = parse_assignments([f"{name}=3"])[name]
    assert parsed == 3.0
    assert type(parsed) is float
    for wrong in ("x", "", "nan", "inf", "-inf"):
        with pytest.raises(ConfigError, match=rf"{name}=.* must be a number"):
            parse_assignments([f"{name}={wrong}"])


@pytest.mark.parametrize("name", settings_of_type(bool))
def test_truth_is_read_from_text(name: str) -> None:
    for text, value in (("true", True), ("True", True), ("false", False), ("FALSE", False)):
        assert parse_assignments([f"{name}={text}"])[name] is value
    for wrong in ("1", "yes", ""):
        with pytest.raises(ConfigError, match=rf"{name}='{wrong}' must be true or false"):
            parse_assignments([f"{name}={wrong}"])


@pytest.mark.parametrize("name", settings_of_type(str))
def test_text_stays_text(name: str) -> None:
    assert parse_assignments([f"{name}=a=b, c"]) == {name: "a=b, c"}
    assert parse_assignments([f"{name}=3"]) == {name: "3"}
    with pytest.raises(ConfigError, match=rf"{name}=3 must be text"):
        coerce_setting(name, 3)


@pytest.mark.parametrize("name", settings_of_type(Literal))
def test_a_choice_is_one_of_its_names(name: str) -> None:
    for option in get_args(SETTING_TYPES[name]):
        assert parse_assignments([f"{name}={option}"]) == {name: option}
    with pytest.raises(ConfigError) as caught:
        parse_assignments([f"{name}=other"])
    assert f"{name}=other is not valid; choose from " in str(caught.value)
    assert all(option in str(caught.value) for option in get_args(SETTING_TYPES[name]))


def test_a_misspelt_choice_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.kind=wordpeice is not valid.*did you mean 'wordpiece'\?"):
        parse_assignments(["tokenizer.kind=wordpeice"])


def test_lists_are_read_from_text_with_commas() -> None:
    assert parse_assignments(["train.betas=0.9, 0.95"]) == {"train.betas": (0.9, 0.95)}
    assert parse_assignments(["data.labels=no, maybe,yes"]) == {"data.labels": ("no", "maybe", "yes")}
    assert parse_assignments(["model.layer_windows=8, -1"]) == {"model.layer_windows": (8, -1)}
    assert parse_assignments(["model.rotary_scaling=8,1,4,8192"]) == {
        "model.rotary_scaling": (8.0, 1.0, 4.0, 8192.0)
    }
    assert settings_of_type(tuple) == [
        "data.extra", "data.monitor", "data.labels", "model.rotary_scaling", "model.layer_windows", "train.betas",
        "decode.mix",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"model\.layer_windows='1\.5' must be a whole number"):
        parse_assignments(["model.layer_windows=8,1.5"])
    with pytest.raises(ConfigError, match=r"train\.betas='x' must be a number"):
        parse_assignments(["train.betas=0.9,x"])
    with pytest.raises(ConfigError, match=r"data\.labels=3 must be a list"):
        coerce_setting("data.labels", 3)


def test_every_kind_of_setting_was_tried_above() -> None:
    tested = [name for kind in (int, float, bool, str, Literal, tuple) for name in settings_of_type(kind)]
    tested += ["train.eval_every"]  # a whole number or a word: see test_several_sets
    assert sorted(tested) == sorted(SETTING_TYPES)


def test_a_value_of_the_wrong_type_is_refused_even_where_python_would_not_mind() -> None:
    for name, value in (("seed", True), ("seed", 1.0), ("model.bias", 1), ("train.lr", True), ("train.lr", None)):
        with pytest.raises(ConfigError, match=name):
            coerce_setting(name, value)


def test_an_assignment_without_an_equals_sign_says_how_to_write_it() -> None:
    with pytest.raises(ConfigError, match="--set 'seed' has no '='; write --set name=value"):
        parse_assignments(["seed"])


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("model.d_modle", "model.d_model"),
        ("d_model", "model.d_model"),
        ("train.d_model", "model.d_model"),
        ("decode.topk", "decode.top_k"),
        ("sed", "seed"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_assignments([f"{wrong}=1"])
    assert f"unknown setting {wrong!r}" in str(caught.value)
    assert f"did you mean {right!r}?" in str(caught.value)


def test_a_name_like_no_other_gets_the_list() -> None:
    assert suggest_name("qqqqqq", ["lr", "seed"]) == "known are lr, seed"


# -- TOML


def text_strategy() -> st.SearchStrategy[str]:
    awkward = ['"', "'", "\\", '"""', "a\nb", "\r\n", "\t", "\x00", "\x1f", "\x7f", "é", "日本", "😀", "#"]
    return st.lists(st.one_of(st.sampled_from(awkward), st.text(max_size=8)), max_size=4).map("".join)


NUMBERS = {int, float, tuple[int, ...], tuple[float, ...]}


def test_every_setting_that_is_a_number_has_bounds_and_its_default_lies_between_them() -> None:
    assert set(BOUNDS) == {name for name, hint in SETTING_TYPES.items() if split_number_or_word(hint)[0] in NUMBERS}
    for low, high in BOUNDS.values():
        assert low < high


@pytest.mark.parametrize("name", sorted(BOUNDS))
@pytest.mark.parametrize("digits", [40, 300, 4000, 5000])
def test_a_number_beyond_any_use_is_refused_by_its_name(name: str, digits: int) -> None:
    for sign in ("", "-"):
        text = sign + "9" * digits
        with pytest.raises(ConfigError, match=rf"^{name}=.{{1,90}} must ") as refused:
            build_config(parse_assignments([f"{name}={text}"]))
        assert len(str(refused.value)) < 200
        if digits < 4300:
            value = int(text)
            with pytest.raises(ConfigError, match=rf"^{name}=.{{1,90}} must "):
                build_config({name: (value, value) if "[" in str(SETTING_TYPES[name]) else value})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "model.window=99999999999999999999",
            "model.window=99999999999999999999 must be between -1 and 2147483648",
        ),
        ("decode.length_penalty=1e308", "decode.length_penalty=1e+308 must be between 0 and 10"),
        ("decode.beam_size=1000000", "decode.beam_size=1000000 must be between 1 and 1000"),
        ("model.n_layers=1000000", "model.n_layers=1000000 must be between 0 and 1000"),
        ("train.lr=1e999", "train.lr=inf must be a number"),
    ],
)
def test_a_refused_number_is_shown_with_what_is_allowed(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build_config(parse_assignments([setting]))
    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["seed = " + "9" * 5000, "seed = " + "[" * 50_000, "seed = " + "{a=" * 5000])
def test_toml_that_python_cannot_parse_names_the_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"odd\.toml: not valid TOML: ") as refused:
        read_settings(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def number_strategy(name: str) -> st.SearchStrategy[Any]:
    """Every number that the setting may have."""
    low, high = BOUNDS[name]
    return st.integers(int(low), int(high)) if SETTING_TYPES[name] is int else st.floats(low, high, allow_nan=False)


def settings_strategy(*, layered: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Any good settings; `layered`: with a pattern of windows instead of one."""
    by_name: dict[str, st.SearchStrategy[Any]] = {
        "task": st.sampled_from(get_args(TaskName)),
        "data.labels": st.lists(text_strategy().map(str.strip), max_size=4).map(tuple),
        "data.max_len": st.integers(2, 2**20),
        "data.train_max_len": st.sampled_from([0, 2]),
        "data.valid_name": text_strategy().filter(lambda name: name not in ("", "train", "a", "b")),
        "data.monitor": st.lists(st.sampled_from(["a=x", "b=y=z"]), unique=True).map(tuple),
        "train.eval_every": st.one_of(st.just("epoch"), st.integers(0, 10**9)),
        "model.n_heads": st.just(0),
        "model.n_buckets": st.integers(2, 64).map(lambda half: 2 * half),  # half of them below every max_distance
        "model.max_distance": st.integers(1000, 2**24),
        "model.rotary_base": st.floats(1, 1e12, exclude_min=True),
        "model.kind": st.just("transformer"),  # to others most of what is drawn here means nothing
        "model.attention_direction": st.sampled_from(["auto", "causal"]),
        "model.attention_score": st.sampled_from(["scaled_dot", "dot", "cosine"]),
        "model.attention_scale": st.just("head_dim"),  # the only one that every score accepts
        "model.n_layers": st.just(12),
        "model.d_model": st.integers(0, 2**15).map(lambda half: 2 * half),
        "train.betas": st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
        "train.batch_tokens": st.just(0),
        "train.epochs": st.just(0.0),
        "train.r_drop": st.just(0.0),
        "train.simcut": st.just(0.0),  # needs train.token_cutoff
        "train.objective": st.just("auto"),  # the others are for one task
        "data.extra": st.just(()),  # not for generate
        "data.extra_tag": st.just(""),  # needs data.extra
        "train.refit_linear_part": st.just(False),  # for classify only
        "tokenizer.bpe_dropout": st.just(0.0),
        "model.bigram_buckets": st.just(0),
        "model.term_buckets": st.just(0),
        "train.lora_rank": st.just(0),
        "train.embeddings": st.just(""),
        "train.parallel": st.sampled_from(["auto", "ddp"]),  # train.exact excludes fsdp
        "model.rotary_scaling": st.just(()),
        "decode.top_p": st.floats(1e-9, 1),
        "decode.mix": st.just(()),  # for generate only
        **{f"data.{name}": st.just("") for name in ("source", "target", "valid_source", "valid_target")},
    }
    windows = st.lists(st.one_of(st.just(-1), st.integers(1, 2**31)), min_size=1, max_size=4).map(tuple)
    by_name |= {"model.window": st.one_of(st.just(-1), st.integers(1, 2**31)), "model.layer_windows": st.just(())}
    if layered:
        by_name |= {"model.window": st.just(-1), "model.layer_windows": windows}
        by_name |= {"model.attention_score": st.just("scaled_dot")}
        del by_name["model.attention_scale"]  # any
    for name, hint in SETTING_TYPES.items():
        if name in BOUNDS:
            by_name.setdefault(name, number_strategy(name))
        elif name not in by_name:
            strategies = {bool: st.booleans(), str: text_strategy()}
            by_name[name] = strategies[hint] if hint in strategies else st.sampled_from(get_args(hint))
    return st.fixed_dictionaries({}, optional=by_name)


@given(st.one_of(settings_strategy(layered=False), settings_strategy(layered=True)))
def test_toml_gives_back_every_setting_unchanged(values: dict[str, Any]) -> None:
    config = build_config(values)
    text = to_toml(config, {"format": 1, "triform": '0.1"0'})
    tree = tomllib.loads(text)
    assert tree["format"] == 1
    assert tree["triform"] == '0.1"0'
    parsed = parse_settings(tree, Path("config.toml"))
    assert list(parsed) == list(SETTING_TYPES)
    assert build_config(parsed) == config
    assert [type(value) for value in parsed.values()] == [type(value) for value in flatten_config(config).values()]


def test_toml_survives_the_disk(tmp_path: Path) -> None:
    labels = ('say "no"', "two\nlines", "tab\tcr\r", "naïve 日本 😀", "\\", "# no comment", "a = 1", "\x7f\x00")
    config = build_config({"data.labels": labels, "train.lr": 1e-05, "train.clip_norm": 1e16, "model.bias": False})
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config, {}), encoding="utf-8")
    assert build_config(read_settings(path)) == config


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[model]\nd_modle = 3\n", "unknown setting 'model.d_modle'; did you mean 'model.d_model'?"),
        ("[modle]\nd_model = 3\n", "did you mean 'model.d_model'?"),
        ("[model]\nd_model = 3.5\n", "model.d_model=3.5 must be a whole number"),
        ("[model]\nd_model = '3.5'\n", "model.d_model='3.5' must be a whole number"),
        ("model = 3\n", "unknown setting 'model'"),
        ("seed = true\n", "seed=True must be a whole number"),
        ("[train]\nlr = nan\n", "train.lr=nan must be a number"),
        ("[train]\nlr = inf\n", "train.lr=inf must be a number"),
        ("[train]\nbetas = 1\n", "train.betas=1 must be a list"),
        ("[seed]\nx = 1\n", "unknown setting 'seed.x'"),
        ("seed = \n", "not valid TOML"),
        ("seed = 1\nseed = 2\n", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong_in_it(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        build_config(read_settings(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_settings(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'task = "\xe9"')
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "latin.toml")


def test_settings_lie_over_a_base_and_differences_are_named() -> None:
    base = build_config({"model.d_model": 64, "seed": 3})
    merged = build_config({"model.n_heads": 4}, base)
    assert (merged.model.d_model, merged.model.n_heads, merged.seed) == (64, 4, 3)
    assert non_default_settings(flatten_config(merged)) == {"model.d_model": 64, "model.n_heads": 4, "seed": 3}
    assert describe_differences({"model.d_model": 64, "seed": 4}, merged) == ["seed: 4 (the run has 3)"]


# -- presets


def test_the_presets_are_those_of_the_design() -> None:
    assert {*SYSTEM_PRESETS, *SIZE_PRESETS} == {
        *("imdb-encoder", "shakespeare-char", "ted-set1", "ted-set2", "ted-set3", "ted-set4"),
        *("speeches-classifier", "speeches-lm", "speeches-window", "multi30k-tiny"),
        *("tiny", "small", "base", "gpt2-small", "bert-base", "transformer-base"),
    }
    assert set(REPORTED_SIZES) <= set(SYSTEM_PRESETS)


@pytest.mark.parametrize("name", SYSTEM_PRESETS)
def test_a_system_has_a_task_of_its_own(name: str) -> None:
    config = preset(name)
    assert config == preset(name, config.task)
    assert build_config(non_default_settings(flatten_config(config))) == config
    assert (SYSTEM_PRESETS[name].__doc__ or "").endswith(".")
    for task in get_args(TaskName):
        if task != config.task:
            with pytest.raises(ConfigError, match=f"preset '{name}' is for {config.task}, not {task}"):
                preset(name, task)


@pytest.mark.parametrize("name", SIZE_PRESETS)
def test_a_size_fits_every_task_and_must_be_told_which(name: str) -> None:
    assert [preset(name, task).task for task in get_args(TaskName)] == list(get_args(TaskName))
    with pytest.raises(
        ConfigError, match=f"preset '{name}' fits every task; name one of classify, generate, translate"
    ):
        preset(name)


def test_an_unknown_preset_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'ted-set5'; did you mean 'ted-set"):
        preset("ted-set5")
    with pytest.raises(ConfigError, match=r"known are imdb-encoder, .*base"):
        preset("zzzz")


REPORTED: dict[str, dict[str, Any]] = {
    "imdb-encoder": {
        "model.n_layers": 4, "model.n_heads": 12, "model.d_model": 768, "model.positions": "sinusoidal",
        "model.norm_position": "post", "train.optimizer": "adam", "train.lr": 5e-5, "train.epochs": 1.0,
    },
    "shakespeare-char": {
        "tokenizer.kind": "char", "data.max_len": 32, "data.valid_fraction": 0.1, "train.batch_size": 16,
        "model.d_model": 64, "model.n_heads": 4, "model.n_layers": 4, "model.norm_position": "pre",
        "model.d_ff": 256, "model.activation": "relu", "model.positions": "learned", "model.dropout": 0.0,
        "model.qkv_bias": False, "model.final_norm": True, "model.head_bias": True, "model.tie_embeddings": False,
        "train.optimizer": "adamw", "train.lr": 1e-3, "train.max_steps": 30_000, "train.eval_every": 200,
        "train.schedule": "plateau", "train.plateau_factor": 0.5, "train.plateau_patience": 5,
        "train.patience": 10,
    },
    "ted-set1": {"model.n_layers": 2, "model.n_heads": 8, "model.d_model": 512, "model.dropout": 0.1},
    "ted-set2": {"model.n_layers": 4, "model.n_heads": 8, "model.d_model": 512, "model.dropout": 0.2},
    "ted-set3": {"model.n_layers": 4, "model.n_heads": 12, "model.d_model": 768, "model.dropout": 0.2},
    "ted-set4": {"model.n_layers": 6, "model.n_heads": 12, "model.d_model": 768, "model.dropout": 0.1},
    "multi30k-tiny": {"model.n_layers": 4, "model.n_heads": 4, "model.d_model": 128, "model.dropout": 0.3},
    "speeches-classifier": {"model.d_ff": 256, "model.head_hidden": 100, "train.epochs": 15.0},
    "speeches-lm": {"model.d_ff": 100, "model.window": -1, "train.max_steps": 500},
    "speeches-window": {"model.d_ff": 100, "model.window": 8, "train.max_steps": 500},
    "gpt2-small": {"model.d_model": 768, "model.n_layers": 12, "model.n_heads": 12, "data.max_len": 1024},
    "bert-base": {"model.d_model": 768, "model.n_layers": 12, "model.n_heads": 12, "model.norm_position": "post"},
    "transformer-base": {
        "model.d_model": 512, "model.d_ff": 2048, "model.n_layers": 6, "model.n_heads": 8, "model.dropout": 0.1,
        "train.schedule": "noam", "train.warmup_steps": 4000, "train.label_smoothing": 0.1,
    },
}  # fmt: skip
SPEECHES = {
    "tokenizer.kind": "word", "data.max_len": 32, "model.d_model": 64, "model.n_heads": 2, "model.n_layers": 4,
    "model.positions": "learned", "model.norm_position": "pre", "model.dropout": 0.0, "model.qkv_bias": False,
    "model.bias": True, "model.final_norm": True, "model.activation": "relu", "model.tie_embeddings": False,
    "train.batch_size": 16, "train.lr": 1e-3, "train.optimizer": "adam", "train.betas": (0.9, 0.999),
}  # fmt: skip
TED = {"train.batch_size": 16, "train.epochs": 10.0, "train.eval_every": 1_875}


@pytest.mark.parametrize("name", SYSTEM_PRESETS)
def test_a_reference_system_has_the_settings_that_were_reported(name: str) -> None:
    reported = REPORTED[name]
    reported |= SPEECHES if name.startswith("speeches") else TED if name.startswith("ted") else {}
    actual = flatten_config(preset(name))
    assert {setting: actual[setting] for setting in reported} == reported


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("speeches-classifier", 576_467), ("speeches-lm", 863_243), ("speeches-window", 863_243)],
)
def test_a_reference_system_has_the_reported_number_of_parameters(name: str, parameters: int) -> None:
    from triform.models.decoder import Decoder
    from triform.models.encoder import Classifier

    config = preset(name)
    model_class = Classifier if config.task == "classify" else Decoder
    assert sum(p.numel() for p in model_class(config.model, REPORTED_SIZES[name]).parameters()) == parameters


# -- a choice and its registry are equal


def test_registries_hold_what_the_settings_offer() -> None:
    assert set(SCHEDULES) == set(get_args(ScheduleKind))
    assert {"auto", "imported", *TOKENIZERS} == set(get_args(TokenizerKind))
    assert tuple(TASKS) == settings_module.TASK_NAMES == get_args(TaskName)


@pytest.mark.parametrize("name", get_args(OptimizerKind))
def test_every_optimizer_can_be_made(name: OptimizerKind) -> None:
    optimizer = build_optimizer(torch.nn.Linear(2, 2), TrainConfig(optimizer=name, lr=0.1))
    assert type(optimizer).__name__.lower() == name


@pytest.mark.parametrize("name", get_args(ScheduleKind))
def test_every_schedule_warms_up_and_stays_between_nothing_and_all(name: ScheduleKind) -> None:
    schedule = build_schedule(TrainConfig(schedule=name, lr=1.0, warmup_steps=4), 20)
    factors = [schedule.lr_factor(step) for step in range(1, 21)]
    assert factors[0] == pytest.approx(0.25)
    assert factors[:4] == sorted(factors[:4])
    assert all(0 < factor <= 1 for factor in factors)


@pytest.mark.parametrize("value", ["8,-1", "[8, -1]", "[8,-1]"])
def test_a_list_is_said_as_in_toml_or_without_brackets(value: str) -> None:
    assert parse_assignments([f"model.layer_windows={value}"]) == {"model.layer_windows": (8, -1)}


def test_layer_windows_take_back_the_window_of_a_preset_and_the_reverse() -> None:
    merged = merge_settings({"model.window": 8}, {"model.layer_windows": (4, -1)})
    assert merged == {"model.layer_windows": (4, -1)}
    assert merge_settings(merged, {"model.window": 3}) == {"model.window": 3}


def test_the_key_that_shows_a_complete_config_file_is_its_last_one() -> None:
    assert list(flatten_config(Config()))[-1] == LAST_CONFIG_KEY
