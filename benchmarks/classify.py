"""Classifying texts of mixed length beside padded loops over nn.TransformerEncoder.

Every contestant gets the same texts and gives a label for each, tokenizing included; the Transformers have the
same tokenizer and the same weights. The loops take batches of 32 in the order given, in eval and inference mode.
scikit-learn's TF-IDF with logistic regression is there for scale: it is another model.
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
from benchmarks.board import Board, asked
from triform.config import Config, TokenizerConfig
from triform.nn.precision import cast_model
from triform.nn.rows import pad
from triform.settings import build
from triform.tasks.classify import Classify
from triform.text import Tokenizer, train_tokenizer

LABELS, MAX_LEN, BATCH = ("a", "b", "c", "d"), 128, 32
WORDS = [first + second + third for first in "bdfgklmnprst" for second in "aeiou" for third in "lmnrst"]


def mixed_texts(count: int) -> list[str]:
    """Words by chance; lengths as sentences have them: most near twenty words, some a hundred."""
    numbers = random.Random(0)
    lengths = [max(4, min(MAX_LEN, int(numbers.lognormvariate(3.0, 0.7)))) for _ in range(count)]
    return [" ".join(numbers.choices(WORDS, k=length)) for length in lengths]


class Plain(nn.Module):
    """What one writes with torch.nn alone, holding the weights of one of our classifiers."""

    def __init__(self, task: Classify, *, nested: bool) -> None:
        super().__init__()
        config, ours = task.config.model, copy.deepcopy(task.model)
        self.tokens, self.head = ours.encoder.embedding.tokens, ours.head
        self.places = ours.encoder.embedding.positions.table
        layer = nn.TransformerEncoderLayer(
            config.d_model, config.n_heads, config.d_ff, activation="gelu", batch_first=True, norm_first=False
        )
        self.encoder = nn.TransformerEncoder(layer, config.n_layers, enable_nested_tensor=nested)
        for mine, other in zip(ours.encoder.blocks, self.encoder.layers, strict=True):
            _copy_block(mine, other)

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:  # (B, T), (B, T) -> (B, labels)
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.encoder(x, src_key_padding_mask=hidden)
        share = (~hidden[:, : x.shape[1], None]).to(x.dtype)
        return self.head((x * share).sum(dim=1) / share.sum(dim=1))


@torch.no_grad()
def _copy_block(mine: Any, other: Any) -> None:
    attention = other.self_attn
    attention.in_proj_weight.copy_(torch.cat([mine.attention.query.weight, mine.attention.key_value.weight]))
    attention.in_proj_bias.copy_(torch.cat([mine.attention.query.bias, mine.attention.key_value.bias]))
    pairs = (
        (mine.attention.out, attention.out_proj),
        (mine.feedforward.up, other.linear1),
        (mine.feedforward.down, other.linear2),
        (mine.attend.norm, other.norm1),
        (mine.think.norm, other.norm2),
    )
    for source, target in pairs:
        target.load_state_dict(source.state_dict())


def plain_loop(model: Plain, tokenizer: Tokenizer, device: torch.device, *, longest: int) -> Callable[..., Any]:
    """Batches in the order given, padded to their longest text or, with `longest`, all to the same length."""

    @torch.inference_mode()
    def label(texts: list[str]) -> list[int]:
        rows = tokenizer.encode_batch(texts)
        found: list[int] = []
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            tokens, keep = pad([*part, [0] * longest])
            hidden = torch.zeros_like(tokens, dtype=torch.bool) if keep is None else ~keep
            found += model(tokens[:-1].to(device), hidden[:-1].to(device)).argmax(-1).tolist()
        return found

    return label


def our_task(board: Board, texts: list[str]) -> Classify:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), texts)
    width, layers = (32, 1) if board.quick else (512, 6)
    settings = {
        "task": "classify", "data.labels": LABELS, "data.max_len": MAX_LEN, "tokenizer.kind": "word",
        "model.d_model": width, "model.d_ff": 4 * width, "model.n_layers": layers,
        "model.n_heads": max(2, width // 64),
        "model.norm_position": "post", "model.final_norm": False, "model.dropout": 0.0,
    }  # fmt: skip
    task = Classify(build(settings, Config()), tokenizer)
    task.model.to(board.device).eval()
    return task


def tf_idf(texts: list[str]) -> Callable[..., Any] | None:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
    except ImportError:
        return None
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    model.fit(texts, [number % len(LABELS) for number in range(len(texts))])
    return model.predict


def contestants(board: Board, texts: list[str]) -> dict[str, Callable[..., Any]]:
    task = our_task(board, texts)
    label = {name: number for number, name in enumerate(task.labels)}
    found: dict[str, Callable[..., Any]] = {}
    for precision in quality.precisions(board.device):
        ours = copy.copy(task)
        ours.model = copy.deepcopy(task.model)
        cast_model(ours.model, precision)
        name = "triform" if precision == "fp32" else f"triform {precision}"
        found[name] = lambda texts, ours=ours: [label[made.output] for made in ours.predict(texts)]
    longest = max(len(tokens) for tokens in task.tokenizer.encode_batch(texts))
    padded, nested = (Plain(task, nested=nested).to(board.device).eval() for nested in (False, True))
    how = {"tokenizer": task.tokenizer, "device": board.device}
    found["nn, padded to the set's longest"] = plain_loop(padded, longest=longest, **how)
    found["nn, padded to the batch's longest"] = plain_loop(padded, longest=0, **how)
    found["nn, nested tensors"] = plain_loop(nested, longest=0, **how)
    return found


def main(arguments: list[str] | None = None) -> None:
    board = Board("classify", asked(__doc__, arguments))
    texts = mixed_texts(64 if board.quick else 1000)
    who = contestants(board, texts)
    expected = who["nn, padded to the batch's longest"](texts)
    for name, label in who.items():
        same = sum(mine == other for mine, other in zip(label(texts), expected, strict=True)) / len(texts)
        board.note("labels that equal those of the padded loop", who=name, share=same)
    if scale := tf_idf(texts):
        who["scikit-learn, TF-IDF, for scale"] = scale
    else:
        board.skip("scikit-learn", "not installed")
    works = {name: partial(label, texts) for name, label in who.items()}
    board.race(
        f"{len(texts)} texts of mixed length", works, 2 if board.quick else 5, units=len(texts), unit="texts"
    )
    quality.scores(board, "classify", "accuracy", "f1", "loss")
    board.write()


if __name__ == "__main__":
    main()
