"""Show predictions in notebooks: one as a card, several as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from triform.html.elements import render_bars, render_notices, render_table, render_text_cell
from triform.html.notebook import render_output

if TYPE_CHECKING:
    from triform.tasks.prediction import Alternative, Prediction

MAX_ROWS = 50  # of a table; the others are counted


def render_prediction(prediction: Prediction) -> str:
    """Return a card with the input, the output, the probabilities of labels and the alternatives."""
    texts = (("Input", prediction.input), ("Output", prediction.output))
    rows = [f'<tr><th scope="row">{name}</th>{render_text_cell(text)}</tr>' for name, text in texts]
    parts = [f'<div class="card wide"><table>{"".join(rows)}</table></div>']
    if prediction.probabilities:
        parts.append(f'<div class="card answer">{render_bars(prediction.probabilities)}</div>')
    elif prediction.alternatives:
        parts.append(_render_alternatives(prediction.alternatives))
    parts.append(render_notices("Notes", prediction.notes))
    return render_output("".join(parts))


def _render_alternatives(alternatives: Sequence[Alternative]) -> str:
    if all(alternative.probability is not None for alternative in alternatives):
        probabilities = {repr(entry.text): entry.probability or 0.0 for entry in alternatives}
        return f'<div class="card answer">{render_bars(probabilities)}</div>'
    rows = [
        f'<tr>{render_text_cell(alternative.text)}<td class="num">{_format_score(alternative.score)}</td></tr>'
        for alternative in alternatives
    ]
    return render_table(["Alternative", "Score"], rows, numeric=[1])


def _format_score(score: float | None) -> str:
    return "–" if score is None else f"{score:.3f}"


def render_predictions(predictions: Sequence[Prediction]) -> str:
    """Return a table with a row for each prediction."""
    if not predictions:
        return render_output('<p class="empty">no predictions</p>')
    with_probability = any(prediction.probabilities for prediction in predictions)
    with_notes = any(prediction.notes for prediction in predictions)
    header = ["Input", "Output", *["Probability"] * with_probability, *["Notes"] * with_notes]
    rows = []
    for prediction in predictions[:MAX_ROWS]:
        cells = [render_text_cell(prediction.input), render_text_cell(prediction.output)]
        if with_probability:
            probability = (prediction.probabilities or {}).get(prediction.output)
            cells.append(f'<td class="num">{"–" if probability is None else f"{100 * probability:.2f} %"}</td>')
        if with_notes:
            cells.append(f"<td>{escape('; '.join(prediction.notes))}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    n_more = len(predictions) - MAX_ROWS
    more = f'<p class="lead">and {n_more:,} more</p>' if n_more > 0 else ""
    return render_output(render_table(header, rows, numeric=[2] if with_probability else []) + more)
