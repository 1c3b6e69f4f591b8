"""Every reference system, declared consistently and run from data to outcome on data shaped like its own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reproduce.options import ReproduceOptions
from reproduce.result_file import ExperimentResult, empty_result, read_result, write_result
from reproduce.runner import reproduce
from reproduce.system import ReferenceSystem
from reproduce.systems import (
    SYSTEM_NAMES,
    SYSTEMS_FOLDER,
    WHY_TRANSFORMERS,
    get_system,
    load_systems,
    parse_system,
    read_declaration,
)
from reproduce.tables import format_section
from reproduce.values import seed_values
from reproduce.why.comparison import PART_NAMES
from safetensors.torch import load_file, save_file

from reproduce import evaluation
from triform.config import DataSizes
from triform.config.presets import REPORTED_SIZES
from triform.config.settings import Settings, build_config
from triform.data.catalogue import DATASETS
from triform.errors import ConfigError, DataError, RunInterruptedError
from triform.experiments import engine
from triform.models.decoder import Decoder
from triform.pretrained.run_import import import_run

each_system = pytest.mark.parametrize("system", load_systems().values(), ids=load_systems())
LM = get_system("speeches-lm")


@each_system
def test_what_a_system_names_is_there(system: ReferenceSystem) -> None:
    known_files = {file.name for file in DATASETS[system.dataset].files}
    used_files = [
        *system.files.values(),
        *(name for names in (*system.eval_files.values(), system.length_file) for name in names.split(",") if name),
    ]
    assert set(used_files) <= known_files
    variants, columns = {item.name for item in system.variants}, {item.key for item in system.columns}
    has_reported = any(item.reported_metrics for item in system.variants)
    groups = {item.group for item in system.variants} - {"earlier"}
    assert groups == ({"as-reported", "best"} if has_reported else {"best"})
    for variant in system.variants:
        assert build_config({"task": system.task, "train.init_from": variant.init_from, **variant.settings})
        assert variant.trained or variant.init_from
        assert variant.reported_metrics.keys() <= columns
        assert set(variant.vocabulary_files) <= known_files
    assert {target.variant for target in system.targets} <= variants
    assert {target.column for target in system.targets} <= columns
    for pairing in system.pairings:
        assert {pairing.first, pairing.second} <= variants
        assert set(pairing.columns) <= columns


def test_every_declaration_in_the_package_is_a_system_or_a_part_of_the_study() -> None:
    declared = {path.name for path in SYSTEMS_FOLDER.iterdir() if path.name.endswith(".toml")}
    assert declared == {f"{name}.toml" for name in SYSTEM_NAMES}
    parts = {path.name for path in (SYSTEMS_FOLDER / WHY_TRANSFORMERS).iterdir()}
    assert parts == {f"{name}.toml" for name in PART_NAMES}


def test_a_wrong_key_in_a_declaration_is_refused_with_the_nearest_name() -> None:
    declaration = read_declaration("speeches-lm")
    with pytest.raises(ConfigError, match=r"unknown key 'colums' in a reference system; did you mean 'columns'\?"):
        parse_system(declaration | {"colums": []}, "speeches-lm")
    with pytest.raises(ConfigError, match=r"columns: unknown key 'metrc' in a column; did you mean 'metric'\?"):
        parse_system(declaration | {"columns": [{"set": "test", "metrc": "loss"}]}, "speeches-lm")
    variants = {"best": {"group": "best", "seeds": 1, "model.windw": 2}}
    with pytest.raises(ConfigError, match=r"variants\.best: unknown setting 'model\.windw'; did you mean"):
        parse_system(declaration | {"variants": variants}, "speeches-lm")


@each_system
def test_a_system_is_never_tuned_or_stopped_by_its_test_set(system: ReferenceSystem) -> None:
    test_files = [
        name
        for eval_set, names in (*system.eval_files.items(), ("lengths", system.length_file))
        if eval_set not in ("train", "valid")
        for name in names.split(",")
    ]
    assert not set(test_files) & set(system.files.values())


def count_parameters(name: str, variant: str, sizes: DataSizes) -> int:
    declared = next(item for item in get_system(name).variants if item.name == variant)
    config = build_config({"task": "generate", **declared.settings})
    model = Decoder(config.model, replace(sizes, max_len=config.data.max_len))
    return sum(item.numel() for item in model.parameters())


def test_language_models_keep_to_the_sizes_that_were_allowed() -> None:
    sizes = REPORTED_SIZES["speeches-lm"]
    assert count_parameters("speeches-lm", "as-reported", sizes) == 863_243
    assert count_parameters("speeches-lm", "best", sizes) <= 863_243
    assert count_parameters("shakespeare-char", "best", DataSizes(vocab_size=69, max_len=256)) <= 11_000_000
    best = next(variant for variant in LM.variants if variant.name == "best")
    assert best.settings["train.max_steps"] == 500


def run_smoke(system: ReferenceSystem, data: Path, folder: Path, **changes: object) -> ExperimentResult:
    options = ReproduceOptions(
        data=str(data), out=folder / "runs", results=folder / "results", device="cpu", smoke=True
    )
    return reproduce(system, replace(options, **changes))  # type: ignore[arg-type]


@each_system
def test_a_system_runs_from_data_to_outcome(system: ReferenceSystem, data: Path, tmp_path: Path) -> None:
    result = run_smoke(system, data, tmp_path, seeds=1)
    assert read_result(tmp_path / "results" / "smoke", system.name) == json.loads(json.dumps(result))
    assert [item["name"] for item in result["variants"]] == [item.name for item in system.select_variants("both")]
    for variant_result in result["variants"]:
        for column in system.columns:
            bins = system.token_length_bins
            if column.metric == "distance 64" or (bins and column.eval_set in bins.names):  # too long for this data
                continue
            assert len(seed_values(variant_result, column.key)) == 1, (
                f"{variant_result['name']} has no {column.key}"
            )
        assert variant_result["parameters"] > 0
        is_trained = next(item.trained for item in system.variants if item.name == variant_result["name"])
        assert bool(variant_result["curves"].get("train")) is is_trained
        assert variant_result["made"]["command"] == f"python -m reproduce {system.name} --seeds 1 --smoke"
        assert not [
            name for name in variant_result["settings"] if str(tmp_path) in str(variant_result["settings"][name])
        ]
    assert result["data"].keys() == {file.name for file in DATASETS[system.dataset].files}
    expected = {"classify": {"majority", "tfidf"}, "generate": {"ngram"}, "translate": {"copy", "wordwise"}}
    if system.eval_files:
        assert result["baselines"].keys() | result["unfit"].keys() == expected[system.task]
    page = format_section(system, result)
    assert all(f"| **{variant.name}** |" in page for variant in system.variants)


def test_what_begins_with_a_model_that_is_not_there_is_left_out(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data / "imdb", tmp_path / "sets" / "imdb")
    result = run_smoke(get_system("imdb-encoder"), tmp_path / "sets", tmp_path, seeds=1, variant="best")
    assert [variant["name"] for variant in result["variants"]] == ["best", "best-ensemble", "best-distilled"]
    assert f"fine-tuned: skipped, because its base model is not at {tmp_path / 'sets' / 'minilm'}" in (
        capsys.readouterr().err
    )


def test_a_system_whose_base_model_is_missing_says_what_to_put_where(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "tinyshakespeare", tmp_path / "sets" / "tinyshakespeare")
    with pytest.raises(DataError) as refusal:
        run_smoke(get_system("finetune-gpt2"), tmp_path / "sets", tmp_path)
    assert str(refusal.value) == (
        f"{tmp_path / 'sets' / 'gpt2'}: the base model of finetune-gpt2 is missing; put its Hugging Face folder "
        "there (config.json, the files of the tokenizer and model.safetensors)"
    )
    assert not (tmp_path / "runs").exists()


def test_a_variant_that_is_not_trained_has_the_weights_of_the_published_model(data: Path, tmp_path: Path) -> None:
    system = get_system("finetune-gpt2")
    result = run_smoke(system, data, tmp_path, seeds=2)
    n_runs = {variant["name"]: len(variant["runs"]) for variant in result["variants"]}
    assert n_runs == {"before": 1, "full": 2, "lora": 2}
    steps = [variant["runs"][0]["steps"] for variant in result["variants"]]
    assert steps == [0, 4, 4]
    folder, _ = import_run(data / "gpt2", tmp_path / "imported", max_len=24)
    weights = {
        path.parts[-3].split("-")[0]: load_file(path) for path in tmp_path.glob("runs/*/*/seed-0/model.safetensors")
    }
    published = load_file(folder.model_file)
    assert weights["before"].keys() == published.keys()
    assert all(torch.equal(weights["before"][name], tensor) for name, tensor in published.items())
    for trained in ("full", "lora"):
        assert not all(torch.equal(weights[trained][name], tensor) for name, tensor in published.items())


def test_every_variant_continues_the_same_prompts(data: Path, tmp_path: Path) -> None:
    system = get_system("finetune-gpt2")
    page = format_section(system, run_smoke(system, data, tmp_path, seeds=1))
    headings = [line for line in page.splitlines() if line.startswith("Text generated by ")]
    assert headings == [
        f"Text generated by {variant.name} with the prompt `{prompt}`:"
        for prompt, _ in system.prompts
        for variant in system.variants
    ]


def test_another_published_model_in_the_same_place_is_trained_again(data: Path, tmp_path: Path) -> None:
    sets = tmp_path / "sets"
    for name in ("tinyshakespeare", "gpt2"):
        shutil.copytree(data / name, sets / name)
    system = get_system("finetune-gpt2")
    system = replace(system, variants=system.variants[:1])
    first, second = (run_smoke(system, sets, tmp_path)["variants"][0]["runs"] for _ in range(2))
    assert second == first
    weights = load_file(sets / "gpt2" / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in weights.items()}, sets / "gpt2" / "model.safetensors")
    assert run_smoke(system, sets, tmp_path)["variants"][0]["runs"] != first


def test_a_sample_may_contain_characters_that_end_lines_elsewhere(data: Path, tmp_path: Path) -> None:
    system = get_system("finetune-gpt2")
    system = replace(system, variants=[item for item in system.variants if item.name == "full"])
    first = run_smoke(system, data, tmp_path, seeds=1)["variants"][0]
    (metrics_file,) = tmp_path.glob("runs/*/*/seed-0/metrics.jsonl")
    sample = {"event": "sample", "step": 4, "input": "", "output": "12\x85 34\u2028 56\x0b\x1c"}
    with metrics_file.open("a", encoding="utf-8") as file:
        file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    assert run_smoke(system, data, tmp_path, seeds=1)["variants"][0]["curves"] == first["curves"]


def test_a_smoke_run_replaces_no_result(data: Path, tmp_path: Path) -> None:
    write_result(tmp_path / "results", empty_result("speeches-lm", smoke=False))
    before = (tmp_path / "results" / "speeches-lm.json").read_bytes()
    run_smoke(LM, data, tmp_path, variant="as-reported", seeds=1)
    assert (tmp_path / "results" / "speeches-lm.json").read_bytes() == before


def test_rows_that_leak_are_told_and_scored_apart(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_smoke(get_system("speeches-classifier"), data, tmp_path, variant="as-reported", seeds=1)
    assert result["leaks"] == {"test": {"rows": 12, "seen": 8}}
    assert "8 of the 12 texts of test are also in the training file" in capsys.readouterr().err
    metrics = result["variants"][0]["runs"][0]["scores"]
    assert (metrics["test, seen"]["rows"], metrics["test, unseen"]["rows"]) == (8, 4)
    n_correct = [
        metrics[name]["accuracy"] * metrics[name]["rows"] for name in ("test", "test, seen", "test, unseen")
    ]
    assert n_correct[0] == pytest.approx(n_correct[1] + n_correct[2])


def test_the_vocabulary_of_the_speeches_comes_from_both_training_files(data: Path, tmp_path: Path) -> None:
    result = run_smoke(LM, data, tmp_path, variant="as-reported", seeds=1)
    folder = next((tmp_path / "runs" / "speeches-lm-smoke").glob("as-reported-*/seed-0"))
    pieces = json.loads((folder / "tokenizer.json").read_text())["tokenizer"]["model"]["vocab"]
    texts = [(data / "speeches" / name).read_text() for name in ("train_CLS.tsv", "train_LM.txt")]
    words = {word for text in texts for word in text.replace(".", " . ").replace("\t", " ").split()} - set("012")
    assert words | {"<pad>", "<unk>", "<bos>", "<eos>"} == pieces.keys()
    assert result["variants"][0]["vocabulary"] == len(words) + 4


def test_what_was_trained_is_not_trained_again_and_settings_join_one_outcome(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_smoke(LM, data, tmp_path, variant="as-reported", seeds=2)
    assert [variant["name"] for variant in first["variants"]] == ["as-reported"]
    models = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert len(models) == 2
    both = run_smoke(LM, data, tmp_path, seeds=2)
    assert [variant["name"] for variant in both["variants"]] == [variant.name for variant in LM.variants]
    assert both["variants"][0]["runs"] == first["variants"][0]["runs"]
    assert all(path.stat().st_mtime_ns == before for path, before in models.items())


def test_an_interrupted_system_says_how_to_go_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **settings: object) -> None:
        raise RunInterruptedError("stopped at step 2; to resume, run: triform train generate")

    monkeypatch.setattr(engine, "train_seed_list", interrupt)
    expected = (
        rf"to resume, run: python -m reproduce speeches-lm --seeds 2 --smoke --data {data} --out {tmp_path}/runs"
    )
    with pytest.raises(RunInterruptedError, match=expected):
        run_smoke(LM, data, tmp_path, seeds=2)


def test_ctrl_c_while_scoring_says_how_to_go_on_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "_evaluate_set", interrupt)
    with pytest.raises(
        RunInterruptedError, match="finished work is kept; to resume, run: python -m reproduce speeches-lm"
    ):
        run_smoke(LM, data, tmp_path)


def test_a_variant_that_diverges_is_reported_and_the_others_are_trained(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_reported, best, *_ = LM.variants
    unstable: Settings = {"train.optimizer": "sgd", "train.lr": 1e30, "train.clip_norm": 0.0}
    system = replace(LM, variants=(replace(as_reported, settings=as_reported.settings | unstable), best))
    for _ in range(2):  # the second call does not train the diverged run again
        result = run_smoke(system, data, tmp_path, seeds=1)
        assert [variant["name"] for variant in result["variants"]] == ["best"]
        assert "| **as-reported** | failed: seed-0 of 1 diverged: the loss is not finite" in format_section(
            system, result
        )
        monkeypatch.setattr(engine, "train_seed_list", None)


def test_a_second_call_does_not_evaluate_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_smoke(LM, data, tmp_path, seeds=1)

    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("evaluated again")

    monkeypatch.setattr(evaluation, "_evaluate_set", fail)
    second = run_smoke(LM, data, tmp_path, seeds=1)
    assert [variant["runs"] for variant in second["variants"]] == [variant["runs"] for variant in first["variants"]]


def test_altered_data_is_refused_before_anything_is_trained(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sets"
    shutil.copytree(data, copy)
    (copy / "speeches" / "train_LM.txt").write_text("something else\n")
    with pytest.raises(DataError, match=r"train_LM\.txt: this is not the expected train_LM\.txt"):
        run_smoke(LM, copy, tmp_path)
    (copy / "speeches" / "train_LM.txt").unlink()
    with pytest.raises(DataError, match=r"train_LM\.txt: the file is missing"):
        run_smoke(LM, copy, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_variant_is_selected_by_its_group_or_its_name() -> None:
    system = get_system("speeches-classifier")
    assert [variant.name for variant in system.select_variants("pairs")] == ["pairs"]
    assert {variant.group for variant in system.select_variants("best")} == {"best"}
    assert [variant.name for variant in system.select_variants("earlier")] == ["pieces", "pairs"]
    assert {variant.group for variant in system.select_variants("both")} == {"as-reported", "best"}


def test_bad_questions_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="--variant worst: speeches-lm has no such variant; choose from both, as-reported, best"
    ):
        LM.select_variants("worst")
    with pytest.raises(ConfigError, match=r"unknown system 'speeches-ml'; did you mean 'speeches-lm'\?"):
        get_system("speeches-ml")
