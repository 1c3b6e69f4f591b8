"""The metadata of a model card: the YAML at the start of README.md that the Hugging Face Hub reads.

The metrics are those of the run's own validation set, as its checkpoint has them. Licence, languages and the name
of the dataset cannot be known from a run, so the user states them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from triform.config import Config, TaskName
from triform.config.merging import is_url
from triform.errors import ConfigError

PIPELINE_TAGS: dict[TaskName, str] = {
    "classify": "text-classification",
    "generate": "text-generation",
    "translate": "translation",
}
LIBRARY_NAMES = {"hf": "transformers", "ctranslate2": "ctranslate2", "onnx": "onnx"}
METRIC_TYPES = ("accuracy", "f1", "perplexity", "bleu", "chrf", "loss")  # the other values are counts
LANGUAGE_CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*|code|multilingual")
LICENSE_ID = re.compile(r"[a-z0-9][a-z0-9.+-]*")
NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, kw_only=True)
class CardInfo:
    """What the user states about a model, and what its run has measured.

    Args:
        license: The identifier of the licence, such as "apache-2.0"; empty if it is not stated.
        languages: Codes such as "en".
        dataset: The name of the dataset on the Hub, such as "stanfordnlp/imdb".
        base_model: The name of the model on the Hub that was fine-tuned.
        metrics: The metrics on the validation data.
    """

    license: str = ""
    languages: Sequence[str] = ()
    dataset: str = ""
    base_model: str = ""
    metrics: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.license and not LICENSE_ID.fullmatch(self.license):
            raise ConfigError(f"--license {self.license}: use an identifier such as apache-2.0, mit or cc-by-4.0")
        for code in self.languages:
            if not LANGUAGE_CODE.fullmatch(code):
                raise ConfigError(f"--language {code}: use a code such as en, fr or pt-BR")
        for option, name in (("--dataset", self.dataset), ("--base-model", self.base_model)):
            if name and not NAME.fullmatch(name):
                raise ConfigError(f"{option} {name}: use a name on the Hugging Face Hub, such as OWNER/NAME")


def build_metadata(export_format: str, config: Config, name: str, info: CardInfo) -> dict[str, Any]:
    """Return the metadata of a model card.

    Args:
        export_format: "hf", "ctranslate2" or "onnx".
        config: The settings of the run.
        name: The name of the model.
        info: What is known about it.
    """
    metadata: dict[str, Any] = {
        "library_name": LIBRARY_NAMES[export_format],
        "pipeline_tag": PIPELINE_TAGS[config.task],
        "tags": ["triform", *(["lora"] if config.train.lora_rank else [])],
    }
    if info.license:
        metadata["license"] = info.license
    if info.languages:
        metadata["language"] = list(info.languages)
    if info.dataset:
        metadata["datasets"] = [info.dataset]
    if info.base_model:
        metadata["base_model"] = info.base_model
    if results := _build_results(config, info):
        metadata["metrics"] = [result["type"] for result in results]
        task = {"type": PIPELINE_TAGS[config.task]}
        entry = {"task": task, "dataset": _describe_dataset(config, info), "metrics": results}
        metadata["model-index"] = [{"name": name, "results": [entry]}]
    return metadata


def _build_results(config: Config, info: CardInfo) -> list[dict[str, Any]]:
    return [
        {"type": name, "value": value, "name": f"{name} ({config.data.valid_name})"}
        for name, value in (info.metrics or {}).items()
        if name in METRIC_TYPES and math.isfinite(value)
    ]


def _describe_dataset(config: Config, info: CardInfo) -> dict[str, str]:
    """Return the dataset of the metrics. Without a name, it is that of the file, without its folder."""
    data = config.data
    file = data.valid or data.valid_source or data.train or data.source or "validation data"
    return {"type": info.dataset or "custom", "name": info.dataset or public_name(file), "split": "validation"}


def public_name(file: str) -> str:
    """Return the name of a data file without its folder, and without the query of an address, which may be a key.

    >>> public_name("/home/ada/reviews.csv"), public_name("https://host/reviews.csv?key=secret")
    ('reviews.csv', 'reviews.csv')
    """
    if file.startswith("builtin:"):
        return file
    return Path(urlsplit(file).path if is_url(file) else file).name


def format_front_matter(metadata: Mapping[str, Any]) -> str:
    """Return metadata as the first lines of a README. Values are written as JSON, which YAML includes.

    >>> print(format_front_matter({"license": "mit", "tags": ["triform"]}), end="")
    ---
    license: "mit"
    tags: ["triform"]
    ---
    """
    lines = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in metadata.items())
    return f"---\n{lines}---\n"
