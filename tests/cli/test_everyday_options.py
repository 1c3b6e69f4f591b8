"""Everyday options stand for `--set`; an unknown option or an extra word is answered with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import triform as package
from triform.cli.shorthands import SHORTHANDS, merge_shorthands
from triform.config.settings import DEFAULTS, SETTING_TYPES
from triform.errors import ConfigError

Command = Any  # `triform(...)` and `train(...)` of conftest: they give an Answer
Files = Any


def test_every_shorthand_names_a_setting_of_its_own() -> None:
    settings = [shorthand.setting for shorthand in SHORTHANDS.values()]
    assert set(settings) <= SETTING_TYPES.keys()
    assert len(set(settings)) == len(settings)
    for option, shorthand in SHORTHANDS.items():
        assert shorthand.setting.rpartition(".")[2] == option.removeprefix("--").replace("-", "_")
        assert shorthand.help.endswith(".")


def test_training_options_become_settings_of_the_run(triform: Command, files: Files, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(files.csv.read_text().replace("text,label", "one,two"))
    small = ("--set", "model.d_model=16", "--set", "model.n_layers=1", "--set", "model.n_heads=2")
    options = ("--epochs", 1, "--lr", "1e-3", "--batch-size", 8, "--text-column", "one", "--label-column", "two")
    result = triform(
        "train", "classify", "--data", table, *options, *small, "--device", "cpu", "--out", tmp_path / "r"
    )
    assert result.code == 0, result.err
    config = package.load(tmp_path / "r", device="cpu").config
    assert (config.train.epochs, config.train.lr, config.train.batch_size) == (1.0, 1e-3, 8)
    assert (config.data.text_column, config.data.label_column) == ("one", "two")


def test_a_dry_run_says_what_a_run_costs_and_writes_nothing(
    triform: Command, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    small = ("--set", "model.d_model=16", "--set", "model.n_layers=1", "--set", "model.n_heads=2")
    command = ("train", "classify", "--data", files.csv, *small, "--max-steps", 30, "--device", "cpu", "--dry-run")
    estimate = triform(*command, "--json").json
    assert estimate["steps"] == 30
    assert estimate["seconds"] > 0
    result = triform(*command)
    assert f"parameters  {estimate['parameters']:,}" in result.out
    assert "steps       30" in result.out
    assert sorted(tmp_path.iterdir()) == before
    assert triform(*command, "--seeds", 2).err.endswith("estimates one new run; leave out --seeds\n")
    assert triform(*command, "--resume").err.endswith("estimates one new run; leave out --resume\n")


def test_decode_options_equal_their_settings(triform: Command, writer: Path) -> None:
    shorthand_options = ("--temperature", "0.5", "--top-k", 5, "--top-p", "0.9", "--max-new-tokens", 6)
    set_options = (
        *("--set", "decode.temperature=0.5", "--set", "decode.top_k=5", "--set", "decode.top_p=0.9"),
        *("--set", "decode.max_new_tokens=6"),
    )
    first = triform("predict", writer, "1 bird", *shorthand_options, "--seed", 3).out
    assert first == triform("predict", writer, "1 bird", *set_options, "--seed", 3).out
    beam = triform("predict", writer, "1 bird", "--beam-size", 2, "--max-new-tokens", 6).out
    assert beam == triform("predict", writer, "1 bird", "--set", "decode.beam_size=2", *set_options[-2:]).out


def test_an_option_and_a_set_that_disagree_are_both_named(triform: Command, writer: Path) -> None:
    assert triform("predict", writer, "x", "--top-k", 5, "--set", "decode.top_k=6").refusal == (
        "--top-k 5 and --set decode.top_k=6 give the same setting different values; use only one of them"
    )
    assert triform("train", "classify", "--data", "a.csv", "--set", "data.train=b.csv").refusal == (
        "--data a.csv and --set data.train=b.csv give the same setting different values; use only one of them"
    )
    assert merge_shorthands(["train.lr=0.001"], {"--lr": "1e-3"}) == ["train.lr=0.001", "train.lr=1e-3"]


def test_a_value_of_the_wrong_kind_names_the_option(triform: Command) -> None:
    assert triform("train", "classify", "--epochs", "many").refusal == (
        "--epochs many: train.epochs='many' must be a number"
    )
    with pytest.raises(ConfigError, match=r"--top-k 1\.5: decode\.top_k='1\.5' must be a whole number"):
        merge_shorthands([], {"--top-k": "1.5"})


def test_columns_of_labels_are_not_for_translate(triform: Command) -> None:
    assert triform("train", "translate", "--text-column", "en").refusal == (
        "data.text_column=en has no effect on translate; "
        "use --set data.source_column=NAME and --set data.target_column=NAME"
    )


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("train classify --dropout 0.1", "no such option --dropout; write --set model.dropout=VALUE."),
        ("train classify --n-layer 3", "no such option --n-layer; write --set model.n_layers=VALUE."),
        ("train classify --model-dropout 3", "no such option --model-dropout; write --set model.dropout=VALUE."),
        ("train classify --learning-rate 3", "no such option --learning-rate; write --lr VALUE."),
        ("train classify --hidden-size 3", "no such option --hidden-size; write --set model.d_model=VALUE."),
        ("train classify --devise cpu", "no such option --devise; did you mean --device?"),
        (
            "predict run --length-penalty 1",
            "no such option --length-penalty; write --set decode.length_penalty=VALUE, or",
        ),
        ("predict run --num-beams 1", "no such option --num-beams; write --beam-size VALUE, or"),
        ("predict run --dropout 1", "no such option --dropout; model.dropout is a setting of `triform train`, or"),
        ("predict run -5", "no such option -5; write -- before a text that starts with a dash."),
        ("doctor --wings", "no such option --wings."),
        (
            "train classify reviews.csv",
            "unexpected argument reviews.csv; to train on a file, write --data reviews.csv.",
        ),
        ("train translate a.en a.fr", "to train on aligned files, write --source a.en --target a.fr."),
        ("evaluate run --beam-size 4", "no such option --beam-size; write --set decode.beam_size=VALUE."),
        ("trian classify", "no such command trian; did you mean triform train? See"),
    ],
)
def test_what_to_write_instead_is_said(triform: Command, command: str, advice: str) -> None:
    refusal = triform(*command.split()).refusal
    assert advice in refusal
    name = command.split()[0]
    path = {"tokenizer": "triform tokenizer export", "trian": "triform"}.get(name, f"triform {name}")
    assert refusal.endswith(f"See {path} --help")


def test_an_option_left_out_changes_nothing() -> None:
    assert merge_shorthands(None, dict.fromkeys(SHORTHANDS)) == []
    assert all(shorthand.setting in DEFAULTS for shorthand in SHORTHANDS.values())


@pytest.mark.parametrize(
    "command",
    [
        "train classify --data URL",
        "train classify --set data.train=URL",
        "train translate --source URL --target b",
        "train generate --from URL",
        "predict URL text",
        "predict RUN --input URL",
        "evaluate RUN --data test=URL",
        "convert import URL --out RUN/new",
        "tokenizer train URL --out RUN/new.json",
        "audit URL",
    ],
)
def test_a_url_is_recognised(triform: Command, classifier: Path, command: str) -> None:
    url = "https://example.org/a/file.csv"
    refusal = triform(*command.replace("RUN", str(classifier)).replace("URL", url).split()).refusal
    assert refusal.startswith(f"{url}: ")
    assert "fetch the file first" in refusal
    assert f"curl -LO {url}" in refusal
    url = "https://huggingface.co/openai/gpt2"
    refusal = triform(*command.replace("RUN", str(classifier)).replace("URL", url).split()).refusal
    assert "triform convert import hub:openai/gpt2 --out RUN" in refusal


def test_a_url_inside_a_text_is_text(triform: Command, classifier: Path) -> None:
    assert triform("predict", classifier, "https://example.org").code == 0
    refusal = triform("predict", classifier, "https://example.org", "--device", "wings").refusal
    assert refusal == "unknown device 'wings'; choose from auto, cpu, cuda, mps"


def test_decoding_options_have_no_effect_on_a_classifier_and_predict_says_so(
    triform: Command, classifier: Path
) -> None:
    result = triform("predict", classifier, "soup", "--temperature", "0.5", "--beam-size", 2)
    assert result.code == 0
    assert "these settings have no effect: decode.temperature, decode.beam_size\n" in result.err


def test_predict_names_settings_that_the_decoding_strategy_does_not_use(triform: Command, writer: Path) -> None:
    length = ("--max-new-tokens", 2)
    mixed = triform("predict", writer, "1 bird", "--temperature", "0.5", "--beam-size", 2, *length).err
    assert "note: decode.strategy=beam does not use decode.temperature\n" in mixed
    greedy = triform("predict", writer, "1 bird", "--top-k", 5, "--set", "decode.strategy=greedy", *length).err
    assert "note: decode.strategy=greedy does not use decode.top_k\n" in greedy
    assert "does not use" not in triform("predict", writer, "1 bird", "--top-k", 5, *length).err
