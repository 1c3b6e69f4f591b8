"""Write the results page, `docs/results.md`, its pictures and the page of claims from `results/*.json`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from triform.errors import CheckpointError, DataError
from triform.experiments.reproduce.claims.page import render_claims_page
from triform.experiments.reproduce.result_file import ExperimentResult, read_result
from triform.experiments.reproduce.summary import study_links, summary_table
from triform.experiments.reproduce.system import ReferenceSystem
from triform.experiments.reproduce.systems import SYSTEM_NAMES, load_systems
from triform.experiments.reproduce.systems import WHY_TRANSFORMERS as WHY
from triform.experiments.reproduce.tables import format_section
from triform.experiments.reproduce.why.comparison import STUDY_TITLE
from triform.experiments.reproduce.why.tables import format_section as why_section
from triform.experiments.search.record import describe_choice, read_record
from triform.formatting import metric_label
from triform.reporting.attention_figure import render_attention_maps
from triform.reporting.loss_curves import (
    render_by_length,
    render_gradients,
    render_loss_curves,
    render_validation_curves,
)

FIGURES_FOLDER = "pictures"
CLAIMS_PAGE = "claims.md"
INTRODUCTION = """# Results

This page compares our results for every reference system with the reported figures and with baselines. Each system
was trained with the reported settings and with better ones. Repeat a result with `triform reproduce NAME`;
[Reproducing the results](reproduce.md) explains how, and [Claims of the reports](claims.md) judges what the reports
say. ± is half of the 95 % confidence interval of a mean over seeds. The verdict compares our mean with the best
baseline of the metric: "no difference shown" means that the baseline lies within the interval.
"""
STUDIES_INTRODUCTION = "These studies have no reported figures; their sections contain the results:"
METHODS = """## How the results were obtained

- `triform reproduce NAME` trains a system and writes `results/NAME.json`. `triform reproduce tables` writes this
  page from these files. A test writes the page again and compares it with this one.
- Settings were chosen on validation data, and the test set was evaluated once for each seed. Each section lists
  every setting that was evaluated on the test set, as far as the results of earlier versions and our notes show.
- Training time and cost are those of all seeds of a variant together. The cost is the time for which the device was
  in use, in hours; it includes validations and checkpoints. For an ensemble, they are those of its
  models. For a distilled model, they leave out the teacher.
- Means with ± are over several seeds. The interval is that of Student's t distribution. It describes other seeds,
  not other test data. Baselines have no seeds, so each of them is one number. Comparisons are sign-flip tests over
  paired seeds; p-values are corrected for the number of comparisons of a system by Holm's method.
- Loss curves and attention maps are those of the first seed. In an attention map, the token of a row reads the
  tokens of the columns. Darker cells have larger weights, and masked cells are beige.
"""


def render_pages(results: Path) -> dict[str, str]:
    """Return the page under the key "", and the page of claims and the pictures under paths relative to it."""
    results_by_name = {name: read_result(results, name) for name in SYSTEM_NAMES}
    parts = [
        INTRODUCTION.rstrip(),
        summary_table(load_systems(), results_by_name),
        STUDIES_INTRODUCTION,
        study_links(load_systems(), {WHY: STUDY_TITLE}),
    ]
    pictures: dict[str, str] = {}
    for name, system in load_systems().items():
        system, result = with_searches(system, results / "search"), results_by_name[name]
        figures = _render_figures(system, result) if result else {}
        links = [f"![{title}]({path})" for path, (title, _) in figures.items()]
        parts.append(format_section(system, result, links, collapsed=True))
        pictures |= {path: picture for path, (_, picture) in figures.items()}
    why_result = read_result(results, WHY)
    parts += [why_section(why_result), METHODS.rstrip()]
    claims_page = render_claims_page(results_by_name | {WHY: why_result})
    return {"": "\n\n".join(parts) + "\n", CLAIMS_PAGE: claims_page, **pictures}


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
                variant, description=f"{variant.description}; {choice} (`results/search/{path.name}`)"
            )
        variants.append(variant)
    return replace(system, variants=tuple(variants))


def _render_figures(system: ReferenceSystem, result: ExperimentResult) -> dict[str, tuple[str, str]]:
    """Return the title and the picture of each figure of a system, by its path relative to the page."""
    figures = {}
    if loss_figure := render_loss_curves(result):
        figures[f"{FIGURES_FOLDER}/{system.name}.svg"] = (f"Loss over steps: {system.name}", loss_figure)
    if bleu_figure := render_validation_curves(result, "BLEU", system.compared_group):
        path = f"{FIGURES_FOLDER}/{system.name}-bleu.svg"
        figures[path] = (f"BLEU on validation data over epochs: {system.name}", bleu_figure)
    if gradient_figure := render_gradients(result):
        path = f"{FIGURES_FOLDER}/{system.name}-gradients.svg"
        figures[path] = (f"Gradients over distance: {system.name}", gradient_figure)
    bins = system.token_length_bins
    if bins and (length_figure := render_by_length(result, bins.names, system.columns[0].metric)):
        path = f"{FIGURES_FOLDER}/{system.name}-length.svg"
        figures[path] = (f"{metric_label(system.columns[0].metric)} by length: {system.name}", length_figure)
    for variant in result["variants"]:
        if attention := variant.get("map"):
            title = f"Attention of {variant['name']}: {system.attention_example}"
            path = f"{FIGURES_FOLDER}/{system.name}-{variant['name']}-attention.svg"
            figures[path] = (title, render_attention_maps(attention, title))
    return figures


def write_results_page(results: Path, page: Path) -> Path:
    """Write the page, its pictures, and the page of claims next to it.

    Raises:
        DataError: The folder contains no results. An existing page is not changed.
        CheckpointError: The page cannot be written.
    """
    if not any((results / f"{name}.json").is_file() for name in (*SYSTEM_NAMES, WHY)):
        raise DataError(
            "no results found; run triform reproduce NAME first, or choose another --results", path=results
        )
    try:
        for relative_path, text in render_pages(results).items():
            path = page.parent / relative_path if relative_path else page
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{page} cannot be written: {error.strerror or error}") from None
    return page
