"""Folders of tiny runs, made once: one of each task, one classifier with two seeds, and a study."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from triform.experiments.study.runner import compare
from triform.launch import train
from triform.serving import ServerOptions, create_app
from triform.serving.listen import HttpServer, bind_socket

Connect = Callable[[ServerOptions], TestClient]
StartServer = Callable[[ServerOptions], AbstractContextManager[str]]

WORDS = ("amber", "birch", "cedar", "dune", "ember")
MODEL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "dropout": 0.0}
TRAIN = {"max_steps": 12, "eval_every": 4, "batch_size": 8, "lr": 0.01, "warmup_steps": 1, "log_every": 2}
OPTIONS = {"device": "cpu", "quiet": True}


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with labels (rows.tsv), running text (text.txt) and sentences with translations (pairs.tsv)."""
    folder = tmp_path_factory.mktemp("data")
    texts = [" ".join(WORDS[(n * k) % 5] for k in range(1, 3 + n % 6)) for n in range(60)]
    (folder / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    rows = [f"{text}\t{'long' if len(text) > 25 else 'short'}\n" for text in texts]
    (folder / "rows.tsv").write_text("".join(rows), encoding="utf-8")
    pairs = [f"{text}\t{' '.join(reversed(text.split()))}\n" for text in texts]
    (folder / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def runs_folder(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs `reviews` (classify), `verses` (generate), `french` (translate), `seeds/seed-1` and `-2`."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = {"kind": "word"}
    shared = {"model": MODEL, "train": TRAIN, "tokenizer": tokenizer, **OPTIONS}
    train("classify", data=data_folder / "rows.tsv", out=folder / "reviews", **shared)
    train("generate", data=data_folder / "text.txt", out=folder / "verses", **shared)
    train("translate", data=data_folder / "pairs.tsv", out=folder / "french", **shared)
    for seed in (1, 2):
        out = folder / "seeds" / f"seed-{seed}"
        train("classify", data=data_folder / "rows.tsv", out=out, seed=seed, **shared)
    return folder


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """Start servers inside the test process: `connect(ServerOptions(...)).get("/health")`."""
    with ExitStack() as stack:
        yield lambda options: stack.enter_context(TestClient(create_app(options), base_url="http://127.0.0.1:8000"))


@contextmanager
def run_server(options: ServerOptions) -> Iterator[str]:
    """Run a server in a thread and yield its address, which has no final slash."""
    app, sock = create_app(options), bind_socket("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = HttpServer(app, drain=1)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    app.state.server.stopping.set()
    server.should_exit = True
    thread.join(timeout=30)


@pytest.fixture(scope="session")
def start_server() -> StartServer:
    """Start a server of a test's own: `with start_server(ServerOptions(...)) as address`."""
    return run_server


@contextmanager
def limit_file_size(n_bytes: int) -> Iterator[None]:
    """Make writes beyond this size fail, as on a full disk."""
    resource = pytest.importorskip("resource", reason="Windows has no limit of the file size")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="session")
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Let files have at most so many bytes: `with full_disk(1000):`."""
    return limit_file_size


@pytest.fixture(scope="session")
def study_folder(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished study `width`, whose variants `narrow` and `broad` have three seeds each."""
    folder = tmp_path_factory.mktemp("studies")
    common = {"data.train": str(data_folder / "rows.tsv"), "tokenizer.kind": "word", "model": MODEL, "train": TRAIN}
    variants = {"narrow": {"model.d_model": 8}, "broad": {"model.d_model": 24}}
    study = {"name": "width", "task": "classify", "seeds": 3, "common": common, "variants": variants}
    compare(study, out=folder / "width", device="cpu", quiet=True)
    return folder
