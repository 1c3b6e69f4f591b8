"""What is said of speed: a card's rate is measured once, and never at the cost of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from triform.training import throughput
from triform.training.train_step import StepStats

DEVICE = torch.device("cuda", 0)
STEP = StepStats(n_predictions=5, n_tokens=50, n_positions=100)


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A card that is made up: its rates, the next one last."""
    lrs: list[float] = [2e12, 1e12]
    monkeypatch.setenv("TRIFORM_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "card")
    monkeypatch.setattr(throughput, "_measure_matmul_flops", lambda device: lrs.pop())
    monkeypatch.setattr(throughput, "peak_memory", lambda device: 0)
    throughput.peak_matmul_flops.cache_clear()
    return lrs


@pytest.mark.parametrize(
    "before", ["", "no json", "[]", '"text"', '{"other": 5.0}', f'{{"card, torch {torch.__version__}": "x"}}']
)
def test_a_rate_is_measured_once_and_those_of_other_cards_stay(before: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix-rates.json"
    if before:
        path.write_text(before, encoding="utf-8")
    assert throughput.peak_matmul_flops(DEVICE) == 1e12
    throughput.peak_matmul_flops.cache_clear()
    assert throughput.peak_matmul_flops(DEVICE) == 1e12
    assert ("other" in json.loads(path.read_text(encoding="utf-8"))) == ("other" in before)


def test_where_there_is_no_room_to_measure_it_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_out_of_memory(device: torch.device) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(throughput, "_measure_matmul_flops", raise_out_of_memory)
    meter = throughput.ThroughputMeter(DEVICE, flops_per_token=1e6)
    assert "utilisation" not in meter.read([STEP])


def test_a_meter_tells_the_share_of_real_tokens_and_of_the_card() -> None:
    meter = throughput.ThroughputMeter(DEVICE, flops_per_token=1e6)
    rates = meter.read([STEP] * 4)
    assert rates["real_share"] == 0.5
    assert rates["utilisation"] == pytest.approx(1e6 * rates["tokens_per_s"] / 1e12)
