"""Check that a model fits into the memory of this computer before it is built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from triform.analysis.parameters import count_parameters
from triform.config import Config, DataSizes
from triform.errors import ConfigError

GIB = 2**30
BYTES_PER_WEIGHT = 4  # float32
MEMINFO, PROC_STATUS = Path("/proc/meminfo"), Path("/proc/self/status")
CGROUP_FILES = (  # limit and usage of a container: control groups version 2, then version 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
# The settings that determine the number of parameters of each role, in the order in which to lower them.
SETTINGS_BY_ROLE = {
    "tokens": "the vocabulary (tokenizer.vocab_size), model.bigram_buckets or model.d_model",
    "terms": "the vocabulary (tokenizer.vocab_size) or model.term_buckets",
    "output": "the vocabulary (tokenizer.vocab_size), model.head_hidden or model.d_model",
    "positions": "data.max_len, model.max_distance or model.d_model",
    "feedforward": "model.d_ff, model.d_model or model.n_layers",
}


def require_memory(config: Config, sizes: DataSizes) -> None:
    """Raise `ConfigError` if the weights of a model do not fit into memory, or if a size is missing.

    The weights are counted by formulas, so this takes no time.
    """
    parameters = count_parameters(config, sizes)
    needed_bytes = BYTES_PER_WEIGHT * (parameters.total + _count_table_elements(config, sizes))
    available_bytes = available_memory()
    if needed_bytes <= available_bytes:
        return
    count_by_role: dict[str, int] = {}
    for group, row in parameters.iter_rows():
        count_by_role[row.role] = count_by_role.get(row.role, 0) + group.layers * row.total
    largest_role = max(count_by_role, key=count_by_role.__getitem__)
    largest_role = (
        "positions" if _count_table_elements(config, sizes) > count_by_role[largest_role] else largest_role
    )
    advice = SETTINGS_BY_ROLE.get(largest_role, "model.d_model or model.n_layers")
    raise ConfigError(
        f"the model has {parameters.total:,} parameters, which need {needed_bytes / GIB:,.1f} GiB of memory; "
        f"{available_bytes / GIB:,.1f} GiB are free: lower {advice}"
    )


def _count_table_elements(config: Config, sizes: DataSizes) -> int:
    """Return the number of elements in position tables, which are stored like weights but not trained."""
    model = config.model
    if model.positions in ("sinusoidal", "sinusoidal_halves"):
        return sizes.max_len * model.d_model
    return 4 * sizes.max_len * model.head_dim if model.positions == "rotary" and not model.is_recurrent else 0


def available_memory() -> int:
    """Return the bytes that this process can still allocate within the limits of its machine and container."""
    return max(0, min(_machine_memory(), *map(_container_memory, CGROUP_FILES), _process_memory()))


def _machine_memory() -> int:
    available_bytes = _read_field(MEMINFO, "MemAvailable:")
    if available_bytes is not None:
        return available_bytes
    try:  # on other systems, use all physical memory as the limit
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def _container_memory(files: tuple[Path, Path]) -> int:
    try:
        limit, used = (int(file.read_text()) for file in files)
    except (OSError, ValueError):  # no container, or "max"
        return sys.maxsize
    return limit - used + _reclaimable_memory(files[1].with_name("memory.stat"))


def _reclaimable_memory(stat: Path) -> int:
    """Return the memory of cached files, which the system frees when memory is low."""
    for prefix in ("total_", ""):  # version 1 counts nested groups under total_
        if (inactive := _read_field(stat, f"{prefix}inactive_file", unit=1)) is not None:
            return inactive + (_read_field(stat, f"{prefix}active_file", unit=1) or 0)
    return 0


def _process_memory() -> int:
    """Return the bytes that a limit such as `ulimit -v` leaves for this process."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - (_read_field(PROC_STATUS, "VmSize:") or 0)


def _read_field(file: Path, name: str, *, unit: int = 1024) -> int | None:
    """Read the number after a name from a file with one name and number per line."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((unit * int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
