"""Write the page of claims, `docs/claims.md`."""

from __future__ import annotations

from collections.abc import Mapping

from reproduce.claims.claim import render_claim
from reproduce.claims.networks import POSITION_CLAIMS, RECURRENT_CLAIMS
from reproduce.claims.sizes import SIZE_CLAIMS
from reproduce.claims.tasks import IMDB_CLAIMS, SCALE_CLAIMS, SPEECHES_CLAIMS
from reproduce.claims.translation import TRANSLATION_CLAIMS
from reproduce.result_file import ExperimentResult
from triform.reporting.markdown import github_anchor, render_markdown_table

INTRODUCTION = """# Claims of the reports

Triform grew out of five written reports on building Transformers. This page lists what they claim, how we measured
each claim, and whether it is true. [Results](results.md) compares the reported figures with ours.

The tables and the verdicts are computed from `reproduce/results/*.json` and from exact counts of parameters and
operations.
Write the page again with:

```sh
python -m reproduce tables
```

± is half of the 95 % confidence interval of a mean over seeds. Where a table asks whether one model is better than
another, the answer is "yes" or "no" if the 95 % interval of their difference over shared seeds does not contain
zero, and "not decided" otherwise. Findings with a p-value use the stricter test of the results page.
"""
GROUPS = {
    "Parameters and cost": SIZE_CLAIMS,
    "Parts of a Transformer": POSITION_CLAIMS,
    "Recurrent networks and word vectors": RECURRENT_CLAIMS,
    "Sentiment of IMDb reviews": IMDB_CLAIMS,
    "Translation": TRANSLATION_CLAIMS,
    "Speeches": SPEECHES_CLAIMS,
    "Size and quality": SCALE_CLAIMS,
}


def render_claims_page(results: Mapping[str, ExperimentResult | None]) -> str:
    """Return the page of claims. Smoke runs count as not run."""
    complete = {name: result for name, result in results.items() if result and not result["quick"]}
    rows, sections = [], []
    for group, claims in GROUPS.items():
        sections.append(f"## {group}")
        for claim in claims:
            assessment = claim.decide(complete)
            rows.append([f"[{claim.title}](#{github_anchor(claim.title)})", assessment.verdict])
            sections.append(render_claim(claim, assessment))
    summary = render_markdown_table(["claim", "verdict"], rows, n_text_columns=2)
    return "\n\n".join([INTRODUCTION.rstrip(), summary, *sections]) + "\n"
