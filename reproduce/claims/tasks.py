"""Claims about IMDb reviews and speeches, and whether larger models are better."""

from __future__ import annotations

from typing import NamedTuple

from reproduce.claims.claim import (
    UNDECIDED,
    Assessment,
    Claim,
    Results,
    bullet_list,
    column_mean,
    compare_variants,
    count_wins,
    findings,
    format_column,
    variant_entry,
    variant_table,
    verdict_from_counts,
)
from reproduce.systems import get_system
from reproduce.values import find_variant_result
from triform.reporting.markdown import render_markdown_table

IMDB, CLASSIFIER, WINDOW = "imdb-encoder", "speeches-classifier", "speeches-window"
AS_REPORTED = ("as-reported", "as-reported-scaled")


def _assess_imdb(results: Results) -> Assessment:
    reported = get_system(IMDB).variants[0].reported_metrics["test.accuracy"]
    small, large = (column_mean(results, IMDB, name, "test.accuracy") for name in AS_REPORTED)
    is_between = min(small, large) < reported < max(small, large)
    return Assessment(
        variant_table(results, IMDB, AS_REPORTED, ("test.accuracy", "valid.accuracy")),
        UNDECIDED if is_between else "false",
        "The result depends on a choice that the report does not state, the size of the initial embeddings. With "
        f"embeddings of magnitude 1/√768 the mean accuracy is {100 * small:.1f} %, and with embeddings √768 times "
        f"as large it is {100 * large:.1f} %. The reported {100 * reported:.2f} % lies "
        f"{'between' if is_between else 'outside'} the two.",
    )


def _assess_pretrained(results: Results) -> Assessment:
    difference = compare_variants(results, IMDB, "best", "fine-tuned", "test.accuracy")
    variants = {variant.name: variant.reported_metrics for variant in get_system(IMDB).variants}
    scratch, bert = (variants[name]["test.accuracy"] for name in ("as-reported", "fine-tuned-as-reported"))
    tfidf = results[IMDB]["baselines"].get("tfidf", {}).get("test", {}).get("accuracy")
    baseline = f" TF-IDF with logistic regression reaches {100 * tfidf:.2f} %." if tfidf else ""
    as_reported = find_variant_result(results[IMDB], "fine-tuned-as-reported")
    not_run = "" if as_reported else " There is no result yet of fine-tuning exactly as reported."
    points = f"{100 * abs(difference.paired.mean):.1f} points"
    answers = {
        "yes": f"true, but only by {points} with good settings for both",
        "no": f"false: the encoder trained from scratch is better by {points}",
    }
    return Assessment(
        variant_table(results, IMDB, (*AS_REPORTED, "best", "fine-tuned"), ("test.accuracy",)),
        answers.get(difference.answer, difference.answer),
        "With other settings, a small encoder trained from scratch on the same "
        f"15,000 reviews reaches {format_column(results, IMDB, 'best', 'test.accuracy')}, and the fine-tuned model "
        f"reaches {format_column(results, IMDB, 'fine-tuned', 'test.accuracy')}.{baseline} In the report, "
        f"the two accuracies are {100 * scratch:.2f} % and {100 * bert:.2f} %. Our fine-tuned model "
        f"is smaller than the BERT of the report.{not_run}",
    )


def _assess_classifier(results: Results) -> Assessment:
    columns = ("test.accuracy", "test, seen.accuracy", "test, unseen.accuracy")
    everything, _, unseen = (column_mean(results, CLASSIFIER, "as-reported", column) for column in columns)
    leak = results[CLASSIFIER]["leaks"]["test"]
    is_memorised = everything - unseen > 0.1
    return Assessment(
        variant_table(results, CLASSIFIER, ("as-reported",), columns),
        "true only for sentences that the model has seen in training" if is_memorised else "true",
        f"{leak['seen']:,} of the {leak['rows']:,} test sentences are also in the training file, word for word. "
        f"On the other sentences, the accuracy is {100 * unseen:.1f} %. [Auditing data](audit.md) shows how you "
        "find such leaks.",
    )


def _assess_window(results: Results) -> Assessment:
    lines = findings(results, WINDOW, "full", "window-8")
    wins, losses = count_wins(lines, "window-8"), count_wins(lines, "full")
    return Assessment(
        bullet_list(lines),
        verdict_from_counts(wins, losses, len(lines), "test sets"),
        "This holds for a small model with a context of 32 words, after 500 steps. Both models have the same "
        f"seeds, initial weights and batches. The window is better on {wins} of {len(lines)} test sets, and full "
        f"attention on {losses}.",
    )


def _assess_convergence(results: Results) -> Assessment:
    lines = findings(results, WINDOW, "full-converged", "window-8-converged")
    wins, losses = count_wins(lines, "full-converged"), count_wins(lines, "window-8-converged")
    return Assessment(
        bullet_list(lines),
        verdict_from_counts(wins, losses, len(lines), "test sets"),
        "Both models train until the loss on held-out text stops improving. After that, full attention is better "
        f"on {wins} of {len(lines)} test sets, and the window is better on {losses}. With more text or a longer "
        "context, the answer may be different.",
    )


class SizeComparison(NamedTuple):
    """Two variants of a system, the smaller one first, and the column that decides."""

    system: str
    small: str
    large: str
    column: str


SIZE_COMPARISONS = (
    SizeComparison("ted-en-fr", "set-1", "set-2", "test beam 5.bleu"),
    SizeComparison("ted-en-fr", "set-2", "set-3", "test beam 5.bleu"),
    SizeComparison("ted-en-fr", "set-3", "set-4", "test beam 5.bleu"),
    SizeComparison("ted-en-fr", "best", "set-4", "test beam 5.bleu"),
    SizeComparison("speeches-lm", "best", "as-reported", "obama.perplexity"),
    SizeComparison("shakespeare-char", "as-reported", "best", "valid.loss"),
)


def _assess_size(results: Results) -> Assessment:
    rows, answers = [], []
    for system, small, large, column in SIZE_COMPARISONS:
        answers.append(compare_variants(results, system, small, large, column).answer)
        title = next(candidate.title for candidate in get_system(system).columns if candidate.key == column)
        models = [
            f"{name}: {variant_entry(results, system, name)['parameters'] / 1e6:.1f} M" for name in (small, large)
        ]
        figures = [format_column(results, system, name, column) for name in (small, large)]
        rows.append([f"{system}, {title}", *models, *figures, answers[-1]])
    n_yes, n_no = answers.count("yes"), answers.count("no")
    head = ["system and metric", "smaller", "larger", "smaller, result", "larger, result", "larger is better"]
    return Assessment(
        render_markdown_table(head, rows, n_text_columns=3),
        verdict_from_counts(n_yes, n_no, len(answers), "comparisons"),
        f"The larger model is better in {n_yes} of {len(answers)} comparisons and worse in {n_no}; the others are "
        "not decided. Sets 2 and 3 differ only in width and heads. The models of the other pairs also differ in "
        "dropout, context or other settings, so size is one cause among several.",
    )


IMDB_CLAIMS = (
    Claim(
        title="An encoder trained for one epoch reaches 62.38 %",
        statement="The report trains 4 layers of width 768 from scratch on 15,000 reviews and measures this "
        "accuracy.",
        code="python -m reproduce imdb-encoder --variant as-reported",
        assess=_assess_imdb,
        needs={IMDB: AS_REPORTED},
    ),
    Claim(
        title="A pretrained encoder is 20 points better",
        statement="The report compares its encoder with a fine-tuned BERT, which reaches 82.66 %.",
        code="python -m reproduce imdb-encoder",
        assess=_assess_pretrained,
        needs={IMDB: (*AS_REPORTED, "best", "fine-tuned")},
    ),
)
SPEECHES_CLAIMS = (
    Claim(
        title="The classifier recognises 87.60 % of the speakers",
        statement="The report gives this accuracy for 750 test sentences of three presidents.",
        code="python -m reproduce speeches-classifier --variant as-reported",
        assess=_assess_classifier,
        needs={CLASSIFIER: ("as-reported",)},
    ),
    Claim(
        title="Window attention is better",
        statement="After 500 steps, a language model with an attention window of 8 has a lower perplexity than one "
        "with full attention.",
        code="python -m reproduce speeches-window --variant as-reported",
        assess=_assess_window,
        needs={WINDOW: ("full", "window-8")},
    ),
    Claim(
        title="Full attention wins with more training",
        statement="The report expects that full attention overtakes the window if both are trained for longer.",
        code="python -m reproduce speeches-window --variant best",
        assess=_assess_convergence,
        needs={WINDOW: ("full-converged", "window-8-converged")},
    ),
)
SCALE_CLAIMS = (
    Claim(
        title="Larger models are better",
        statement="Reports expect better results from more layers and a larger width.",
        code="python -m reproduce ted-en-fr\npython -m reproduce speeches-lm\npython -m reproduce shakespeare-char",
        assess=_assess_size,
        needs={
            "ted-en-fr": ("set-1", "set-2", "set-3", "set-4", "best"),
            "speeches-lm": ("as-reported", "best"),
            "shakespeare-char": ("as-reported", "best"),
        },
    ),
)
