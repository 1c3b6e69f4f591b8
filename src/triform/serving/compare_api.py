"""The route of the tab Compare."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread

from triform.serving.comparison import RunComparison, compare_runs, compare_study
from triform.serving.endpoints import ApiError, Call, Endpoint
from triform.serving.run_list import RunSummary
from triform.serving.runs_api import find_studies, list_summaries, run_path, summarise
from triform.serving.server import Server


async def compare(call: Call) -> RunComparison:
    """Compare the runs of the parameters `run`, or those of the parameter `study`."""
    query = call.http.query_params
    run_ids = list(dict.fromkeys(query.getlist("run")))
    return await anyio.to_thread.run_sync(_compare, call.server, run_ids, query.get("study", ""))


def _compare(server: Server, run_ids: list[str], study: str) -> RunComparison:
    if study and run_ids:
        raise ApiError(400, "give either runs or a study, not both", param="study")
    if not study:
        return compare_runs([_locate(server, run_id) for run_id in run_ids])
    summaries, _ = list_summaries(server)
    if server.options.folder is None or study not in find_studies(server, summaries):
        raise ApiError(404, f"there is no study {study!r}; GET /api/runs lists the studies", param="study")
    runs = [_locate(server, run.id) for run in summaries if run.group.rpartition("/")[0] == study]
    return compare_study(server.options.folder / study, study, runs)


def _locate(server: Server, run_id: str) -> tuple[RunSummary, Path]:
    return summarise(server, run_id), run_path(server, run_id)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/compare",
        handler=compare,
        dialect="triform",
        summary="Compare runs, or the variants of a study: metrics, curves, and a verdict for each pair.",
        response=RunComparison,
        query={"run": list[str], "study": str},
    ),
)
