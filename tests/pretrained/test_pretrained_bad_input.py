"""What is wrong with a folder is said in one line: what, where, and what to do."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from published import TINY_MODELS, edit_config, rewrite_tensors, save_model
from safetensors.torch import load_file, save_file

from triform.errors import CheckpointError, ConfigError, TriformError, install_command
from triform.pretrained import load_pretrained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(TINY_MODELS["gpt2"].build(), tmp_path / "model")


def error_message(
    folder: Path | str, task: Any = "generate", error_type: type[TriformError] = CheckpointError
) -> str:
    with pytest.raises(error_type) as caught:
        load_pretrained(folder, task)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_such_folder(tmp_path: Path) -> None:
    message = error_message(tmp_path / "nowhere")
    assert message.startswith(f"{tmp_path / 'nowhere'}: no such folder")
    assert "hub:OWNER/NAME" in message


def test_a_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json is missing" in error_message(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_config_that_is_no_json_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert error_message(folder).startswith(str(folder / "config.json"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_one_file_of_a_folder_is_not_the_model(folder: Path, name: str) -> None:
    assert error_message(folder / name).endswith(
        "this is a single file of a model; pass the folder that contains it"
    )


def test_a_run_needs_no_import(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    assert "is a run folder already" in error_message(tmp_path)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "no weights found; expected model.safetensors or pytorch_model.bin" in error_message(folder)


def test_an_unknown_architecture_is_named_and_the_known_are_listed(folder: Path) -> None:
    edit_config(folder, model_type="mamba", architectures=["MambaForCausalLM"])
    message = error_message(folder, error_type=ConfigError)
    assert "the architecture mamba (MambaForCausalLM) is not supported" in message
    assert message.endswith(
        "choose a model of one of these: gpt2, llama, bert, megatron-bert, distilbert, marian, blenderbot, nanogpt"
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "megatron-bert", "distilbert", "marian", "blenderbot"])
def test_the_error_for_a_missing_model_type_names_the_line_to_add(name: str, tmp_path: Path) -> None:
    model = TINY_MODELS[name].build()
    folder = save_model(model, tmp_path)
    edit_config(folder, model_type=None)
    line = f'add the line "model_type": "{name}",'
    assert error_message(folder, error_type=ConfigError) == (
        f"{folder / 'config.json'}: model_type is missing; judging by the class {type(model).__name__}, {line}"
    )
    edit_config(folder, model_type=None, architectures=None)
    assert error_message(folder, error_type=ConfigError).endswith(f"judging by the tensor names, {line}")


def test_the_error_for_a_missing_model_type_and_unknown_tensors_names_the_choices(folder: Path) -> None:
    edit_config(folder, model_type=None, architectures=None)
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    message = error_message(folder, error_type=ConfigError)
    assert (
        'add the line "model_type": "NAME", where NAME is one of gpt2, llama, bert, megatron-bert, distilbert,'
        in message
    )


@pytest.mark.parametrize(("name", "task"), [("gpt2", "classify"), ("bert", "generate"), ("marian", "generate")])
def test_a_family_is_used_for_what_it_does(name: str, task: Any, tmp_path: Path) -> None:
    case = TINY_MODELS[name]
    message = error_message(save_model(case.build(), tmp_path), task, ConfigError)
    assert f"use it with the task {case.task} instead of {task}" in message


def test_a_missing_tensor(folder: Path) -> None:
    name = "transformer.h.1.mlp.c_fc.weight"
    rewrite_tensors(folder, lambda tensors: {key: value for key, value in tensors.items() if key != name})
    assert error_message(folder) == f"{folder}: the tensor {name} is missing (expected shape 16 × 64)"


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("transformer.h.2.attn.c_attn.weight", (16, 47), "16 × 48"),
        ("transformer.h.0.ln_1.bias", (17,), "16"),
        ("transformer.wte.weight", (60, 16), "61 × 16"),
        ("transformer.wpe.weight", (23, 16), "24 × 16"),
        ("transformer.ln_f.weight", (), "16"),
    ],
)
def test_a_misshapen_tensor(folder: Path, name: str, shape: tuple[int, ...], expected: str) -> None:
    rewrite_tensors(folder, lambda tensors: tensors | {name: torch.zeros(shape)})
    found_shape = " × ".join(map(str, shape)) or "scalar"
    assert (
        error_message(folder)
        == f"{folder}: the tensor {name} has the wrong shape: expected {expected}, found {found_shape}"
    )


@pytest.mark.parametrize(
    ("family", "name", "problem"),
    [
        ("bert", "classifier.weight", "has the wrong shape: expected 2 × 16, found scalar"),
        (
            "marian",
            "model.encoder.embed_positions.weight",
            "differs from the sinusoidal positions that Marian computes",
        ),
    ],
)
def test_one_number_where_rows_are_counted(family: str, name: str, problem: str, tmp_path: Path) -> None:
    case = TINY_MODELS[family]
    folder = save_model(case.build(), tmp_path)
    rewrite_tensors(folder, lambda tensors: tensors | {name: torch.tensor(1.0)})
    assert f"{name} {problem}" in error_message(folder, case.task, TriformError)


def test_whole_numbers_are_not_weights(folder: Path) -> None:
    name = "transformer.h.1.mlp.c_fc.weight"
    rewrite_tensors(folder, lambda tensors: tensors | {name: torch.zeros(16, 64, dtype=torch.int8)})
    assert f"{name} has dtype torch.int8; quantized models are not supported" in error_message(folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite(folder: Path, number: float) -> None:
    name = "transformer.h.1.mlp.c_fc.weight"
    rewrite_tensors(folder, lambda tensors: tensors | {name: tensors[name].index_fill(0, torch.tensor(3), number)})
    assert (
        error_message(folder)
        == f"{folder}: the tensor {name} contains NaN or infinity, so the model is damaged; download it again"
    )


def test_positions_that_are_one_number_are_not_cut(folder: Path) -> None:
    rewrite_tensors(folder, lambda tensors: tensors | {"transformer.wpe.weight": torch.tensor(1.0)})
    with pytest.raises(CheckpointError, match=r"wpe\.weight has the wrong shape: expected 8 × 16, found scalar"):
        load_pretrained(folder, "generate", max_len=8)


def test_unexpected_tensors(folder: Path) -> None:
    rewrite_tensors(
        folder, lambda tensors: tensors | {"transformer.gate.weight": torch.zeros(2), "zz": torch.zeros(1)}
    )
    message = error_message(folder)
    assert (
        message == f"{folder}: unexpected tensor transformer.gate.weight and 1 more; "
        "the model that config.json describes does not have it"
    )
    rewrite_tensors(folder, lambda tensors: {key: value for key, value in tensors.items() if key != "zz"})
    assert "unexpected tensor transformer.gate.weight; " in error_message(folder)


def test_more_layers_than_config_says_are_unexpected(folder: Path) -> None:
    edit_config(folder, n_layer=2)
    assert "unexpected tensor transformer.h.2." in error_message(folder)
    edit_config(folder, n_layer=4)
    assert "transformer.h.3.ln_1.weight is missing" in error_message(folder)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_truncated_safetensors(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    message = error_message(folder)
    assert message.startswith(f"{path}: the file is truncated or not a safetensors file")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_git_lfs_has_not_fetched(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n")
    message = error_message(folder)
    assert message == f"{folder / name}: Git LFS has not downloaded this file yet; run git lfs pull"


def test_a_missing_or_cut_part(folder: Path, tmp_path: Path) -> None:
    shards_folder = save_model(TINY_MODELS["gpt2"].build(), tmp_path / "parts", max_shard_size="8KB")
    index = shards_folder / "model.safetensors.index.json"
    second_shard = sorted(shards_folder.glob("model-*.safetensors"))[1]
    content = second_shard.read_bytes()
    second_shard.unlink()
    assert (
        error_message(shards_folder)
        == f"{index}: the file {second_shard.name} is missing; download the folder again"
    )
    second_shard.write_bytes(content[:-3])
    assert "is truncated" in error_message(shards_folder)
    second_shard.write_bytes(content)
    index_content = json.loads(index.read_text())
    index_content["weight_map"]["transformer.new"] = second_shard.name
    index.write_text(json.dumps(index_content))
    assert f"the tensor transformer.new is missing from {second_shard.name}" in error_message(shards_folder)
    index.write_text("{}")
    assert "weight_map is missing" in error_message(shards_folder)


class MaliciousPickle:
    """A pickle that would make a folder."""

    def __init__(self, marker_path: Path) -> None:
        self.marker_path = str(marker_path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker_path,)


@pytest.mark.parametrize("plain", [True, False])
def test_a_pickle_that_is_not_plain_weights_is_refused(folder: Path, plain: bool) -> None:
    path, malicious = folder / "pytorch_model.bin", MaliciousPickle(folder / "mark")
    tensors: dict[str, Any] = dict(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    if plain:
        path.write_bytes(pickle.dumps({"a": malicious}))
    else:
        torch.save(tensors | {"more": malicious}, path)
    message = error_message(folder)
    assert "contains more than weights and could run code, so it is not read" in message
    assert not (folder / "mark").exists()


def test_a_torch_file_of_something_else(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"epoch": 3}, folder / "pytorch_model.bin")
    assert "expected a dictionary of named tensors" in error_message(folder)
    torch.save({3: torch.zeros(2)}, folder / "pytorch_model.bin")
    assert "expected a dictionary of named tensors" in error_message(folder)
    for damaged in (b"PK\x03\x04 cut", b"<!doctype html>", b""):
        (folder / "pytorch_model.bin").write_bytes(damaged)
        message = error_message(folder)
        assert message.startswith(f"{folder / 'pytorch_model.bin'}: the file is truncated or not a PyTorch file")
        assert message.endswith("; download it again")
    torch.save({"epoch": 3}, folder / "ckpt.pt")
    (folder / "config.json").unlink()
    assert "not a checkpoint of nanoGPT: model or model_args is missing" in error_message(folder)
    torch.save({"model": {"transformer.wte.weight": 3}, "model_args": {}}, folder / "ckpt.pt")
    assert "model must contain tensors and model_args their sizes" in error_message(folder)


@pytest.mark.parametrize(
    ("name", "key", "value", "problem"),
    [
        ("gpt2", "activation_function", "mish", "activation_function='mish' is not supported"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx=True is not supported"),
        ("gpt2", "n_embd", "wide", "n_embd is model.d_model='wide' must be a whole number"),
        ("gpt2", "n_head", 3, "model.d_model=16 is not divisible by model.n_heads=3"),
        ("gpt2", "n_head", 0, "n_head=0 must be a whole number above 0"),
        ("gpt2", "activation_function", [], "activation_function=[] is not supported"),
        ("gpt2", "vocab_size", -1, "vocab_size=-1 must be a whole number from 1 to 2147483648"),
        ("gpt2", "quantization_config", {"bits": 4}, "quantized weights are not supported"),
        ("llama", "hidden_act", "gelu", "hidden_act='gelu' is not supported; it must be 'silu'"),
        ("llama", "head_dim", 16, "head_dim=16 is not supported"),
        (
            "llama",
            "rope_parameters",
            {"rope_type": "yarn", "factor": 2.0},
            "rope_type='yarn' is not supported",
        ),
        (
            "llama",
            "rope_parameters",
            {"rope_type": "linear"},
            "'linear' requires the key 'factor', which is missing",
        ),
        ("llama", "rope_parameters", {"rope_type": "linear", "factor": "4"}, "factor='4' must be a number"),
        ("llama", "rope_parameters", 4, "rope_scaling must be an object with rope_type, found 4"),
        ("bert", "is_decoder", True, "is_decoder=True is not supported"),
        (
            "bert",
            "position_embedding_type",
            "relative_key",
            "position_embedding_type='relative_key' is not supported",
        ),
        ("marian", "decoder_layers", 2, "encoder_layers=3 and decoder_layers=2"),
        ("marian", "normalize_before", True, "normalize_before=True is not supported"),
    ],
)
def test_an_unsupported_config_is_refused_by_its_key(
    name: str, key: str, value: Any, problem: str, tmp_path: Path
) -> None:
    case = TINY_MODELS[name]
    folder = edit_config(save_model(case.build(), tmp_path), **{key: value})
    message = error_message(folder, case.task, ConfigError)
    assert message.startswith(f"{folder / 'config.json'}: ")
    assert problem in message


# ------------------------------------------------------------------------------------------ the hub


def test_a_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route to host\nmore of it")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    message = error_message("hub:openai-community/gpt2")
    assert message.startswith(
        "hub:openai-community/gpt2 cannot be downloaded (no route to host); without a network"
    )


def test_a_hub_name_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = error_message("hub:openai-community/gpt2")
    assert f"needs the package huggingface_hub; install it with {install_command('hf')}, or" in message


def test_a_hub_name_is_downloaded_and_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    calls: list[Any] = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **more: calls.append((name, more)) or str(folder)
    )
    assert load_pretrained("hub:someone/tiny", "generate").family == "gpt2"
    assert calls[0][0] == "someone/tiny"
    assert "*.safetensors" in calls[0][1]["allow_patterns"]
