"""A real kernel: training shows a bar, the stop button saves the run, and the notebooks of docs/notebooks run."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MAX_NOTEBOOK_BYTES = 1_500_000  # with outputs, because each version of it stays in the repository
SHORT = {"TRIFORM_NOTEBOOK_STEPS": "4"}
pytest.importorskip("ipykernel")
jupyter_client = pytest.importorskip("jupyter_client")

TIMEOUT_SECONDS = 120
Message = dict[str, Any]
SETUP = """
import os, triform
os.chdir({folder!r})
open("rows.csv", "w").write("good,film 1\\nbad,film 2\\n" * 30)
common = dict(data="rows.csv", device="cpu", model=dict(d_model=16, n_heads=2, n_layers=1))
"""


class Kernel:
    """A kernel in a folder, and the messages that its cells send."""

    def __init__(self, folder: Path) -> None:
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        environment = {**os.environ, **SHORT, "IPYTHONDIR": str(folder / "ipython")}
        self.manager.start_kernel(cwd=str(folder), env=environment, stdout=DEVNULL, stderr=DEVNULL)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT_SECONDS)

    def run_cell(self, code: str, on_message: Callable[[Message], None] | None = None) -> list[Message]:
        """Run a cell and return what it sends, until it is idle."""
        message_id = self.client.execute(code)
        messages: list[Message] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return messages
            messages.append(message)
            if on_message is not None:
                on_message(message)
        raise AssertionError(f"the cell did not end: {code}")

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()


@pytest.fixture(scope="module")
def shared_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(shared_kernel: Kernel, tmp_path: Path) -> Kernel:
    """The kernel in a folder of this test, without the variables of other tests."""
    shared_kernel.run_cell("%reset -f")
    assert not find_messages(shared_kernel.run_cell(SETUP.format(folder=str(tmp_path))), "error")
    return shared_kernel


def find_messages(messages: list[Message], kind: str) -> list[Message]:
    return [message["content"] for message in messages if message["msg_type"] == kind]


def printed_text(messages: list[Message], name: str) -> str:
    return "".join(content["text"] for content in find_messages(messages, "stream") if content["name"] == name)


def test_training_shows_one_bar_that_is_updated_in_place(kernel: Kernel) -> None:
    cell = "run = triform.train('classify', out='run', train={'max_steps': 6, 'eval_every': 3}, **common)"
    messages = kernel.run_cell(cell)
    assert not find_messages(messages, "error")
    displays = find_messages(messages, "display_data")
    updates = find_messages(messages, "update_display_data")
    assert len(displays) == 1
    assert updates
    names = {content["transient"]["display_id"] for content in (*displays, *updates)}
    assert len(names) == 1
    assert "step 6/6" in updates[-1]["data"]["text/html"]
    assert 'value="1.0000"' in updates[-1]["data"]["text/html"]
    assert "step 6/6" in updates[-1]["data"]["text/plain"]
    lines = printed_text(messages, "stdout")
    assert "valid loss" in lines
    assert "done after 6 steps" in lines
    assert "\r" not in lines
    assert "\x1b" not in lines
    assert not printed_text(messages, "stderr")  # a notebook shows it in red


def test_results_are_shown_as_html(kernel: Kernel) -> None:
    kernel.run_cell("run = triform.train('classify', out='run', train={'max_steps': 1}, **common)")
    for cell in ("run", "run.predict(['film 3'])", "run.explain('film 3')"):
        (result,) = find_messages(kernel.run_cell(cell), "execute_result")
        assert "triform-output" in result["data"]["text/html"]


def test_the_stop_button_saves_the_run_and_the_kernel_goes_on(kernel: Kernel) -> None:
    interrupts: list[float] = []

    def stop_once(message: Message) -> None:
        if message["msg_type"] == "update_display_data" and not interrupts:
            interrupts.append(time.monotonic())
            kernel.manager.interrupt_kernel()

    settings = "train={'max_steps': 1_000_000, 'eval_every': 1_000_000, 'schedule': 'constant'}"
    messages = kernel.run_cell(f"triform.train('classify', out='long', {settings}, **common)", stop_once)
    (error,) = find_messages(messages, "error")
    assert error["ename"] == "RunInterruptedError"
    assert len(error["traceback"]) == 1  # nothing has failed
    assert "everything is saved" in error["evalue"]
    assert "saving the run" in printed_text(messages, "stdout")
    messages = kernel.run_cell("print(triform.load('long', checkpoint='latest').progress()['step'])")
    assert int(printed_text(messages, "stdout")) > 0


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """The script that makes the notebooks."""
    spec = importlib.util.spec_from_file_location("make_notebooks", ROOT / "docs" / "notebooks" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_notebook(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_source_has_a_notebook_with_the_same_cells(make: ModuleType) -> None:
    assert [path.stem for path in make.sources()] == [path.stem for path in NOTEBOOKS]
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in read_notebook(path)["cells"]]
        assert cells == make.read_cells(path.with_suffix(".py")), f"{path.name}: run docs/notebooks/make.py"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_outputs_are_complete_and_small(path: Path) -> None:
    cells = [cell for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))  # run once, in order
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert path.stat().st_size < MAX_NOTEBOOK_BYTES
    text = path.read_text(encoding="utf-8")
    assert "/tmp/" not in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_its_results_as_html(path: Path, kernel: Kernel) -> None:
    kernel.run_cell("%reset -f")
    for cell in read_notebook(path)["cells"]:
        if cell["cell_type"] != "code":
            continue
        code = "".join(cell["source"])
        messages = kernel.run_cell(code)
        errors = ["\n".join(error["traceback"]) for error in find_messages(messages, "error")]
        assert not errors, code + "\n".join(errors)
        kinds = {kind for output in cell["outputs"] for kind in output.get("data", {})}
        results = find_messages(messages, "execute_result")
        assert len(results) == sum(output["output_type"] == "execute_result" for output in cell["outputs"])
        assert all("triform-output" in result["data"]["text/html"] for result in results)
        assert kinds <= {"text/html", "text/plain"}
