"""One bad input: what is written to a fresh folder, and the command that meets it."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from material import TINY, SeedFiles
from mutations import (
    LONG_NUMBER,
    gzip_bytes,
    mutated_bytes,
    mutated_toml,
    mutation_for_file,
    prompts,
    setting_texts,
)

from triform.config.settings import SETTING_TYPES
from triform.io.run_layout import DIGESTS_FILE

Draw = Callable[[st.SearchStrategy[Any]], Any]
CPU = ("--device", "cpu")
# How long to work is the user's to say: of these only what is no number, or far too large, is tried.
WORK_SETTINGS = ("train.max_steps", "train.epochs", "decode.max_new_tokens")
INVALID_WORK_VALUES = (
    "-1",
    "nan",
    "inf",
    "1e308",
    LONG_NUMBER,
    str(10**12),
    str(2**64),
    "x",
    "",
    "-0.5",
    "[]",
    "1e999",
)


@dataclass(frozen=True)
class Case:
    """A command with everything it reads; `files` are relative to the folder of the case."""

    surface: str
    arguments: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    copies: dict[str, Path] = field(default_factory=dict, repr=False)
    stdin: bytes = field(default=b"", repr=False)
    without_digests: bool = False  # as a run that an older Triform saved

    def write(self, folder: Path) -> list[str]:
        """Put the files there; the arguments with the folder's name for {}."""
        folder.mkdir(parents=True)
        for name, source in self.copies.items():
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                shutil.copyfile(source, folder / name)
        for path in folder.rglob(DIGESTS_FILE) if self.without_digests else ():
            path.unlink()
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return [argument.replace("{}", str(folder)) for argument in self.arguments]


def reader_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    """Tables and texts, by every command that reads some."""
    commands: dict[str, tuple[tuple[object, ...], ...]] = {
        "rows": (
            ("evaluate", seed_files.classifier, "--data", "{F}", *CPU),
            ("predict", seed_files.classifier, "--input", "{F}", *CPU, "--output", "{}/predictions.csv"),
            ("audit", "--train", "{F}"),
            ("audit", "--train", seed_files.data / "rows.csv", "--test", "{F}", "--task", "classify"),
            ("tokenizer", "train", "--data", "{F}", "--out", "{}/tokenizer.json", "--kind", "word"),
            ("train", "classify", *TINY, "--data", "{F}", "--out", "{}/run", "--quiet"),
        ),
        "pairs": (
            ("evaluate", seed_files.translator, "--data", "{F}", *CPU, "--set", "decode.strategy=greedy"),
            ("audit", "--train", "{F}", "--task", "translate"),
            ("train", "translate", *TINY, "--data", "{F}", "--out", "{}/run", "--quiet"),
        ),
        "story": (
            ("evaluate", seed_files.language_model, "--data", "{F}", *CPU),
            ("predict", seed_files.language_model, "--input", "{F}", *CPU, "--set", "decode.max_new_tokens=2"),
            ("audit", "--train", "{F}", "--task", "generate"),
            ("train", "generate", *TINY, "--set", "data.max_len=16", "--data", "{F}", "--out", "{}/run", "--quiet"),
        ),
    }

    @st.composite
    def build_case(draw: Draw) -> Case:
        name = draw(st.sampled_from(sorted(path.name for path in seed_files.data.iterdir())))
        content = (seed_files.data / name).read_bytes()
        if name.endswith(".gz") and draw(st.booleans()):
            content = gzip_bytes(draw(mutated_bytes((seed_files.data / name.removesuffix(".gz")).read_bytes())))
        else:
            content = draw(mutated_bytes(content))
        command = draw(st.sampled_from(commands[name.partition(".")[0]]))
        if "train" in command[0] and draw(st.integers(0, 3)):  # training takes longest: three of four look only
            command = draw(st.sampled_from(commands[name.partition(".")[0]][:2]))
        return Case(
            "readers", tuple(str(argument).replace("{F}", f"{{}}/{name}") for argument in command), {name: content}
        )

    return build_case()


def settings_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    """`--set`, and files of settings and studies."""
    rows = seed_files.data / "rows.csv"

    @st.composite
    def assignments(draw: Draw, section: str = "") -> tuple[str, ...]:
        names = [name for name in SETTING_TYPES if name.startswith(section)]
        options: list[str] = []
        for _ in range(draw(st.integers(1, 2))):
            name = draw(st.sampled_from(names))
            value = draw(st.sampled_from(INVALID_WORK_VALUES) if name in WORK_SETTINGS else setting_texts())
            options += ("--set", f"{name}={value}")
        return tuple(options)

    @st.composite
    def build_case(draw: Draw) -> Case:
        kind = draw(st.integers(0, 9))
        if kind <= 1:
            params_command = (
                "params",
                "--preset",
                "small",
                "--task",
                "classify",
                "--vocab-size",
                "50",
                "--max-len",
                "20",
            )
            return Case("settings", (*params_command, "--labels", "2", *draw(assignments())))
        if kind == 2:
            train = ("train", "classify", *TINY, "--data", str(rows), "--out", "{}/run", "--quiet")
            return Case("settings", (*train, *draw(assignments())))
        if kind <= 4:
            run = draw(st.sampled_from([seed_files.language_model, seed_files.translator]))
            limits = ("--set", "decode.max_new_tokens=3", *draw(assignments("decode.")))
            return Case("settings", ("predict", str(run), "one", *CPU, *limits))
        if kind == 5:
            content = draw(mutated_toml((seed_files.toml / "study.toml").read_bytes()))
            study = ("compare", "{}/study.toml", "--seeds", "1", "--out", "{}/study", "--quiet", *CPU)
            return Case("settings", study, {"study.toml": content})
        content = draw(mutated_toml((seed_files.toml / "config.toml").read_bytes()))
        limits = ("--set", "train.max_steps=1")
        command: tuple[str, ...]
        if kind == 8:
            return Case("settings", ("config", "show", "tiny", *draw(assignments())))
        if kind == 9:
            command = ("config", "show", "{}/config.toml")
        elif kind == 6:
            command = (
                "params",
                "--config",
                "{}/config.toml",
                "--vocab-size",
                "50",
                "--max-len",
                "20",
                "--labels",
                "2",
            )
        else:
            command = (
                "train",
                "classify",
                "--config",
                "{}/config.toml",
                *limits,
                "--out",
                "{}/run",
                "--quiet",
                *CPU,
            )
        return Case("settings", command, {"config.toml": content})

    return build_case()


def run_folder_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    """A run folder with one file that is not as it was."""
    texts = {
        seed_files.classifier: "the soup",
        seed_files.language_model: "1 bird",
        seed_files.translator: "one and two",
    }
    tasks = {
        seed_files.classifier: "classify",
        seed_files.language_model: "generate",
        seed_files.translator: "translate",
    }
    contents = {
        run: {
            str(path.relative_to(run)): path.read_bytes()
            for path in sorted(run.rglob("*"))
            if path.is_file() and path.name not in ("report.html", ".lock")
        }
        for run in texts
    }

    @st.composite
    def build_case(draw: Draw) -> Case:
        run = draw(st.sampled_from(list(texts)))
        name = draw(st.sampled_from(sorted(contents[run])))
        content = draw(mutation_for_file(name)(contents[run][name]))
        commands: list[tuple[str, ...]] = [
            ("predict", "{}/run", texts[run], *CPU),
            ("predict", "{}/run", texts[run], *CPU),
            ("evaluate", "{}/run", *CPU),
            ("params", "{}/run"),
            ("config", "show", "{}/run"),
            ("explain", "{}/run", texts[run], "--out", "{}/maps.html", *CPU),
            ("train", tasks[run], "--out", "{}/run", "--resume", "--quiet", *CPU),
        ]
        checkpoint = name.startswith("checkpoints") or name == "metrics.jsonl"
        command = draw(st.sampled_from(commands[-1:] if checkpoint else commands))
        limits = (
            ("--set", "decode.max_new_tokens=3") if command[0] == "predict" and run != seed_files.classifier else ()
        )
        verification = draw(st.sampled_from(["verified", "without digests", "not verified"]))
        if verification == "not verified" and command[0] != "train":
            command = (*command, "--no-verify")
        return Case(
            "run folders",
            (*command, *limits),
            {f"run/{name}": content},
            {"run": run},
            without_digests=verification == "without digests",
        )

    return build_case()


@st.composite
def mutated_adapter_metadata(draw: Draw, content: bytes) -> bytes:
    """An adapter whose metadata is changed inside: a JSON object that holds a TOML text."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = json.loads(header["__metadata__"]["triform-adapter"])
    if draw(st.booleans()):
        metadata["config"] = draw(mutated_toml(metadata["config"].encode())).decode("utf-8", "replace")
        metadata_text = json.dumps(metadata)
    else:
        metadata_text = draw(mutation_for_file("about.json")(json.dumps(metadata).encode())).decode(
            "utf-8", "replace"
        )
    header["__metadata__"]["triform-adapter"] = metadata_text
    new_header = json.dumps(header).encode()
    return struct.pack("<Q", len(new_header)) + new_header + content[8 + length :]


def adapter_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    """The file that LoRA leaves."""
    content = (seed_files.lora / "adapter.safetensors").read_bytes()

    @st.composite
    def build_case(draw: Draw) -> Case:
        if draw(st.booleans()):
            changed = draw(mutation_for_file("adapter.safetensors")(content))
        else:  # what it says of itself, which holds a config
            changed = draw(mutated_adapter_metadata(content))
        command = draw(st.sampled_from(["predict", "evaluate"]))
        text = ("the soup",) if command == "predict" else ()
        no_verify = ("--no-verify",) if draw(st.booleans()) else ()
        file = ("--adapter", "{}/adapter.safetensors")
        arguments = (command, str(seed_files.classifier), *text, *file, *no_verify, *CPU)
        return Case("adapters", arguments, {"adapter.safetensors": changed})

    return build_case()


def tokenizer_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    """Triform's own, and those of other libraries."""
    own_tokenizers = {
        run: (run / "tokenizer.json").read_bytes() for run in (seed_files.classifier, seed_files.language_model)
    }
    foreign_files = sorted(path for path in seed_files.tokenizers.rglob("*") if path.is_file())

    @st.composite
    def build_case(draw: Draw) -> Case:
        if draw(st.booleans()):
            run = draw(st.sampled_from(list(own_tokenizers)))
            files = {"tokenizer.json": draw(mutation_for_file("tokenizer.json")(own_tokenizers[run]))}
            return Case("tokenizers", ("tokenizer", "encode", "{}/tokenizer.json", "the soup"), files)
        path = draw(st.sampled_from(foreign_files))
        files = {f"their/{path.name}": draw(mutation_for_file(path.name)(path.read_bytes()))}
        command = draw(
            st.sampled_from(
                [
                    ("tokenizer", "encode", "{}/their", "1 bird"),
                    ("tokenizer", "import", "{}/their", "--out", "{}/tokenizer.json"),
                    ("tokenizer", "export", "{}/their", "--out", "{}/theirs-again"),
                ]
            )
        )
        return Case("tokenizers", command, files, {"their": path.parent})

    return build_case()


def published_model_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    """Folders of published models, whole and in parts."""
    folders = [path for path in sorted(seed_files.published.iterdir()) if path.name != "runs"]

    @st.composite
    def build_case(draw: Draw) -> Case:
        folder = draw(st.sampled_from(folders))
        names = [path.name for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors")]
        name = draw(
            st.sampled_from(
                sorted({"config.json", *(file_name for file_name in names if "model" in file_name), *names})
            )
        )
        content = draw(mutation_for_file(name)((folder / name).read_bytes()))
        command = ("convert", "import", "{}/model", "--out", "{}/run")
        return Case("published", command, {f"model/{name}": content}, {"model": folder})

    return build_case()


def vector_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    """Files of word vectors."""

    @st.composite
    def build_case(draw: Draw) -> Case:
        name = draw(st.sampled_from(sorted(path.name for path in seed_files.vectors.iterdir())))
        content = (seed_files.vectors / name).read_bytes()
        if not name.endswith(".safetensors") and draw(st.integers(0, 3)) == 0:
            header_numbers = st.sampled_from((LONG_NUMBER, str(10**12), str(2**64), "0", "-1", "5", "4"))
            content = f"{draw(header_numbers)} {draw(header_numbers)}\n".encode() + content.partition(b"\n")[2]
        else:
            content = draw(mutation_for_file(name)(content))
        return Case("vectors", ("vectors", "nearest", f"{{}}/{name}", "soup"), {name: content})

    return build_case()


def prompt_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    """What is typed to a model that is in order."""
    runs = [seed_files.classifier, seed_files.language_model, seed_files.translator]

    @st.composite
    def build_case(draw: Draw) -> Case:
        run = draw(st.sampled_from(runs))
        limits = (
            ("--set", "decode.max_new_tokens=3", "--set", "decode.strategy=greedy")
            if run != seed_files.classifier
            else ()
        )
        prompt_texts = draw(st.lists(prompts, min_size=1, max_size=2))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            content = "\n".join(prompt_texts).encode("utf-8", "surrogatepass")
            return Case("prompts", ("predict", str(run), "--input", "-", *CPU, *limits), stdin=content)
        if kind == 1:
            content = (
                draw(st.binary(max_size=200))
                if draw(st.booleans())
                else draw(mutated_bytes(prompt_texts[0].encode("utf-8", "replace")))
            )
            return Case(
                "prompts", ("predict", str(run), "--input", "{}/texts.txt", *CPU, *limits), {"texts.txt": content}
            )
        json_ = ("--json",) if kind == 2 else ()
        return Case(
            "prompts",
            ("predict", str(run), *json_, *CPU, *limits, "--", *(text.replace("{}", "") for text in prompt_texts)),
        )

    return build_case()


SURFACES = (
    reader_cases,
    settings_cases,
    run_folder_cases,
    adapter_cases,
    tokenizer_cases,
    published_model_cases,
    vector_cases,
    prompt_cases,
)


def all_cases(seed_files: SeedFiles) -> st.SearchStrategy[Case]:
    return st.one_of(*(surface(seed_files) for surface in SURFACES))
