"""Two hosts, each a network namespace with its own address, train one model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import SCRIPT, TIMEOUT_SECONDS, child_environment, find_errors, torchrun_command, wait_for

HOSTS = {"tf-a": "10.213.7.1", "tf-b": "10.213.7.2"}
RUN = {
    "task": "classify",
    "model": {"d_model": 8, "d_ff": 16, "n_layers": 1, "n_heads": 2},
    "train.batch_size": 8,
    "train.max_steps": 4,
    "train.exact": True,
}


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """The addresses of two network namespaces that a virtual cable connects."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("making network namespaces needs the program ip and the rights of root")
    suffix = os.getpid() % 10_000
    names = {f"{name}{suffix}": address for name, address in HOSTS.items()}
    first, second = names
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add {first} netns {first} type veth peer name {second} netns {second}")
    for name, address in names.items():
        commands += [f"-n {name} addr add {address}/24 dev {name}", f"-n {name} link set {name} up"]
        commands.append(f"-n {name} link set lo up")
    try:
        for command in commands:
            completed = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if completed.returncode:
                pytest.skip(f"this machine cannot make network namespaces: {completed.stderr.strip()}")
        yield names
    finally:
        for name in names:
            for pid in host_processes(name):
                os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def host_processes(name: str) -> list[int]:
    """The processes of a host."""
    return [int(pid) for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True).stdout.split()]


def start_host(
    name: str, address: str, main_address: str, folder: Path, timeout_seconds: str = "60"
) -> subprocess.Popen[str]:
    """Start torchrun on a host. On the second one, the folder `private` is another one."""
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{main_address}:29413", "--rdzv-id", "two-hosts")
    is_host = f"is_host={int(address == main_address)}"  # torchrun would look for it by the name of the machine
    options = ("--nnodes", "2", *rendezvous, "--rdzv-conf", is_host, "--local-addr", address)
    command = torchrun_command(1, str(SCRIPT), str(folder), options=options)
    if address != main_address:
        mount = f"mount -t tmpfs none '{folder}/private'"
        command = ["sh", "-c", f'{mount} && exec "$@"', "sh", *command]
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(GLOO_SOCKET_IFNAME=name, TRIFORM_TIMEOUT=timeout_seconds),
    )


def test_two_hosts_train_one_model_and_need_one_run_folder(hosts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "rows.csv").write_text("".join(f"{'good' if n % 2 else 'bad'},thing {n}\n" for n in range(40)))
    runs = [
        RUN | {"name": "run", "data": str(tmp_path / "rows.csv")},
        RUN | {"name": "private/run", "data": str(tmp_path / "rows.csv"), "fails": True},
    ]
    (tmp_path / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    main_address = next(iter(hosts.values()))
    processes = [start_host(name, address, main_address, tmp_path) for name, address in hosts.items()]
    errors = [process.communicate(timeout=TIMEOUT_SECONDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert (tmp_path / "run" / "model.safetensors").exists()
    records = [json.loads((tmp_path / f"seen-{rank}.jsonl").read_text().splitlines()[0]) for rank in range(2)]
    assert all(record["rows"] for record in records)
    lines = [line for text in errors for line in text.splitlines() if line.startswith("triform: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("triform: rank 1: ")
    assert "is not the run folder of rank 0; use a folder that all machines share" in lines[0]
    assert not (tmp_path / "private" / "run" / "model.safetensors").exists()


def test_a_host_that_cannot_reach_rank_0_ends_with_one_line(hosts: dict[str, str], tmp_path: Path) -> None:
    """With the usual timeout of 10 minutes, and although it is asked to stop, which needs the answer of rank 0."""
    (tmp_path / "private").mkdir()
    (tmp_path / "rows.csv").write_text("".join(f"{'good' if n % 2 else 'bad'},thing {n}\n" for n in range(40)))
    endless = RUN | {"name": "run", "data": str(tmp_path / "rows.csv"), "train.exact": False}
    endless |= {f"train.{name}": 10**6 for name in ("max_steps", "eval_every", "checkpoint_every")}
    (tmp_path / "runs.json").write_text(json.dumps([endless]), encoding="utf-8")
    main_address = next(iter(hosts.values()))
    processes = [start_host(name, address, main_address, tmp_path, "") for name, address in hosts.items()]
    second, steps = list(hosts)[1], tmp_path / "seen-1.jsonl"
    wait_for(lambda: steps.exists() and steps.stat().st_size > 1_000)
    subprocess.run(["ip", "-n", second, "link", "set", second, "down"], check=True)
    for pid in host_processes(second):
        os.kill(pid, signal.SIGTERM)
    _, error = processes[1].communicate(timeout=60)
    assert processes[1].returncode
    (line,) = find_errors(error)
    assert line.startswith(f"triform: rank 1 has had no answer from {main_address}:")
