"""The results page: `docs/results.md` and its pictures, made from `results/*.json` alone."""

from __future__ import annotations

from pathlib import Path

from triform.errors import CheckpointError, DataError
from triform.experiments.reproduce.result_file import read_result
from triform.experiments.reproduce.systems import SYSTEM_NAMES, load_systems
from triform.experiments.reproduce.systems import WHY_TRANSFORMERS as WHY
from triform.experiments.reproduce.tables import format_section, github_anchor, summary_table
from triform.experiments.reproduce.why.comparison import STUDY_TITLE
from triform.experiments.reproduce.why.tables import format_section as why_section
from triform.reporting.attention_figure import render_attention_maps
from triform.reporting.loss_curves import render_loss_curves

FIGURES_FOLDER = "pictures"
INTRODUCTION = """# Results

Every reference system under its reported settings and under better ones, beside baselines. This page is made by
`triform reproduce tables` from `results/*.json`, which `triform reproduce NAME` writes; a test makes it again and
compares. How to repeat a figure is told in [reproduce.md](reproduce.md). Settings were chosen by validation data;
the test set was scored once for each seed. Where several settings of ours were scored on it, the section says so.
± is half of a 95 % interval of a mean over seeds (Student's t). Curves and maps are of the first seed. In a map the
token of a row reads those of the columns, the darker the more; what it may not read is beige.
"""


def render_pages(results: Path) -> dict[str, str]:
    """The page under "", and each picture under its path relative to the page."""
    results_by_name = {name: read_result(results, name) for name in SYSTEM_NAMES}
    study_link = f"Beside these stands a study, `{WHY}`: [{STUDY_TITLE}](#{github_anchor(STUDY_TITLE)})."
    parts, figures = [INTRODUCTION.rstrip(), summary_table(load_systems(), results_by_name), study_link], {}
    for name, system in load_systems().items():
        result = results_by_name[name]
        parts.append(format_section(system, result))
        if result and (loss_figure := render_loss_curves(result)):
            figures[f"{FIGURES_FOLDER}/{name}.svg"] = loss_figure
            parts.append(f"![Loss over steps: {name}]({FIGURES_FOLDER}/{name}.svg)")
        for variant in result["variants"] if result else ():
            if attention := variant.get("map"):
                title = f"Where {variant['name']} looks: {system.attention_example}"
                figure_path = f"{FIGURES_FOLDER}/{name}-{variant['name']}-attention.svg"
                figures[figure_path] = render_attention_maps(attention, title)
                parts.append(f"![{title}]({figure_path})")
    parts.append(why_section(read_result(results, WHY)))
    return {"": "\n\n".join(parts) + "\n", **figures}


def write_results_page(results: Path, page: Path) -> Path:
    """Write the page and its pictures.

    Raises:
        DataError: The folder holds no results; an earlier page is left as it is.
        CheckpointError: The page cannot be written.
    """
    if not any((results / f"{name}.json").is_file() for name in (*SYSTEM_NAMES, WHY)):
        raise DataError("holds no results; give the folder where reproduce left NAME.json", path=results)
    try:
        for relative_path, text in render_pages(results).items():
            path = page.parent / relative_path if relative_path else page
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{page}: cannot be written: {error.strerror or error}") from None
    return page
