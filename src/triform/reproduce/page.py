"""docs/results.md and its pictures, made from results/*.json and nothing else."""

from __future__ import annotations

from pathlib import Path

from triform.errors import CheckpointError, DataError
from triform.reproduce.maps import drawn as drawn_map
from triform.reproduce.outcome import read
from triform.reproduce.pictures import picture
from triform.reproduce.systems import SYSTEMS
from triform.reproduce.tables import anchor, section, summary
from triform.reproduce.why.parts import NAME as WHY
from triform.reproduce.why.parts import TITLE
from triform.reproduce.why.tables import section as why_section

PICTURES = "pictures"
INTRODUCTION = """# Results

Every reference system under its reported settings and under better ones, beside baselines. This page is made by
`triform reproduce tables` from `results/*.json`, which `triform reproduce NAME` writes; a test makes it again and
compares. How to repeat a figure is told in [reproduce.md](reproduce.md). Settings were chosen by validation data;
the test set was scored once for each seed. Where several settings of ours were scored on it, the section says so.
± is half of a 95 % interval of a mean over seeds (Student's t). Curves and maps are of the first seed. In a map the
token of a row reads those of the columns, the darker the more; what it may not read is beige.
"""


def pages(results: Path) -> dict[str, str]:
    """The page and the pictures, each under its place beside the page."""
    outcomes = {name: read(results, name) for name in SYSTEMS}
    beside = f"Beside these stands a study, `{WHY}`: [{TITLE}](#{anchor(TITLE)})."
    parts, found = [INTRODUCTION.rstrip(), summary(SYSTEMS, outcomes), beside], {}
    for name, system in SYSTEMS.items():
        outcome = outcomes[name]
        parts.append(section(system, outcome))
        if outcome and (drawn := picture(outcome)):
            found[f"{PICTURES}/{name}.svg"] = drawn
            parts.append(f"![Loss over steps: {name}]({PICTURES}/{name}.svg)")
        for variant in outcome["variants"] if outcome else ():
            if seen := variant.get("map"):
                title = f"Where {variant['name']} looks: {system.look}"
                place = f"{PICTURES}/{name}-{variant['name']}-attention.svg"
                found[place] = drawn_map(seen, title)
                parts.append(f"![{title}]({place})")
    parts.append(why_section(read(results, WHY)))
    return {"": "\n\n".join(parts) + "\n", **found}


def write_page(results: Path, page: Path) -> Path:
    """Write both; a folder without outcomes leaves an earlier page as it is."""
    if not any((results / f"{name}.json").is_file() for name in (*SYSTEMS, WHY)):
        raise DataError("holds no results; give the folder where reproduce left NAME.json", path=results)
    try:
        for place, text in pages(results).items():
            path = page.parent / place if place else page
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{page}: cannot be written: {error.strerror or error}") from None
    return page
