"""The run folder: everything a run is, on disk, with nothing pickled.

Each file is written aside, flushed to the disk and renamed, so that a kill at any moment leaves either the old
file or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import triform
from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.settings import build, load_toml, settings_of, to_toml

FORMAT = 1
LAST = "decode.max_new_tokens"  # the last setting of every config.toml: with it and its line's end, one is whole
UNVALIDATED = "-unvalidated"  # ends the name of a checkpoint whose validation was interrupted
SMALL = 1 << 20  # numbers of a tensor that is copied together with others
OWN = (
    "config.toml",
    "tokenizer*.json",
    "model.safetensors",
    "adapter.safetensors",
    "metrics.jsonl",
    "report.html",
    "checkpoints",
    "tokens",
)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk or an unwritable folder into one line that says what is still safe."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"{path}: cannot be written: {reason}; what was saved before is intact. "
            "Make room or mend the folder, then go on with --resume"
        ) from None


def damaged(path: Path, reason: object) -> CheckpointError:
    return CheckpointError(
        f"{path}: is damaged ({reason}); restore it from a copy, or train again with --overwrite"
    )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    with writing(path):
        aside = path.with_name(f".{path.name}.part")
        aside.write_text(text, encoding="utf-8")
        _sync(aside)
        aside.replace(path)


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> None:
    with writing(path):
        aside = path.with_name(f".{path.name}.part")
        save_file(on_host(tensors), aside, about)
        aside.chmod(0o644)  # the library writes for the owner alone
        _sync(aside)
        aside.replace(path)


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of those that lie on a device; small ones come together, for each copy waits for the device."""
    found = {name: tensor.detach() for name, tensor in tensors.items()}
    far = {name: tensor for name, tensor in found.items() if tensor.is_cuda and tensor.numel() <= SMALL}
    return {name: tensor.cpu().contiguous() for name, tensor in (found | copied_together(far)).items()}


def copied_together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the host, with one copy for each number format."""
    found: dict[str, Tensor] = {}
    for kind in {tensor.dtype for tensor in tensors.values()}:
        some = {name: tensor for name, tensor in tensors.items() if tensor.dtype == kind}
        flat = torch.cat([tensor.flatten() for tensor in some.values()]).cpu()
        parts = flat.split([tensor.numel() for tensor in some.values()])  # type: ignore[no-untyped-call]
        found |= {name: part.clone().view(some[name].shape) for name, part in zip(some, parts, strict=True)}
    return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise damaged(path, "no such file") from None
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters by name; one that is tied to another appears once, under its first name."""
    return dict(model.named_parameters())


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    parameters = weights_of(model)
    if parameters.keys() != tensors.keys():
        odd = sorted(parameters.keys() ^ tensors.keys())
        raise CheckpointError(f"{path}: does not fit the settings: {odd[0]} is missing or unknown")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            wanted, have = tuple(parameter.shape), tuple(tensors[name].shape)
            raise CheckpointError(f"{path}: does not fit the settings: {name} is {have}, wanted {wanted}")
        with torch.no_grad():
            parameter.copy_(tensors[name])


def checkpoint_step(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.model_file = path / "model.safetensors"
        self.adapter_file = path / "adapter.safetensors"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.tokens = path / "tokens"

    def create(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path}: is a file; choose another --out")
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()

    def clear(self, *, keep: str = "") -> None:
        """Remove what an earlier run left here; files that are not a run's stay."""
        with writing(self.path):
            for path in (path for pattern in OWN for path in self.path.glob(pattern) if path.name != keep):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def drop_tokens(self) -> None:
        """A finished run needs its encoded training data no more; it can be made again from the text."""
        shutil.rmtree(self.tokens, ignore_errors=True)

    def write_config(self, config: Config) -> None:
        write_text(self.config_file, to_toml(config, {"format": FORMAT, "triform": triform.__version__}))

    def read_config(self) -> Config:
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path}: no such run folder")
        if not self.config_file.exists():
            seeds = sorted(self.path.glob("seed-*/config.toml"))
            which = f"; it holds several seeds, name one of them, such as {seeds[0].parent}" if seeds else ""
            if (self.path / "config.json").exists():
                which = "; of a published model `triform convert import` makes one"
            raise CheckpointError(f"{self.path}: is not a run folder: it has no config.toml{which}")
        try:
            tree = load_toml(self.config_file)
            if int(tree.get("format", 0)) > FORMAT:
                made_by = tree.get("triform", "a newer version")
                raise CheckpointError(
                    f"{self.path}: was made by Triform {made_by}; this is {triform.__version__}: upgrade to open it"
                )
            settings = settings_of(tree, self.config_file)
            if LAST not in settings or not self.config_file.read_bytes().endswith(b"\n"):
                raise damaged(self.path, "config.toml lacks its end")
            return build(settings)
        except (ConfigError, TypeError, ValueError) as error:
            raise damaged(self.path, error) from None

    def write_checkpoint(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], *, validation_due: bool = False
    ) -> None:
        """A folder that appears whole, by rename; older ones go only afterwards.

        One whose validation was interrupted has a name of its own, for that of the finished step comes after it.
        """
        final = self.checkpoints / f"step-{step:09d}{UNVALIDATED if validation_due else ''}"
        if final.exists():
            return
        with writing(final):
            self.checkpoints.mkdir(exist_ok=True)
            aside = self.checkpoints / ".part"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            write_tensors(aside / "tensors.safetensors", tensors)
            write_text(aside / "state.json", json.dumps(state))
            aside.replace(final)
            _sync(self.checkpoints)
            for old in self.checkpoints.glob("step-*"):
                if old != final:
                    shutil.rmtree(old)

    def latest_checkpoint(self) -> Path | None:
        """The newest whole checkpoint. One that a kill left half removed has lost a file and does not count."""
        # of one step's two, the one that was validated is the newer and has the shorter name
        found = sorted(self.checkpoints.glob("step-*"), key=lambda path: (path.name[:14], -len(path.name)))[::-1]
        whole = [path for path in found if (path / "state.json").exists()]
        return whole[0] if whole else None

    def read_checkpoint(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return read_tensors(path / "tensors.safetensors"), self.read_state(path)

    def complete(self, config: Config | None = None) -> bool:
        """Whether nothing is left to do here, under these settings or its own; the report is written last."""
        same = config is None or config == self.read_config()
        return same and self.finished() and (self.path / "report.html").exists()

    def discard_if_unused(self) -> None:
        """A start that failed leaves no trace where there was no run before."""
        if not self.config_file.exists():
            self.drop_tokens()
            with suppress(OSError):
                self.path.rmdir()

    def ended(self) -> bool:
        """Whether the metrics tell of an end that was not an interruption."""
        if not self.metrics_file.exists():
            return False
        lines = self.metrics_file.read_text(encoding="utf-8").splitlines()
        return any('"event": "end"' in line and '"reason": "interrupted"' not in line for line in lines)

    def finished(self) -> bool:
        """Whether training here came to its end."""
        latest = self.latest_checkpoint()
        return latest is not None and bool(self.read_state(latest).get("finished"))

    def read_state(self, path: Path) -> dict[str, Any]:
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise damaged(path, error) from None
        if not isinstance(state, dict) or not isinstance(state.get("marks"), dict):
            raise damaged(path, "state.json is not a checkpoint's")
        return state
