"""Every reference system by name."""

from __future__ import annotations

from triform.config.settings import suggest_name
from triform.errors import ConfigError
from triform.experiments.reproduce.imdb import IMDB_ENCODER
from triform.experiments.reproduce.multi30k import MULTI30K_EN_DE
from triform.experiments.reproduce.shakespeare import SHAKESPEARE_CHAR
from triform.experiments.reproduce.speeches import SPEECHES_CLASSIFIER, SPEECHES_LM, SPEECHES_WINDOW
from triform.experiments.reproduce.system import ReferenceSystem
from triform.experiments.reproduce.ted import TED_EN_FR
from triform.experiments.reproduce.why.parts import STUDY_NAME as WHY
from triform.experiments.reproduce.word_vectors import WORD_VECTORS_IMDB, WORD_VECTORS_SPEECHES

SYSTEMS: dict[str, ReferenceSystem] = {
    system.name: system
    for system in (
        *(IMDB_ENCODER, SHAKESPEARE_CHAR, TED_EN_FR),
        *(SPEECHES_CLASSIFIER, SPEECHES_LM, SPEECHES_WINDOW, MULTI30K_EN_DE),
        *(WORD_VECTORS_SPEECHES, WORD_VECTORS_IMDB),
    )
}


def get_system(name: str) -> ReferenceSystem:
    if name not in SYSTEMS:
        raise ConfigError(f"unknown system {name!r}; {suggest_name(name, (*SYSTEMS, WHY))}")
    return SYSTEMS[name]


def match_systems(name: str) -> list[ReferenceSystem]:
    """The system of this name, or those whose names begin with it: `word-vectors` is a study of two sets."""
    matches = [system for system_name, system in SYSTEMS.items() if system_name.startswith(f"{name}-")]
    return matches if matches and name not in SYSTEMS else [get_system(name)]
