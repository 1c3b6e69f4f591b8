"""`triform convert`: what cannot be taken in or written out is one line, and nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Core
from tokenizers import models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

Command = Callable[..., Any]
WORDS = ["<pad>", "<unk>", "<s>", "</s>", "good", "bad", "film"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "gpt2"
    config = GPT2Config(vocab_size=len(WORDS), n_embd=8, n_layer=1, n_head=2, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(folder)
    core_tokenizer = Core(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    core_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special_tokens = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=core_tokenizer, **special_tokens).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in published.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def reshape_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"transformer.ln_f.bias": torch.zeros(9)}, path, metadata={"format": "pt"})


def remove_tensor(folder: Path, name: str = "transformer.ln_f.bias") -> None:
    path = folder / "model.safetensors"
    save_file({key: value for key, value in load_file(path).items() if key != name}, path)


def rename_model_type(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}), encoding="utf-8")


def replace_with_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Path("x")}, folder / "pytorch_model.bin")


def enlarge_tokenizer(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(folder)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no weights found"),
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
        "no tokenizer found; known files are",
    ),
    "another architecture": (
        rename_model_type,
        "mamba is not supported; choose a model of one of these: gpt2, llama, bert, megatron-bert, distilbert",
    ),
    "a missing tensor": (remove_tensor, "transformer.ln_f.bias is missing (expected shape 8)"),
    "a misshapen tensor": (reshape_tensor, "transformer.ln_f.bias has the wrong shape: expected 8, found 9"),
    "a pickle": (replace_with_pickle, "contains more than weights and could run code, so it is not read"),
    "a larger tokenizer": (enlarge_tokenizer, "the tokenizer has 8 tokens, but the embedding has 7 rows"),
    "cut off": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x10\0\0"),
        "is truncated or not a safetensors file",
    ),
}


@pytest.mark.parametrize("damage_name", DAMAGES)
def test_a_spoiled_folder_is_one_line_and_no_run(
    triform: Command, damage_name: str, folder: Path, tmp_path: Path
) -> None:
    damage, message = DAMAGES[damage_name]
    damage(folder)
    assert message in triform("convert", "import", folder, "--out", tmp_path / "run").refusal
    assert not (tmp_path / "run").exists()
    result = triform(
        "train", "generate", "--from", folder, "--data", folder, "--out", tmp_path / "run", "--device", "cpu"
    )
    assert message in result.last_line
    assert not (tmp_path / "run").exists()


def test_a_hub_name_without_a_network_is_one_line(
    triform: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    message = triform("convert", "import", "hub:someone/tiny", "--out", tmp_path / "run").refusal
    assert message.startswith("hub:someone/tiny cannot be downloaded (no route to host); without a network, give")


def test_what_cannot_be_exported_is_one_line(triform: Command, folder: Path, tmp_path: Path) -> None:
    assert triform("convert", "import", folder, "--out", tmp_path / "run").code == 0
    out = ("--out", tmp_path / "out")
    assert "no such run folder" in triform("convert", "export", tmp_path / "none", "--to", "hf", *out).refusal
    assert (
        "choose from hf, ctranslate2, onnx"
        in triform("convert", "export", tmp_path / "run", "--to", "x", *out).refusal
    )
    assert "only classifiers" in triform("convert", "export", tmp_path / "run", "--to", "onnx", *out).refusal
    (tmp_path / "file").touch()
    existing_result = triform("convert", "export", tmp_path / "run", "--to", "hf", "--out", tmp_path / "file")
    assert existing_result.refusal.endswith("file already exists; choose another --out")
    assert triform("convert", "export", tmp_path / "run", "--to", "hf", *out).code == 0
    second_result = triform("convert", "export", tmp_path / "run", "--to", "hf", *out)
    assert "already exists" in second_result.refusal


def test_an_adapter_for_another_base_is_one_line(triform: Command, folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("good film bad film good bad film\n" * 20, encoding="utf-8")
    train = ("train", "generate", "--from", folder, "--data", text, "--set", "train.lora_rank=2", "--device", "cpu")
    assert triform(*train, "--set", "train.max_steps=1", "--out", tmp_path / "tuned").code == 0
    path = folder / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    assert triform("convert", "import", folder, "--out", tmp_path / "other").code == 0
    adapter = ("--adapter", tmp_path / "tuned" / "adapter.safetensors")
    message = triform(
        "convert", "export", tmp_path / "other", "--to", "hf", "--out", tmp_path / "out", *adapter
    ).refusal
    assert "is an adapter for another base" in message
    assert not (tmp_path / "out").exists()
