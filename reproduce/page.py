"""Write the results page, `docs/results.md`, a page and a picture of each system, and the page of claims."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from reproduce.claims.page import render_claims_page
from reproduce.loss_curves import (
    render_by_length,
    render_gradients,
    render_loss_curves,
    render_validation_curves,
)
from reproduce.result_file import ExperimentResult, read_result
from reproduce.summary import study_links, summary_table
from reproduce.system import ReferenceSystem
from reproduce.systems import SYSTEM_NAMES, load_systems
from reproduce.systems import WHY_TRANSFORMERS as WHY
from reproduce.tables import format_section
from reproduce.why.comparison import STUDY_TITLE
from reproduce.why.tables import format_section as why_section
from triform.errors import CheckpointError, DataError
from triform.experiments.search.record import describe_choice, read_record
from triform.formatting import metric_label

FIGURES_FOLDER, PAGES_FOLDER = "pictures", "results"  # relative to the results page
CLAIMS_PAGE = "claims.md"
INTRODUCTION = """# Results

This page compares our results for every reference system with the reported figures and with baselines. Each system
was trained with the reported settings and with better ones; a link of the table leads to its page. Repeat a result
with `python -m reproduce NAME`; [Reproducing the results](reproduce.md) explains how, and
[Claims of the reports](claims.md) judges what the reports say. ± is half of the 95 % confidence interval of a mean
over seeds. The verdict compares our mean with the best baseline of the metric: "no difference shown" means that the
baseline lies within the interval.
"""
STUDIES_INTRODUCTION = "These studies have no reported figures:"
METHODS = """## How the results were obtained

- `python -m reproduce NAME` trains a system and writes `reproduce/results/NAME.json`. `python -m reproduce tables`
  writes this page from these files. A test writes the page again and compares it with this one. A command that was
  recorded as `triform reproduce NAME` is now `python -m reproduce NAME`.
- Settings were chosen on validation data, and the test set was evaluated once for each seed. Each page lists
  every setting that was evaluated on the test set, as far as the results of earlier versions and our notes show.
- Training time and cost are those of all seeds of a variant together. The cost is the time for which the device was
  in use, in hours; it includes validations and checkpoints. For an ensemble, they are those of its
  models. For a distilled model, they leave out the teacher.
- Means with ± are over several seeds. The interval is that of Student's t distribution. It describes other seeds,
  not other test data. Baselines have no seeds, so each of them is one number. Comparisons are sign-flip tests over
  paired seeds; p-values are corrected for the number of comparisons of a system by Holm's method.
- Curves are those of the first seed.
"""


def render_pages(results: Path) -> dict[str, str]:
    """Return the page under the key "", and the other pages and the pictures under paths relative to it."""
    results_by_name = {name: read_result(results, name) for name in SYSTEM_NAMES}
    parts = [
        INTRODUCTION.rstrip(),
        summary_table(load_systems(), results_by_name),
        STUDIES_INTRODUCTION,
        study_links(load_systems(), {WHY: STUDY_TITLE}),
    ]
    others: dict[str, str] = {}
    for name, system in load_systems().items():
        system, result = with_searches(system, results / "search"), results_by_name[name]
        title, chart = _render_figure(system, result) if result else ("", "")
        path = f"{FIGURES_FOLDER}/{name}.svg"
        section = format_section(system, result, [f"![{title}]({path})"] if chart else [], collapsed=True)
        others |= {f"{PAGES_FOLDER}/{name}.md": _format_page(section), **({path: chart} if chart else {})}
    why_result = read_result(results, WHY)
    others[f"{PAGES_FOLDER}/{WHY}.md"] = _format_page(why_section(why_result))
    others[CLAIMS_PAGE] = render_claims_page(results_by_name | {WHY: why_result})
    return {"": "\n\n".join([*parts, METHODS.rstrip()]) + "\n", **others}


def _format_page(section: str) -> str:
    """Return a section as a page of its own, one folder below the results page."""
    page = re.sub(r"^#(#+ )", r"\1", section, flags=re.MULTILINE)
    return re.sub(r"\]\((?!https?:|#)", "](../", page) + "\n"


def with_searches(system: ReferenceSystem, records: Path) -> ReferenceSystem:
    """Return the system with descriptions that say which search chose the settings of a variant.

    Args:
        system: The system.
        records: The folder of the records.

    Raises:
        DataError: A variant has other settings than those that its search chose.
    """
    variants = []
    for variant in system.variants:
        path = records / f"{variant.search}.json"
        if variant.search and path.exists():
            choice = describe_choice(variant.settings, read_record(path))
            variant = replace(
                variant, description=f"{variant.description}; {choice} (`reproduce/results/search/{path.name}`)"
            )
        variants.append(variant)
    return replace(system, variants=tuple(variants))


def _render_figure(system: ReferenceSystem, result: ExperimentResult) -> tuple[str, str]:
    """Return the title and the SVG of the chart that shows most of a system; two empty strings if there is none."""
    bins = system.token_length_bins
    charts = {
        "Gradients over distance": render_gradients(result),
        f"{metric_label(system.columns[0].metric)} by length": (
            render_by_length(result, bins.names, system.columns[0].metric) if bins else ""
        ),
        "BLEU on validation data over epochs": render_validation_curves(result, "BLEU", system.compared_group),
        "Loss over steps": render_loss_curves(result),
    }
    return next(((f"{title}: {system.name}", chart) for title, chart in charts.items() if chart), ("", ""))


def write_results_page(results: Path, page: Path) -> Path:
    """Write the page, the pages and pictures of the systems, and the page of claims.

    Raises:
        DataError: The folder contains no results. An existing page is not changed.
        CheckpointError: The page cannot be written.
    """
    if not any((results / f"{name}.json").is_file() for name in (*SYSTEM_NAMES, WHY)):
        raise DataError(
            "no results found; run python -m reproduce NAME first, or choose another --results", path=results
        )
    try:
        for relative_path, text in render_pages(results).items():
            path = page.parent / relative_path if relative_path else page
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{page} cannot be written: {error.strerror or error}") from None
    return page
