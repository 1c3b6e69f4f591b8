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
from material import TINY, Material
from mutations import DIGITS, mutated_bytes, mutated_toml, mutation_of, prompts, setting_texts, zipped

from triform.io.digests import DIGESTS_FILE
from triform.settings import HINTS

Draw = Callable[[st.SearchStrategy[Any]], Any]
CPU = ("--device", "cpu")
# How long to work is the user's to say: of these only what is no number, or far too large, is tried.
WORK = ("train.max_steps", "train.epochs", "decode.max_new_tokens")
NOT_WORK = ("-1", "nan", "inf", "1e308", DIGITS, str(10**12), str(2**64), "x", "", "-0.5", "[]", "1e999")


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
        return [each.replace("{}", str(folder)) for each in self.arguments]


def readers(material: Material) -> st.SearchStrategy[Case]:
    """Tables and texts, by every command that reads some."""
    uses: dict[str, tuple[tuple[object, ...], ...]] = {
        "rows": (
            ("evaluate", material.classifier, "--data", "{F}", *CPU),
            ("predict", material.classifier, "--input", "{F}", *CPU, "--output", "{}/predictions.csv"),
            ("audit", "--train", "{F}"),
            ("audit", "--train", material.data / "rows.csv", "--test", "{F}", "--task", "classify"),
            ("tokenizer", "train", "--data", "{F}", "--out", "{}/tokenizer.json", "--kind", "word"),
            ("train", "classify", *TINY, "--data", "{F}", "--out", "{}/run", "--quiet"),
        ),
        "pairs": (
            ("evaluate", material.translator, "--data", "{F}", *CPU, "--set", "decode.strategy=greedy"),
            ("audit", "--train", "{F}", "--task", "translate"),
            ("train", "translate", *TINY, "--data", "{F}", "--out", "{}/run", "--quiet"),
        ),
        "story": (
            ("evaluate", material.writer, "--data", "{F}", *CPU),
            ("predict", material.writer, "--input", "{F}", *CPU, "--set", "decode.max_new_tokens=2"),
            ("audit", "--train", "{F}", "--task", "generate"),
            ("train", "generate", *TINY, "--set", "data.max_len=16", "--data", "{F}", "--out", "{}/run", "--quiet"),
        ),
    }

    @st.composite
    def made(draw: Draw) -> Case:
        name = draw(st.sampled_from(sorted(path.name for path in material.data.iterdir())))
        content = (material.data / name).read_bytes()
        if name.endswith(".gz") and draw(st.booleans()):
            content = zipped(draw(mutated_bytes((material.data / name.removesuffix(".gz")).read_bytes())))
        else:
            content = draw(mutated_bytes(content))
        command = draw(st.sampled_from(uses[name.partition(".")[0]]))
        if "train" in command[0] and draw(st.integers(0, 3)):  # training takes longest: three of four look only
            command = draw(st.sampled_from(uses[name.partition(".")[0]][:2]))
        return Case("readers", tuple(str(each).replace("{F}", f"{{}}/{name}") for each in command), {name: content})

    return made()


def settings(material: Material) -> st.SearchStrategy[Case]:
    """`--set`, and files of settings and studies."""
    rows = material.data / "rows.csv"

    @st.composite
    def assignments(draw: Draw, section: str = "") -> tuple[str, ...]:
        names = [name for name in HINTS if name.startswith(section)]
        found: list[str] = []
        for _ in range(draw(st.integers(1, 2))):
            name = draw(st.sampled_from(names))
            value = draw(st.sampled_from(NOT_WORK) if name in WORK else setting_texts())
            found += ("--set", f"{name}={value}")
        return tuple(found)

    @st.composite
    def made(draw: Draw) -> Case:
        kind = draw(st.integers(0, 7))
        if kind <= 1:
            counted = ("params", "--preset", "small", "--task", "classify", "--vocab-size", "50", "--max-len", "20")
            return Case("settings", (*counted, "--labels", "2", *draw(assignments())))
        if kind == 2:
            train = ("train", "classify", *TINY, "--data", str(rows), "--out", "{}/run", "--quiet")
            return Case("settings", (*train, *draw(assignments())))
        if kind <= 4:
            run = draw(st.sampled_from([material.writer, material.translator]))
            few = ("--set", "decode.max_new_tokens=3", *draw(assignments("decode.")))
            return Case("settings", ("predict", str(run), "one", *CPU, *few))
        if kind == 5:
            content = draw(mutated_toml((material.toml / "study.toml").read_bytes()))
            study = ("compare", "{}/study.toml", "--seeds", "1", "--out", "{}/study", "--quiet", *CPU)
            return Case("settings", study, {"study.toml": content})
        content = draw(mutated_toml((material.toml / "config.toml").read_bytes()))
        few = ("--set", "train.max_steps=1")
        if kind == 6:
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
            command = ("train", "classify", "--config", "{}/config.toml", *few, "--out", "{}/run", "--quiet", *CPU)
        return Case("settings", command, {"config.toml": content})

    return made()


def run_folders(material: Material) -> st.SearchStrategy[Case]:
    """A run folder with one file that is not as it was."""
    texts = {material.classifier: "the soup", material.writer: "1 bird", material.translator: "one and two"}
    tasks = {material.classifier: "classify", material.writer: "generate", material.translator: "translate"}
    contents = {
        run: {
            str(path.relative_to(run)): path.read_bytes()
            for path in sorted(run.rglob("*"))
            if path.is_file() and path.name not in ("report.html", ".lock")
        }
        for run in texts
    }

    @st.composite
    def made(draw: Draw) -> Case:
        run = draw(st.sampled_from(list(texts)))
        name = draw(st.sampled_from(sorted(contents[run])))
        content = draw(mutation_of(name)(contents[run][name]))
        commands: list[tuple[str, ...]] = [
            ("predict", "{}/run", texts[run], *CPU),
            ("predict", "{}/run", texts[run], *CPU),
            ("evaluate", "{}/run", *CPU),
            ("params", "{}/run"),
            ("explain", "{}/run", texts[run], "--out", "{}/maps.html", *CPU),
            ("train", tasks[run], "--out", "{}/run", "--resume", "--quiet", *CPU),
        ]
        checkpoint = name.startswith("checkpoints") or name == "metrics.jsonl"
        command = draw(st.sampled_from(commands[-1:] if checkpoint else commands))
        few = ("--set", "decode.max_new_tokens=3") if command[0] == "predict" and run != material.classifier else ()
        how = draw(st.sampled_from(["verified", "without digests", "not verified"]))
        if how == "not verified" and command[0] != "train":
            command = (*command, "--no-verify")
        return Case(
            "run folders",
            (*command, *few),
            {f"run/{name}": content},
            {"run": run},
            without_digests=how == "without digests",
        )

    return made()


@st.composite
def mutated_about(draw: Draw, content: bytes) -> bytes:
    """An adapter whose metadata is changed inside: a JSON object that holds a TOML text."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    about = json.loads(header["__metadata__"]["triform-adapter"])
    if draw(st.booleans()):
        about["config"] = draw(mutated_toml(about["config"].encode())).decode("utf-8", "replace")
        told = json.dumps(about)
    else:
        told = draw(mutation_of("about.json")(json.dumps(about).encode())).decode("utf-8", "replace")
    header["__metadata__"]["triform-adapter"] = told
    made = json.dumps(header).encode()
    return struct.pack("<Q", len(made)) + made + content[8 + length :]


def adapters(material: Material) -> st.SearchStrategy[Case]:
    """The file that LoRA leaves."""
    content = (material.lora / "adapter.safetensors").read_bytes()

    @st.composite
    def made(draw: Draw) -> Case:
        if draw(st.booleans()):
            changed = draw(mutation_of("adapter.safetensors")(content))
        else:  # what it says of itself, which holds a config
            changed = draw(mutated_about(content))
        command = draw(st.sampled_from(["predict", "evaluate"]))
        text = ("the soup",) if command == "predict" else ()
        trusting = ("--no-verify",) if draw(st.booleans()) else ()
        file = ("--adapter", "{}/adapter.safetensors")
        arguments = (command, str(material.classifier), *text, *file, *trusting, *CPU)
        return Case("adapters", arguments, {"adapter.safetensors": changed})

    return made()


def tokenizers(material: Material) -> st.SearchStrategy[Case]:
    """Triform's own, and those of other libraries."""
    own = {run: (run / "tokenizer.json").read_bytes() for run in (material.classifier, material.writer)}
    theirs = sorted(path for path in material.tokenizers.rglob("*") if path.is_file())

    @st.composite
    def made(draw: Draw) -> Case:
        if draw(st.booleans()):
            run = draw(st.sampled_from(list(own)))
            files = {"tokenizer.json": draw(mutation_of("tokenizer.json")(own[run]))}
            return Case("tokenizers", ("tokenizer", "encode", "{}/tokenizer.json", "the soup"), files)
        path = draw(st.sampled_from(theirs))
        files = {f"their/{path.name}": draw(mutation_of(path.name)(path.read_bytes()))}
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

    return made()


def published(material: Material) -> st.SearchStrategy[Case]:
    """Folders of published models, whole and in parts."""
    folders = [path for path in sorted(material.published.iterdir()) if path.name != "runs"]

    @st.composite
    def made(draw: Draw) -> Case:
        folder = draw(st.sampled_from(folders))
        names = [path.name for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors")]
        name = draw(st.sampled_from(sorted({"config.json", *(each for each in names if "model" in each), *names})))
        content = draw(mutation_of(name)((folder / name).read_bytes()))
        command = ("convert", "import", "{}/model", "--out", "{}/run")
        return Case("published", command, {f"model/{name}": content}, {"model": folder})

    return made()


def vectors(material: Material) -> st.SearchStrategy[Case]:
    """Files of word vectors."""

    @st.composite
    def made(draw: Draw) -> Case:
        name = draw(st.sampled_from(sorted(path.name for path in material.vectors.iterdir())))
        content = (material.vectors / name).read_bytes()
        if not name.endswith(".safetensors") and draw(st.integers(0, 3)) == 0:
            numbers = st.sampled_from((DIGITS, str(10**12), str(2**64), "0", "-1", "5", "4"))
            content = f"{draw(numbers)} {draw(numbers)}\n".encode() + content.partition(b"\n")[2]
        else:
            content = draw(mutation_of(name)(content))
        return Case("vectors", ("vectors", "nearest", f"{{}}/{name}", "soup"), {name: content})

    return made()


def texts(material: Material) -> st.SearchStrategy[Case]:
    """What is typed to a model that is in order."""
    runs = [material.classifier, material.writer, material.translator]

    @st.composite
    def made(draw: Draw) -> Case:
        run = draw(st.sampled_from(runs))
        few = (
            ("--set", "decode.max_new_tokens=3", "--set", "decode.strategy=greedy")
            if run != material.classifier
            else ()
        )
        some = draw(st.lists(prompts, min_size=1, max_size=2))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            content = "\n".join(some).encode("utf-8", "surrogatepass")
            return Case("prompts", ("predict", str(run), "--input", "-", *CPU, *few), stdin=content)
        if kind == 1:
            content = (
                draw(st.binary(max_size=200))
                if draw(st.booleans())
                else draw(mutated_bytes(some[0].encode("utf-8", "replace")))
            )
            return Case(
                "prompts", ("predict", str(run), "--input", "{}/texts.txt", *CPU, *few), {"texts.txt": content}
            )
        json_ = ("--json",) if kind == 2 else ()
        return Case(
            "prompts", ("predict", str(run), *json_, *CPU, *few, "--", *(text.replace("{}", "") for text in some))
        )

    return made()


SURFACES = (readers, settings, run_folders, adapters, tokenizers, published, vectors, texts)


def cases(material: Material) -> st.SearchStrategy[Case]:
    return st.one_of(*(surface(material) for surface in SURFACES))
