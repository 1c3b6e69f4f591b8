"""Training that begins with word vectors: which rows, how large, what is said, and the same however it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from same_runs import StoppedAfter
from torch import Tensor

from triform.config import TokenizerConfig
from triform.config.merging import flatten_settings
from triform.config.settings import build_config
from triform.errors import ConfigError
from triform.experiments.seeds import train_seeds
from triform.launch import RunOptions, build_trainer, resolve_settings, train
from triform.nn.embedding import InputEmbedding
from triform.run import Run
from triform.tasks import Task
from triform.text import BpeTokenizer, train_tokenizer
from triform.training.embeddings import is_lowercase, piece_words
from triform.training.init_from import apply_base
from triform.training.run_folder import RunFolder
from triform.vectors import WordVectors

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.1}
TRAIN_SETTINGS = {"max_steps": 6, "eval_every": 3, "log_every": 3, "batch_size": 8, "lr": 0.01}
WORDS = [f"word{n}" for n in range(8)] + ["Thing1", "never"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    lines = [f"{'good' if n % 3 else 'bad'}\tSay word{n % 11} thing{n % 5} {n % 7}\n" for n in range(60)]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("vectors") / "v.safetensors"
    matrix = 3 * np.random.default_rng(0).normal(size=(len(WORDS), 16)).astype(np.float32)
    WordVectors(WORDS, matrix).save(path)
    return str(path)


def set_up_task(out: Path, task: str = "classify", **settings: Any) -> tuple[Task, str]:
    """A task before its first step, and what was said."""
    overrides = resolve_settings(task, "", None, flatten_settings({"model": MODEL, "train": {}} | settings))  # type: ignore[arg-type]
    trainer, notices = build_trainer(
        build_config(apply_base(overrides)),
        RunFolder(out),
        RunOptions(device="cpu"),
        resume=False,
        user_settings=overrides,
    )
    return trainer.task, "\n".join(notices)


def copy_weights(task: Task) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in task.model.named_parameters()}


def train_run(
    rows: str, out: Path, vectors: str, train_settings: dict[str, Any] | None = None, **kwargs: Any
) -> Run:
    settings = {"data": rows, "out": out, "device": "cpu", "quiet": True, "embeddings": vectors, "model": MODEL}
    return train("classify", **settings | {"train": TRAIN_SETTINGS | (train_settings or {})} | kwargs)  # type: ignore[arg-type]


def test_rows_with_a_vector_have_it_at_the_tables_own_size_and_nothing_else_changes(
    rows: str, vectors: str, tmp_path: Path
) -> None:
    plain, _ = set_up_task(tmp_path / "plain", data=rows)
    task, notices = set_up_task(tmp_path / "with", data=rows, embeddings=vectors)
    before, after, name = copy_weights(plain), copy_weights(task), "encoder.embedding.token_embedding.weight"
    pieces = [task.tokenizer.format_piece(token) for token in range(task.tokenizer.vocab_size)]
    matched_ids = [piece_id for piece_id, piece in enumerate(pieces) if piece in WORDS]
    assert len(matched_ids) == 8
    assert f"{vectors}: 8 of {len(pieces)} pieces have a vector" in notices
    expected_vectors = torch.from_numpy(WordVectors.load(vectors).matrix)[
        [WORDS.index(pieces[piece_id]) for piece_id in matched_ids]
    ]
    factor = before[name].pow(2).mean().sqrt() / expected_vectors.pow(2).mean().sqrt()
    torch.testing.assert_close(after[name][matched_ids], expected_vectors * factor)
    unmatched_ids = [piece_id for piece_id in range(len(pieces)) if piece_id not in matched_ids]
    assert after[name][unmatched_ids].equal(before[name][unmatched_ids])
    assert all(tensor.equal(after[other_name]) for other_name, tensor in before.items() if other_name != name)


def test_case_is_folded_where_the_tokenizer_folds_it(rows: str, vectors: str, tmp_path: Path) -> None:
    _, notices = set_up_task(
        tmp_path / "low", data=rows, embeddings=vectors, tokenizer={"kind": "word", "lowercase": True}
    )
    assert ": 9 of " in notices  # Thing1 too


def test_a_width_left_open_is_that_of_the_vectors(rows: str, vectors: str, tmp_path: Path) -> None:
    task, _ = set_up_task(tmp_path / "open", data=rows, embeddings=vectors, model={"n_layers": 1})
    assert task.config.model.d_model == 16


@pytest.mark.parametrize("shared", [True, False])
def test_both_sides_of_a_translation_begin_with_vectors(vectors: str, tmp_path: Path, shared: bool) -> None:
    for side, words in (("en", "word{} word{}"), ("fr", "mot{} word{}")):
        lines = [words.format(n % 7, n % 3) + "\n" for n in range(60)]
        (tmp_path / f"t.{side}").write_text("".join(lines), encoding="utf-8")
    tokenizer = {"kind": "word", "joint_vocab": shared}
    files = {"source": tmp_path / "t.en", "target": tmp_path / "t.fr"}
    task, notices = set_up_task(tmp_path / "run", "translate", embeddings=vectors, tokenizer=tokenizer, **files)
    expected_counts = ("7 of 18 pieces",) if shared else ("7 of 11 pieces", "3 of 14 pieces")
    assert all(f"{part} have a vector" in notices for part in expected_counts)
    known = torch.from_numpy(WordVectors.load(vectors)["word2"])
    for name, table in task.model.named_modules():
        if isinstance(table, InputEmbedding):
            row = table.token_embedding.weight[task.tokenizer_for(name).encode("word2")[0]]
            assert torch.cosine_similarity(row, known, dim=0) > 0.9999


def test_a_model_that_writes_begins_with_vectors_too(vectors: str, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("word1 word2 word3 and more\n" * 60, encoding="utf-8")
    _, notices = set_up_task(
        tmp_path / "run", "generate", data=tmp_path / "book.txt", embeddings=vectors, tokenizer={"kind": "word"}
    )
    assert ": 3 of 9 pieces have a vector" in notices


def test_frozen_vectors_stay_and_positions_learn(rows: str, vectors: str, tmp_path: Path) -> None:
    task, _ = set_up_task(tmp_path / "begun", data=rows, embeddings=vectors)
    before, result = copy_weights(task), train_run(rows, tmp_path / "run", vectors, {"freeze_layers": 0})
    after = copy_weights(result.task)
    assert before["encoder.embedding.token_embedding.weight"].equal(
        after["encoder.embedding.token_embedding.weight"]
    )
    changed_names = [name for name, tensor in before.items() if not tensor.equal(after[name])]
    assert "encoder.embedding.position_embedding.table.weight" in changed_names
    assert len(changed_names) == len(before) - 1


def test_a_resumed_run_ends_with_the_same_bits_and_needs_the_vectors_no_more(
    rows: str, vectors: str, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(Path(vectors).read_bytes())
    uninterrupted = train_run(rows, tmp_path / "straight", str(copy), {"freeze_layers": 0})
    with stopped_after(4):
        train_run(rows, tmp_path / "broken", str(copy), {"freeze_layers": 0})
    copy.unlink()
    resumed = train_run(rows, tmp_path / "broken", str(copy), {"freeze_layers": 0}, resume=True)
    left, right = (load_file(result.path / "model.safetensors") for result in (uninterrupted, resumed))
    assert all(tensor.equal(right[name]) for name, tensor in left.items())


@pytest.mark.parametrize("train_settings", [{}, {"freeze_layers": 0}], ids=["together", "one by one"])
def test_each_of_several_seeds_begins_as_it_would_alone(
    rows: str, vectors: str, tmp_path: Path, train_settings: dict[str, Any]
) -> None:
    # No draws, and nothing made large that is not.
    model, train_settings = (MODEL | {"dropout": 0.0}, train_settings | {"optimizer": "sgd"})
    options = {"data": rows, "device": "cpu", "quiet": True, "embeddings": vectors, "model": model}
    result = train_seeds("classify", 2, out=tmp_path / "two", train=TRAIN_SETTINGS | train_settings, **options)  # type: ignore[arg-type]
    for seed, folder in enumerate(result.folders):
        alone = load_file(
            train_run(rows, tmp_path / f"alone-{seed}", vectors, train_settings, seed=seed, model=model).path
            / "model.safetensors"
        )
        for name, tensor in load_file(folder / "model.safetensors").items():
            torch.testing.assert_close(tensor, alone[name], rtol=1e-4, atol=1e-5)


# -- pieces of tokenizers that do not keep words whole


def test_a_piece_that_begins_a_word_is_told_by_its_space() -> None:
    texts = ["king and kingdom, king and kings, a king"] * 20
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=271), texts)
    assert isinstance(tokenizer, BpeTokenizer)
    words = piece_words(tokenizer)
    by_piece = {tokenizer.format_piece(token): words[token] for token in range(tokenizer.vocab_size)}
    assert by_piece[" king"] == "king"
    assert by_piece["k"] == "", "inside words there is no word"
    assert by_piece[","] == ","
    assert piece_words(train_tokenizer(TokenizerConfig(kind="word"), texts))[4:8] == ("king", ",", "and", "a")


def test_a_vocabulary_folds_case_that_knows_no_capitals() -> None:
    assert is_lowercase(["[CLS]", "<S>", "king", "##s", "2", ""])
    assert not is_lowercase(["king", "Queen"])


# -- bad input


def test_vectors_of_another_width_are_refused_with_both_and_leave_nothing(
    rows: str, vectors: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"have width 16, but model\.d_model=32; set model\.d_model=16, or .*--size 32"
    ):
        train_run(rows, tmp_path / "run", vectors, model=MODEL | {"d_model": 32})
    assert not (tmp_path / "run").exists()


def test_vectors_that_no_piece_has_are_refused(rows: str, tmp_path: Path) -> None:
    WordVectors(["WORD1", "WORD2"], np.eye(2, 16)).save(tmp_path / "capitals.txt")
    with pytest.raises(
        ConfigError, match=r"no piece of the vocabulary has a vector; 2 would have one if both were .* lower case"
    ):
        set_up_task(tmp_path / "run", data=rows, embeddings=tmp_path / "capitals.txt")
    WordVectors(["mot", "chose"], np.eye(2, 16)).save(tmp_path / "french.txt")
    with pytest.raises(
        ConfigError, match=r"no piece of the vocabulary has a vector; it has pieces such as .*'mot'"
    ):
        set_up_task(tmp_path / "run", data=rows, embeddings=tmp_path / "french.txt")


def test_a_file_that_is_no_vectors_is_named_with_its_setting(rows: str, tmp_path: Path) -> None:
    for model in (MODEL, {}):
        with pytest.raises(ConfigError, match=r"train\.embeddings=.*none\.bin: no such file"):
            set_up_task(tmp_path / "run", data=rows, embeddings=tmp_path / "none.bin", model=model)
