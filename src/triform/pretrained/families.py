"""The supported model families, and how to find the family of a checkpoint."""

from __future__ import annotations

from triform.config import TaskName
from triform.errors import ConfigError
from triform.pretrained.bert import BERT, DISTILBERT, MEGATRON_BERT
from triform.pretrained.blenderbot import BLENDERBOT
from triform.pretrained.checkpoint_reader import PretrainedCheckpoint
from triform.pretrained.family import Family
from triform.pretrained.gpt2 import GPT2
from triform.pretrained.llama import LLAMA
from triform.pretrained.marian import MARIAN
from triform.pretrained.name_mapping import expand_patterns
from triform.pretrained.nanogpt import NANOGPT

FAMILIES: tuple[Family, ...] = (GPT2, LLAMA, BERT, MEGATRON_BERT, DISTILBERT, MARIAN, BLENDERBOT, NANOGPT)
FAMILY_BY_MODEL_TYPE = {kind: family for family in FAMILIES for kind in family.model_types}
TASK_DESCRIPTIONS = {
    "classify": "an encoder for classification",
    "generate": "a decoder",
    "translate": "an encoder-decoder",
}


def find_family(checkpoint: PretrainedCheckpoint, task: TaskName) -> Family:
    """Return the family that the `model_type` in a checkpoint's config.json names.

    Raises:
        ConfigError: config.json has no `model_type`, the architecture is not supported, or it is for another task.
    """
    if not checkpoint.model_type:
        raise ConfigError(f"{checkpoint.config_path}: model_type is missing; {_suggest_model_type(checkpoint)}")
    if checkpoint.model_type not in FAMILY_BY_MODEL_TYPE:
        description = (
            f"{checkpoint.model_type} ({checkpoint.architecture})"
            if checkpoint.architecture
            else checkpoint.model_type
        )
        raise ConfigError(
            f"{checkpoint.folder}: the architecture {description} is not supported; "
            f"choose a model of one of these: {', '.join(FAMILY_BY_MODEL_TYPE)}"
        )
    family = FAMILY_BY_MODEL_TYPE[checkpoint.model_type]
    if family.task != task:
        raise ConfigError(
            f"{checkpoint.folder}: {checkpoint.model_type} is {TASK_DESCRIPTIONS[family.task]}; "
            f"use it with the task {family.task} instead of {task}"
        )
    return family


def _suggest_model_type(checkpoint: PretrainedCheckpoint) -> str:
    """Suggest a value for a missing `model_type`, from the class of the model or the names of its tensors."""
    candidates = {family.model_types[0]: family for family in FAMILIES if family.write_config}
    architecture = checkpoint.architecture.lower()
    model_type = next(
        (model_type for model_type in candidates if architecture.startswith(model_type.replace("-", ""))), ""
    )
    evidence = f"the class {checkpoint.architecture}"
    if not model_type:
        evidence = "the tensor names"
        match_counts = {
            model_type: _count_matching_names(checkpoint, family) for model_type, family in candidates.items()
        }
        model_type = max(match_counts, key=match_counts.__getitem__)
        if not match_counts[model_type]:
            return f'add the line "model_type": "NAME", where NAME is one of {", ".join(candidates)}'
    return f'judging by {evidence}, add the line "model_type": "{model_type}",'


def _count_matching_names(checkpoint: PretrainedCheckpoint, family: Family) -> int:
    """Return how many tensors of the checkpoint have a name that this family uses."""
    names = {name for mapping in expand_patterns(family.patterns, 1) for name in mapping.published_names}
    return sum(
        name in checkpoint.tensors or name.removeprefix(family.prefix) in checkpoint.tensors for name in names
    )
