"""Opening a run folder, of the torch models or of these."""

from __future__ import annotations

from pathlib import Path

from triform.config import Config
from triform.errors import CheckpointError, ConfigError
from triform.scratch import weights
from triform.scratch.learners import FORMAT, LanguageModel, Learner, TextClassifier, Translator
from triform.settings import build, load_toml, settings_of
from triform.text import load_tokenizer

LEARNERS: dict[str, type[Learner]] = {each.task: each for each in (TextClassifier, LanguageModel, Translator)}


def load(path: str | Path) -> TextClassifier | LanguageModel | Translator:
    """The model of a run folder, in NumPy."""
    folder = Path(path)
    config = read_config(folder)
    learner = LEARNERS[config.task](config)
    two = config.task == "translate" and not config.tokenizer.shared
    names = ["tokenizer.source.json", "tokenizer.target.json"] if two else ["tokenizer.json"]
    learner.tokenizers = {name: load_tokenizer(folder / name) for name in names}
    learner.build()
    file = folder / "model.safetensors"
    weights.put(learner.weights, weights.read(file), str(file))
    assert isinstance(learner, TextClassifier | LanguageModel | Translator)
    return learner


def read_config(folder: Path) -> Config:
    if not (folder / "config.toml").exists():
        raise CheckpointError(f"{folder}: is not a run folder: it has no config.toml")
    tree = load_toml(folder / "config.toml")
    if int(tree.get("format", 0)) > FORMAT:
        raise CheckpointError(f"{folder}: was made by a newer Triform: upgrade to open it")
    try:
        return build(settings_of(tree, folder / "config.toml"))
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}: is damaged ({error})") from None
