"""`predict --output FOLDER/`: a job that writes numbered parts, and that several processes may share and continue.

Each process reads the input from the start, claims the next part that nobody works on, predicts its rows and
publishes it. All processes end when all parts are finished.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triform.cli.prediction_file import jsonl_lines, open_output
from triform.errors import CheckpointError, ConfigError, DataError, RunInterruptedError
from triform.formatting import echo, format_duration

if TYPE_CHECKING:
    from triform.config import DataConfig
    from triform.data.inputs import InputRow, InputTable
    from triform.io.part_folder import Manifest, PartFolder
    from triform.run import Run

PART_ROWS = 10_000  # unless --part-rows is given
WAIT_SECONDS = 0.5  # between two looks at the parts of other processes


def is_folder_output(output: str) -> bool:
    """Return whether the value of `--output` is a folder: it ends with a slash, or exists as a folder."""
    from triform.cli.prediction_file import SUFFIXES

    if not output:
        return False
    return output.endswith(("/", os.sep)) or (Path(output).is_dir() and Path(output).suffix.lower() not in SUFFIXES)


def validate_output_folder(output: str, texts: Sequence[str], input_: str) -> None:
    """Raise an error if the parts cannot be written. Called before anything is loaded."""
    if texts or input_ in ("", "-"):
        raise ConfigError(f"--output {output}: a folder needs --input FILE, without TEXT; its parts are read again")
    if Path(output).exists() and not Path(output).is_dir():
        raise ConfigError(f"--output {output}: this is a file; choose another name")


@dataclass(frozen=True, kw_only=True)
class FolderJob:
    """Predictions of the rows of a file, written as parts of a folder.

    Attributes:
        run: The run.
        input: The file of texts.
        table_config: How the file is read.
        output: The folder.
        part_rows: The number of rows of each part but the last.
        settings: `top`, `keep`, `seed` and decoding settings, as arguments of `Run.predict`.
        stride: Take only every such part, because the file system has no locks; 1 takes all.
        first: The first of these parts.
        show: Prints progress.
    """

    run: Run
    input: str
    table_config: DataConfig
    output: Path
    part_rows: int
    settings: Mapping[str, Any]
    stride: int = 1
    first: int = 0
    show: bool = True

    @cached_property
    def folder(self) -> PartFolder:
        """The output."""
        from triform.io.part_folder import PartFolder

        return PartFolder(self.output)

    @cached_property
    def single_run(self) -> Run:
        """The run, which predicts a part without the other processes."""
        from triform.world import SINGLE_PROCESS

        return replace(self.run, world=SINGLE_PROCESS)

    def open_table(self) -> InputTable:
        """Open the input."""
        from triform.data.inputs import open_inputs

        return open_inputs(self.input, self.run.config.task, self.table_config)

    def n_parts(self, manifest: Manifest) -> int:
        """Return the number of parts of the whole job."""
        return -(-int(manifest["input"]["rows"]) // self.part_rows)

    def unfinished_parts(self) -> list[int]:
        """Return the parts that are not finished."""
        manifest = self.folder.require_manifest()
        parts = range(self.n_parts(manifest))
        return [part for part in parts if self.folder.part_path(part).name not in manifest["parts"]]

    def describe(self, description: str) -> dict[str, object]:
        """Return everything on which the predictions depend, by the name that messages use."""
        from triform.config.merging import override_decode
        from triform.generation.scheduler import resolve_strategy
        from triform.io.digests import compute_digests, file_digest

        run, task = self.run, self.run.config.task
        arguments = {name: self.settings[name] for name in ("top", "keep", "seed")}
        decode = {name: value for name, value in self.settings.items() if name not in arguments}
        folders = {f"{folder}": folder for folder in run.members} or {"the run": run.path}
        files = {
            f"{file} of {name}": f"sha256:{digest}"
            for name, folder in folders.items()
            for file, [digest] in compute_digests(folder).items()
        }
        if run.adapter is not None:
            files["the adapter"] = f"sha256:{file_digest(run.adapter)}"
        if task != "classify":
            seed = run.config.seed if arguments["seed"] is None else arguments["seed"]
            strategy = run.task.predictor.default_strategy  # type: ignore[attr-defined]  # it generates text
            resolved_decode = resolve_strategy(override_decode(run.config.decode, **decode), strategy)
            arguments |= {f"decode.{name}": value for name, value in asdict(resolved_decode).items()}
            del arguments["decode.mix"]  # the command refuses it
            arguments["seed"] = seed
        else:
            del arguments["seed"]
        shape = {"--part-rows": self.part_rows, "precision": run.precision, "text column": description}
        return {**shape, **{name: value for name, value in arguments.items() if value is not None}, **files}

    def prepare(self) -> FolderJob:
        """Create the manifest, or compare it with this job. Returns the job as this process works on it.

        Raises:
            CheckpointError: The folder contains something else, or predictions with other settings or files.
            DataError: The input cannot be read. It is read to its end before the first prediction.
        """
        from triform.io.files import refuse_special_files

        refuse_special_files(self.output, not_links="*")
        self.single_run.predict([], **self.settings)  # refuses wrong settings
        table = self.open_table()
        job = self.describe(table.description.removeprefix(f"{self.input}: "))
        if table.description:
            echo(table.description, err=True)
        with self.folder.locked() as notice:
            manifest = self.folder.read_manifest()
            if manifest is None:
                manifest = {"job": job, "input": self._scan_input(table), "parts": {}}
                self.folder.write_manifest(manifest)
            self._compare(manifest, job)
        world = self.run.world
        if notice:
            echo(f"note: {notice}", err=True)
            return replace(self, stride=world.size, first=world.rank)
        return self

    def _scan_input(self, table: InputTable) -> dict[str, object]:
        """Read the input to its end, so that a bad row is found before anything is predicted."""
        from triform.data.files import file_version
        from triform.data.readers import fingerprint

        size, version = file_version(self.input)
        content, rows = fingerprint(self.input), 0
        columns = dict.fromkeys(table.column_names)
        for row in table.rows:
            rows += 1
            columns |= dict.fromkeys(row.cells)
            self._check_prompt(row)
        if file_version(self.input) != (size, version):
            raise DataError("the file changed while it was being read", path=self.input)
        facts = {"file": self.input, "bytes": size, "version": version, "fingerprint": content}
        return {**facts, "rows": rows, "columns": list(columns)}

    def _check_prompt(self, row: InputRow) -> None:
        if self.run.config.task != "generate":
            return
        try:
            self.run.task.predictor.encode_prompt(row.text)  # type: ignore[attr-defined]  # of a language model
        except DataError as error:
            raise DataError(str(error), path=self.input, line=row.line) from None

    def _compare(self, manifest: Manifest, job: Mapping[str, object]) -> None:
        """Refuse a folder whose predictions depend on other settings or files."""
        from triform.data.files import file_version
        from triform.data.readers import fingerprint

        recorded, path = manifest["job"], self.folder.path
        remedy = "use the same settings and files, or choose another folder"
        for name in dict.fromkeys((*job, *recorded)):
            old, new = recorded.get(name), job.get(name)
            if old == new:
                continue
            if str(new or old).startswith("sha256:"):
                raise CheckpointError(f"{path}: {name} has changed since these predictions were started; {remedy}")
            raise CheckpointError(f"{path}: {name} was {old!r} for these predictions, and is {new!r} now; {remedy}")
        version = (manifest["input"]["bytes"], manifest["input"]["version"])
        if file_version(self.input) != version and fingerprint(self.input) != manifest["input"]["fingerprint"]:
            raise CheckpointError(
                f"{path}: the content of {self.input} has changed since these predictions were started; {remedy}"
            )

    def verify(self, *, repair: bool) -> None:
        """Compare the finished parts with their checksums.

        Raises:
            CheckpointError: A part is damaged, and `repair` is false.
        """
        damaged = self.folder.find_damaged(self.folder.require_manifest())
        if not damaged:
            return
        if not repair:
            others = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            raise CheckpointError(
                f"{self.folder.path / damaged[0]}{others}: missing, or does not match the checksum in "
                "manifest.json; predict it again with --repair"
            )
        echo(f"predicting damaged parts again: {', '.join(damaged)}", err=True)
        self.folder.forget(damaged)

    def work(self) -> int:
        """Predict parts until all are finished, by this process or by others. Returns the number of its parts."""
        progress, is_waiting = PartProgress(self), False
        try:
            while unfinished := self.unfinished_parts():
                if self._predict_parts(unfinished, progress):
                    continue
                if not is_waiting and self.show:
                    parts = "1 part" if len(unfinished) == 1 else f"{len(unfinished)} parts"
                    echo(f"waiting for {parts} that other processes work on", err=True)
                is_waiting = True
                time.sleep(WAIT_SECONDS)
        except KeyboardInterrupt:
            n_parts = self.n_parts(self.folder.require_manifest())
            n_finished = n_parts - len(self.unfinished_parts())
            raise RunInterruptedError(
                f"interrupted: {n_finished} of {n_parts} parts are finished; the same command continues"
            ) from None
        self.folder.remove_claims()
        return progress.n_own_parts

    def _predict_parts(self, parts: Iterable[int], progress: PartProgress) -> bool:
        """Read the input once, and predict those of the parts that no other process claims."""
        from triform.data.files import file_version

        version, has_worked, position = file_version(self.input), False, 0
        rows = self.open_table().rows
        for part in parts:
            if part % self.stride != self.first % self.stride:
                continue
            with self.folder.claim(part) as temporary:
                if temporary is None:
                    continue
                start = part * self.part_rows
                part_rows = list(islice(rows, start - position, start - position + self.part_rows))
                position = start + len(part_rows)
                n_notes = self._write_part(start, part_rows, temporary)
                if file_version(self.input) != version or not part_rows:
                    raise DataError("the file changed while it was being read", path=self.input)
                self.folder.publish(part, temporary, {"rows": len(part_rows), "rows_with_notes": n_notes})
                has_worked = True
            progress.report(len(part_rows))
        return has_worked

    def _write_part(self, start: int, rows: list[InputRow], path: Path) -> int:
        """Predict the rows of a part and write them. Returns the number of rows that have notes."""
        from triform.io.errors import write_errors

        numbers = range(start, start + len(rows))
        predictions = self.single_run.predict([row.text for row in rows], rows=numbers, **self.settings)
        columns = self.folder.require_manifest()["input"]["columns"]
        cells = [row.cells for row in rows]
        with write_errors(self.folder.path / path.name), open_output(path) as file:
            file.writelines(jsonl_lines(cells, predictions, columns, self.run.config.task))
        return sum(bool(prediction.notes) for prediction in predictions)


class PartProgress:
    """Prints a line for each part that this process finishes."""

    def __init__(self, job: FolderJob) -> None:
        self.job, self.started_at = job, time.monotonic()
        self.n_unfinished = len(job.unfinished_parts())
        self.n_own_parts = self.n_own_rows = 0

    def report(self, n_rows: int) -> None:
        """Report a finished part, with the time that the others will take."""
        self.n_own_parts += 1
        self.n_own_rows += n_rows
        if not self.job.show:
            return
        manifest, n_left = self.job.folder.require_manifest(), len(self.job.unfinished_parts())
        seconds = time.monotonic() - self.started_at
        n_parts, n_done = self.job.n_parts(manifest), max(1, self.n_unfinished - n_left)
        remaining = f", about {format_duration(seconds / n_done * n_left)} left" if n_left else ""
        rate = self.n_own_rows / max(seconds, 1e-9)
        echo(f"{n_parts - n_left} of {n_parts} parts finished, {rate:,.0f} rows/s{remaining}", err=True)


def predict_to_folder(job: FolderJob, *, repair: bool) -> dict[str, object]:
    """Work on a job until all parts are finished, and return a summary."""
    started_at = time.monotonic()
    job = job.prepare()
    if job.run.world.is_main:
        job.verify(repair=repair)
    n_own_parts = job.work()
    manifest = job.folder.require_manifest()
    return {
        "output": str(job.folder.path),
        "rows": manifest["input"]["rows"],
        "rows_with_notes": sum(part["rows_with_notes"] for part in manifest["parts"].values()),
        "parts": len(manifest["parts"]),
        "part_rows": job.part_rows,
        "predicted_parts": n_own_parts,
        "seconds": round(time.monotonic() - started_at, 3),
    }
