"""A run that is not as it was saved is refused in one line, whichever of its files was changed and however."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from triform.errors import CheckpointError, TriformError
from triform.io.digests import record_digests
from triform.io.run_layout import CHECKPOINT_FILES, DIGESTS_FILE, STATE_FILE, TENSORS_FILE
from triform.launch import train
from triform.run import Run, load
from triform.training.lora_adapter import METADATA_KEY, read_adapter
from triform.training.run_folder import RunFolder

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.0}
TRAIN_SETTINGS = {"max_steps": 4, "eval_every": 2, "checkpoint_every": 2}
OPTIONS: dict[str, Any] = {"device": "cpu", "quiet": True}
TEXTS = ["word1 thing", "word3"]
N_MUTATIONS = 60  # of each kind of file


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    path.write_text("text,label\n" + "".join(f"word{n % 7} thing {n % 4},{'ab'[n % 2]}\n" for n in range(40)))
    return path


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    return train("classify", data=rows, model=MODEL, train=TRAIN_SETTINGS, out=str(out), **OPTIONS)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, rows: Path, trained_run: Run) -> Path:
    out = tmp_path_factory.mktemp("runs") / "lora"
    train_settings = {**TRAIN_SETTINGS, "lora_rank": 2}
    return train(
        "classify", data=rows, init_from=str(trained_run.path), train=train_settings, out=str(out), **OPTIONS
    ).path


@pytest.fixture
def run(tmp_path: Path, trained_run: Run) -> Path:
    return Path(shutil.copytree(trained_run.path, tmp_path / "run"))


def generate_mutations(content: bytes, count: int, seed: str) -> Iterator[bytes]:
    """Bits flipped, bytes exchanged, cut out, put in, doubled; files cut short and made longer."""
    rng = random.Random(seed)
    while count:
        start, length = rng.randrange(len(content)), rng.choice((1, 1, 2, 4, 64))
        random_bytes = bytes(rng.randrange(256) for _ in range(length))
        mutated = {
            "flip": content[:start] + bytes([content[start] ^ 1 << rng.randrange(8)]) + content[start + 1 :],
            "set": content[:start] + random_bytes + content[start + length :],
            "cut": content[:start] + content[start + length :],
            "insert": content[:start] + random_bytes + content[start:],
            "double": content[: start + length] + content[start:],
            "short": content[:start],
            "long": content + random_bytes,
            "zero": content[:start] + bytes(length) + content[start + length :],
        }[rng.choice(("flip", "flip", "set", "cut", "insert", "double", "short", "long", "zero"))]
        if mutated != content:
            count -= 1
            yield mutated


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.toml", DIGESTS_FILE])
def test_a_run_with_a_mutated_file_is_refused(run: Path, trained_run: Run, name: str) -> None:
    path, answers = run / name, trained_run.predict(TEXTS)
    for content in generate_mutations(path.read_bytes(), N_MUTATIONS, name):
        path.write_bytes(content)
        try:
            loaded = load(run, device="cpu")
        except CheckpointError as error:
            refusal = str(error)
        else:  # only where the seal itself was changed without changing what it says
            assert name == DIGESTS_FILE
            assert loaded.predict(TEXTS) == answers
            continue
        assert refusal.startswith(str(run))
        assert "\n" not in refusal


@pytest.mark.parametrize("name", [TENSORS_FILE, STATE_FILE, DIGESTS_FILE])
def test_a_mutated_checkpoint_is_not_resumed(run: Path, name: str) -> None:
    folder = RunFolder(run)
    checkpoint = folder.latest_checkpoint()
    assert checkpoint is not None
    before = folder.read_checkpoint(checkpoint)[1]
    for content in generate_mutations((checkpoint / name).read_bytes(), N_MUTATIONS, name):
        (checkpoint / name).write_bytes(content)
        try:
            state = folder.read_checkpoint(checkpoint)[1]
        except CheckpointError:
            continue
        assert name == DIGESTS_FILE  # which was changed without changing what it says
        assert state == before


def test_a_mutated_adapter_is_refused_or_says_the_same(trained_run: Run, adapted: Path, tmp_path: Path) -> None:
    original = (adapted / "adapter.safetensors").read_bytes()
    path = tmp_path / "adapter.safetensors"
    answers = load(trained_run.path, device="cpu", adapter=adapted / "adapter.safetensors").predict(TEXTS)
    refused = 0
    for content in generate_mutations(original, N_MUTATIONS, "adapter"):
        path.write_bytes(content)
        try:
            loaded = load(trained_run.path, device="cpu", adapter=path)
        except CheckpointError:
            refused += 1
        else:
            assert loaded.predict(TEXTS) == answers
    assert refused >= 0.9 * N_MUTATIONS


def test_the_weights_of_another_run_are_not_taken_for_its_own(rows: Path, run: Path, tmp_path: Path) -> None:
    other_run = train(
        "classify", data=rows, model=MODEL, train=TRAIN_SETTINGS, seed=9, out=str(tmp_path / "twin"), **OPTIONS
    )
    shutil.copy(other_run.path / "model.safetensors", run)
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors does not match .+ is damaged, or is a file of another run"
    ):
        load(run, device="cpu")
    assert load(run, device="cpu", verify=False).predict(TEXTS) == other_run.predict(TEXTS)


def test_every_use_of_a_run_verifies_it_and_can_be_told_not_to(rows: Path, run: Path, tmp_path: Path) -> None:
    config = run / "config.toml"
    config.write_text(config.read_text().replace("beam_size = 4", "beam_size = 5"))
    actions: list[Callable[..., Run]] = [
        lambda **options: load(run, device="cpu", **options),
        lambda **options: train(
            "classify",
            data=rows,
            init_from=str(run),
            train=TRAIN_SETTINGS,
            out=str(tmp_path / "new"),
            **OPTIONS,
            **options,
        ),
        lambda **options: train("classify", out=str(run), resume=True, **OPTIONS, **options),
    ]
    for action in actions:
        with pytest.raises(
            TriformError, match=r"config\.toml does not match .+ is damaged, or was edited after the run was saved"
        ):
            action()
    for action in actions:
        action(verify=False)


def test_resuming_without_verifying_seals_what_is_there(run: Path) -> None:
    (run / "report.html").unlink()  # so that something is left to do
    config = run / "config.toml"
    config.write_text(config.read_text().replace("beam_size = 4", "beam_size = 5"))
    train("classify", out=str(run), resume=True, verify=False, **OPTIONS)
    assert load(run, device="cpu").config.decode.beam_size == 5


def test_an_older_run_without_digests_opens_with_a_notice(run: Path, trained_run: Run) -> None:
    (run / DIGESTS_FILE).unlink()
    loaded = load(run, device="cpu")
    assert loaded.notices == (f"{run} was saved without digests by an older Triform, so damage cannot be detected",)
    assert loaded.predict(TEXTS) == trained_run.predict(TEXTS)
    assert load(run, device="cpu", verify=False).notices == ()
    assert trained_run.notices == ()


# -- weights that do not fit, or are no numbers


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(run: Path, value: float) -> None:
    tensors = load_file(run / "model.safetensors")
    name = sorted(tensors)[1]
    tensors[name].view(-1)[-1] = value
    RunFolder(run).write_weights(tensors)
    with pytest.raises(CheckpointError, match=rf"{name} contains numbers that are not finite"):
        load(run, device="cpu")


def test_large_weights_whose_sum_overflows_are_numbers_all_the_same(run: Path) -> None:
    tensors = load_file(run / "model.safetensors")
    tensors[sorted(tensors)[1]].fill_(3e38)
    RunFolder(run).write_weights(tensors)
    load(run, device="cpu")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("d_model = 16", "d_model = 2048", r"has shape \(\d+, 16\), expected \(\d+, 2048\)"),
        ("n_layers = 1\n", "n_layers = 1000\n", r"too few for model\.n_layers=1000"),
        ("n_layers = 1\n", "n_layers = 2\n", "is missing or unknown"),
    ],
)
def test_settings_are_compared_with_the_header_before_memory_is_taken(
    run: Path, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run / "config.toml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    monkeypatch.setattr("triform.training.loading.allocate_model", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(CheckpointError, match=message):
        load(run, device="cpu", verify=False)


def test_weights_of_another_number_format_are_refused(run: Path) -> None:
    tensors = load_file(run / "model.safetensors")
    name = sorted(tensors)[0]
    RunFolder(run).write_weights(tensors | {name: tensors[name].to(torch.int32)})
    with pytest.raises(CheckpointError, match=rf"{name} has dtype I32, expected F32"):
        load(run, device="cpu")


# -- states and adapters that are malformed, though their digests fit


def change_entry(state: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with one entry changed, or removed where the value is `...`."""
    state = json.loads(json.dumps(state))
    *parents, key = path.split(".")
    node = state
    for name in parents:
        node = node[name]
    if value is ...:
        del node[key]
    else:
        node[key] = value
    return state


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((name, ...) for name in ("progress", "sampler", "schedule", "callbacks", "window")),
        ("metadata", ...), ("finished", ...),
        *((f"progress.{name}", ...) for name in ("step", "best", "seconds", "finished")),
        ("progress", []), ("progress.step", "4"), ("progress.step", -1), ("progress.best", {"loss": "low"}),
        ("progress.best", {"loss": 1.0}), ("progress.seconds", None), ("progress.wings", 2),
        ("progress.lowest_loss", "low"),
        ("sampler", {}), ("sampler.position", 10**6), ("sampler.position", 0.5), ("sampler.epoch", "x"),
        ("callbacks.MetricsFile", {}), ("callbacks.MetricsFile", 3), ("window.losses", ["x"]),
        ("window.losses", [1.0] * 10_000), ("schedule", [1]), ("metadata", {"data": 3}),
    ],
)  # fmt: skip
def test_a_malformed_state_is_one_line(run: Path, path: str, value: object) -> None:
    checkpoint = RunFolder(run).latest_checkpoint()
    assert checkpoint is not None
    (run / "report.html").unlink()  # so that something is left to do
    state = checkpoint / "state.json"
    state.write_text(json.dumps(change_entry(json.loads(state.read_text()), path, value)))
    record_digests(checkpoint, CHECKPOINT_FILES)
    with pytest.raises(CheckpointError, match=r"step-\d+ is damaged \(.+\); restore it"):
        train("classify", out=str(run), resume=True, **OPTIONS)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("wings", (2,)), ("wings.0", (2,)), ("model.wings", (2,)), ("optimizer.x.exp_avg", (2,)), ("rng.cpu", (2,)),
     ("optimizer.999.exp_avg", (2,)), ("optimizer.0.exp_avg", (2, 3, 4))],
)  # fmt: skip
def test_a_checkpoint_with_foreign_tensors_is_one_line(run: Path, name: str, shape: tuple[int, ...]) -> None:
    checkpoint = RunFolder(run).latest_checkpoint()
    assert checkpoint is not None
    (run / "report.html").unlink()
    file = checkpoint / "tensors.safetensors"
    save_file(load_file(file) | {name: torch.zeros(shape)}, file)
    record_digests(checkpoint, CHECKPOINT_FILES)
    with pytest.raises(CheckpointError, match=r"checkpoints.*(is damaged|does not match the settings)"):
        train("classify", out=str(run), resume=True, **OPTIONS)


def read_adapter_metadata(adapted: Path) -> dict[str, Any]:
    with safe_open(adapted / "adapter.safetensors", framework="pt") as file:
        return dict(json.loads(file.metadata()[METADATA_KEY]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, ...) for name in ("format", "triform", "base", "config", "sha256")),
        ("format", "2"), ("format", None), ("config", 3), ("config", "= ["), ("config", "[model]\nwings = 2\n"),
        ("base", []), ("base", "0" * 64), ("sha256", "0" * 64),
    ],
)  # fmt: skip
def test_a_malformed_adapter_is_one_line(
    trained_run: Run, adapted: Path, tmp_path: Path, name: str, value: object
) -> None:
    path = tmp_path / "adapter.safetensors"
    metadata_json = json.dumps(change_entry(read_adapter_metadata(adapted), name, value))
    save_file(load_file(adapted / "adapter.safetensors"), path, {METADATA_KEY: metadata_json})
    for verify in (True, False):
        if (name, verify) != ("sha256", False) or value is ...:
            with pytest.raises(CheckpointError, match=r"adapter\.safetensors is (damaged|an adapter for another)"):
                load(trained_run.path, device="cpu", adapter=path, verify=verify)


@pytest.mark.parametrize("text", ["", "3", "null", "{", "[" * 9_000])
def test_an_adapter_whose_metadata_is_no_json_object_is_one_line(adapted: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "adapter.safetensors"
    save_file(load_file(adapted / "adapter.safetensors"), path, {METADATA_KEY: text})
    with pytest.raises(CheckpointError, match=r"adapter\.safetensors(: | is | does not match )"):
        read_adapter(path)


def test_an_adapter_with_other_tensors_is_one_line(trained_run: Run, adapted: Path, tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    tensors, metadata = (
        load_file(adapted / "adapter.safetensors"),
        {METADATA_KEY: json.dumps(read_adapter_metadata(adapted))},
    )
    factor = next(name for name in tensors if name.endswith("lora_a.weight"))
    malformed = [
        {name: tensor for name, tensor in tensors.items() if name != factor},
        tensors | {"wings.lora_a.weight": torch.zeros(2, 16), "wings.lora_b.weight": torch.zeros(16, 2)},
        tensors | {"wings": torch.zeros(2)},
        tensors | {"a.lora_wings": torch.zeros(2)},
        tensors | {factor: torch.zeros(3)},
        tensors | {factor: tensors[factor][:, :-1].contiguous()},
        tensors | {factor: tensors[factor] * float("nan")},
        tensors | {factor: tensors[factor].to(torch.int64)},
    ]
    for bad_tensors in malformed:
        save_file(bad_tensors, path, metadata)
        with pytest.raises(CheckpointError, match=r"adapter\.safetensors(: | is | does not match )"):
            load(trained_run.path, device="cpu", adapter=path, verify=False)
