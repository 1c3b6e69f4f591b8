"""One process at a time writes to a folder: shown with real processes, killed ones among them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import pytest

from triform.errors import CheckpointError
from triform.io import locks
from triform.io.files import remove_leftovers, temporary_path, write_text
from triform.io.locks import LOCK_FILE, find_lock_holder, folder_lock
from triform.run import load
from warm_processes import process_context

HOLDER_SCRIPT = """
import sys, time
from pathlib import Path
from triform.io.locks import folder_lock
with folder_lock(Path(sys.argv[1]), "testing"):
    print("held", flush=True)
    time.sleep(60)
"""
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")


def start_holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the folder until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER_SCRIPT, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_leaves_no_trace_and_creates_the_folder_only_for_its_content(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "a" / "run", "testing") as notice:
        assert notice == ""
        assert (tmp_path / "a" / "run" / LOCK_FILE).exists()
    assert not (tmp_path / "a").exists()
    with folder_lock(tmp_path / "run", "testing"):
        (tmp_path / "run" / "file").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


def test_another_process_is_told_who_holds_the_folder_and_a_killed_one_releases_it(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    try:
        pattern = rf"{re.escape(str(tmp_path))} is in use by process {process.pid} on {socket.gethostname()} "
        with (
            pytest.raises(
                CheckpointError, match=pattern + r"\(testing, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\); wait"
            ),
            folder_lock(tmp_path, "testing"),
        ):
            pytest.fail("two processes hold one folder")
    finally:
        process.kill()
        process.communicate()
    with folder_lock(tmp_path, "testing"):
        pass
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_second_thread_of_one_process_is_refused_too(tmp_path: Path) -> None:
    refused = pytest.raises(CheckpointError, match=f"process {os.getpid()} on")
    with folder_lock(tmp_path, "testing"), refused, folder_lock(tmp_path, "testing"):
        pytest.fail("one folder was locked twice")


@posix
def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(tmp_path: Path) -> None:
    code = HOLDER_SCRIPT.replace(
        'print("held"', 'import os\n    os.fork() and time.sleep(60)  # the child says it\n    print("held"'
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        with folder_lock(tmp_path, "testing"):
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the child, which is alone in its group
        process.communicate()


def wait_for_lock(folder: str, entered: Event) -> None:
    with folder_lock(Path(folder), "testing", wait=True):
        entered.set()


def test_who_waits_gets_the_folder_when_its_holder_has_ended(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn") if sys.platform == "win32" else process_context()
    entered = context.Event()
    with folder_lock(tmp_path, "testing"):
        process = context.Process(target=wait_for_lock, args=(str(tmp_path), entered))
        process.start()
        assert not entered.wait(0.5)
    assert entered.wait(300)
    process.join()


def test_a_lock_file_that_was_removed_meanwhile_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, tries = locks._try_lock, []

    def remove_then_lock(handle: int) -> None:
        if not tries:
            (tmp_path / LOCK_FILE).unlink()  # as a holder does that ends between our opening and locking
        tries.append(handle)
        original(handle)

    monkeypatch.setattr(locks, "_try_lock", remove_then_lock)
    with folder_lock(tmp_path, "testing"):
        assert len(tries) == 2
        assert (tmp_path / LOCK_FILE).exists()


def test_a_file_system_without_locks_is_used_with_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_unsupported(handle: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(locks, "_try_lock", raise_unsupported)
    with folder_lock(tmp_path, "testing") as notice:
        assert "this file system does not support locks" in notice
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_folder_that_cannot_be_written_or_locked_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    refused = pytest.raises(CheckpointError, match="below cannot be written: Not a directory")
    with refused, folder_lock(tmp_path / "file" / "below", "testing"):
        pytest.fail("a file is no folder")

    def raise_read_only(*arguments: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(locks.os, "open", raise_read_only)
        refused = pytest.raises(CheckpointError, match="cannot be written: Read-only file system")
        with refused, folder_lock(tmp_path / "run", "testing"):
            pytest.fail("a read-only file system was locked")

    def raise_missing(*arguments: object) -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    with monkeypatch.context() as patch:  # as in /proc, or in a folder that was removed while a command works in it
        patch.setattr(locks.os, "open", raise_missing)
        refused = pytest.raises(CheckpointError, match="cannot be written: No such file or directory")
        with refused, folder_lock(tmp_path / "run", "testing"):
            pytest.fail("a folder that cannot be created was locked")

    def raise_disk_error(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(locks, "_try_lock", raise_disk_error)
        refused = pytest.raises(CheckpointError, match="cannot be locked: Input/output error")
        with refused, folder_lock(tmp_path / "run", "testing"):
            pytest.fail("a folder was locked in spite of an error")


def test_a_named_holder_counts_where_the_system_does_not_say_if_it_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_unsupported(handle: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    def raise_forbidden(pid: int, number: int) -> None:
        raise PermissionError

    with folder_lock(tmp_path, "testing"):
        with monkeypatch.context() as patch:  # the process of another user
            patch.setattr(locks.os, "kill", raise_forbidden)
            assert str(find_lock_holder(tmp_path)).startswith(f"process {os.getpid()} on")
        monkeypatch.setattr(locks, "_try_lock", raise_unsupported)
        assert str(find_lock_holder(tmp_path)).startswith(f"process {os.getpid()} on")
    tmp_path.mkdir()  # an empty folder was removed with its lock
    (tmp_path / LOCK_FILE).touch()
    assert find_lock_holder(tmp_path) is None


@posix
def test_leftovers_of_ended_processes_go_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f".model.safetensors.{ended.pid}.part", f".config.toml.{os.getpid()}.part", ".mine.part", "x.7.part"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / f".step-3.{ended.pid}.part").mkdir()
    (tmp_path / f".step-3.{ended.pid}.part" / "state.json").touch()
    with folder_lock(tmp_path, "testing"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_temporary_names_carry_the_process_and_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    assert temporary_path(path).name == f".file.{os.getpid()}.part"
    write_text(path, "old")

    def raise_disk_full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", raise_disk_full)
        with pytest.raises(OSError, match="No space"):
            write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    remove_leftovers(tmp_path / "none")


# -- whole commands that race


TINY = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "train.max_steps": 8,
    "train.eval_every": 2,
}


def train_in_process(folder: str, out: str, seed: str, barrier: Barrier, outcomes: Queue[tuple[str, str]]) -> None:
    """In a process of its own: train at the same moment as the other one."""
    import torch

    from triform.experiments.seeds import train_seeds
    from triform.launch import train

    torch.set_num_threads(1)
    os.chdir(folder)
    options: dict[str, Any] = {"quiet": True, "device": "cpu", "data": "rows.csv", **TINY}
    options |= {"out": out, "overwrite": True} if out else {}
    barrier.wait()
    try:
        run = (
            train_seeds("classify", 2, **options)
            if seed == "several"
            else train("classify", seed=int(seed), **options)
        )
        outcomes.put((seed, f"made {run.path}"))
    except CheckpointError as error:
        outcomes.put((seed, f"refused {error}"))


def train_concurrently(folder: Path, out: Path | None, seeds: tuple[str, str]) -> dict[str, str]:
    """What two processes say that train into one folder at the same moment."""
    rows = "".join(f"word{n % 7} thing {n},{'ab'[n % 2]}\n" for n in range(40))
    (folder / "rows.csv").write_text("text,label\n" + rows)
    context = multiprocessing.get_context("spawn") if sys.platform == "win32" else process_context()
    barrier, queue = context.Barrier(2), context.Queue()
    arguments = (str(folder), str(out or ""))
    processes = [
        context.Process(target=train_in_process, args=(*arguments, seed, barrier, queue)) for seed in seeds
    ]
    for process in processes:
        process.start()
    outcomes = dict(queue.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
    return outcomes


def test_two_processes_that_train_into_one_folder_leave_the_run_of_one_of_them(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for _ in range(3):
        outcomes = train_concurrently(tmp_path, out, ("1", "2"))
        finished_seeds = [seed for seed, line in outcomes.items() if line == f"made {out}"]
        assert finished_seeds
        run = load(out, device="cpu")  # its files fit one another: they match their digests
        if len(finished_seeds) == 1:  # else one was over before the other began
            refusal = next(line for line in outcomes.values() if line.startswith("refused"))
            assert re.search(r"run is in use by process \d+ on .+ \(training classify, since .+\); wait", refusal)
            assert run.config.seed == int(finished_seeds[0])


def test_two_processes_without_a_folder_of_their_own_get_two(tmp_path: Path) -> None:
    outcomes = train_concurrently(tmp_path, None, ("1", "2"))
    assert sorted(outcomes.values()) == [
        f"made {Path('runs') / name}" for name in ("classify-rows", "classify-rows-2")
    ]
    assert not list((tmp_path / "runs").glob("*/.*"))


def test_several_seeds_and_a_single_run_do_not_share_a_folder(tmp_path: Path) -> None:
    outcomes = train_concurrently(tmp_path, tmp_path / "run", ("several", "1"))
    assert sum(line.startswith("made") for line in outcomes.values()) == 1
    assert (tmp_path / "run" / "config.toml").exists() != (tmp_path / "run" / "seed-0").exists()


@posix
def test_the_holder_of_a_lock_is_known_without_disturbing_it_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    assert find_lock_holder(tmp_path) is None
    process = start_holder(tmp_path)
    try:
        for _ in range(3):
            holder = find_lock_holder(tmp_path)
            assert holder is not None
            assert (holder.pid, holder.host, holder.purpose) == (process.pid, socket.gethostname(), "testing")
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / LOCK_FILE).exists()
    assert find_lock_holder(tmp_path) is None


def test_a_lock_file_without_a_lock_has_no_holder(tmp_path: Path) -> None:
    for text in ("", "{", '{"pid": 1, "host": "elsewhere", "purpose": "training", "since": "yesterday"}'):
        (tmp_path / LOCK_FILE).write_text(text, encoding="utf-8")
        assert find_lock_holder(tmp_path) is None


def test_this_process_is_found_as_a_holder_too(tmp_path: Path) -> None:
    with folder_lock(tmp_path, "testing"):
        holder = find_lock_holder(tmp_path)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert find_lock_holder(tmp_path) is None
