"""Write data.js, the numbers that the figures of docs/transformer show, from the run of the first page.

    python docs/transformer/figures/make.py runs/steps

Figures are opened from files, where a browser does not load JSON, so the data are a script.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from triform import scratch

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[2] / "reproduce" / "results" / "long-range.json"
SENTENCE = "Ada found a red bell near the mill. She took it home."
PREFIX = "window.transformerSteps = "
GROUPS = {
    "embedding": "embedding",
    "layer 1, attention": "blocks.0.attn",
    "layer 1, feed-forward": "blocks.0.ffn",
    "layer 2, attention": "blocks.1.attn",
    "layer 2, feed-forward": "blocks.1.ffn",
    "output": "final_norm lm_head",
}


def rounded(array: Any, digits: int = 3) -> Any:
    """Return an array as nested lists of short numbers."""
    return np.round(np.asarray(array, np.float64), digits).tolist()


def collect(run_folder: str) -> dict[str, Any]:
    """Return the numbers of all figures."""
    run = scratch.load(run_folder)
    assert isinstance(run, scratch.LanguageModel)
    model, tokenizer = run.model, run.tokenizer
    ids = np.array([tokenizer.encode(SENTENCE)])
    length = ids.shape[1]
    mask = scratch.attention.causal_mask(length, np.float32)
    x, _ = model.embedding(ids, None)
    stream, layers = {"embedding": x}, []
    for number, block in enumerate(model.blocks, start=1):
        h, _ = block.attn_norm(x)
        keys, values = np.split(block.attn.kv_proj(h)[0][0], 2, axis=-1)
        layers.append({"q": rounded(block.attn.q_proj(h)[0][0]), "k": rounded(keys), "v": rounded(values)})
        x = x + block.attn(h, h, [mask], None)[0]
        stream[f"layer {number}, attention"] = x
        x = x + block.ffn(block.ffn_norm(x)[0])[0]
        stream[f"layer {number}, feed-forward"] = x
    return {
        "sentence": SENTENCE,
        "words": [tokenizer.decode([token]) for token in ids[0].tolist()],
        "ids": ids[0].tolist(),
        "nHeads": run.config.model.n_heads,
        "embedding": rounded(model.embedding.token_embedding.weight.value[ids[0]]),
        "layers": layers,
        "stream": [{"name": name, "best": read_stream(run, x)} for name, x in stream.items()],
        "gradients": collect_gradients(run, ids),
        "distances": collect_distances(),
    }


def read_stream(run: scratch.LanguageModel, x: Any) -> list[list[tuple[str, float]]]:
    """Return the three most probable next words of each token, as if the model ended here."""
    logits, _ = run.model.lm_head(run.model.final_norm(x)[0])
    rows = scratch.attention.softmax(logits[0])
    best = np.argsort(-rows, axis=-1)[:, :3].tolist()
    return [
        [(run.tokenizer.decode([token]), rounded(row[token], 2)) for token in tokens]
        for row, tokens in zip(rows, best, strict=True)
    ]


def collect_gradients(run: scratch.LanguageModel, ids: Any) -> list[dict[str, Any]]:
    """Return the length of the gradient of each group of parameters, for each prediction and for all."""
    targets = [[target] for target in range(1, ids.shape[1])] + [list(range(1, ids.shape[1]))]
    rows = []
    for predicted in targets:
        expected = np.full(ids.shape, -100)
        expected[0, np.array(predicted) - 1] = ids[0, predicted]
        run.weights.grad.fill(0)
        loss, backward = run.model.loss(ids, expected)
        backward(1.0)
        norms = {
            group: rounded(
                np.sqrt(
                    sum(
                        float((parameter.grad.astype(np.float64) ** 2).sum())
                        for name, parameter in run.weights.named.items()
                        if name.startswith(tuple(prefixes.split()))
                    )
                )
            )
            for group, prefixes in GROUPS.items()
        }
        rows.append({"loss": rounded(loss), "norms": norms})
    return rows


def collect_distances() -> list[dict[str, Any]]:
    """Return the mean gradients by distance of the study `long-range`."""
    return [
        {
            "name": variant["name"],
            "gradients": {
                distance.removeprefix("distance "): float(
                    f"{statistics.mean(run['scores']['gradients'][distance] for run in variant['runs']):.3g}"
                )
                for distance in variant["runs"][0]["scores"]["gradients"]
            },
        }
        for variant in json.loads(RESULTS.read_text(encoding="utf-8"))["variants"]
    ]


def read_data() -> dict[str, Any]:
    """Return the numbers in data.js."""
    text = (FOLDER / "data.js").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text.removeprefix(PREFIX).rstrip().removesuffix(";"))
    return data


def write_data(run_folder: str) -> None:
    """Write data.js."""
    text = json.dumps(collect(run_folder), separators=(",", ":"), ensure_ascii=False)
    (FOLDER / "data.js").write_text(f"{PREFIX}{text};\n", encoding="utf-8")


if __name__ == "__main__":
    write_data(sys.argv[1])
