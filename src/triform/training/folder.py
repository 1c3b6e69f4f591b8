"""The run folder: everything a run is, on disk, with nothing pickled.

Each file is written under a temporary name, flushed to the disk and renamed, so that a kill at any moment leaves
either the old file or the new one. What decides the answers of a run is sealed by digests (`triform.io.digests`),
and only one process at a time writes to a folder (`triform.io.locks`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import triform
from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.io import files
from triform.io.digests import CHECKPOINT_FILES, DIGESTS_FILE, RUN_FILES, replace_files, seal, verify
from triform.io.locks import locked
from triform.settings import build, load_toml, settings_of, to_toml
from triform.training.state import problem_of_state

FORMAT = 1
LAST = "decode.max_new_tokens"  # the last setting of every config.toml: with it and its line's end, one is whole
UNVALIDATED = "-unvalidated"  # ends the name of a checkpoint whose validation was interrupted
SMALL = 1 << 20  # numbers of a tensor that is copied together with others
OWN = (
    "config.toml",
    "tokenizer*.json",
    "model.safetensors",
    DIGESTS_FILE,
    "adapter.safetensors",
    "metrics.jsonl",
    "report.html",
    "checkpoints",
    "tokens",
)


FLOATS = ("F64", "F32", "F16", "BF16")  # number formats of weights, as safetensors calls them


@contextmanager
def writing(path: Path, run: Path | None = None) -> Iterator[None]:
    """Turn a full disk or an unwritable folder into one line with the remedy.

    Args:
        path: What is being written, for the message.
        run: The run folder that is being trained in, if any: the message says what of it is safe.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "make room or choose another folder, then try again"
        if run is not None:
            saved = "what was saved before is intact. " if any(run.glob("checkpoints/step-*/state.json")) else ""
            remedy = f"{saved}Make room or make the folder writable, then go on with --resume"
        raise CheckpointError(f"{path}: cannot be written: {reason}; {remedy}") from None


def damaged(path: Path, reason: object) -> CheckpointError:
    return CheckpointError(
        f"{path}: is damaged ({reason}); restore it from a copy, or train again with --overwrite"
    )


def write_text(path: Path, text: str) -> None:
    with writing(path):
        files.write_text(path, text)


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> None:
    with writing(path):
        write_part(path, tensors, about).replace(path)


def write_part(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> Path:
    """Write tensors under the temporary name of `path`, and return that name."""
    part = files.part_path(path)
    try:
        save_file(on_host(tensors), part, about)
        part.chmod(0o644)  # the library writes for the owner alone
        files.sync(part)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return part


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
    """Copy weights into a model; every parameter must be there, with its shape, and finite."""
    parameters = weights_of(model)
    check_shapes(path, {name: list(tensor.shape) for name, tensor in tensors.items()}, parameters)
    check_finite(path, tensors)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def checkpoint_step(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.split("-")[1])


def check_shapes(path: Path, have: Mapping[str, Sequence[int]], wanted: Mapping[str, Tensor]) -> None:
    if wanted.keys() != have.keys():
        odd = sorted(wanted.keys() ^ have.keys())
        raise CheckpointError(f"{path}: does not fit the settings: {odd[0]} is missing or unknown")
    for name, parameter in wanted.items():
        if tuple(parameter.shape) != tuple(have[name]):
            raise CheckpointError(
                f"{path}: does not fit the settings: {name} is {tuple(have[name])}, wanted {tuple(parameter.shape)}"
            )


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that hold NaN or infinity. A sum that is finite shows at little cost that all numbers are."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not (tensor.sum().isfinite() or tensor.isfinite().all()):
            raise CheckpointError(
                f"{path}: {name} holds numbers that are not finite (NaN or infinity): the weights are of no use; "
                "restore them from a copy, or train again with --overwrite"
            )


def read_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor from a file's header alone; weights must be real numbers."""
    shapes: dict[str, list[int]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                entry = file.get_slice(name)
                shapes[name] = entry.get_shape()
                if entry.get_dtype() not in FLOATS:
                    raise CheckpointError(
                        f"{path}: does not fit the settings: {name} holds {entry.get_dtype()} numbers, wanted F32"
                    )
    except FileNotFoundError:
        raise damaged(path, "no such file") from None
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
    return shapes


class RunFolder:
    def __init__(self, path: Path, *, verify: bool = True) -> None:
        """Without `verify`, files are used even where they do not match their digests."""
        self.path, self.verify = path, verify
        self.config_file = path / "config.toml"
        self.model_file = path / "model.safetensors"
        self.adapter_file = path / "adapter.safetensors"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.tokens = path / "tokens"

    @contextmanager
    def locked(self, purpose: str) -> Iterator[str]:
        """Hold the folder for this process, creating it where it is missing; see `triform.io.locks.locked`."""
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path}: is a file; choose another --out")
        with locked(self.path, purpose) as notice:
            for folder in (self.checkpoints, self.tokens):
                files.remove_leftovers(folder)
            yield notice

    def check(self, *patterns: str) -> tuple[str, ...]:
        """Verify the files of the run by their digests, and return a notice where an older run has none."""
        if self.verify and not verify(self.path, patterns or RUN_FILES):
            return (f"{self.path}: was saved by an older Triform without digests, so damage would not be noticed",)
        return ()

    def check_before_resume(self) -> tuple[str, ...]:
        """Verify the run; without `verify`, record its files as they are, since they count from here on."""
        notices = self.check()
        if not self.verify:
            with writing(self.path, self.path):
                seal(self.path)
        return notices

    def clear(self, *, keep: str = "") -> None:
        """Remove what an earlier run left here; files that are not a run's stay."""
        with writing(self.path):
            for path in (path for pattern in OWN for path in self.path.glob(pattern) if path.name != keep):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def drop_tokens(self) -> None:
        """A finished run needs its encoded training data no more; it can be made again from the text."""
        shutil.rmtree(self.tokens, ignore_errors=True)

    def write_config(self, config: Config) -> None:
        with writing(self.config_file, self.path):
            part = files.part_path(self.config_file)
            part.write_bytes(to_toml(config, {"format": FORMAT, "triform": triform.__version__}).encode())
            files.sync(part)
            replace_files({part: self.config_file})

    def write_weights(self, weights: dict[str, Tensor]) -> None:
        """Write the model that the run answers with."""
        with writing(self.model_file, self.path):
            replace_files({write_part(self.model_file, weights): self.model_file})

    def read_weights(self) -> dict[str, Tensor]:
        self.check(self.model_file.name)
        return read_tensors(self.model_file)

    def read_config(self) -> Config:
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path}: no such run folder")
        files.refuse_special_files(self.path)
        if not self.config_file.exists():
            seeds = sorted(self.path.glob("seed-*/config.toml"))
            which = f"; it holds several seeds, name one of them, such as {seeds[0].parent}" if seeds else ""
            if (self.path / "config.json").exists():
                which = "; of a published model `triform convert import` makes one"
            raise CheckpointError(f"{self.path}: is not a run folder: it has no config.toml{which}")
        self.check(self.config_file.name)
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
        with writing(final, self.path):
            self.checkpoints.mkdir(exist_ok=True)
            part = files.part_path(final)
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                tensors_file, state_file = (part / name for name in CHECKPOINT_FILES)
                write_part(tensors_file, tensors).replace(tensors_file)
                files.write_text(state_file, json.dumps(state))
                seal(part, CHECKPOINT_FILES)
                part.replace(final)
            finally:
                shutil.rmtree(part, ignore_errors=True)
            files.sync(self.checkpoints)
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
        files.refuse_special_files(path)
        if self.verify:
            verify(path, CHECKPOINT_FILES)
        return read_tensors(path / "tensors.safetensors"), self.read_state(path)

    def complete(self, config: Config | None = None) -> bool:
        """Whether nothing is left to do here, under these settings or its own; the report is written last."""
        same = config is None or config == self.read_config()
        return same and self.finished() and (self.path / "report.html").exists()

    def discard_if_unused(self) -> None:
        """A start that failed leaves no trace where there was no run before; its lock removes an empty folder."""
        if not self.config_file.exists():
            self.drop_tokens()

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
        files.refuse_special_files(path)
        if self.verify:
            verify(path, ["state.json"])
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise damaged(path, error) from None
        if problem := problem_of_state(state):
            raise damaged(path, f"state.json: {problem}")
        return dict(state)
