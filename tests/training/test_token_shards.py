"""Training on token shards: every window once, an exact resume, the same from a folder or an address, bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from triform.config import TokenizerConfig
from triform.config.settings import build_config
from triform.data.shard_writer import TokenizeJob, write_shards
from triform.errors import CheckpointError, DataError, TriformError
from triform.launch import train
from triform.run import Run, load
from triform.tasks.sharded_text import DeviceShardedDataset, ShardedDataset, ShardedTextData
from triform.text import Tokenizer, train_tokenizer
from triform.training.trainer import Trainer

DOCUMENTS = [f"document {number} says " + "word " * (number % 17) for number in range(150)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=270), DOCUMENTS)


@pytest.fixture(scope="module")
def shards(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten shards, so that there are two pools."""
    folder = tmp_path_factory.mktemp("corpus")
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS), encoding="utf-8")
    write_shards(TokenizeJob(files=[str(path)], tokenizer=tokenizer, n_shards=10, workers=1), folder / "shards")
    return folder / "shards"


def train_tiny(data: object, out: Path, *, steps: int = 12, resume: bool = False, **settings: Any) -> Run:
    values = {
        "model.d_model": 8,
        "model.n_heads": 1,
        "model.n_layers": 1,
        "data.max_len": 8,
        "train.batch_size": 16,
    }
    values |= {"train.max_steps": steps, "train.eval_every": 6, "train.checkpoint_every": 3, "train.lr": 1e-2}
    return train(
        "generate", data=str(data), out=str(out), resume=resume, device="cpu", quiet=True, **(values | settings)
    )


def test_a_run_learns_from_shards_and_has_their_tokenizer(
    shards: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run = train_tiny(shards, tmp_path / "run")
    metrics = run.evaluate()
    assert metrics["perplexity"] < 100
    assert metrics["bits_per_byte"] > 0
    assert run.config.tokenizer.kind == "bpe"
    assert run.config.tokenizer.vocab_size == tokenizer.vocab_size
    assert run.predict("document 7")[0].output
    valid = tmp_path / "valid.txt"
    valid.write_text("document 3 says word", encoding="utf-8")
    assert train_tiny(shards, tmp_path / "run2", valid=str(valid)).evaluate()["tokens"] < 30


def test_each_window_of_an_epoch_is_trained_on_once_across_a_resume(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows_read: list[int] = []
    batch = ShardedDataset.batch
    monkeypatch.setattr(
        ShardedDataset,
        "batch",
        lambda self, indices: (windows_read.extend(indices.tolist()), batch(self, indices))[1],
    )
    uninterrupted = train_tiny(shards, tmp_path / "whole", steps=0, **{"train.epochs": 1.0})
    expected = windows_read.copy()
    assert sorted(expected) == list(range(len(expected)))
    windows_read.clear()
    step = Trainer.step

    def stop_at_seven(self: Trainer) -> None:
        step(self)
        if self.progress.step == 7:
            self.stop()

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop_at_seven)
        with pytest.raises(TriformError, match="--resume"):
            train_tiny(shards, tmp_path / "cut", steps=0, **{"train.epochs": 1.0})
    train_tiny(shards, tmp_path / "cut", steps=0, resume=True, **{"train.epochs": 1.0})
    assert windows_read == expected
    weights = load_file(tmp_path / "cut" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert torch.equal(tensor, weights[name])
    assert uninterrupted.evaluate() == load(tmp_path / "cut").evaluate()


def test_shards_at_an_address_train_the_same_model(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    for path in shards.iterdir():
        memory.pipe_file(f"/corpus/{path.name}", path.read_bytes())
    local, remote = train_tiny(shards, tmp_path / "local"), train_tiny("memory://corpus", tmp_path / "remote")
    assert local.evaluate() == remote.evaluate()
    memory.rm("/corpus", recursive=True)


def test_the_held_out_part_is_not_trained_on(shards: Path) -> None:
    config = _config(shards)
    data = ShardedTextData(config)
    held_out = data.held_out
    assert held_out is not None
    n_tokens = data.shards.manifest.n_tokens
    assert held_out.stop - held_out.start == int(0.1 * n_tokens)
    assert sum(data.train_tokens) == n_tokens - int(0.1 * n_tokens)
    texts = [chunk.text for chunk in data.split_examples(held_out=False)]
    texts += [chunk.text for chunk in data.split_examples(held_out=True)]
    assert sum(map(len, texts)) == sum(map(len, DOCUMENTS))
    dataset = ShardedDataset(data.shards, data.train_tokens, 8)
    _, starts = dataset.locate(np.arange(dataset.n_windows))
    assert starts.max() + 9 <= max(data.train_tokens)


def test_batches_on_a_device_equal_those_from_the_shards(shards: Path) -> None:
    data = ShardedTextData(_config(shards))
    dataset = ShardedDataset(data.shards, data.train_tokens, 8)
    on_device = DeviceShardedDataset(dataset, torch.device("cpu"))
    windows = np.array([dataset.n_windows - 1, 0, 17, 40])
    plan = on_device.plan(windows)
    gathered = on_device.gather(torch.from_numpy(plan.rows), plan.shape)
    expected = dataset.batch(windows)
    assert torch.equal(gathered.tokens, expected.tokens)
    assert torch.equal(gathered.targets, expected.targets)
    assert plan.n_predictions == expected.n_predictions == 32
    assert sum(batch.n_predictions for batch in dataset.batches()) == len(dataset)


def _config(shards: Path) -> Any:
    return build_config({"task": "generate", "data.train": str(shards), "data.valid_fraction": 0.1})


def test_shards_with_another_tokenizer_do_not_continue_a_run(shards: Path, tmp_path: Path) -> None:
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    base = train_tiny(copy, tmp_path / "run", steps=2)
    source = json.loads((shards / "manifest.json").read_text(encoding="utf-8"))["sources"][0]["path"]
    other = train_tokenizer(TokenizerConfig(kind="char"), DOCUMENTS)
    shutil.rmtree(copy)
    write_shards(TokenizeJob(files=[source], tokenizer=other, shard_tokens=500, workers=1), copy)
    message = (
        "was made with another tokenizer than that of the model; use `triform data tokenize` with --tokenizer RUN"
    )
    with pytest.raises(CheckpointError, match=message):
        train_tiny(copy, tmp_path / "run", steps=4, resume=True)
    with pytest.raises(CheckpointError, match=message):
        train_tiny(copy, tmp_path / "run2", init_from=str(tmp_path / "run"))
    shutil.rmtree(copy)
    shutil.copytree(shards, copy)
    tuned = train_tiny(copy, tmp_path / "run3", steps=2, init_from=str(tmp_path / "run"))
    assert tuned.config.tokenizer.vocab_size == base.config.tokenizer.vocab_size


def test_bad_shards_are_named_before_training(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no shard has the 1001 tokens of a window; lower data\.max_len"):
        train_tiny(shards, tmp_path / "run", **{"data.max_len": 1000})
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    for path in copy.glob("*.bin"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataError, match=r"shard-\d+\.bin is damaged"):
        train_tiny(copy, tmp_path / "run")
    with pytest.raises(DataError, match=r"no manifest\.json, so these are not token shards"):
        train_tiny(tmp_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
