"""A run as a folder that others read: for Hugging Face's libraries, CTranslate2 or ONNX, with its tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.io.files import part_path
from triform.nn.quantize import Int8Linear
from triform.pretrained.for_ctranslate2 import write_ctranslate2
from triform.pretrained.for_hf import family_name, write_hf
from triform.pretrained.for_onnx import MODEL_FILE, write_onnx
from triform.pretrained.guide import guide
from triform.settings import nearest
from triform.tasks import Task
from triform.tasks.translate import Translate
from triform.text import OWN, Tokenizer, write_tokenizer
from triform.text.spm import SentencePieces

Engine = Literal["hf", "ctranslate2", "onnx"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
TARGET = "target"  # folder of a second vocabulary


def export(task: Task, to: str, out: Path) -> str:
    """Write the folder, which must not be there yet, and say what the model is called where it goes."""
    if to not in ENGINES:
        raise ConfigError(f"--to {to}: {nearest(to, ENGINES)}")
    if task.config.model.is_recurrent:
        raise ConfigError(
            f"--to {to} is for Transformers; model.kind={task.config.model.kind} stays a run of Triform"
        )
    if is_rounded(task.model):
        raise ConfigError("the model was opened in bf16 or int8; export the stored weights: Run.export does")
    if out.exists() and (not out.name or not out.is_dir() or any(out.iterdir())):  # `.` cannot be replaced
        raise CheckpointError(f"{out}: is there already; choose another --out")
    family = family_name(task.model, task.config) if to == "hf" else to
    aside = part_path(out)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        _write(task, to, aside, out)
        if out.is_dir():
            out.rmdir()
        aside.replace(out)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return family


def is_rounded(model: nn.Module) -> bool:
    """Whether a model was cast to less than the fp32 that is stored."""
    low = any(parameter.dtype != torch.float32 for parameter in model.parameters())
    return low or any(isinstance(module, Int8Linear) for module in model.modules())


def _write(task: Task, to: str, folder: Path, out: Path) -> None:
    model, config, tokenizers = task.model.eval(), task.config, tokenizers_of(task)
    files: dict[str, Any] = {}
    if to == "hf":
        files = write_hf(model, config, tokenizers, folder)
    elif to == "ctranslate2":
        write_ctranslate2(model, config, tokenizers, folder)
    else:
        write_onnx(model, config.data.max_len, folder / MODEL_FILE)
        files = {"config.json": {"id2label": dict(enumerate(config.data.labels)), "max_len": config.data.max_len}}
    if config.task == "generate":
        tokenizers = [_for_prompts(tokenizers[0])]
    _write_tokenizers(tokenizers, folder)
    if (folder / "tokenizer_config.json").exists():
        files["tokenizer_config.json"] = _tokenizer_settings(folder, config, tokenizers[0])
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=2)
        (folder / name).write_text(text + "\n", encoding="utf-8", newline="\n")
    (folder / "README.md").write_text(guide(to, config, tokenizers, out), encoding="utf-8", newline="\n")


def tokenizers_of(task: Task) -> list[Tokenizer]:
    """One, or where a translator has two, the source's and the target's."""
    if not isinstance(task, Translate):
        return [task.tokenizer]
    return [task.source] if task.source is task.target else [task.source, task.target]


def _for_prompts(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer as a generator reads a prompt: with what stands before a text, but not with what ends it."""
    if not tokenizer.special.after:
        return tokenizer
    made = copy(tokenizer)
    made.special = tokenizer.special._replace(after=())
    return made


def _write_tokenizers(tokenizers: Sequence[Tokenizer], folder: Path) -> None:
    """The source's beside the model; a target's too where the files have names for both, else in a folder."""
    write_tokenizer(tokenizers[0], folder)
    if len(tokenizers) == 1 and isinstance(tokenizers[0], SentencePieces) and tokenizers[0].ids:
        write_tokenizer(tokenizers[0], folder, side="target")  # Marian's reader wants a file for each language
    if len(tokenizers) == 2:
        marian = all(isinstance(each, SentencePieces) and each.ids for each in tokenizers)
        alike = tokenizers[0].vocabulary == tokenizers[1].vocabulary
        write_tokenizer(tokenizers[1], folder if marian and alike else folder / TARGET, side="target")


def _tokenizer_settings(folder: Path, config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """What `transformers` must know beside the vocabulary: lengths, inputs, and that names in a text are text."""
    told = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    more: dict[str, Any] = {
        "model_max_length": config.data.max_len,
        "padding_side": "left" if config.task == "generate" else "right",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return {**told, **more, **({"split_special_tokens": True} if tokenizer.special == OWN else {})}
