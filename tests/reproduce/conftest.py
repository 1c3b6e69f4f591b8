"""Sets shaped like the real ones, small and made up, in the place of those that the catalogue knows."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from reproduce.__main__ import app

from triform.cli.main import main
from triform.data import catalogue
from triform.data.catalogue import DatasetFile, DatasetSpec

WORDS = (
    *("the", "of", "and", "to", "in", "we", "our", "people", "will", "nation", "world", "must", "work", "peace"),
    *(
        "great",
        "country",
        "years",
        "time",
        "american",
        "every",
        "freedom",
        "today",
        "together",
        "because",
        "history",
    ),
    *("children", "future", "government", "security", "economy", "question", "answer", "always"),
)
N_TRAIN, N_TEST, N_LEAKED = 60, 12, 8


def random_sentence(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 12))) + "."


def random_sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [random_sentence(rng) for _ in range(count)]


def join_lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def label_rows(texts: list[str], n_labels: int = 3) -> list[str]:
    return [f"{index % n_labels}\t{text}" for index, text in enumerate(texts)]


def review_rows(texts: list[str]) -> str:
    rows = ({"id": str(index), "label": index % 2, "text": text} for index, text in enumerate(texts))
    return join_lines([json.dumps(row) for row in rows])


def dataset_files() -> dict[str, dict[str, str]]:
    """The text of every file of every set. Of the labelled test speeches the first are in the training file."""
    train, unseen = label_rows(random_sentences(1, N_TRAIN)), label_rows(random_sentences(2, N_TEST - N_LEAKED))
    speeches = {
        "train_CLS.tsv": join_lines(train),
        "test_CLS.tsv": join_lines(train[:N_LEAKED] + unseen),
        "train_LM.txt": join_lines(random_sentences(3, N_TRAIN)),
        "test_CLS_unseen.tsv": join_lines(unseen),
        **{
            f"test_LM_{speaker}.txt": join_lines(random_sentences(n, N_TEST))
            for n, speaker in enumerate(("obama", "wbush", "hbush"), 4)
        },
    }
    pairs = {
        f"{split}.{side}": join_lines(random_sentences(seed, count))
        for split, seed, count in (("train", 10, N_TRAIN), ("dev", 11, N_TEST), ("test", 12, N_TEST))
        for side in ("en", "fr")
    }
    german = {name.replace("dev", "val").replace(".fr", ".de"): text for name, text in pairs.items()}
    german = {name.replace("test", "test_2016_flickr"): text for name, text in german.items()}
    splits = (("train", 20, N_TRAIN), ("valid", 21, N_TEST), ("test", 22, N_TEST))
    return {
        "speeches": speeches,
        "tinyshakespeare": {"input.txt": join_lines([f"JULIET: {text}" for text in random_sentences(9, 100)])},
        "ted_en_fr": pairs,
        "multi30k_en_de": german,
        "imdb": {f"{split}.jsonl": review_rows(random_sentences(seed, count)) for split, seed, count in splits},
    }


@pytest.fixture(scope="session")
def dataset_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sets on disk, some files zipped."""
    folder = tmp_path_factory.mktemp("sets")
    for name, files in dataset_files().items():
        (folder / name).mkdir()
        for file, text in files.items():
            if name == "imdb" or file == "train.en":
                (folder / name / f"{file}.gz").write_bytes(gzip.compress(text.encode()))
            else:
                (folder / name / file).write_text(text, encoding="utf-8")
    save_tiny_bert(folder / "minilm")
    save_tiny_gpt2(folder / "gpt2", folder / "tinyshakespeare" / "input.txt")
    return folder


def save_tiny_bert(folder: Path) -> None:
    """A small BERT that knows the words of the sets, as `transformers` writes it."""
    from transformers import BertConfig, BertModel, BertTokenizer

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizer({piece: index for index, piece in enumerate(pieces)}).save_pretrained(folder)


def save_tiny_gpt2(folder: Path, text: Path) -> None:
    """A small GPT-2 with a byte-level vocabulary of this text, as `transformers` writes it."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel

    end = "<|endoftext|>"
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(str(text), vocab_size=300, special_tokens=[end], show_progress=False)
    end_id = tokenizer.token_to_id(end)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=32,
        bos_token_id=end_id,
        eos_token_id=end_id,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_model(str(folder))  # vocab.json and merges.txt, the files of GPT-2


@pytest.fixture(scope="module")
def data(dataset_root: Path) -> Iterator[Path]:
    """The same, known to the catalogue."""
    datasets = {
        name: DatasetSpec(
            name=name,
            description="made up",
            licence="none",
            files=tuple(
                DatasetFile(name=file, size=len(text), sha256=hashlib.sha256(text.encode()).hexdigest())
                for file, text in files.items()
            ),
        )
        for name, files in dataset_files().items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "DATASETS", datasets)
        yield dataset_root


@dataclass(frozen=True)
class CommandResult:
    """What `python -m reproduce` printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def refusal(self) -> str:
        """The one line of a refused command."""
        assert (self.code, self.out, self.err.count("\n")) == (2, "", 1), self
        return self.err.removeprefix("triform: ").removesuffix("\n")


@pytest.fixture
def reproduce(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """`reproduce("speeches-lm", "--smoke")`."""

    def run(*arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main(app, "python -m reproduce")
        out, err = capsys.readouterr()
        return CommandResult(int(ended.value.code or 0), out, err)

    return run
