"""Every family that is known, by the model_type of its config.json."""

from __future__ import annotations

from triform.config import TaskName
from triform.errors import ConfigError
from triform.pretrained.bert import BERT, DISTILBERT, MEGATRON_BERT
from triform.pretrained.blenderbot import BLENDERBOT
from triform.pretrained.family import Family
from triform.pretrained.gpt2 import GPT2
from triform.pretrained.llama import LLAMA
from triform.pretrained.marian import MARIAN
from triform.pretrained.names import sames
from triform.pretrained.nanogpt import NANOGPT
from triform.pretrained.read import Foreign

FAMILIES: tuple[Family, ...] = (GPT2, LLAMA, BERT, MEGATRON_BERT, DISTILBERT, MARIAN, BLENDERBOT, NANOGPT)
BY_KIND = {kind: family for family in FAMILIES for kind in family.kinds}
DOES = {"classify": "an encoder, which classifies", "generate": "a decoder", "translate": "an encoder-decoder"}


def family_of(foreign: Foreign, task: TaskName) -> Family:
    """The family of a folder, where it is one that does this task."""
    if not foreign.kind:
        raise ConfigError(f"{foreign.where}: does not name its model_type; {_line_to_add(foreign)}")
    if foreign.kind not in BY_KIND:
        named = f"{foreign.kind} ({foreign.architecture})" if foreign.architecture else foreign.kind
        raise ConfigError(f"{foreign.place}: the architecture {named} is not known; known are {', '.join(BY_KIND)}")
    family = BY_KIND[foreign.kind]
    if family.task != task:
        raise ConfigError(
            f"{foreign.place}: {foreign.kind} is {DOES[family.task]}: use it to {family.task}, not {task}"
        )
    return family


def _line_to_add(foreign: Foreign) -> str:
    """The line that config.json lacks, guessed from the class that wrote the weights or from its tensors."""
    known = {family.kinds[0]: family for family in FAMILIES if family.write}
    written_by = foreign.architecture.lower()
    kind = next((kind for kind in known if written_by.startswith(kind.replace("-", ""))), "")
    source = f"{foreign.architecture} means"
    if not kind:
        source = "the names of its tensors mean"
        shared = {kind: _shared_names(foreign, family) for kind, family in known.items()}
        kind = max(shared, key=shared.__getitem__)
        if not shared[kind]:
            return f'add the line "model_type": "NAME", with one of {", ".join(known)}'
    return f'{source} that the line to add is "model_type": "{kind}",'


def _shared_names(foreign: Foreign, family: Family) -> int:
    """How many tensors of the folder have a name that this family gives."""
    names = {name for same in sames(family.pairs, 1) for name in same.theirs}
    return sum(name in foreign.tensors or name.removeprefix(family.prefix) in foreign.tensors for name in names)
