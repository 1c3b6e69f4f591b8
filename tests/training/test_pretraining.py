"""Pretraining on texts without labels, and classifiers and translators that start from it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from same_runs import StoppedAfter, assert_same_run

from triform.analysis.costs import Workload, estimate_costs
from triform.analysis.parameters import count_parameters
from triform.config.settings import Settings, build_config
from triform.errors import ConfigError, DataError
from triform.launch import train
from triform.nn.loss import IGNORE_INDEX
from triform.run import Run, load
from triform.tasks import choose_task
from triform.tasks.device_data import PAD_ROW

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.1}
STEPS = {"max_steps": 8, "eval_every": 4, "checkpoint_every": 4, "log_every": 2, "batch_size": 16}
OBJECTIVES = {"classify": "masked", "translate": "denoise"}


def write_texts(folder: Path) -> str:
    path = folder / "texts.txt"
    lines = [
        f"the {'red' if n % 2 else 'blue'} ship sails to island {n % 7} {'soon ' * (n % 4)}\n\n" for n in range(150)
    ]
    path.write_text("".join(lines))
    return str(path)


def pretrain(task: Any, data: str, out: Path, **settings: Any) -> Run:
    steps = STEPS | {"objective": OBJECTIVES[task]} | settings.pop("train", {})
    values = {"data": data, "train": steps, "model": MODEL} | settings
    return train(task, out=out, device="cpu", quiet=True, seed=1, **values)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def masked(texts: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(
        "classify", texts, tmp_path_factory.mktemp("masked") / "run", model=MODEL | {"bigram_buckets": 9}
    )


@pytest.fixture(scope="module")
def denoiser(texts: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain("translate", texts, tmp_path_factory.mktemp("denoiser") / "run", train={"batch_size": 8})


def test_a_classifier_starts_from_the_encoder_and_its_vocabulary(masked: Run, tmp_path: Path) -> None:
    data = tmp_path / "labelled.csv"
    data.write_text(
        "text,label\n" + "".join(f"the ship {n} sails,{'even' if n % 2 else 'odd'}\n" for n in range(40))
    )
    result = train(
        "classify", data=data, out=tmp_path / "run", init_from=masked.path, device="cpu", quiet=True,
        train={"max_steps": 1, "lr": 1e-30},
    )  # fmt: skip
    assert result.task.tokenizer.to_json() == masked.task.tokenizer.to_json()
    assert result.config.data.max_len == masked.config.data.max_len
    ours, base = load_file(result.path / "model.safetensors"), load_file(masked.path / "model.safetensors")
    shared = [name for name in base if name.startswith("encoder.")]
    assert len(shared) > 10
    assert "encoder.embedding.bigram_embedding.weight" in shared
    for name in shared:
        torch.testing.assert_close(ours[name], base[name])
    assert set(ours) - set(base) == {"classification_head.weight", "classification_head.bias"}
    assert result.predict("the ship 3 sails")[0].output in ("even", "odd")
    assert result.config.train.objective == "auto"


def test_a_translator_starts_from_the_whole_denoiser_and_a_classifier_from_its_encoder(
    denoiser: Run, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source\ttarget\n" + "".join(f"the ship {n}\tdas schiff {n}\n" for n in range(30)))
    options: dict[str, Any] = {"init_from": denoiser.path, "device": "cpu", "quiet": True}
    options["train"] = {"max_steps": 1, "lr": 1e-30}
    translator = train("translate", data=pairs, out=tmp_path / "translator", **options)
    base = load_file(denoiser.path / "model.safetensors")
    for name, tensor in load_file(translator.path / "model.safetensors").items():
        torch.testing.assert_close(tensor, base[name])
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"the ship {n},{n % 2}\n" for n in range(30)))
    classifier = train("classify", data=rows, out=tmp_path / "classifier", **options)
    ours = load_file(classifier.path / "model.safetensors")
    assert all(tensor.allclose(base[name]) for name, tensor in ours.items() if name.startswith("encoder."))


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_a_stopped_run_goes_on_with_the_same_masks(
    task: str, texts: str, tmp_path: Path, stopped_after: StoppedAfter
) -> None:
    uninterrupted = pretrain(task, texts, tmp_path / "whole")
    with stopped_after(5):
        pretrain(task, texts, tmp_path / "broken")
    assert_same_run(uninterrupted.path, pretrain(task, texts, tmp_path / "broken", resume=True).path)


def test_further_pretraining_starts_from_the_head_too(masked: Run, texts: str, tmp_path: Path) -> None:
    further = pretrain(
        "classify", texts, tmp_path / "again", init_from=masked.path, model={}, train={"max_steps": 1, "lr": 1e-30}
    )
    base = load_file(masked.path / "model.safetensors")
    for name, tensor in load_file(further.path / "model.safetensors").items():
        torch.testing.assert_close(tensor, base[name])


def test_every_evaluation_masks_the_same_tokens_and_gives_their_loss(
    masked: Run, denoiser: Run, texts: str
) -> None:
    for run in (masked, denoiser):
        metrics = run.evaluate()
        assert metrics == run.evaluate()
        assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
        assert 0 < metrics["loss"] < math.log(run.task.tokenizer.vocab_size) + 1
        assert run.evaluate(texts, details=True)["tokens"] > metrics["tokens"]
    metrics, task = masked.evaluate(), masked.task
    dataset = task.data.load_validation_dataset([])
    batches, total, n_predictions = list(dataset.batches()), 0.0, 0
    with torch.no_grad():
        for batch in batches:
            noise = task.noise.mask_tokens(
                batch.tokens, batch.keep, batch.n_masked, torch.Generator().manual_seed(0)
            )
            log_probs = task.model(noise.tokens, batch.keep).log_softmax(-1)
            for row, position, target in zip(
                *torch.where(noise.targets != IGNORE_INDEX),
                noise.targets[noise.targets != IGNORE_INDEX],
                strict=True,
            ):
                total -= float(log_probs[row, noise.positions[row, position], target])
            n_predictions += batch.n_predictions
    assert metrics["tokens"] == n_predictions
    assert metrics["loss"] == pytest.approx(total / n_predictions, rel=1e-5)


def test_masks_of_a_text_are_filled_in(masked: Run) -> None:
    (prediction,) = masked.predict("the <mask> ship sails to <mask>", top=3)
    assert len(prediction.alternatives) == 3
    assert prediction.alternatives[0].probability is not None
    assert "<mask>" not in prediction.output
    words = prediction.output.split()
    assert [words[0], *words[2:5]] == ["the", "ship", "sails", "to"]
    assert words[1] == prediction.alternatives[0].text
    many = ["the <mask>"] * 70
    assert len(masked.predict(many)) == 70
    (prediction,) = masked.predict("the <mask>", top=100_000)
    assert all(alternative.probability for alternative in prediction.alternatives), "no banned token is offered"
    with pytest.raises(DataError, match="has none"):
        masked.predict("the blue ship")
    with pytest.raises(DataError, match="reads has no <mask>"):
        masked.predict("soon " * 500 + "<mask>")


def test_what_needs_a_model_for_the_task_is_refused(masked: Run, denoiser: Run, tmp_path: Path) -> None:
    for run, task in ((masked, "classify"), (denoiser, "translate")):
        for refused in (
            lambda run=run: run.explain("the ship"),
            lambda run=run: run.export("hf", tmp_path / "exported"),
            lambda run=run: load(f"{run.path},{run.path}"),
        ):
            with pytest.raises(ConfigError, match=f"only pretrained .* `triform train {task} --from RUN`"):
                refused()
        with pytest.raises(ConfigError, match="there is no baseline for train"):
            run.baselines()


def test_rows_on_a_device_are_the_rows_of_a_batch(texts: str, tmp_path: Path) -> None:
    settings = {"task": "classify", "data.train": texts, "train.objective": "masked", "train.batch_size": 6}
    settings |= {"data.max_len": 16} | {f"model.{name}": value for name, value in MODEL.items()}
    prepared = choose_task(config := build_config(settings)).prepare(config, tmp_path / "run")
    indices = np.array([0, 5, 9, 40])
    device_data = prepared.train.to_device(torch.device("cpu"), prepared.task.config.train)
    assert device_data is not None
    plan, batch = device_data.plan(indices), prepared.train.batch(indices)
    gathered = device_data.gather(torch.from_numpy(plan.rows), plan.shape)
    assert (plan.n_predictions, plan.n_tokens) == (batch.n_predictions, batch.n_tokens)
    assert plan.rows.tolist()[4:] == [PAD_ROW] * 2
    width = batch.tokens.shape[1]
    assert gathered.tokens[:4, :width].equal(batch.tokens)
    assert gathered.n_masked.tolist() == [*batch.n_masked.tolist(), 0, 0]
    torch.manual_seed(0)
    assert math.isfinite(prepared.task.loss(gathered).item())


@pytest.mark.parametrize("kind", ["transformer", "gru"])
def test_parameters_and_costs_are_those_of_the_model(kind: str, texts: str, tmp_path: Path) -> None:
    settings = {"task": "classify", "data.train": texts, "train.objective": "masked", "model.kind": kind}
    settings |= {"model.d_model": 16, "model.n_layers": 1}
    task = choose_task(config := build_config(settings)).prepare(config, tmp_path / "run").task
    budget = count_parameters(task.config, task.sizes)
    assert budget.total == sum(parameter.numel() for parameter in task.model.parameters())
    costs = estimate_costs(task.config, task.sizes, Workload(batch_size=2, length=20))
    (head,) = [item for item in costs.flop_items if item.name == "output: masked tokens"]
    assert head.total == 2 * 3 * 16 * task.tokenizer.vocab_size, "three of twenty tokens are masked"


def test_further_files_are_trained_on_and_nothing_of_them_is_held_out(tmp_path: Path) -> None:
    for name, words in (("pairs", "real ship"), ("extra", "translated whale")):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{words} {n}\tziel {n}\n" for n in range(20)))
    (tmp_path / "labels.tsv").write_text("a fresh start\tthird\n")
    settings = {"task": "translate", "data.train": str(tmp_path / "pairs.tsv"), "tokenizer.kind": "word"}
    settings |= {"data.extra": (str(tmp_path / "extra.tsv"),), "data.extra_tag": "back", "data.header": "no"}
    prepared = choose_task(config := build_config(settings)).prepare(config, tmp_path / "run")
    sources = [
        prepared.task.tokenizer.decode(prepared.train.source[row].tolist()) for row in range(len(prepared.train))
    ]
    assert len(sources) == 18 + 20
    assert [source.startswith("back translated whale") for source in sources] == [False] * 18 + [True] * 20
    assert prepared.valid is not None
    assert [pair.source[:9] for pair in prepared.valid.raw_pairs] == ["real ship"] * 2
    rows = {
        "task": "classify",
        "data.train": str(tmp_path / "pairs.tsv"),
        "data.header": "no",
        "data.label_column": "2",
    }
    rows |= {"data.extra": (str(tmp_path / "labels.tsv"),), "data.labels": ()}
    data = choose_task(config := build_config(rows)).choose_data_class(config)(config)
    scanned, _ = data.scan(data.open_cache(tmp_path / "run", []))
    assert "third" in scanned.config.data.labels, "a label that only a further file has is a label too"


def test_encoded_texts_of_pretraining_are_not_mistaken_for_pairs() -> None:
    settings_of_kinds: list[Settings] = [
        {"data.source": "a", "data.target": "b"},
        {"data.train": "a", "data.extra": ("b",)},
        {"data.train": "a", "data.extra": ("b",), "train.objective": "denoise"},
    ]
    configs = [build_config({"task": "translate", **settings}) for settings in settings_of_kinds]
    keys = [choose_task(config).choose_data_class(config)(config).cache_key for config in configs]
    assert len({repr(key) for key in keys}) == 3


def test_a_tag_does_not_make_a_pair_of_an_empty_source(tmp_path: Path) -> None:
    (tmp_path / "extra.tsv").write_text("\tziel\nwal\tziel\n")
    settings: Settings = {"task": "translate", "data.train": "pairs.tsv", "data.header": "no"}
    settings |= {"data.extra": (str(tmp_path / "extra.tsv"),), "data.extra_tag": "back"}
    data = choose_task(config := build_config(settings)).choose_data_class(config)(config)
    assert [pair.source for pair in data.extra_examples()] == ["", "back wal"]


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings, problem in {
        ("generate", "train.objective=masked"): "applies to classify only, not to generate",
        ("classify", "train.objective=denoise"): "applies to translate only, not to classify",
        ("classify", "train.objective=masked", "train.r_drop=1.0"): r"train\.r_drop cannot be combined",
        ("classify", "train.objective=masked", "train.token_cutoff=0.1"): r"train\.token_cutoff cannot be combined",
        ("translate", "train.objective=denoise", "tokenizer.joint_vocab=false"): "leave out tokenizer.joint_vocab",
        ("translate", "train.objective=denoise", "data.source=a", "data.target=b"): "texts, not pairs",
        ("translate", "train.objective=denoise", "data.valid_source=a", "data.valid_target=b"): "texts, not pairs",
        ("classify", "train.objective=masked", "tokenizer.bpe_dropout=0.1"): "bpe_dropout cannot be combined",
        ("classify", "train.mask_rate=0"): "must be between 0.01 and 0.9",
        ("generate", "data.extra=a.txt"): "put the files into one folder",
        ("translate", "data.extra_tag=<BT>"): "add --extra-data",
    }.items():
        task, *assignments = settings
        with pytest.raises(ConfigError, match=problem):
            build_config({"task": task} | dict(assignment.split("=") for assignment in assignments))
