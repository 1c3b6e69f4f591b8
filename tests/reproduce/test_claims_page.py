"""The page of claims: counts by hand, verdicts that follow the results, and what was not run."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from reproduce.claims.claim import UNDECIDED, Assessment, Claim
from reproduce.claims.page import GROUPS, render_claims_page
from reproduce.claims.tasks import SIZE_COMPARISONS
from reproduce.claims.translation import SETS
from reproduce.result_file import empty_result

from triform.analysis.costs import Workload, estimate_costs
from triform.config import Config, DataSizes, ModelConfig

ROOT = Path(__file__).parents[2]
CLAIMS: dict[str, Claim] = {claim.title: claim for claims in GROUPS.values() for claim in claims}
MEASURED = [title for title, claim in CLAIMS.items() if claim.needs]


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "reproduce" / "results").glob("*.json")
    }


@pytest.fixture
def results(committed: dict[str, Any]) -> dict[str, Any]:
    return deepcopy(committed)


def decide(title: str, results: dict[str, Any]) -> Assessment:
    return CLAIMS[title].decide(results)


def find_variant(results: dict[str, Any], system: str, variant: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(entry for entry in results[system]["variants"] if entry["name"] == variant)
    return entry


def set_values(results: dict[str, Any], system: str, variant: str, column: str, *values: float) -> None:
    """Give each seed of a variant a value of a column. The number of values becomes the number of seeds."""
    entry = find_variant(results, system, variant)
    eval_set, _, metric = column.rpartition(".")
    if len(entry["runs"]) != len(values):
        entry["runs"] = [deepcopy(entry["runs"][0]) | {"seed": seed} for seed in range(len(values))]
    for run, value in zip(entry["runs"], values, strict=True):
        run["scores"].setdefault(eval_set, {})[metric] = value


def test_heads_do_not_change_the_parameters_of_attention() -> None:
    assessment = decide("Attention parameters grow with the number of heads", {})
    # 6 + 6 layers of self-attention and 6 of cross-attention, each with four matrices and four biases
    assert assessment.evidence.count(f"| {18 * (4 * 512**2 + 4 * 512):,} |") == 5
    assert assessment.verdict == "false"


def test_a_feed_forward_network_is_larger_than_attention_only_if_it_is_wide() -> None:
    assessment = decide("The feed-forward network is larger than attention", {})
    attention, feedforward = 4 * 64**2 + 64, 2 * 64 * 100 + 164  # queries, keys and values without biases
    assert f"| d = 64, d_ff = 100 | {attention:,} | {feedforward:,} | attention |" in assessment.evidence
    assert assessment.evidence.count("| feed-forward |") == 1 + 3  # in the heading, and three of the five models
    assert assessment.verdict.startswith("true only if")


@pytest.mark.parametrize(("length", "expected"), [(2 * 64 - 1, False), (2 * 64 + 1, True)])
def test_attention_needs_more_operations_than_the_feed_forward_network_above_twice_the_width(
    length: int, expected: bool
) -> None:
    model = ModelConfig(d_model=64, d_ff=256, n_layers=1, n_heads=4)
    config, sizes = Config(task="generate", model=model), DataSizes(vocab_size=100, max_len=length)
    items = estimate_costs(config, sizes, Workload(batch_size=1, length=length)).flop_items
    attention = sum(item.total for item in items if "attention" in item.name)
    feedforward = sum(item.total for item in items if "feedforward" in item.name)
    assert (attention > feedforward) == expected


def test_cost_grows_with_the_square_of_the_width() -> None:
    assessment = decide("Cost grows exponentially with d_model", {})
    layer = 12 * 1024**2 + 13 * 1024  # weights and biases of attention and feed-forward, and two norms
    assert f"| 1,024 | {2 * layer + 2 * 1024:,} |" in assessment.evidence
    assert "| exponent of d_model, fitted | 2.00 | 1.97 |" in assessment.evidence


def test_the_published_count_is_reconciled_and_those_of_the_speeches_models_are_exact() -> None:
    assessment = decide("A base Transformer has 68,554,752 parameters", {})
    assert "| +15,360,000 | 68,554,752 |" in assessment.evidence
    assert assessment.verdict == "false"
    assert decide("The speeches models have 576,467 and 863,243 parameters", {}).verdict == "true"


def test_a_shift_of_positions_is_one_matrix() -> None:
    assessment = decide("A shift of sinusoidal positions is a linear map", {})
    assert assessment.evidence.count("| below 1e-12 |") == 3
    assert assessment.verdict == "true"


@pytest.mark.parametrize("title", MEASURED)
def test_a_claim_without_its_results_names_the_command_that_decides_it(title: str) -> None:
    assessment = decide(title, {})
    assert assessment.verdict == UNDECIDED
    assert all(f"`python -m reproduce {name}`" in assessment.explanation for name in CLAIMS[title].needs)


@pytest.mark.parametrize("title", MEASURED)
def test_a_claim_without_one_of_its_variants_is_not_decided(title: str, results: dict[str, Any]) -> None:
    name, variants = next(iter(CLAIMS[title].needs.items()))
    result = results.get(name, {"variants": []})  # not every system was run
    if "parts" in result:
        del result["parts"][variants[-1]]
    else:
        result["variants"] = [entry for entry in result["variants"] if entry["name"] != variants[-1]]
    assert decide(title, results).verdict == UNDECIDED


def test_a_smoke_run_decides_nothing(results: dict[str, Any]) -> None:
    smoke = {name: result | {"quick": True} for name, result in results.items()}
    assert render_claims_page(smoke) == render_claims_page({})
    assert render_claims_page(results) != render_claims_page({})


def test_every_claim_is_in_the_summary_and_has_a_section(results: dict[str, Any]) -> None:
    page = render_claims_page(results)
    for title in CLAIMS:
        assert f"| [{title}](#" in page
        assert f"\n### {title}\n" in page
    assert page.count("**Verdict: ") == len(CLAIMS)


def test_a_weight_on_the_future_or_outside_the_window_is_found(results: dict[str, Any]) -> None:
    title = "Attention maps respect the masks"
    assert decide(title, results).verdict == "true"
    head = find_variant(results, "speeches-window", "window-8")["map"]["weights"][0][0]
    for query, key in ((0, 1), (9, 0)):
        head[query][key] = 0.001
        assert decide(title, results).verdict == "false"
        head[query][key] = 0.0


def test_the_verdict_on_the_window_follows_the_seeds(results: dict[str, Any]) -> None:
    title = "Window attention is better"
    for offset, expected in ((-9.0, "true"), (9.0, "false")):
        for name in ("obama", "wbush", "hbush"):
            for variant, change in (("full", 0.0), ("window-8", offset)):
                values = (400.0 + seed + change + 0.1 * change * seed for seed in range(20))
                set_values(results, "speeches-window", variant, f"{name}.perplexity", *values)
        assert decide(title, results).verdict == expected


def test_set_4_has_a_gap_between_training_and_validation_loss(results: dict[str, Any]) -> None:
    for index, name in enumerate(SETS):
        set_values(results, "ted-en-fr", name, "train.loss", 1.0, 1.2)
        set_values(results, "ted-en-fr", name, "valid.loss", 2.0 + index, 2.2 + index)
        entry = find_variant(results, "ted-en-fr", name)
        entry["curves"]["valid"] = [[9375, 3.0], [18750, 3.3 if name == "set-2" else 3.01]]
        entry["runs"][0]["steps"] = 18750
    assessment = decide("Set 4 overfits", results)
    assert "| **set-4** | 1.1000 ± 1.2706 | 5.1000 ± 1.2706 | 4.0000 |" in assessment.evidence
    assert "| 5, +10.0 % | 2 |" in assessment.evidence
    assert "it is largest for set-4" in assessment.explanation
    gaps = "1.00 for set-1, 2.00 for set-2, 3.00 for set-3, 4.00 for set-4"
    assert f"The gap between training and validation loss is {gaps};" in assessment.explanation
    assert "after its lowest value in set-2." in assessment.explanation
    assert assessment.verdict == "false"


def test_the_settings_that_make_set_4_fail_are_named() -> None:
    result = empty_result("ted-set4-failure", smoke=False)
    accuracies = {"set-4": 0.3, "post-norm": 0.02}
    for name, accuracy in accuracies.items():
        scores = {"valid": {"token_accuracy": accuracy}}
        result["variants"].append({"name": name, "runs": [{"seed": 0, "scores": scores}]})
    assessment = decide("Set 4 is too large to train", {"ted-set4-failure": result})
    assert assessment.verdict == "false"
    assert "These variants fail as reported: `post-norm`." in assessment.explanation
    assert "its size alone is not the cause" in assessment.explanation
    result["variants"][0]["runs"][0]["scores"]["valid"]["token_accuracy"] = 0.03
    assert decide("Set 4 is too large to train", {"ted-set4-failure": result}).verdict == "true"


@pytest.mark.parametrize(
    ("bleu", "verdict"), [((25.0, 25.2), "true"), ((15.0, 15.1), "false"), ((10.0, 30.0), UNDECIDED)]
)
def test_the_best_set_is_that_with_a_difference_beyond_its_interval(
    results: dict[str, Any], bleu: tuple[float, float], verdict: str
) -> None:
    for name in SETS:
        set_values(results, "ted-en-fr", name, "test beam 5.bleu", *((20.0, 20.0) if name != "set-3" else bleu))
    assessment = decide("Set 3 is the best of the four sets", results)
    assert assessment.verdict.startswith(verdict)


@pytest.mark.parametrize(("long", "verdict"), [((22.0, 22.1, 22.2), "true"), ((18.0, 18.1, 18.2), "false")])
def test_long_sentences_are_judged_in_the_bins_above_twenty_words(
    results: dict[str, Any], long: tuple[float, float, float], verdict: str
) -> None:
    assert decide("Set 3 handles longer sentences better", {}).verdict == UNDECIDED
    for name in SETS:
        runs = find_variant(results, "ted-en-fr", name)["runs"][:1] * 3
        values = zip((30.0, 30.1, 30.2), long if name == "set-3" else (20.0,) * 3, strict=True)
        find_variant(results, "ted-en-fr", name)["runs"] = [
            run
            | {"seed": seed, "by_length": {"test beam 5": {"1 to 10": {"bleu": low}, "21 or more": {"bleu": high}}}}
            for seed, (run, (low, high)) in enumerate(zip(runs, values, strict=True))
        ]
    assessment = decide("Set 3 handles longer sentences better", results)
    assert assessment.evidence.startswith("| sacreBLEU, beam 5, by words of the source | 1 to 10 | 21 or more |")
    assert assessment.verdict == verdict


def test_token_accuracy_of_a_failed_model_is_the_share_of_padding(results: dict[str, Any]) -> None:
    title = "Set 4 predicts 63 % of the tokens correctly"
    key = "valid.token_accuracy_with_padding"
    for name in SETS:
        set_values(results, "ted-en-fr", name, "valid.token_accuracy", 0.5)
        set_values(results, "ted-en-fr", name, key, 0.815)  # 63 % padding, and half of the rest
    assessment = decide(title, results)
    assert "63.0 % of the tokens are padding" in assessment.explanation
    assert assessment.verdict == "true only if padding is counted"
    for name in SETS:
        set_values(results, "ted-en-fr", name, key, 0.7)  # 40 % padding
    assert decide(title, results).verdict == UNDECIDED


def test_sizes_are_compared_with_the_smaller_model_first(results: dict[str, Any]) -> None:
    for system, small, large, _ in SIZE_COMPARISONS:
        counts = {entry["name"]: entry["parameters"] for entry in results[system]["variants"]}
        assert counts[small] < counts[large]


def test_larger_is_better_only_if_every_comparison_says_so(results: dict[str, Any]) -> None:
    title = "Larger models are better"
    for system, small, large, column in SIZE_COMPARISONS:
        if system != "ted-en-fr":
            better, worse = (1.0, 9.0)
            set_values(results, system, large, column, better, better + 0.1)
            set_values(results, system, small, column, worse, worse + 0.1)
    for order, expected in (((1.0, 2.0, 3.0, 4.0, 0.0), "true"), ((4.0, 3.0, 2.0, 1.0, 5.0), "true in 2 of 6")):
        for name, bleu in zip((*SETS, "best"), order, strict=True):
            set_values(results, "ted-en-fr", name, "test beam 5.bleu", bleu, bleu + 0.01 * bleu)
        assert decide(title, results).verdict.startswith(expected)
