"""How threads wait for each other: the choice of a command, and what `triform doctor` says about it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from triform.cli import threads

Command = Any  # `triform(...)` of conftest


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in threads.WAIT_VARIABLES:
        monkeypatch.setenv(name, "")  # so that the variable is restored after the test
        monkeypatch.delenv(name)


def test_a_command_lets_waiting_threads_sleep_after_a_short_spin(triform: Command) -> None:
    assert triform("--version").code == 0
    assert os.environ["GOMP_SPINCOUNT"] == "3000"
    assert "asleep after a short spin" in threads.describe_waiting()


@pytest.mark.parametrize("name", threads.WAIT_VARIABLES)
def test_a_choice_of_the_user_is_kept(triform: Command, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert triform("--version").code == 0
    assert [variable for variable in threads.WAIT_VARIABLES if variable in os.environ] == [name]
    assert threads.describe_waiting() == f"as the environment says ({name}=1)"


def test_without_a_choice_threads_spin() -> None:
    assert "spinning" in threads.describe_waiting()
