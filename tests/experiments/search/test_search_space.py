"""Spaces and storages that are refused, each with one line that names the cause and the remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from triform.errors import CheckpointError, ConfigError, DataError
from triform.experiments.search.space import read_space
from triform.experiments.search.storage import JournalLock, hide_password, open_storage
from triform.experiments.search.trial_queue import TrialQueue

WriteSpace = Callable[..., Path]
RATE = "train.lr = { low = 1e-4, high = 1e-1, log = true }"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("train.lr", "train.lrr"), r"space: unknown setting 'train.lrr'; did you mean 'train.lr'"),
        ((RATE, 'train.lr = ["fast"]'), r"space: train.lr='fast' must be a number"),
        ((RATE, "model.n_layers = { low = 1.5, high = 3 }"), "low of model.n_layers=1.5 must be a whole number"),
        ((RATE, "model.kind = { low = 1, high = 2 }"), "model.kind has no range, because it is not a number"),
        ((RATE, ""), r"the table \[space\] is empty"),
        ((RATE, "train.lr = []"), "train.lr: the list of choices is empty"),
        ((RATE, "train.lr = [0.1, 0.1]"), "train.lr: a choice is listed twice: 0.1, 0.1"),
        ((RATE, "train.lr = 0.1"), r"train.lr=0.1 must be a list of choices, or a range .* belongs in \[common\]"),
        ((RATE, "train.lr = { low = 0.1, high = 0.01 }"), "train.lr: low = 0.1 is above high = 0.01"),
        ((RATE, "train.lr = { low = 0.1, high = 0.1 }"), "low = 0.1 is high = 0.1; a range needs low below"),
        ((RATE, "train.lr = { low = 0.1 }"), "train.lr: the range has no high"),
        ((RATE, "train.lr = { low = 0.0, high = 0.1, log = true }"), "train.lr: log = true needs a low above 0"),
        ((RATE, "train.lr = { low = 0.1, high = 0.2, step = 0.5 }"), "train.lr: step = 0.5 must be above 0 and at"),
        ((RATE, "train.lr = { low = 0.1, high = 0.2, stpe = 1 }"), "unknown key 'stpe' in a range; did you mean"),
        ((RATE, "model.dropout = { low = 0.0, high = 2.0 }"), "high of model.dropout=2.0 must be between 0 and"),
        ((RATE, "data.valid_fraction = [0.1, 0.2]"), "data.valid_fraction must be equal for all trials"),
        ((RATE, "seed = [1, 2]"), "seed must be equal for all trials"),
        ((RATE, "decode.top_k = [1, 2]"), "decode.top_k has no effect on training"),
        ((RATE, "model.n_layers = { choices = [1, 2], when = { model.kind = 'gru' } }"), "when names model.kind"),
        (("trials = 4\n", "sampler = 'grid'\n"), "train.lr: a grid needs a list of choices, or a range with"),
        (("trials = 4", "trials = 0"), "trials=0 must be a number from 1 to 100,000"),
        (("trials = 4", "trials = 'many'"), "trials='many' must be a number from 1 to 100,000"),
        (("trials = 4", "sampler = 'tpee'"), "sampler='tpee'; did you mean 'tpe'"),
        (("trials = 4", "sedes = 4"), "unknown key 'sedes' in a search space; did you mean 'seeds'"),
        (("trials = 4", "seeds = 0"), "seeds=0 must be the number of runs"),
        (("final_seeds = 0", "final_seeds = -1"), "final_seeds=-1 must be a number of seeds, or 0"),
        (("trials = 4", "metric = 'bleu'"), "classify has no metric 'bleu'"),
        (('task = "classify"', 'task = "sort"'), "task='sort' is not known"),
        (('task = "classify"', ""), "task is missing"),
        (("d_model = 8", "d_model = 9"), "common: .*n_heads"),
        (("[space]", "[constraints]\nmax_parameters = 0\n[space]"), "constraints.max_parameters=0 must be a"),
        (("[space]", "[pruning]\nfactor = 1\n[space]"), "pruning.factor=1 would stop no trial"),
        (("[space]", "[tests]\ntest = 'test.tsv'\n[space]"), r"must not see test data; remove \[tests\]"),
        (('kind = "word"', 'kind = "word"\ndata.monitor = ["t=test.tsv"]'), "evaluates only the validation data"),
        (('kind = "word"', 'kind = "word"\ndata.valid_fraction = 0.0'), "a search needs validation data"),
    ],
)  # fmt: skip
def test_a_space_that_is_not_valid_is_refused_before_anything_is_written(
    write_space: WriteSpace, change: tuple[str, str], message: str
) -> None:
    path = write_space(change)
    with pytest.raises(ConfigError, match=message) as failure:
        read_space(path)
    assert str(failure.value).startswith(str(path))
    assert "\n" not in str(failure.value)


def test_a_missing_data_file_is_named(write_space: WriteSpace) -> None:
    with pytest.raises(DataError, match=r"common: data.train: .*gone\.tsv: no such file"):
        read_space(write_space(("rows.tsv", "gone.tsv")))


def test_a_vocabulary_cannot_be_searched_by_a_metric_per_token(write_space: WriteSpace, workdir: Path) -> None:
    (workdir / "text.txt").write_text("a text of some words\n" * 50, encoding="utf-8")
    path = write_space(
        ('task = "classify"', 'task = "generate"'),
        ("rows.tsv", "text.txt"),
        (RATE, 'tokenizer.kind = ["char", "bpe"]'),
    )
    with pytest.raises(ConfigError, match=r'tokenizer.kind changes the vocabulary.*metric = "bits_per_byte"'):
        read_space(path)


def test_a_grid_has_no_conditional_settings(write_space: WriteSpace) -> None:
    searched = (
        'model.kind = ["transformer", "gru"]\nmodel.n_layers = { choices = [1, 2], when = { model.kind = "gru" } }'
    )
    with pytest.raises(ConfigError, match=r"model\.n_layers: a grid cannot have settings with `when`"):
        read_space(write_space((RATE, searched), ("trials = 4", 'sampler = "grid"')))
    with pytest.raises(ConfigError, match=r"model\.n_layers: model\.kind never is lstm, so when cannot be true"):
        read_space(write_space((RATE, searched.replace('= "gru" }', '= "lstm" }'))))


def test_another_space_in_the_same_folder_or_storage_is_refused_and_the_difference_named(
    write_space: WriteSpace, workdir: Path
) -> None:
    url = "sqlite:///searches.db"
    first = read_space(write_space())
    other = read_space(write_space(("high = 1e-1", "high = 1e-2")))
    TrialQueue(first, workdir / "out", url)
    change = r"has a search small with another space: space\.train\.lr: 0\.0001 to 0\.01, logarithmic \(stored"
    for out in ("out", "other"):
        with pytest.raises(ConfigError, match=change):
            TrialQueue(other, workdir / out, url)
    TrialQueue(read_space(write_space(("trials = 4", "trials = 9"))), workdir / "out", url)  # may be extended
    TrialQueue(read_space(write_space(('name = "small"', 'name = "second"'))), workdir / "second", url)


def test_a_folder_that_is_not_shared_is_noticed(write_space: WriteSpace, workdir: Path) -> None:
    space, url = read_space(write_space()), "journal:shared.log"
    TrialQueue(space, workdir / "out", url)
    with pytest.raises(ConfigError, match=r"whose folder is .*/out on .* is another folder. All workers .* shared"):
        TrialQueue(space, workdir / "elsewhere", url)
    with TrialQueue(space, workdir / "out", url).claim():
        pass
    with pytest.raises(ConfigError, match=r"out contains a search that is not in journal:other.log"):
        TrialQueue(space, workdir / "out", "journal:other.log")


@pytest.mark.parametrize("url", ["", "sqlite:///searches.db"])
@pytest.mark.parametrize("moment", ["write_run_text", "secrets.token_hex", "study"])
def test_a_worker_that_is_killed_while_it_starts_a_search_leaves_a_folder_that_works(
    url: str, moment: str, write_space: WriteSpace, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optuna import Study

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    space = read_space(write_space())
    with monkeypatch.context() as patch:
        if moment == "study":
            patch.setattr(Study, "set_user_attr", kill)
        else:
            patch.setattr(f"triform.experiments.search.trial_queue.{moment}", kill)
        with pytest.raises(KeyboardInterrupt):
            TrialQueue(space, workdir / "out", url)
    if moment == "study":  # the plan is there, and belongs to this storage
        with pytest.raises(ConfigError, match=r"out contains a search that is not in journal:other\.log"):
            TrialQueue(space, workdir / "out", "journal:other.log")
    for _ in range(2):
        with TrialQueue(space, workdir / "out", url).claim() as trial:
            assert trial is not None


def test_a_folder_with_other_files_is_refused(write_space: WriteSpace, workdir: Path) -> None:
    space = read_space(write_space())
    (workdir / "notes").mkdir()
    (workdir / "notes" / "text.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(CheckpointError, match="notes: this folder does not contain a search; choose another --out"):
        TrialQueue(space, workdir / "notes", "")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://ann:s3cret@127.0.0.1:1/db", r"ann:\*\*\*@127.0.0.1:1/db cannot be reached: .*refused"),
        ("postgresql://ann@127.0.0.1:1/db?password=s3cret", r"\?password=\*\*\* cannot be reached"),
        ("postgresql://ann:s3cret@host:port/db", "cannot be reached: "),
        ("postgresql://ann:x@s3cret@nowhere.invalid/db", "the password contains @; put it into PGPASSWORD"),
        ("sqlite:////nowhere/at/all.db", "sqlite:////nowhere/at/all.db cannot be reached: unable to open"),
        ("mysql://ann:s3cret@host/db", r"mysql://ann:\*\*\*@host/db: unknown kind of storage; write journal:FILE"),
        ("journal:/nowhere/at/all.log", "the folder /nowhere/at does not exist"),
        ("searches.db", "unknown kind of storage"),
    ],
)  # fmt: skip
def test_a_storage_that_cannot_be_reached_is_one_line_without_its_password(
    tmp_path: Path, url: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        open_storage(url, tmp_path)
    assert "s3cret" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_passwords_are_hidden() -> None:
    assert hide_password("postgresql://ann:a:b@c/d@host/db") == "postgresql://ann:***@host/db"
    assert hide_password("journal:/shared/file.log") == "journal:/shared/file.log"


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"triform search needs optuna .*\[search\]"):
        open_storage("", tmp_path)


def test_a_damaged_journal_is_refused_and_an_unfinished_line_is_removed(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    journal.write_text('{"op_code": 0\n{}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="damaged or no journal of Optuna"):
        open_storage("", tmp_path)
    journal.write_text('{"complete": 1}\n{"cut of', encoding="utf-8")
    lock = JournalLock(journal)
    lock.acquire()
    lock.release()
    assert journal.read_text(encoding="utf-8") == '{"complete": 1}\n'
