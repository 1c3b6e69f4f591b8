"""A small search, and a private PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SPACE = """
name = "small"
task = "classify"
trials = 4
final_seeds = 0
[common]
data.train = "rows.tsv"
tokenizer.kind = "word"
model = { d_model = 8, n_layers = 1, n_heads = 2, dropout = 0.0 }
train = { max_steps = 4, eval_every = 2, batch_size = 8, warmup_steps = 1 }
[space]
train.lr = { low = 1e-4, high = 1e-1, log = true }
"""
WORDS = ("amber", "birch", "cedar", "dune", "ember")


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with training data and a test file, which is also the working folder."""
    texts = [" ".join(WORDS[(n * k) % 5] for k in range(1, 3 + n % 6)) for n in range(60)]
    rows = [f"{text}\t{'long' if len(text) > 25 else 'short'}\n" for text in texts]
    (tmp_path / "rows.tsv").write_text("".join(rows), encoding="utf-8")
    (tmp_path / "test.tsv").write_text("".join(rows[:15]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write_space(workdir: Path) -> Callable[..., Path]:
    """`write_space(("old", "new"), …, extra="[pruning]")`: the file of a search with these changes."""

    def write(*changes: tuple[str, str], extra: str = "", name: str = "space.toml") -> Path:
        text = SPACE + extra
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (workdir / name).write_text(text, encoding="utf-8")
        return workdir / name

    return write


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a database on a private server, which ends with the tests."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(programs[-1]) if programs else "")
    if not initdb:
        reason = "PostgreSQL is not installed (on Debian: apt install postgresql)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    # The server refuses to run as root, so root lends it the user that Debian's package makes.
    account = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # not tmp_path, whose parents only root can read
    if account:
        shutil.chown(folder, "postgres", "postgres")
    data, environment = folder / "data", {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    create = [initdb, "-D", data, "-U", "triform", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=folder, **account)  # type: ignore[call-overload]
    command = [str(Path(initdb).with_name("postgres")), "-D", data, "-k", folder, "-h", "", "-F"]
    log = (folder.with_suffix(".log")).open("wb")
    server = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, **account)  # type: ignore[call-overload]
    try:
        url = f"postgresql://triform:secret@/postgres?host={folder}"
        _wait_for_server(url, server)
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # ends also if a connection is open
        server.wait(30)
        log.close()
        shutil.rmtree(folder)
        folder.with_suffix(".log").unlink()


def _wait_for_server(url: str, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    end = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, "PostgreSQL has ended"
            assert time.monotonic() < end, "PostgreSQL does not answer"
            time.sleep(0.1)
