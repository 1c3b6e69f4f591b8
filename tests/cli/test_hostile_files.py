"""Files made to break their reader: numbers of thousands of digits, deep nesting, promises of sizes, pickles."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triform.config import TokenizerConfig
from triform.config.settings import build_config
from triform.data.readers import LabelledText
from triform.data.token_cache import TokenCache, _write_manifest
from triform.tasks.classification_data import ClassificationData
from triform.text import train_tokenizer

LONG_NUMBER = "9" * 5000
DEEP_NESTING = ("[" * 50_000, '{"a":' * 50_000, "[" * 50_000 + "]" * 50_000)


@pytest.mark.parametrize("suffix", ["txt", "vec", "bin", "txt.gz", "bin.gz"])
@pytest.mark.parametrize(
    "header", [f"{LONG_NUMBER} 4", f"4 {LONG_NUMBER}", "999999999999 4", "4 999999999999", "2 999999"]
)
def test_a_header_of_word_vectors_that_promises_too_much_is_refused(
    triform: Any, tmp_path: Path, suffix: str, header: str
) -> None:
    path = tmp_path / f"words.{suffix}"
    content = f"{header}\n".encode() + b"soup 1 2 3 4\nbread 1 2 3 4\n" * 2
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert triform("vectors", "nearest", path, "soup").refusal.startswith(str(path))


def test_word_vectors_without_a_space_are_not_read_to_their_end(triform: Any, tmp_path: Path) -> None:
    path = tmp_path / "zeros.bin.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"1000 10\n")
        for _ in range(50):
            file.write(bytes(1 << 20))
    assert "the end of word 1 is missing" in triform("vectors", "nearest", path, "soup").refusal


@pytest.fixture(scope="module")
def published(triform: Any, train: Any, files: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 as others publish it."""
    folder = tmp_path_factory.mktemp("published")
    like_gpt2 = ("model.activation=gelu_tanh", "model.head_bias=false", "data.max_len=16", "tokenizer.kind=bpe")
    sets = [part for setting in like_gpt2 for part in ("--set", setting)]
    assert train("generate", "--data", files.txt, "--out", folder / "run", *sets).code == 0
    result = triform("convert", "export", folder / "run", "--to", "hf", "--out", folder / "gpt2")
    assert result.code == 0, result.err
    return folder / "gpt2"


@pytest.mark.parametrize("key", ["n_embd", "n_layer", "n_head", "n_positions", "n_inner", "vocab_size"])
@pytest.mark.parametrize("value", [10**12, 10**30, 0, -1, 10**4000, 1e308, "x", [], None])
def test_sizes_of_a_published_config_that_cannot_be(
    triform: Any, published: Path, tmp_path: Path, key: str, value: Any
) -> None:
    if value is None or (key == "n_inner" and value == 0):
        pytest.skip("which a config may leave to its defaults")
    model = Path(shutil.copytree(published, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {key: value}))
    refusal = triform("convert", "import", model, "--out", tmp_path / "run").refusal
    assert refusal.startswith(f"{model}{os.sep}config.json: ")
    assert len(refusal) < 600 + 2 * len(str(model))


@pytest.mark.parametrize("weight_map", [["a"], [1], {"a": ["b"]}, {"a": 1}, {"a": None}, {"a": {}}, {}, 3, "x"])
def test_an_index_that_does_not_name_files_is_refused(
    triform: Any, published: Path, tmp_path: Path, weight_map: Any
) -> None:
    model = Path(shutil.copytree(published, tmp_path / "model"))
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    refusal = triform("convert", "import", model, "--out", tmp_path / "run").refusal
    assert "weight_map is missing; it must map tensor names to file names" in refusal


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "content", [*DEEP_NESTING, f'{{"a": {LONG_NUMBER}}}', "[]", "3", "null", '"x"', "", "\x00"]
)
def test_json_of_a_published_model_that_python_cannot_parse_or_that_is_no_object(
    triform: Any, published: Path, tmp_path: Path, name: str, content: str
) -> None:
    model = Path(shutil.copytree(published, tmp_path / "model"))
    (model / name).write_text(content)
    refusal = triform("convert", "import", model, "--out", tmp_path / "run").refusal
    assert str(model / name) in refusal
    assert len(refusal) < 1000


@pytest.mark.parametrize(
    "content", [*DEEP_NESTING, f'{{"triform": {LONG_NUMBER}}}', "[]", '{"triform": [], "tokenizer": []}']
)
def test_a_tokenizer_of_our_own_that_python_cannot_parse(triform: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    assert str(path) in triform("tokenizer", "encode", path, "soup").refusal


@pytest.mark.parametrize("prefix", ["\x00", "é", "##"])
def test_merges_that_do_not_fit_their_prefix_do_not_end_the_process(
    triform: Any, published: Path, tmp_path: Path, prefix: str
) -> None:
    content = json.loads((published / "tokenizer.json").read_text())
    content["model"]["continuing_subword_prefix"] = prefix
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    refusal = triform("tokenizer", "encode", path, "soup").refusal
    assert refusal.startswith(str(path))
    assert "does not start with continuing_subword_prefix" in refusal


@pytest.mark.parametrize("content", [f"seeds = {LONG_NUMBER}", "seeds = " + "[" * 50_000, "seeds = 999999999999"])
def test_a_study_that_cannot_be_read_or_would_never_end(triform: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f'task = "classify"\n{content}\n[variants.a]\n[variants.b]\n')
    assert str(path) in triform("compare", path, "--out", tmp_path / "study").refusal


def test_a_pickle_in_the_token_cache_is_damage_and_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "rows.csv"
    data.write_text("a fine day,good\na grey day,bad\n" * 200_000)  # so large that its tokens are kept
    rows = [LabelledText("a fine day", "good", 1), LabelledText("a grey day", "bad", 2)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), [row.text for row in rows])
    settings = {"data.train": str(data), "data.labels": ("good", "bad"), "data.valid_fraction": 0.0}
    task_data = ClassificationData(build_config(settings))
    monkeypatch.setattr(ClassificationData, "read_examples", lambda self, name: iter(rows))

    def encode_dataset() -> tuple[list[int], list[str]]:
        notices: list[str] = []
        cache = TokenCache([str(data)], tmp_path / "run" / "tokens", notices)
        return task_data.encode_split("train", [[tokenizer]], cache).values.tolist(), notices

    assert encode_dataset() == ([0, 1], [])
    (entry,) = [path for path in (tmp_path / "cache").iterdir() if (path / "train.values.npy").exists()]
    for bad in (np.array([{"a": 1}], dtype=object), np.array([0.5, 1.5]), np.arange(7)):
        np.save(entry / "train.values.npy", bad, allow_pickle=True)
        (entry / "seal.json").unlink()
        _write_manifest(entry)  # as one would who made it on purpose
        labels, notices = encode_dataset()
        assert labels == [0, 1]
        assert len(notices) == 1
        assert "the token cache" in notices[0]
        assert notices[0].endswith("and is built again")
    assert encode_dataset() == ([0, 1], [])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name")
@pytest.mark.parametrize("options", [(), ("--no-verify",)], ids=["verified", "as-it-is"])
@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "model.safetensors", "digests.json"])
def test_a_pipe_in_a_run_folder_is_not_waited_for(
    triform: Any, published: Path, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    run = Path(shutil.copytree(published.parent / "run", tmp_path / "run"))
    (run / name).unlink()
    os.mkfifo(run / name)
    assert triform("predict", run, "soup", *options).refusal.startswith(f"{run / name} is a pipe")
    assert triform("check", run, *options).refusal.startswith(f"{run / name} is a pipe")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="on Windows, links need a right")
@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, ".lock") for command in ("predict", "data", "compare", "search")),
        *(("predict", "manifest.json"), ("predict", ".part-000000"), ("data", "manifest.json")),
        *(("compare", "plan.json"), ("compare", "a"), ("compare", "a/seed-0")),
        *(("search", "plan.json"), ("search", "journal.log"), ("search", "trials")),
    ],
)
def test_a_folder_that_a_command_continues_is_not_written_through_links(
    triform: Any, published: Path, files: Any, tmp_path: Path, command: str, name: str, kind: str
) -> None:
    run, out, outside = published.parent / "run", tmp_path / "out", tmp_path / "outside"
    study, space = tmp_path / "study.toml", tmp_path / "space.toml"
    study.write_text('task = "classify"\nseeds = 2\n[variants.a]\n[variants.b]\n"train.lr" = 0.1\n')
    space.write_text('task = "classify"\ntrials = 1\n[space]\n"train.lr" = [0.1, 0.2]\n')
    arguments = {
        "predict": ("predict", run, "--input", files.txt, "--output", f"{out}/"),
        "data": ("data", "tokenize", files.txt, "--tokenizer", run, "--out", out),
        "compare": ("compare", study, "--out", out),
        "search": ("search", space, "--out", out),
    }
    (out / name).parent.mkdir(parents=True)
    outside.mkdir()
    os.mkfifo(out / name) if kind == "pipe" else (out / name).symlink_to(outside)
    refusal = triform(*arguments[command]).refusal
    assert f"{out / name} is a {kind}" in refusal
    assert not list(outside.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_in_a_published_folder_is_not_waited_for(
    triform: Any, published: Path, tmp_path: Path, name: str
) -> None:
    model = Path(shutil.copytree(published, tmp_path / "model"))
    (model / name).unlink()
    os.mkfifo(model / name)
    refusal = triform("convert", "import", model, "--out", tmp_path / "run").refusal
    assert refusal.startswith(f"{model / name} is a pipe")


def test_a_number_of_thousands_of_digits_in_a_settings_file_is_named_in_plain_words(
    triform: Any, tmp_path: Path
) -> None:
    path = tmp_path / "many.toml"
    path.write_text(f"[train]\nmax_steps = {LONG_NUMBER}\n")
    refusal = triform("train", "classify", "--config", path, "--out", tmp_path / "run").refusal
    assert refusal == f"{path}: not valid TOML: a number has thousands of digits"
