"""Every family that is known, by the model_type of its config.json."""

from __future__ import annotations

from triform.config import TaskName
from triform.errors import ConfigError
from triform.pretrained.bert import BERT, DISTILBERT
from triform.pretrained.family import Family
from triform.pretrained.gpt2 import GPT2
from triform.pretrained.llama import LLAMA
from triform.pretrained.marian import MARIAN
from triform.pretrained.nanogpt import NANOGPT
from triform.pretrained.read import Foreign

FAMILIES: tuple[Family, ...] = (GPT2, LLAMA, BERT, DISTILBERT, MARIAN, NANOGPT)
BY_KIND = {kind: family for family in FAMILIES for kind in family.kinds}
DOES = {"classify": "an encoder, which classifies", "generate": "a decoder", "translate": "an encoder-decoder"}


def family_of(foreign: Foreign, task: TaskName) -> Family:
    """The family of a folder, where it is one that does this task."""
    known = ", ".join(BY_KIND)
    if foreign.kind not in BY_KIND:
        named = " ".join(name for name in (foreign.kind, f"({foreign.architecture})") if name.strip("()"))
        raise ConfigError(
            f"{foreign.place}: the architecture {named or 'that config.json does not name'} is not known; "
            f"known are {known}"
        )
    family = BY_KIND[foreign.kind]
    if family.task != task:
        raise ConfigError(
            f"{foreign.place}: {foreign.kind} is {DOES[family.task]}: use it to {family.task}, not {task}"
        )
    return family
