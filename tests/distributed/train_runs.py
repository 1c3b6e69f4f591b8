"""Train the runs of `FOLDER/runs.json` one after another, and record which examples each process computes.

torchrun starts this script in each process. Process R writes a line to `FOLDER/seen-R.jsonl` for each part of a
micro-batch: the name of the run, the step, the number of the attempt and the indices of the examples.

A run is the arguments of `triform.train`, and:

name: The name of its folder.
faults: What happens before a step of a rank in an attempt, such as `{"step": 3, "rank": 1, "fault": "kill"}`.
    "freeze store" stops the process whose id is in `FOLDER/store.pid`.
ranks: Arguments that only some ranks have, by rank.
fails: Whether the run is expected to fail. Its error is printed by one process, and the next run starts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import triform
from triform.data.samplers import Indices
from triform.errors import TriformError
from triform.tasks.batch import Batch
from triform.training.distributed_step import PartitionedTrainStep
from triform.world import current_world

FOLDER, WORLD = Path(sys.argv[1]), current_world()
collate_part = PartitionedTrainStep.collate_part


def record_part(self: PartitionedTrainStep, indices: Indices, part: int, n_parts: int) -> Batch:
    rows = np.array_split(indices, n_parts)[part].tolist()
    record = {"run": name, "step": self.n_steps, "attempt": WORLD.attempt, "rows": rows}
    for fault in faults:
        if (fault["step"], fault["rank"], fault.get("attempt", 0)) == (self.n_steps, WORLD.rank, WORLD.attempt):
            cause_fault(fault["fault"])
    with (FOLDER / f"seen-{WORLD.rank}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return collate_part(self, indices, part, n_parts)


def cause_fault(fault: str) -> None:
    if fault == "freeze store":
        os.kill(int((FOLDER / "store.pid").read_text()), signal.SIGSTOP)
        return
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(100)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}[fault])


PartitionedTrainStep.collate_part = record_part  # type: ignore[method-assign]
for run in json.loads((FOLDER / "runs.json").read_text(encoding="utf-8")):
    arguments: dict[str, Any] = {"out": str(FOLDER / run["name"]), "device": "cpu", "quiet": True} | run
    name, faults, fails = arguments.pop("name"), arguments.pop("faults", []), arguments.pop("fails", False)
    arguments |= arguments.pop("ranks", {}).get(str(WORLD.rank), {})
    try:
        triform.train(arguments.pop("task"), **arguments)
    except TriformError:
        if not fails:
            sys.exit(2)
