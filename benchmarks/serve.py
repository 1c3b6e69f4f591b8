"""Serve many clients at once, compared with one client at a time and with `transformers`.

On a CPU: 200 clients send a mix of texts to classify, to continue and to translate for 60 seconds to three small
models. The throughput is compared with that of one client. On CUDA: 32 clients ask a GPT-2 of 124M parameters in
bf16 for 128 tokens each, compared with `generate` of `transformers` on a batch of the same 32 prompts.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import generate, peers
from benchmarks.load import ApiRequest, LoadResult, Server, percentile, run_clients, start_probe, start_server
from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from triform import train
from triform.training.run_folder import RunFolder
from triform.training.tensors import named_weights

PROMPT_LEN = 16
N_GPU_CLIENTS = 32


class Size(NamedTuple):
    d_model: int
    n_layers: int
    n_clients: int
    seconds: float  # of the load; a quarter of them for one client
    n_new: int


SMOKE = Size(16, 1, 8, 1.0, 8)
CPU = Size(128, 2, 200, 60.0, 32)
REVIEWS = (
    "A warm, clever film with a fine cast.",
    "Far too long, and the plot never begins. I left before the end and do not regret it at all.",
    "Not bad.",
)
SENTENCES = ("we go home", "we saw two ships", "where is it?")
PROMPTS = ("If you", "The king said", "Tell me why")


def train_models(folder: Path, size: Size) -> dict[str, Path]:
    """Train a small model for each task, for a few steps: its answers do not matter."""
    model = {"d_model": size.d_model, "n_layers": size.n_layers, "n_heads": 4}
    options: dict[str, Any] = {"model": model, "train": {"max_steps": 2}, "device": "cpu", "quiet": True}
    paths = {task: folder / task for task in ("classify", "generate", "translate")}
    for task, path in paths.items():
        train(task, out=path, **options)
    return paths


def make_request(client: int, index: int, n_new: int) -> ApiRequest:
    """Return one of three kinds of requests in turn, with texts of different lengths."""
    number = client + index
    if number % 3 == 0:
        return ApiRequest("classify", "/predict", {"inputs": REVIEWS[number // 3 % 3], "model": "classify"})
    if number % 3 == 1:
        body = {"prompt": PROMPTS[number // 3 % 3], "max_tokens": n_new, "temperature": 0.8, "seed": number}
        return ApiRequest("complete", "/v1/completions", {"model": "generate", **body})
    body = {"q": SENTENCES[number // 3 % 3], "source": "auto", "target": "fr", "model": "translate"}
    return ApiRequest("translate", "/translate", body)


def report_load(report: BenchmarkReport, title: str, result: LoadResult) -> None:
    report.add_figures(
        title,
        requests=result.n_requests,
        errors=len(result.errors),
        requests_per_s=result.requests_per_s,
        first_errors=result.errors[:3],
    )
    for kind, latencies in sorted(result.latencies.items()):
        report.add_figures(
            f"{title}, {kind}",
            requests=len(latencies),
            p50_ms=1e3 * percentile(latencies, 50),
            p95_ms=1e3 * percentile(latencies, 95),
        )


def measure_load(report: BenchmarkReport, server: Server, size: Size) -> None:
    """Measure one client, and then all of them, with requests to /health meanwhile."""

    def next_request(client: int, index: int) -> ApiRequest:
        return make_request(client, index, size.n_new)

    run_clients(server.port, size.n_clients, next_request, n_requests=3)  # to warm up
    cpu_seconds = [server.cpu_seconds()]
    one = run_clients(server.port, 1, next_request, seconds=size.seconds / 4)
    cpu_seconds.append(server.cpu_seconds())
    report_load(report, "1 client", one)
    memory_before = server.memory()
    probe = start_probe(server.port, size.seconds)
    many = run_clients(server.port, size.n_clients, next_request, seconds=size.seconds)
    cpu_seconds.append(server.cpu_seconds())
    latencies = json.loads(probe.communicate()[0])
    report_load(report, f"{size.n_clients} clients", many)
    one_per_cpu_s = one.n_requests / (cpu_seconds[1] - cpu_seconds[0])
    many_per_cpu_s = many.n_requests / (cpu_seconds[2] - cpu_seconds[1])
    report.add_figures(
        f"throughput of {size.n_clients} clients",
        times_one_client=many.requests_per_s / one.requests_per_s,
        times_one_client_in_cpu_time=many_per_cpu_s / one_per_cpu_s,
    )
    report.add_figures(
        "/health under load",
        requests=len(latencies),
        p50_ms=1e3 * percentile(latencies, 50),
        p99_ms=1e3 * percentile(latencies, 99),
        max_ms=1e3 * max(latencies),
    )
    report.add_figures("memory of the server", before_mib=memory_before, after_mib=server.memory())


def compare_with_transformers(report: BenchmarkReport, folder: Path) -> None:
    """Compare tokens per second of 32 clients with a batch of 32 prompts in `transformers`."""
    if not peers.import_peer("transformers"):
        report.add_skipped("transformers", "not installed, but the benchmark needs its weights")
        return
    size = (generate.SMOKE if report.smoke else generate.GPU)._replace(n_new=6 if report.smoke else 128)
    tokenizer = peers.build_tokenizer(size.vocab_size)
    peer_model = peers.build_gpt2(size.width, size.layers, size.heads, tokenizer.vocab_size, size.max_len)
    task = generate.build_task(size, tokenizer, peer_model)
    run_folder = RunFolder(folder / "gpt2")
    run_folder.path.mkdir()
    task.save(run_folder.path)
    run_folder.write_weights(named_weights(task.model))
    run_folder.write_config(task.config)
    prompts = peers.generate_texts(tokenizer, [PROMPT_LEN] * N_GPU_CLIENTS)
    decode_batch = generate.build_transformers_runner(report, peer_model, tokenizer, size.n_new)
    precision = "bf16" if report.cuda else "fp32"

    def next_request(client: int, index: int) -> ApiRequest:
        body = {"model": "gpt2", "prompt": prompts[client], "max_tokens": size.n_new, "temperature": 0}
        return ApiRequest("complete", "/v1/completions", body)

    options = ("--device", report.device.type, "--precision", precision, "--max-batch", str(N_GPU_CLIENTS))
    with start_server(f"gpt2={run_folder.path}", *options) as server:

        def send_all() -> LoadResult:
            result = run_clients(server.port, N_GPU_CLIENTS, next_request, n_requests=1, keep_answers=True)
            assert not result.errors, result.errors[0]
            return result

        n_tokens = sum(answer["usage"]["completion_tokens"] for answer in send_all().answers)
        report.add_figures("the answers", clients=N_GPU_CLIENTS, tokens=n_tokens)
        contestants = {"triform serve": send_all, "transformers generate": lambda: decode_batch(prompts)}
        title = f"{N_GPU_CLIENTS} prompts, {size.n_new} tokens each"
        report.measure(title, contestants, 1 if report.smoke else 5, units=n_tokens, unit="tokens")


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("serve", parse_options(__doc__, arguments))
    with tempfile.TemporaryDirectory() as name:
        if report.cuda:
            compare_with_transformers(report, Path(name))
        else:
            size = SMOKE if report.smoke else CPU
            paths = train_models(Path(name), size)
            with start_server(*(f"{task}={path}" for task, path in paths.items()), "--device", "cpu") as server:
                measure_load(report, server, size)
    report.write()


if __name__ == "__main__":
    main()
