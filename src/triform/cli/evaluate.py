"""`triform evaluate`: compute the metrics of a run on one or more datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from triform.cli.help import DATA, EVALUATION, flag, option
from triform.cli.options import (
    AdapterOption,
    DecodeSetOption,
    DeviceOption,
    EnsembleArgument,
    JsonOption,
    NoVerifyOption,
    PrecisionOption,
    load_shared_run,
    parse_decode_settings,
    print_json,
    print_metrics_table,
    print_precision_note,
)
from triform.cli.shorthands import with_shorthands
from triform.errors import ConfigError
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.evaluation.baselines import BaselineMetrics
    from triform.evaluation.details import DetailedMetrics
    from triform.run import Run
    from triform.tasks.mixture import MixedLanguageModel

DEFAULT_EXAMPLES = 10  # as in `triform.evaluation.details`
INCOMPATIBLE_OPTIONS = {
    "--lengths": ("--stride", "--baselines"),
}

DataOption = Annotated[
    list[str] | None,
    option(
        DATA,
        "[NAME=]FILE",
        "Data to evaluate on, with a name for the table of results; for translate also SOURCE,TARGET. Repeatable.",
    ),
]
BaselinesOption = Annotated[
    bool,
    flag(EVALUATION, "--baselines", "Also evaluate simple methods, such as TF-IDF and n-grams, on the same data."),
]
StrideOption = Annotated[
    int,
    option(
        EVALUATION,
        "N",
        "For generate: start a window every N tokens. With 0, the default, windows do not overlap.",
        minimum=0,
        show_default=False,
    ),
]
LengthsOption = Annotated[
    str,
    option(
        EVALUATION,
        "N,N,...",
        "Evaluate texts of different lengths separately: the largest number of tokens of each range, such as "
        "64,128,256. For generate, a range contains the predictions after that many tokens of a window.",
        show_default=False,
    ),
]
DetailsOption = Annotated[
    bool,
    flag(
        EVALUATION,
        "--details",
        "Also show where the model is wrong: for classify the metrics of each label, the confusion matrix and the "
        "most confident mistakes, for translate the worst sentences, for generate the loss by context and by token "
        "frequency.",
    ),
]
ExamplesOption = Annotated[
    int | None,
    option(
        EVALUATION,
        "N",
        f"With --details: the number of mistakes or sentences. The default is {DEFAULT_EXAMPLES}.",
        minimum=0,
        show_default=False,
    ),
]


@with_shorthands("--mix")
def evaluate(
    run: EnsembleArgument,
    data: DataOption = None,
    source: Annotated[str, option(DATA, "FILE", "For translate: source sentences, one per line.")] = "",
    target: Annotated[str, option(DATA, "FILE", "For translate: their translations in the same order.")] = "",
    baselines: BaselinesOption = False,
    stride: StrideOption = 0,
    lengths: LengthsOption = "",
    details: DetailsOption = False,
    examples: ExamplesOption = None,
    set_: DecodeSetOption = None,
    adapter: AdapterOption = "",
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    json_: JsonOption = False,
) -> None:
    """Compute the metrics of a model on data it has not seen.

    Without --data, a run that was trained on a built-in dataset is evaluated on the test part of that dataset, and
    any other run on its validation data.

    Examples:
        triform evaluate runs/reviews --data test.csv
        triform evaluate runs/reviews --data easy=test.csv --data hard=new.csv
        triform evaluate runs/reviews --data test.csv --lengths 8,16
        triform evaluate runs/reviews --data test.csv --details
        triform evaluate runs/eight --data test.csv
        triform evaluate runs/story --mix ngram --baselines
    """
    edges = _parse_lengths(lengths)
    _validate_combinations({"--lengths": edges, "--stride": stride, "--baselines": baselines})
    if bool(source) != bool(target):
        raise ConfigError("--source and --target must be given together")
    n_examples = _count_examples(details, examples)
    sets = parse_named_sets([*(data or []), *([f"{source},{target}"] if source else [])])
    decode = parse_decode_settings(set_)
    options = {"device": device, "precision": precision, "adapter": adapter}
    with load_shared_run(run, **options, no_verify=no_verify) as loaded_run:
        _validate_task_options(loaded_run.config.task, source, examples)
        sets = sets or ({"test": loaded_run.test_set()} if loaded_run.test_set() else {"valid": ""})
        metrics: dict[str, DetailedMetrics] = {}
        for name, path in sets.items():
            metrics |= _evaluate_set(loaded_run, name, path, decode, stride, edges, n_examples)
        mixture, alone = _evaluate_alone(loaded_run, sets, decode, stride)
        if loaded_run.world.is_main:
            baseline_tables = {name: loaded_run.baselines(path) for name, path in sets.items() if baselines}
            print_precision_note(loaded_run)
            _print_evaluation(loaded_run, metrics, baseline_tables, mixture, alone, stride, as_json=json_)


def _print_evaluation(
    run: Run,
    metrics: Mapping[str, DetailedMetrics],
    baseline_tables: Mapping[str, BaselineMetrics],
    mixture: MixedLanguageModel | None,
    alone: Mapping[str, DetailedMetrics],
    stride: int,
    *,
    as_json: bool,
) -> None:
    """Print the metrics of each set. Those of the model without `decode.mix`, `alone`, are below them."""
    if as_json:
        content: dict[str, Any] = _evaluation_to_dict(run, metrics, baseline_tables, stride)
        mixed = {"mixture": mixture.to_dict(), "model_alone": alone} if mixture else {}
        print_json({"run": str(run.path), **content, **mixed})
        return
    extra_rows = {name: {"model alone": values} for name, values in alone.items()}
    print_metrics_table(metrics, baseline_tables, {name: extra_rows.get(name, {}) for name in metrics})
    if mixture:
        echo(mixture.describe())
    if stride:
        echo(f"windows of {run.config.data.max_len} tokens that start every {stride} tokens")
    if run.config.task == "translate":
        echo(f"bleu: {_bleu_signature()}")
    _print_details(metrics)


def _evaluate_alone(
    run: Run, sets: Mapping[str, str], decode: Mapping[str, Any], stride: int
) -> tuple[MixedLanguageModel | None, dict[str, DetailedMetrics]]:
    """With `decode.mix`, return the mixture, and the metrics of the model without it."""
    from triform.config.merging import override_decode

    mix = override_decode(run.config.decode, **decode).mix
    if not mix:
        return None, {}
    mixture = run.mixtures.find(mix)
    for notice in mixture.notices:
        echo(f"note: {notice}", err=True)
    model_alone: dict[str, Any] = {**decode, "mix": ()}
    return mixture, {name: run.evaluate(path, stride=stride, **model_alone) for name, path in sets.items()}


def _print_details(metrics: Mapping[str, DetailedMetrics]) -> None:
    from triform.cli.detail_display import print_details
    from triform.evaluation.details import build_tables

    for name, values in metrics.items():
        if values.details is not None:
            if len(metrics) > 1:
                echo(f"\n{name}:")
            print_details(build_tables(values.details))


def _evaluate_set(
    run: Run,
    name: str,
    path: str,
    decode: Mapping[str, object],
    stride: int,
    edges: Sequence[int],
    details: bool | int,
) -> Mapping[str, DetailedMetrics]:
    """Return the metrics of a set by its name, or of each range of lengths."""
    from triform.errors import format_notice

    if edges:
        by_length, notices = run.evaluate_by_length_with_notices(path, edges, decode, details)
        metrics = {f"{name}, {length} tokens": values for length, values in by_length.items()}
    else:
        values, notices = run.evaluate_with_notices(path, decode, stride=stride, details=details)
        metrics = {name: values}
    for notice in notices:
        echo(format_notice(notice, info_prefix="note: "), err=True)
    return metrics


def _validate_task_options(task: str, source: str, examples: int | None) -> None:
    """Refuse options that another task than that of the run has."""
    if source and task != "translate":
        raise ConfigError(f"--source and --target are for translate; this run is for {task}, so use --data")
    if examples is not None and task == "generate":
        raise ConfigError("--examples is for classify and translate; the details of generate have no examples")


def _count_examples(details: bool, examples: int | None) -> bool | int:
    """Return the number of examples in the details, or whether there are details."""
    if examples is not None and not details:
        raise ConfigError("--examples needs --details")
    return details if examples is None else examples


def _validate_combinations(values: Mapping[str, object]) -> None:
    """Refuse options that cannot be combined. `values` are those of the options by name."""
    for name, others in INCOMPATIBLE_OPTIONS.items():
        for other in others:
            if values[name] and values[other]:
                raise ConfigError(f"{name} cannot be combined with {other}")


def _parse_lengths(text: str) -> list[int]:
    try:
        return [int(edge) for edge in text.split(",")] if text else []
    except ValueError:
        raise ConfigError(
            f"--lengths {text} must be whole numbers with commas between them, such as 64,128"
        ) from None


def _evaluation_to_dict(
    run: Run,
    metrics: Mapping[str, DetailedMetrics],
    baseline_tables: Mapping[str, BaselineMetrics],
    stride: int,
) -> dict[str, object]:
    """Return the evaluation as `--json` prints it."""
    from triform.evaluation.details import details_to_dict

    task = run.config.task
    content: dict[str, object] = {"task": task, "precision": run.precision}
    if task == "generate":
        content["stride"] = stride or run.config.data.max_len
    content["sets"] = metrics
    if details := {name: details_to_dict(item.details) for name, item in metrics.items() if item.details}:
        content["details"] = details
    if baseline_tables:
        content["baselines"] = {name: baselines_to_dict(table) for name, table in baseline_tables.items()}
    if task == "translate":
        content["bleu_signature"] = _bleu_signature()
    return content


def baselines_to_dict(table: BaselineMetrics) -> dict[str, Mapping[str, float | str]]:
    """Return the metrics of each baseline, or the reason why it has none, as `--json` prints them."""
    reasons = {name: {"reason": reason} for name, reason in table.reasons.items()}
    return {**table, **reasons}


def parse_named_sets(arguments: list[str], option: str = "--data") -> dict[str, str]:
    """Return the files by name: `NAME=FILE` under its name, and `FILE` under its file name."""
    sets: dict[str, str] = {}
    for argument in arguments:
        name, separator, path = argument.partition("=")
        if not separator or Path(argument).exists():
            name, path = Path(argument.partition(",")[0]).name, argument
        if not (name and path):
            missing = "file" if name else "name"
            raise ConfigError(f"{option} {argument}: the {missing} is missing; write {option} NAME=FILE")
        if name in sets:
            raise ConfigError(
                f"{option}: two files have the name {name!r}; give them different names with {option} NAME=FILE"
            )
        sets[name] = path
    return sets


def _bleu_signature() -> str:
    from triform.evaluation.metrics import bleu_signature

    return bleu_signature()
