"""What several tests of training share: a small table, and a run that is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from same_runs import StoppedAfter

from triform.errors import RunInterruptedError
from triform.training.trainer import Trainer


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A table of 90 labelled texts."""
    path = tmp_path / "rows.tsv"
    lines = [f"{'good' if n % 3 else 'bad'}\tword{n % 11} thing{n % 5} {n}\n" for n in range(90)]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def stopped_after(monkeypatch: pytest.MonkeyPatch) -> StoppedAfter:
    """`with stopped_after(4):` stops the training inside as Ctrl-C during step 4 does, and expects its error."""
    original_step = Trainer.step

    @contextmanager
    def stopped(steps: int) -> Iterator[None]:
        def step_then_stop(self: Trainer) -> None:
            original_step(self)
            if self.progress.step == steps:
                self.stop()

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", step_then_stop)
            with pytest.raises(RunInterruptedError, match=f"stopped at step {steps}, "):
                yield

    return stopped
