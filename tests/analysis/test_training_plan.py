"""The formulas of `triform plan`, compared with values that were computed by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt

import pytest

from triform.analysis.cluster import GPUS, Cluster
from triform.analysis.cost_model import Workload
from triform.analysis.costs import estimate_costs
from triform.analysis.device_memory import (
    BlockSizes,
    estimate_device_memory,
    find_fewest_devices,
    find_micro_batch,
    measure_blocks,
)
from triform.analysis.failures import Reliability, plan_checkpoints
from triform.analysis.model_shape import build_config_of_size
from triform.analysis.parameters import count_parameters
from triform.analysis.step_time import (
    DeviceBatch,
    ModelSize,
    count_bytes_moved,
    count_collectives,
    estimate_step_time,
)
from triform.analysis.training_plan import measure_model, plan_training
from triform.config import DataSizes
from triform.config.presets import preset
from triform.errors import ConfigError

GB = 10**9
CLUSTER = Cluster(
    gpus=16, gpus_per_node=8, memory_bytes=80 * GB, peak_flops=1e15, utilisation=0.5, node_bandwidth=400 * GB,
    network_bandwidth=25 * GB, overlap=0.5,
)  # fmt: skip
MODEL = ModelSize(n_params=10**9, n_trainable=10**9, n_blocks=9, flops_per_token=6e9)
BATCH = DeviceBatch(tokens=100_000, micro_batches=1)
RELIABILITY = Reliability(device_mtbf=1.8e8, storage_bandwidth=5e9, restart_seconds=600.0)
GPT2, GPT2_SIZES = preset("gpt2-small"), DataSizes(vocab_size=50_257, max_len=1_024)
GPT2_WORKLOAD = Workload(batch_size=16, length=1_024, precision="bf16")


# -- links


def test_a_ring_over_nodes_is_limited_by_all_links_that_leave_a_node() -> None:
    assert CLUSTER.nodes == 2
    assert CLUSTER.bus_bandwidth == 8 * 25 * GB  # less than the 400 GB/s inside a node
    assert replace(CLUSTER, network_bandwidth=60 * GB).bus_bandwidth == 400 * GB
    assert replace(CLUSTER, gpus=8).bus_bandwidth == 400 * GB


def test_each_hop_of_a_ring_adds_its_latency() -> None:
    assert CLUSTER.ring_latency == pytest.approx(14 * 3.4e-6 + 1 * 14e-6)
    assert replace(CLUSTER, gpus=1, gpus_per_node=1).ring_latency == 0


def test_an_all_reduce_uses_a_tree_over_many_nodes() -> None:
    many = replace(CLUSTER, gpus=1_024)
    assert many.all_reduce_latency == pytest.approx(2 * (7 * 4e-6 + 7 * 14e-6))  # 128 nodes are 7 levels
    assert many.all_reduce_latency < 2 * many.ring_latency
    assert replace(CLUSTER, gpus=2, gpus_per_node=2).all_reduce_latency == pytest.approx(2 * 3.4e-6)


def test_presets_of_gpus_have_the_figures_of_their_data_sheets() -> None:
    assert {gpu.name: gpu.memory_bytes // GB for gpu in GPUS.values()} == {"H200": 141, "H100": 80, "A100": 80}
    assert {gpu.name: gpu.peak_flops["bf16"] / 1e12 for gpu in GPUS.values()} == {
        "H200": 989, "H100": 989, "A100": 312,
    }  # fmt: skip


# -- time of a step


def test_ddp_sends_every_gradient_twice_and_fsdp_gathers_weights_twice() -> None:
    assert count_bytes_moved("ddp", MODEL, BATCH, 16) == 2 * 15 / 16 * 4e9
    assert count_bytes_moved("fsdp", MODEL, BATCH, 16) == 15 / 16 * (2 * 2e9 + 4e9)
    assert count_bytes_moved("fsdp", MODEL, replace(BATCH, micro_batches=3), 16) == 3 * 15 / 16 * 8e9
    assert count_bytes_moved("ddp", MODEL, replace(BATCH, micro_batches=3), 16) == 2 * 15 / 16 * 4e9
    assert count_bytes_moved("ddp", MODEL, BATCH, 1) == count_bytes_moved("fsdp", MODEL, BATCH, 1) == 0


def test_adapters_send_only_the_gradients_of_trained_parameters() -> None:
    adapters = replace(MODEL, n_trainable=10**6)
    assert count_bytes_moved("ddp", adapters, BATCH, 2) == 4e6
    assert count_bytes_moved("fsdp", adapters, BATCH, 2) == 0.5 * (4e9 + 4e6)


def test_ddp_has_one_collective_for_each_bucket_and_fsdp_three_for_each_block() -> None:
    assert count_collectives("ddp", MODEL, BATCH) == 153  # 4e9 / (25 · 2^20) = 152.6
    assert count_collectives("fsdp", MODEL, BATCH) == 30
    assert count_collectives("fsdp", MODEL, replace(BATCH, micro_batches=2)) == 60


def test_a_step_takes_its_computation_and_the_communication_that_is_not_hidden() -> None:
    step = estimate_step_time("fsdp", MODEL, BATCH, CLUSTER)
    assert step.computation == pytest.approx(100_000 * 6e9 / 5e14)  # 1.2 s
    assert step.communication == pytest.approx(7.5e9 / 2e11 + 30 * 61.6e-6)
    assert step.waiting == pytest.approx(step.communication / 2)  # half of it overlaps
    assert step.total == pytest.approx(1.2 + (0.0375 + 0.001848) / 2)


def test_communication_hides_only_behind_computation() -> None:
    slow = replace(CLUSTER, network_bandwidth=GB / 8, overlap=1.0)  # 1 GB/s: 7.5 s of communication
    sharded = estimate_step_time("fsdp", MODEL, BATCH, slow)
    assert sharded.waiting == pytest.approx(sharded.communication - 1.2)
    replicated = estimate_step_time("ddp", MODEL, BATCH, slow)
    assert replicated.waiting == pytest.approx(replicated.communication - 0.8)  # behind the backward pass
    accumulated = estimate_step_time("ddp", MODEL, replace(BATCH, micro_batches=4), slow)
    assert accumulated.waiting == pytest.approx(accumulated.communication - 0.2)  # behind the last backward pass


def test_one_device_waits_for_nobody() -> None:
    step = estimate_step_time("ddp", MODEL, BATCH, replace(CLUSTER, gpus=1, gpus_per_node=1))
    assert step.communication == step.waiting == 0


# -- memory


def test_ddp_needs_the_memory_of_one_device_and_fsdp_divides_the_state() -> None:
    costs = estimate_costs(GPT2, GPT2_SIZES, GPT2_WORKLOAD)
    replicated = estimate_device_memory("ddp", GPT2, GPT2_SIZES, GPT2_WORKLOAD, 8)
    assert replicated.total == costs.training_bytes
    sharded = dict(estimate_device_memory("fsdp", GPT2, GPT2_SIZES, GPT2_WORKLOAD, 8).items)
    assert sharded["weights"] == sharded["gradients"] == 124_439_808 * 4 // 8
    assert sharded["state of adamw"] == 124_439_808
    assert sharded["activations"] == costs.activation_bytes
    block, outside = 7_087_872, 39_385_344  # 12 blocks; the embeddings and the last norm
    assert sharded["gathered weights"] == 2 * 2 * block + 4 * outside
    assert sharded["gradients before they are summed"] == 8 * outside
    assert "weights in bf16" not in sharded


def test_the_blocks_of_a_model_and_everything_else_are_all_of_it() -> None:
    assert measure_blocks(count_parameters(GPT2, GPT2_SIZES)) == BlockSizes(
        n_blocks=12, largest_block=7_087_872, outside=39_385_344
    )
    translator = preset("transformer-base")
    blocks = measure_blocks(count_parameters(translator, DataSizes(vocab_size=1_000, max_len=64)))
    assert blocks.n_blocks == 12  # 6 of the encoder, 6 of the decoder


def test_the_micro_batch_is_the_largest_that_fits() -> None:
    def total(batch_size: int) -> int:
        workload = replace(GPT2_WORKLOAD, batch_size=batch_size)
        return estimate_device_memory("ddp", GPT2, GPT2_SIZES, workload, 8).total

    memory = round(total(5) / 0.8) + 1
    assert find_micro_batch("ddp", GPT2, GPT2_SIZES, GPT2_WORKLOAD, 8, memory) == 5
    assert find_micro_batch("ddp", GPT2, GPT2_SIZES, GPT2_WORKLOAD, 8, 10 * GB**2) == 16
    assert find_micro_batch("ddp", GPT2, GPT2_SIZES, GPT2_WORKLOAD, 8, GB) == 0


def test_the_fewest_devices_are_enough_and_one_node_less_is_not() -> None:
    config, sizes = build_config_of_size(70 * GB, 32_000, 2_048)
    workload = Workload(batch_size=1, length=2_048, precision="bf16")
    fewest = find_fewest_devices(config, sizes, workload, 141 * GB, 8, 1 << 20)
    assert fewest % 8 == 0
    assert find_micro_batch("fsdp", config, sizes, workload, fewest, 141 * GB) == 1
    assert find_micro_batch("fsdp", config, sizes, workload, fewest - 8, 141 * GB) == 0
    assert find_fewest_devices(config, sizes, workload, GB, 8, 1 << 20) == 0


# -- checkpoints and failures


def test_the_interval_between_checkpoints_is_that_of_young_and_daly() -> None:
    plan = plan_checkpoints(100 * GB, 20 * GB, 1_000, RELIABILITY)
    assert (plan.write_seconds, plan.pause_seconds, plan.mtbf) == (20, 1, 180_000)
    assert plan.interval == 600 == sqrt(2 * 1 * 180_000)
    assert plan.loss_per_failure == 300 + 20 + 600
    assert plan.slowdown == pytest.approx((1 + 1 / 600) / (1 - 920 / 180_000))


def test_checkpoints_are_not_closer_than_their_time_of_writing() -> None:
    assert plan_checkpoints(10_000 * GB, GB, 1_000, RELIABILITY).interval == 2_000


def test_a_chosen_interval_is_used_and_costs_more_than_the_best_one() -> None:
    best = plan_checkpoints(100 * GB, 20 * GB, 1_000, RELIABILITY)
    for interval in (200.0, 1_800.0):
        plan = plan_checkpoints(100 * GB, 20 * GB, 1_000, replace(RELIABILITY, interval=interval))
        assert plan.interval == interval
        assert plan.slowdown > best.slowdown


def test_a_run_whose_failures_cost_all_its_time_never_ends() -> None:
    assert plan_checkpoints(100 * GB, 20 * GB, 1_000_000, RELIABILITY).slowdown == inf


# -- the whole plan


def test_a_chosen_shape_has_about_as_many_parameters_as_asked_for() -> None:
    for count in (10**9, 7 * GB, 70 * GB, 405 * GB):
        config, sizes = build_config_of_size(count, 32_000, 2_048)
        assert count_parameters(config, sizes).total == pytest.approx(count, rel=0.03)
        assert config.model.d_model / config.model.n_layers == pytest.approx(128, rel=0.05)
    with pytest.raises(ConfigError, match="too few for a vocabulary of 32,000 tokens"):
        build_config_of_size(1_000, 32_000, 2_048)


def test_operations_per_token_count_attention_in_full() -> None:
    model = measure_model(GPT2, GPT2_SIZES, GPT2_WORKLOAD)
    matrices = 12 * 12 * 768**2 + 50_257 * 768
    assert model.flops_per_token == 6 * matrices + 12 * 12 * 1_024 * 768


def test_a_plan_derives_speed_and_duration_from_the_step() -> None:
    plan = plan_training(GPT2, GPT2_SIZES, GPT2_WORKLOAD, CLUSTER, reliability=RELIABILITY, training_tokens=10**9)
    assert (plan.engine, plan.batch.micro_batches, plan.workload.batch_size) == ("ddp", 1, 16)
    assert plan.tokens_per_step == 16 * 16 * 1_024
    assert plan.tokens_per_second == pytest.approx(plan.tokens_per_step / plan.step.total)
    assert plan.n_steps == 3_815  # 10^9 / 262,144 = 3,814.7
    assert plan.training_seconds == pytest.approx(3_815 * plan.step.total)
    assert plan.model_flop_utilisation == pytest.approx(0.5 * plan.step.computation / plan.step.total)
    assert plan.scaling_efficiency == pytest.approx(plan.node_step.total / plan.step.total)
    assert plan.node_step.communication < plan.step.communication
    assert plan.checkpoints.size == 12 * 124_439_808
    assert plan.expected_seconds == pytest.approx(plan.training_seconds * plan.checkpoints.slowdown)


def test_a_model_that_fits_no_device_is_sharded_and_its_batch_is_split() -> None:
    config, sizes = build_config_of_size(7 * GB, 32_000, 2_048)
    workload = Workload(batch_size=12, length=2_048, precision="bf16")
    cluster = replace(CLUSTER, gpus=64)
    plan = plan_training(config, sizes, workload, cluster, reliability=RELIABILITY)
    assert (plan.engine, plan.fits) == ("fsdp", {"ddp": False, "fsdp": True})
    assert plan.batch.micro_batches > 1
    assert plan.batch.tokens == plan.batch.micro_batches * plan.workload.batch_size * 2_048 >= 12 * 2_048
    assert plan.memory["fsdp"].fits(cluster.memory_bytes)
    assert plan.training_tokens == 20 * plan.model.n_params
    with pytest.raises(ConfigError, match=r"with DDP on 64 GPUs, .*\. FSDP fits: write --parallel fsdp\."):
        plan_training(config, sizes, workload, cluster, reliability=RELIABILITY, engine="ddp")
