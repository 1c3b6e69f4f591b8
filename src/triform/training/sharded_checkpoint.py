"""Write a checkpoint of which each process has a part. The main process publishes it when all parts are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from triform.io import files
from triform.io.digests import file_digest, write_digests
from triform.io.errors import write_errors
from triform.io.run_layout import STATE_FILE
from triform.training.run_folder import RunFolder
from triform.world import current_world, gather_values_slowly, run_in_order

if TYPE_CHECKING:
    from triform.training.sharded_tensors import ShardSlice

CHECKPOINT_CHANNEL = "checkpoint"  # for values that threads exchange while the training goes on


def find_in_processes(text: str) -> str:
    """Return the first text of all processes that is not empty; empty if there is none."""
    return next(filter(None, gather_values_slowly(text, CHECKPOINT_CHANNEL)), "")


def write_sharded_checkpoint(
    folder: RunFolder, parts: dict[str, Tensor], slices: Mapping[str, ShardSlice], state: dict[str, Any]
) -> None:
    """Write the part of this process, and wait until the checkpoint is published.

    Args:
        folder: The run folder, which all processes share.
        parts: The data of each tensor in this process, on the host.
        slices: The slices of those tensors that are sharded. The main process writes the others.
        state: The content of state.json; that of the main process is written.

    Raises:
        CheckpointError: A process cannot write its part. Then nothing is published.
    """
    from triform.training.sharded_tensors import shard_name, write_shard

    world, destination = current_world(), folder.checkpoint_path(state)
    with ExitStack() as stack:

        def create_temporary_folder() -> str:
            if not world.is_main or destination.exists():
                return ""
            with write_errors(destination, folder.path):
                folder.checkpoints_folder.mkdir(exist_ok=True)
                return str(stack.enter_context(files.atomic_folder(destination)))

        path = run_in_order(create_temporary_folder, channel=CHECKPOINT_CHANNEL)
        temporary = Path(gather_values_slowly(path, CHECKPOINT_CHANNEL)[0])
        if temporary == Path():  # the checkpoint exists already
            return
        file = temporary / shard_name(world.rank, world.size)

        def write_part() -> str:
            with write_errors(destination, folder.path):
                own = {name: part for name, part in parts.items() if world.is_main or name in slices}
                write_shard(file, own, slices)
                files.fsync_path(file)
                return file_digest(file)

        digest = run_in_order(write_part, channel=CHECKPOINT_CHANNEL)
        digests = gather_values_slowly([file.name, digest], CHECKPOINT_CHANNEL)

        def publish() -> None:
            if world.is_main:
                with write_errors(destination, folder.path):
                    (temporary / STATE_FILE).write_bytes(json.dumps(state).encode())
                    recorded = {name: [value] for name, value in digests}
                    write_digests(temporary, recorded | {STATE_FILE: [file_digest(temporary / STATE_FILE)]})
                    stack.close()
                    folder.remove_older_checkpoints(destination)

        run_in_order(publish, channel=CHECKPOINT_CHANNEL)
