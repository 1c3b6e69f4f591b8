"""The explanations that a server computed last, so that another head of a text does not run the model again."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

if TYPE_CHECKING:
    from triform.explain.attention_maps import AttentionMap, Explanation
    from triform.run import Run
    from triform.tasks import Task

MAX_EXPLANATIONS = 16
MAX_CACHED_BYTES = 1 << 28  # of attention weights; the newest explanation is kept even if it has more
MAX_LATEST_RUNS = 2
N_THREADS = 2  # explanations that are computed at the same time

Contents = Literal["maps", "attributions"]
CacheKey = tuple[int, Contents, str, str]


@dataclass(frozen=True, kw_only=True)
class HeadSummary:
    """Numbers about each head, as lists by layer and head."""

    entropy: list[list[float]]  # in bits, averaged over the queries
    max_entropy: float  # of a head with equal weights for all keys that a query may read
    distance: list[list[float]] | None  # in tokens; None for cross-attention


@dataclass
class CacheEntry:
    """An explanation that is computed by the first thread that needs it."""

    task: weakref.ref[Task]  # the model may be replaced by another with the same identity
    lock: threading.Lock = field(default_factory=threading.Lock)
    explanation: Explanation | None = None
    summaries: dict[str, HeadSummary] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        maps = self.explanation.maps if self.explanation else ()
        return sum(attention_map.weights.nbytes for attention_map in maps)

    def summary(self, attention_map: AttentionMap) -> HeadSummary:
        """Return the summary of a map of this explanation. It is computed once."""
        with self.lock:
            if attention_map.name not in self.summaries:
                distance = attention_map.mean_distance()
                self.summaries[attention_map.name] = HeadSummary(
                    entropy=attention_map.entropy().tolist(),
                    max_entropy=attention_map.max_entropy(),
                    distance=None if distance is None else distance.tolist(),
                )
            return self.summaries[attention_map.name]


class Explanations:
    """Explanations of the runs of a server. All methods may be called from any thread."""

    def __init__(self) -> None:
        self.limiter = anyio.CapacityLimiter(N_THREADS)
        self._lock = threading.Lock()
        self._entries: OrderedDict[CacheKey, CacheEntry] = OrderedDict()
        self._latest_runs: OrderedDict[Path, Run] = OrderedDict()

    def explain(self, run: Run, text: str, *, target: str = "", contents: Contents) -> CacheEntry:
        """Return the maps or the attributions of a text, computed now or earlier.

        Raises:
            TriformError: The text cannot be explained.
        """
        key = (id(run.task), contents, text, target)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.task() is not run.task:
                entry = self._entries[key] = CacheEntry(weakref.ref(run.task))
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.explanation is None:
                only_maps = contents == "maps"
                entry.explanation = run.explain(text, target=target, maps=only_maps, attributions=not only_maps)
        self._forget_old()
        return entry

    def load_latest(self, path: Path, device: str, *, step: int | None = None) -> Run:
        """Return a run with the weights of its latest checkpoint.

        Args:
            path: The run folder.
            device: The device to load the run on.
            step: Return the run at this step if it is still in memory, even if there is a newer checkpoint.
        """
        from triform.run import load
        from triform.training.run_folder import RunFolder, checkpoint_step

        with self._lock:
            run = self._latest_runs.get(path)
        if run is not None and step != run.step:
            latest = RunFolder(path).latest_checkpoint()
            if latest is None or checkpoint_step(latest) != run.step:
                run = None
        if run is None:
            run = load(path, device=device, precision="fp32", checkpoint="latest")
        with self._lock:
            self._latest_runs[path] = run
            self._latest_runs.move_to_end(path)
            while len(self._latest_runs) > MAX_LATEST_RUNS:
                self._latest_runs.popitem(last=False)
        return run

    def _forget_old(self) -> None:
        """Remove failed entries, those of models that are gone, and the oldest ones beyond the limits."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.task() is None or (entry.explanation is None and not entry.lock.locked()):
                    del self._entries[key]
            total = sum(entry.n_bytes for entry in self._entries.values())
            while len(self._entries) > 1 and (total > MAX_CACHED_BYTES or len(self._entries) > MAX_EXPLANATIONS):
                total -= self._entries.popitem(last=False)[1].n_bytes
