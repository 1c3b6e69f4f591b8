"""The catalogue of public datasets: where to download their files, and their checksums.

The files of a dataset are in FOLDER/NAME, plain or compressed with .gz added to the name. Sizes and checksums are
those of the uncompressed content.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from triform.data.files import content_sha256, open_bytes
from triform.errors import ConfigError, DataError
from triform.io.cache import datasets_folder
from triform.io.files import write_bytes

GITHUB_RAW_URL = "https://raw.githubusercontent.com"
DOWNLOAD_TIMEOUT_SECONDS = 30  # seconds without data before a download fails
DOWNLOAD_ERRORS = (
    *(urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError),
    *(gzip.BadGzipFile, EOFError, zlib.error),
)


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """A file and its checksum. `url` is empty if the file cannot be downloaded directly."""

    name: str
    size: int
    sha256: str
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A dataset. `manual_instructions` say how to obtain files that cannot be downloaded."""

    name: str
    description: str
    licence: str
    files: tuple[DatasetFile, ...]
    manual_instructions: str = ""


def _dataset_files(base: str, *entries: tuple[str, int, str], suffix: str = "") -> tuple[DatasetFile, ...]:
    """Return the files below the URL `base`. If it is empty, they cannot be downloaded."""
    return tuple(
        DatasetFile(name=name, size=size, sha256=sha256, url=f"{base}/{name}{suffix}" if base else "")
        for name, size, sha256 in entries
    )


UNSEEN_FILE = "test_CLS_unseen.tsv"

SPEECHES = DatasetSpec(
    name="speeches",
    description=(
        "speeches of three presidents: 2,092 training and 750 test sentences with labels; 1,553 lines for language "
        "modelling, and 250 test lines of each president"
    ),
    licence="Apache-2.0 for the repository; none stated for the data",
    files=(
        *_dataset_files(
            f"{GITHUB_RAW_URL}/yasho191/ScratchLLM/c410378c4350641e973b1836ff40ec558da7f43d/speechesdataset",
            ("train_CLS.tsv", 198912, "7dbd7cadc6efe746d0c0a7e5fe81f0ac2431bd2a3b86b51f4cb23f373466c88e"),
            ("test_CLS.tsv", 71003, "31277b7d67cff8ad717c9f43c05810c6b78feb67f04472bd7aa20e71eb2e0da8"),
            ("train_LM.txt", 159648, "aff1d88fad90db8cedfe8918a9099ffdfe622641a2a8c6e25dac1f7eda199b1a"),
            ("test_LM_obama.txt", 27739, "6cb3bb657ae40cab1cb8f3f38f391dbdcc80a9b21b577d5fc1ea4ba86901bed2"),
            ("test_LM_wbush.txt", 24657, "1281773860075b12727f9f581940c028074d05f3efbf99bbfcc9c7c472d4dbd5"),
            ("test_LM_hbush.txt", 23627, "a0592374b7cd47a6417a311892a4b8a59f35cbe054cbaf96c06e50e904c8451f"),
        ),
        *_dataset_files(
            "", (UNSEEN_FILE, 19233, "0ae709b1a62e54f83f6a00af2e36345975264967b0fb648574972a68c17c1200")
        ),
    ),
    manual_instructions=f"{UNSEEN_FILE} is made from the other files: it has the lines of test_CLS.tsv whose "
    "sentence is not in train_CLS.tsv",
)
TINYSHAKESPEARE = DatasetSpec(
    name="tinyshakespeare",
    description="1,115,394 characters of Shakespeare's plays",
    licence="public domain",
    files=_dataset_files(
        f"{GITHUB_RAW_URL}/karpathy/char-rnn/d1d7aa34fdb3626174bce1d753e6cc6845ce7087/data/tinyshakespeare",
        ("input.txt", 1115394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
    ),
)
TED_EN_FR = DatasetSpec(
    name="ted_en_fr",
    description="TED talks in English and French: 30,000 training, 887 validation and 1,305 test pairs",
    licence="none stated; TED talks are CC BY-NC-ND",
    files=_dataset_files(
        f"{GITHUB_RAW_URL}/ashmitchamoli/Transformers-From-Scratch/HEAD/data/ted-talks-corpus",
        ("train.en", 2885083, "69df29de80f462ba8d07b62f1c102675959d0e647520e4d55ffe99b9eb4be1a8"),
        ("train.fr", 3358288, "a5065e385bee5d64307ba0e8187abc9a0e041223354c4ddac80752bec9511824"),
        ("dev.en", 96477, "2fcfd5c3347c27ded1ffa67cf7d5bf075cdf0a77b84045f1fc363a794c2828af"),
        ("dev.fr", 104347, "3786dc3bccf0c84a4494e12d7ffdaab93b5c984b2632aa5ed04452b69e913b1e"),
        ("test.en", 117545, "47e1c66b3297abe55893c27104a4721b6d02a27883009a7985f87d3b84bec6de"),
        ("test.fr", 139304, "41a56c4aa86fa6b35c36b0aa234411edae514ca45bb355a583675a742621886f"),
    ),
)
IMDB = DatasetSpec(
    name="imdb",
    description="positive and negative film reviews: 15,000 training, 5,000 validation and 5,000 test reviews",
    licence="none stated; Maas et al. 2011, for research",
    files=_dataset_files(
        "",
        ("train.jsonl", 20688313, "3c121ef56201dd4c32e11736c7d70644f510188c9e067abe21a96a91426c2608"),
        ("valid.jsonl", 6954546, "689ea8724f42553b5a8ef80c7650c86d8fa0d87f971dd3c256d2addc38c24afa"),
        ("test.jsonl", 6803022, "978132997adc12479bb2de24d8a6f393027a3bc4edc42bcd549c267a7c8d32c2"),
    ),
    manual_instructions=(
        "this split of aclImdb (50,000 labelled reviews, https://ai.stanford.edu/~amaas/data/sentiment/) is not "
        "published: 418 duplicate reviews removed, balanced labels, seed 20240613; train and valid are from the "
        "official training half, test from the official test half; each line is a JSON object with id, label (1 is "
        "positive) and text, ASCII-escaped, with <br /> kept"
    ),
)
MULTI30K = DatasetSpec(
    name="multi30k_en_de",
    description="picture captions in English and German: 29,000 training, 1,014 validation and 1,000 test pairs",
    licence="none stated",
    files=_dataset_files(
        f"{GITHUB_RAW_URL}/multi30k/dataset/c9be912dc05a3ebf9ae5bb5f7f58c1791cda43ab/data/task1/raw",
        ("train.en", 1801238, "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6"),
        ("train.de", 2110398, "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72"),
        ("val.en", 63297, "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227"),
        ("val.de", 75981, "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660"),
        ("test_2016_flickr.en", 62076, "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"),
        ("test_2016_flickr.de", 70649, "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"),
        suffix=".gz",
    ),
)
WORD_EVAL = DatasetSpec(
    name="word_eval",
    description="questions for word vectors: 19,544 analogies, SimLex-999, WordSim-353",
    licence="LGPL-2.1 for gensim's repository; none stated for the data",
    files=_dataset_files(
        f"{GITHUB_RAW_URL}/piskvorky/gensim/4.4.0/gensim/test/test_data",
        ("questions-words.txt", 603955, "8c29b3332afc46f3fb8be04cb5297bf96f39aa7131272dff57869b4485b22a36"),
        ("simlex999.txt", 18126, "d5e0501971478a511430ee880bd0121e94ac701ba86d90544d83e6d2ba3db05d"),
        ("wordsim353.tsv", 7186, "f92a022fc2537793a15bc3a8c162ebcd74990e033a228bb6388cb71e4c0b1e1d"),
    ),
)
DATASETS: dict[str, DatasetSpec] = {
    known.name: known for known in (SPEECHES, TINYSHAKESPEARE, TED_EN_FR, IMDB, MULTI30K, WORD_EVAL)
}


def get_dataset(name: str) -> DatasetSpec:
    """Return a dataset by its name."""
    if name not in DATASETS:
        raise ConfigError(f"unknown dataset {name!r}; choose from {', '.join(DATASETS)}")
    return DATASETS[name]


def dataset_folder(dataset: DatasetSpec, folder: str | Path = "") -> Path:
    """Return the folder of a dataset: below `folder`, or where `triform data get` puts it by default."""
    try:
        return Path(folder or datasets_folder()) / dataset.name
    except RuntimeError:
        raise ConfigError("this user has no home folder for the data; specify --data DIR") from None


def find_file(file: DatasetFile, folder: Path) -> Path | None:
    """Return the path of a file in the folder of its dataset, plain or compressed; None if it is missing."""
    candidates = (folder / file.name, folder / f"{file.name}.gz")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def verify_dataset(dataset: DatasetSpec, folder: str | Path = "") -> dict[str, Path]:
    """Return the paths of all files of a dataset after comparing their checksums.

    Raises:
        DataError: A file is missing or has another checksum. The message names it.
    """
    set_folder, paths = dataset_folder(dataset, folder), {}
    for file in dataset.files:
        path = find_file(file, set_folder)
        if path is None:
            raise DataError(_missing_file_message(dataset, file, folder), path=set_folder / file.name)
        _verify_sha256(file, content_sha256(str(path)), path, _replace_file_advice(dataset, file, folder))
        paths[file.name] = path
    return paths


def _missing_file_message(dataset: DatasetSpec, file: DatasetFile, folder: str | Path) -> str:
    if command := _download_command(dataset, file, folder):
        return f"the file is missing; download it with `{command}`, or copy it there (plain or as .gz)"
    return f"the file is missing; copy it there (plain or as .gz): {dataset.manual_instructions}"


def _replace_file_advice(dataset: DatasetSpec, file: DatasetFile, folder: str | Path) -> str:
    command = _download_command(dataset, file, folder)
    return f"remove it and download it again with `{command}`" if command else "replace it with the right file"


def _download_command(dataset: DatasetSpec, file: DatasetFile, folder: str | Path) -> str:
    """Return the command that downloads or makes a file; empty if there is none."""
    folder_option = f" --data {folder}" if folder else ""
    return f"triform data get {dataset.name}{folder_option}" if file.url or file.name == UNSEEN_FILE else ""


def _verify_sha256(file: DatasetFile, actual: str, path: Path | str, advice: str = "") -> None:
    if actual != file.sha256:
        message = f"this is not the expected {file.name}: its sha256 is {actual}, expected {file.sha256}"
        raise DataError(f"{message}; {advice}" if advice else message, path=path)


def download_dataset(
    dataset: DatasetSpec, folder: str | Path = "", log: Callable[[str], None] = print
) -> dict[str, Path]:
    """Download the missing files of a dataset and verify all of them. Existing files are not changed."""
    set_folder = dataset_folder(dataset, folder)
    for file in dataset.files:
        if find_file(file, set_folder) is not None:
            continue
        if file.url:
            log(f"downloading {dataset.name}/{file.name} from {file.url}")
            _download_file(dataset, file, set_folder)
        elif file.name == UNSEEN_FILE:
            _write_verified(file, set_folder, _build_unseen_lines(set_folder))
        else:
            raise DataError(_missing_file_message(dataset, file, folder), path=set_folder / file.name)
    return verify_dataset(dataset, folder)


def _download_file(dataset: DatasetSpec, file: DatasetFile, set_folder: Path) -> None:
    try:
        with urllib.request.urlopen(file.url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
            content: bytes = response.read()  # the largest file of the catalogue has a few megabytes
        if file.url.endswith(".gz"):
            content = gzip.decompress(content)
    except DOWNLOAD_ERRORS as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"download from {file.url} failed ({reason}); copy the file there by other means, then run "
            f"`triform data check {dataset.name} --data {set_folder.parent}`",
            path=set_folder / file.name,
        ) from None
    _write_verified(file, set_folder, content)


def _write_verified(file: DatasetFile, set_folder: Path, content: bytes) -> None:
    """Write a downloaded file atomically if its checksum is right."""
    _verify_sha256(file, hashlib.sha256(content).hexdigest(), f"{set_folder / file.name} (downloaded)")
    try:
        set_folder.mkdir(parents=True, exist_ok=True)
        write_bytes(set_folder / file.name, content)
    except OSError as error:
        raise DataError(
            f"the file cannot be written: {error.strerror or error}", path=set_folder / file.name
        ) from None


def _build_unseen_lines(set_folder: Path) -> bytes:
    """Return the lines of the test file whose sentence is not in the training file."""
    lines = {}
    for file in SPEECHES.files:
        if (path := find_file(file, set_folder)) is not None:
            with open_bytes(str(path)) as content:
                lines[file.name] = content.read().removesuffix(b"\n").split(b"\n")
    training_sentences = {line.partition(b"\t")[2].strip() for line in lines["train_CLS.tsv"]}
    unseen_lines = [
        line + b"\n" for line in lines["test_CLS.tsv"] if line.partition(b"\t")[2].strip() not in training_sentences
    ]
    return b"".join(unseen_lines)
