"""Classify texts of mixed length, compared with padded loops over nn.TransformerEncoder.

Every contestant gets the same texts and predicts a label for each, including tokenization. The Transformers have
the same tokenizer and the same weights. The loops use batches of 32 in the given order, in eval and inference
mode. scikit-learn's TF-IDF with logistic regression is a different model and shows the scale.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import quality
from benchmarks.options import parse_options
from benchmarks.report import BenchmarkReport
from triform.config import Config, TokenizerConfig
from triform.config.settings import build_config
from triform.nn.kernels.precision import cast_model
from triform.nn.layouts import pad
from triform.tasks.classify import Classify
from triform.text import Tokenizer, train_tokenizer

LABELS, MAX_LEN, BATCH_SIZE = ("a", "b", "c", "d"), 128, 32
WORDS = [first + second + third for first in "bdfgklmnprst" for second in "aeiou" for third in "lmnrst"]


def generate_texts(n_texts: int) -> list[str]:
    """Return texts of random words with the lengths of sentences: most near twenty words, some a hundred."""
    rng = random.Random(0)
    lengths = [max(4, min(MAX_LEN, int(rng.lognormvariate(3.0, 0.7)))) for _ in range(n_texts)]
    return [" ".join(rng.choices(WORDS, k=length)) for length in lengths]


class PlainClassifier(nn.Module):
    """A classifier written with torch.nn, with the weights of one of Triform's classifiers."""

    def __init__(self, task: Classify, *, nested: bool) -> None:
        super().__init__()
        config, own_model = task.config.model, copy.deepcopy(task.model)
        self.token_embedding, self.head = own_model.encoder.embedding.token_embedding, own_model.classification_head
        self.position_embedding = own_model.encoder.embedding.position_embedding.table
        layer = nn.TransformerEncoderLayer(
            config.d_model, config.n_heads, config.d_ff, activation="gelu", batch_first=True, norm_first=False
        )
        self.encoder = nn.TransformerEncoder(layer, config.n_layers, enable_nested_tensor=nested)
        for own_block, torch_layer in zip(own_model.encoder.blocks, self.encoder.layers, strict=True):
            _copy_block(own_block, torch_layer)

    def forward(self, tokens: Tensor, padding_mask: Tensor) -> Tensor:  # (B, T), (B, T) -> (B, labels)
        x = self.token_embedding(tokens) + self.position_embedding(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        x = self.encoder(x, src_key_padding_mask=padding_mask)
        keep = (~padding_mask[:, : x.shape[1], None]).to(x.dtype)
        return self.head((x * keep).sum(dim=1) / keep.sum(dim=1))


@torch.no_grad()
def _copy_block(own_block: Any, torch_layer: Any) -> None:
    attention = torch_layer.self_attn
    attention.in_proj_weight.copy_(torch.cat([own_block.attn.q_proj.weight, own_block.attn.kv_proj.weight]))
    attention.in_proj_bias.copy_(torch.cat([own_block.attn.q_proj.bias, own_block.attn.kv_proj.bias]))
    module_pairs = (
        (own_block.attn.out_proj, attention.out_proj),
        (own_block.ffn.up_proj, torch_layer.linear1),
        (own_block.ffn.down_proj, torch_layer.linear2),
        (own_block.attn_norm, torch_layer.norm1),
        (own_block.ffn_norm, torch_layer.norm2),
    )
    for source, target in module_pairs:
        target.load_state_dict(source.state_dict())


def build_plain_predictor(
    model: PlainClassifier, tokenizer: Tokenizer, device: torch.device, *, fixed_length: int
) -> Callable[..., Any]:
    """Return a function that predicts batches in the given order, padded to their longest text or to `longest`."""

    @torch.inference_mode()
    def predict_labels(texts: list[str]) -> list[int]:
        rows = tokenizer.encode_batch(texts)
        labels: list[int] = []
        for start in range(0, len(rows), BATCH_SIZE):
            batch_rows = rows[start : start + BATCH_SIZE]
            tokens, keep_mask = pad([*batch_rows, [0] * fixed_length])
            padding_mask = torch.zeros_like(tokens, dtype=torch.bool) if keep_mask is None else ~keep_mask
            labels += model(tokens[:-1].to(device), padding_mask[:-1].to(device)).argmax(-1).tolist()
        return labels

    return predict_labels


def build_task(report: BenchmarkReport, texts: list[str]) -> Classify:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), texts)
    width, layers = (32, 1) if report.smoke else (512, 6)
    settings = {
        "task": "classify", "data.labels": LABELS, "data.max_len": MAX_LEN, "tokenizer.kind": "word",
        "model.d_model": width, "model.d_ff": 4 * width, "model.n_layers": layers,
        "model.n_heads": max(2, width // 64),
        "model.norm_position": "post", "model.final_norm": False, "model.dropout": 0.0,
    }  # fmt: skip
    task = Classify(build_config(settings, Config()), tokenizer)
    task.model.to(report.device).eval()
    return task


def build_tfidf_predictor(texts: list[str]) -> Callable[..., Any] | None:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
    except ImportError:
        return None
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    model.fit(texts, [index % len(LABELS) for index in range(len(texts))])
    return model.predict


def build_contestants(report: BenchmarkReport, texts: list[str]) -> dict[str, Callable[..., Any]]:
    task = build_task(report, texts)
    label_index = {name: index for index, name in enumerate(task.config.data.labels)}
    predictors: dict[str, Callable[..., Any]] = {}
    for precision in quality.supported_precisions(report.device):
        variant = copy.copy(task)
        variant.model = copy.deepcopy(task.model)
        cast_model(variant.model, precision)
        name = "triform" if precision == "fp32" else f"triform {precision}"
        predictors[name] = lambda texts, variant=variant: [
            label_index[prediction.output] for prediction in variant.predictor.predict(texts)
        ]
    fixed_length = max(len(tokens) for tokens in task.tokenizer.encode_batch(texts))
    padded, nested = (PlainClassifier(task, nested=nested).to(report.device).eval() for nested in (False, True))
    options = {"tokenizer": task.tokenizer, "device": report.device}
    predictors["nn, padded to the set's longest"] = build_plain_predictor(
        padded, fixed_length=fixed_length, **options
    )
    predictors["nn, padded to the batch's longest"] = build_plain_predictor(padded, fixed_length=0, **options)
    predictors["nn, nested tensors"] = build_plain_predictor(nested, fixed_length=0, **options)
    return predictors


def main(arguments: list[str] | None = None) -> None:
    report = BenchmarkReport("classify", parse_options(__doc__, arguments))
    texts = generate_texts(64 if report.smoke else 1000)
    contestants = build_contestants(report, texts)
    expected = contestants["nn, padded to the batch's longest"](texts)
    for name, predict_labels in contestants.items():
        equal_share = sum(
            own_label == expected_label
            for own_label, expected_label in zip(predict_labels(texts), expected, strict=True)
        ) / len(texts)
        report.add_figures("labels that equal those of the padded loop", who=name, share=equal_share)
    if tfidf_predictor := build_tfidf_predictor(texts):
        contestants["scikit-learn, TF-IDF, for scale"] = tfidf_predictor
    else:
        report.add_skipped("scikit-learn", "not installed")
    runs = {name: partial(predict_labels, texts) for name, predict_labels in contestants.items()}
    report.measure(
        f"{len(texts)} texts of mixed length", runs, 2 if report.smoke else 5, units=len(texts), unit="texts"
    )
    quality.report_quality(report, "classify", "accuracy", "f1", "loss")
    report.write()


if __name__ == "__main__":
    main()
