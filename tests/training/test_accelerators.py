"""What depends on a GPU and can be tested without one: the choice of a device, random states and the peak rate."""

from __future__ import annotations

import pytest
import torch

from triform.device import resolve_device
from triform.errors import ConfigError
from triform.training import throughput
from triform.training.rng import get_rng_state, set_rng_state


def test_each_process_of_a_machine_gets_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda", 1)
    assert resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="there is no GPU for process 2 of this machine, which has 1"):
        resolve_device("cuda")


def test_the_only_process_of_torchrun_gets_a_device_with_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert resolve_device("cuda") == torch.device("cuda", 0)  # init_process_group refuses one without an index


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_the_random_state_of_the_device_is_saved_and_restored(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, restored = torch.arange(5, dtype=torch.uint8), []
    monkeypatch.setattr(getattr(torch, kind), "get_rng_state", lambda *_: state)
    monkeypatch.setattr(getattr(torch, kind), "set_rng_state", lambda value, *_: restored.append(value))
    states = get_rng_state(torch.device(kind))
    assert states.keys() == {"cpu", kind}
    expected = torch.rand(3)
    set_rng_state(states, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)
    assert not restored  # of another device than that of the run
    set_rng_state(states, torch.device(kind))
    assert restored == [state]


def test_the_peak_rate_of_a_gpu_is_that_of_the_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    milliseconds = iter((5.0, 2.0, 4.0))

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None: ...

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Event) -> float:
            return next(milliseconds)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    random_state = torch.get_rng_state()
    rate = throughput._measure_matmul_flops(torch.device("cpu"), size=8, repeats=3)
    assert rate == pytest.approx(2 * 8**3 / 2e-3)
    assert torch.equal(torch.get_rng_state(), random_state)  # dropout does not depend on the measurement
