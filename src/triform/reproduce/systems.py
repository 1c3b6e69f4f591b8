"""Every reference system by name."""

from __future__ import annotations

from triform.errors import ConfigError
from triform.reproduce.imdb import IMDB_ENCODER
from triform.reproduce.multi30k import MULTI30K_EN_DE
from triform.reproduce.shakespeare import SHAKESPEARE_CHAR
from triform.reproduce.speeches import SPEECHES_CLASSIFIER, SPEECHES_LM, SPEECHES_WINDOW
from triform.reproduce.system import System
from triform.reproduce.ted import TED_EN_FR
from triform.reproduce.why.parts import NAME as WHY
from triform.reproduce.word_vectors import WORD_VECTORS_IMDB, WORD_VECTORS_SPEECHES
from triform.settings import nearest

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        *(IMDB_ENCODER, SHAKESPEARE_CHAR, TED_EN_FR),
        *(SPEECHES_CLASSIFIER, SPEECHES_LM, SPEECHES_WINDOW, MULTI30K_EN_DE),
        *(WORD_VECTORS_SPEECHES, WORD_VECTORS_IMDB),
    )
}


def system_of(name: str) -> System:
    if name not in SYSTEMS:
        raise ConfigError(f"unknown system {name!r}; {nearest(name, (*SYSTEMS, WHY))}")
    return SYSTEMS[name]


def systems_of(name: str) -> list[System]:
    """The system of this name, or those whose names begin with it: `word-vectors` is a study of two sets."""
    family = [system for known, system in SYSTEMS.items() if known.startswith(f"{name}-")]
    return family if family and name not in SYSTEMS else [system_of(name)]
