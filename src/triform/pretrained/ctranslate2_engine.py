"""Decode on a CPU with CTranslate2 instead of torch.

The model is converted once, into a folder of the user's cache that is named after a digest of its weights and
settings. Tokens are named by their ids there, so any vocabulary can be converted.

CTranslate2 decodes greedily here. Its beam search leaves banned tokens out of the softmax, has another length
penalty and stops at another moment, and its random numbers are not ours, so beam search and sampling would give
other texts than torch.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from triform.config import DecodeConfig
from triform.errors import CheckpointError, ConfigError, install_command
from triform.generation.backend import Request, TokenConstraints
from triform.generation.engine import validate_engine_name
from triform.io.cache import engines_folder
from triform.io.files import atomic_folder
from triform.models.ensemble import refuse_ensemble
from triform.nn.kernels.precision import Precision, cast_model, resolve_precision
from triform.pretrained.ctranslate2_export import find_unsupported_settings, write_specification
from triform.progress import report_progress
from triform.tasks import Task
from triform.training.opening import OpenedTask, open_task

CONVERSION_FORMAT = 1  # changes if the same model would be converted to other files
MAX_CONVERSIONS = 8  # that are kept; the least recently used ones are removed
MAX_ROWS = 32  # decoded together
COMPUTE_TYPES: dict[Precision, str] = {"fp32": "float32", "int8": "int8"}


class CTranslate2Engine:
    """A language model or a translator that CTranslate2 has loaded.

    Args:
        folder: The folder of the converted model.
        task: The task.
        compute_type: CTranslate2's name of the precision.
    """

    name = "ctranslate2"

    def __init__(self, folder: Path, task: Task, compute_type: str) -> None:
        ctranslate2 = import_ctranslate2()
        self.max_len, self.is_translator = task.config.data.max_len, task.name == "translate"
        model_class = ctranslate2.Translator if self.is_translator else ctranslate2.Generator
        self.model = model_class(str(folder), compute_type=compute_type, intra_threads=torch.get_num_threads())

    def unsupported_reason(self, decode: DecodeConfig) -> str:
        if decode.strategy == "greedy":
            return ""
        return f"decodes greedily, and decode.strategy is {decode.strategy}; set it to greedy"

    def generate(self, requests: Sequence[Request], constraints: TokenConstraints) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in requests]
        decode = self._translate if self.is_translator else self._continue
        n_finished = 0
        for indices in self._group(requests):
            rows = decode([requests[index] for index in indices], constraints)
            for index, tokens in zip(indices, rows, strict=True):
                outputs[index] = tokens[: requests[index].max_new_tokens]
            n_finished += len(indices)
            if len(requests) > 1:
                report_progress("decoding", n_finished, len(requests))
        return outputs

    def _group(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return batches of indices: sources of similar length, or prompts of the same length.

        Prompts of different lengths would be read token by token.
        """
        lengths = [len(request.tokens) for request in requests]
        order = sorted(range(len(requests)), key=lambda index: -lengths[index])
        groups: dict[int, list[int]] = defaultdict(list)
        for index in order:
            groups[0 if self.is_translator else lengths[index]].append(index)
        return [
            group[start : start + MAX_ROWS] for group in groups.values() for start in range(0, len(group), MAX_ROWS)
        ]

    def _translate(self, requests: Sequence[Request], constraints: TokenConstraints) -> list[list[int]]:
        results = self.model.translate_batch(
            [_to_names(request.tokens) for request in requests],
            beam_size=1,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max(request.max_new_tokens for request in requests),
            suppress_sequences=[[name] for name in _to_names(constraints.banned)],
        )
        return [list(map(int, result.hypotheses[0])) for result in results]

    def _continue(self, requests: Sequence[Request], constraints: TokenConstraints) -> list[list[int]]:
        """Continue prompts of the same length. A full context keeps its newer half, as with torch."""
        contexts = [list(request.tokens[-self.max_len :]) for request in requests]
        outputs: list[list[int]] = [[] for _ in requests]
        n_wanted = max(request.max_new_tokens for request in requests)
        unfinished = list(range(len(requests)))
        while unfinished and n_wanted:
            n_new = min(n_wanted, self.max_len + 1 - len(contexts[unfinished[0]]))
            results = self.model.generate_batch(
                [_to_names(contexts[index]) for index in unfinished],
                beam_size=1,
                sampling_topk=1,
                max_length=n_new,
                include_prompt_in_result=False,
                suppress_sequences=[[name] for name in _to_names(constraints.banned)],
            )
            for index, result in zip(unfinished, results, strict=True):
                new_tokens = result.sequences_ids[0]
                outputs[index] += new_tokens
                contexts[index] = [*contexts[index], *new_tokens][-(self.max_len // 2 + 1) :]
            unfinished = [
                index
                for index, result in zip(unfinished, results, strict=True)
                if len(result.sequences_ids[0]) == n_new
            ]
            n_wanted -= n_new
        return outputs


def open_with_engine(engine: str, path: Path, *, device: str, precision: str, **options: Any) -> OpenedTask:
    """Open a run as `open_task` does. With ctranslate2, it is opened on the CPU, and CTranslate2 generates text.

    Raises:
        ConfigError: The engine is unknown, or does not support the run, the device or the precision.
        CheckpointError: The run cannot be opened or converted, or the package ctranslate2 is not installed.
    """
    validate_engine_name(engine)
    if engine != "ctranslate2":
        return open_task(path, device=device, precision=precision, **options)
    if device not in ("auto", "cpu"):
        raise ConfigError(f"engine ctranslate2 is for the CPU, not for {device}; use engine torch, or --device cpu")
    loaded = open_task(path, device="cpu", precision="fp32", **options)
    resolved_precision = resolve_precision(precision, loaded.task.device, loaded.task.config.model)
    loaded.task.engine = open_ctranslate2(loaded.task, resolved_precision)
    cast_model(loaded.task.model, resolved_precision)  # for everything but decoding
    return replace(loaded, precision=resolved_precision)


def open_ctranslate2(task: Task, precision: Precision) -> CTranslate2Engine:
    """Convert the model of a task, unless the cache has it already, and load it with CTranslate2.

    Args:
        task: A task with fp32 weights.
        precision: fp32 or int8.

    Raises:
        ConfigError: CTranslate2 does not support the task, its settings or the precision.
        CheckpointError: The package ctranslate2 is not installed, or the model cannot be written.
    """
    validate_task(task)
    if precision not in COMPUTE_TYPES:
        raise ConfigError(f"engine ctranslate2 computes in fp32 or int8, not in {precision}; use engine torch")
    import_ctranslate2()
    name = f"ctranslate2-{conversion_digest(task)}"
    try:
        try:
            cache = engines_folder()
        except RuntimeError as error:  # the user has no home folder
            raise OSError(str(error)) from None
        return _open_cached(cache, name, task, COMPUTE_TYPES[precision])
    except OSError:  # the cache cannot be written
        try:
            with tempfile.TemporaryDirectory() as folder:
                convert(task, Path(folder) / name)
                return CTranslate2Engine(Path(folder) / name, task, COMPUTE_TYPES[precision])
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(f"the model cannot be converted for ctranslate2 ({reason})") from None


def validate_task(task: Task) -> None:
    """Raise `ConfigError` if CTranslate2 does not support a task."""
    if task.name == "classify":
        raise ConfigError("engine ctranslate2 does not support classifiers; use engine torch")
    if task.config.model.is_recurrent:
        raise ConfigError(
            f"engine ctranslate2 supports only Transformers, not model.kind={task.config.model.kind}; "
            "use engine torch"
        )
    refuse_ensemble(task.model, "engine ctranslate2")
    if problems := find_unsupported_settings(task.config):
        raise ConfigError(
            f"engine ctranslate2 does not support these settings: {'; '.join(problems)}; use engine torch"
        )
    if task.target_tokenizer.special_tokens.eos_or_bos is None:
        raise ConfigError("engine ctranslate2 needs an end token, and this vocabulary has none; use engine torch")


def import_ctranslate2() -> Any:
    """Import the package ctranslate2, or raise `CheckpointError` that says how to install it."""
    try:
        import ctranslate2
    except ImportError:
        raise CheckpointError(
            f"ctranslate2 is not installed; install it with {install_command('export')}"
        ) from None
    return ctranslate2


def conversion_digest(task: Task) -> str:
    """Return a digest of what a converted model depends on: weights, settings, special tokens and versions."""
    digest = hashlib.sha256(f"{CONVERSION_FORMAT} {import_ctranslate2().__version__}".encode())
    digest.update(repr((task.config.model, task.config.data.max_len)).encode())
    digest.update(
        repr([(tokenizer.vocab_size, tokenizer.special_tokens) for tokenizer in task.tokenizers]).encode()
    )
    for name, tensor in sorted(task.model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().numpy()).cast("B"))
    return digest.hexdigest()[:32]


def convert(task: Task, folder: Path) -> None:
    """Write the converted model to a folder that appears only when it is complete."""
    tokenizers = [task.tokenizer] if task.tokenizer is task.target_tokenizer else task.tokenizers
    vocabularies = [_to_names(range(tokenizer.vocab_size)) for tokenizer in tokenizers]
    with atomic_folder(folder) as temporary:
        special = task.target_tokenizer.special_tokens
        write_specification(task.model, task.config, vocabularies, special, temporary)


def _open_cached(cache: Path, name: str, task: Task, compute_type: str) -> CTranslate2Engine:
    folder = cache / name
    if folder.is_dir():
        with suppress(RuntimeError, ValueError):  # it is damaged, or was removed just now: convert it again
            engine = CTranslate2Engine(folder, task, compute_type)
            folder.touch()  # used now
            return engine
        shutil.rmtree(folder, ignore_errors=True)
    try:
        convert(task, folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process has just written it
            raise
    engine = CTranslate2Engine(folder, task, compute_type)
    _remove_unused(cache)
    return engine


def _remove_unused(cache: Path) -> None:
    """Remove the least recently used conversions beyond the limit."""
    with suppress(OSError):
        folders = sorted(cache.glob("ctranslate2-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in folders[MAX_CONVERSIONS:]:
            shutil.rmtree(folder, ignore_errors=True)


def _to_names(tokens: Sequence[int]) -> list[str]:
    return list(map(str, tokens))
