"""Recurrent models beside torch's own: the same numbers, whatever is padded, packed, carried or cut."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from triform.analysis.parameters import GATES, count_parameters
from triform.config import Config, DataSizes, ModelConfig, RecurrentKind
from triform.explain.checks import check_model
from triform.explain.recorder import record_attention
from triform.models.factory import build_classifier, build_decoder, build_seq2seq
from triform.models.recurrent import RecurrentClassifier, RecurrentDecoder, RecurrentSeq2Seq
from triform.nn.kernels.packing import pack
from triform.nn.layouts import PaddedLayout, pad
from triform.nn.recurrent import CELLS, BidirectionalLayer, RecurrentState

KINDS: tuple[RecurrentKind, ...] = get_args(RecurrentKind)
SIZES = DataSizes(vocab_size=19, max_len=12, n_labels=3)
ROWS = [[4, 9, 5, 11, 7], [6, 8], [12, 13, 14, 4, 5, 6, 7], [15]]
SOURCES = [[7, 5], [4, 4, 9, 10, 11, 12], [6], [8, 9, 10]]
REFERENCE = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def build_config(kind: RecurrentKind, **settings: Any) -> ModelConfig:
    return ModelConfig(**{"kind": kind, "d_model": 8, "n_layers": 2, "dropout": 0.0} | settings)


def unpad(x: Tensor) -> list[Tensor]:
    return [padded_row[: len(row)] for padded_row, row in zip(x, ROWS, strict=True)]


def test_every_recurrent_kind_has_a_cell_and_its_gates_are_counted() -> None:
    assert sorted(CELLS) == sorted(KINDS)
    assert {kind: cell.n_gates for kind, cell in CELLS.items()} == GATES


@EVERY_KIND
def test_an_encoder_equals_torchs_own_two_directions_forward_and_backward(kind: RecurrentKind) -> None:
    model = RecurrentClassifier(build_config(kind), SIZES)
    theirs = REFERENCE[kind](8, 4, num_layers=2, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for name, weights in theirs.named_parameters():
            part, layer = name.removesuffix("_reverse").rsplit("_l", 1)
            block = model.encoder.blocks[int(layer)]
            cell = block.backward_cell if name.endswith("_reverse") else block.forward_cell
            weights.copy_(getattr(cell.rnn, f"{part}_l0"))
    tokens, keep = pad(ROWS)
    x = model.encoder.embedding(tokens, tokens).detach()
    lengths = torch.tensor([len(row) for row in ROWS])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    actual = model.encoder(tokens, keep)
    for ours, reference in zip(unpad(actual), unpad(expected), strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)
    (actual * keep[..., None]).square().sum().backward()
    expected.square().sum().backward()
    first = model.encoder.blocks[0].forward_cell.rnn.weight_hh_l0.grad
    torch.testing.assert_close(first, theirs.weight_hh_l0.grad, rtol=0, atol=1e-12)
    last = model.encoder.blocks[1].backward_cell.rnn.weight_ih_l0.grad
    torch.testing.assert_close(last, theirs.weight_ih_l1_reverse.grad, rtol=0, atol=1e-12)


@EVERY_KIND
@pytest.mark.parametrize(
    "more", [{}, {"pooling": "last"}, {"attention_direction": "causal", "pooling": "last", "bias": False}]
)
def test_a_text_alone_padded_and_packed_has_the_same_label_scores(kind: RecurrentKind, more: Any) -> None:
    model = RecurrentClassifier(build_config(kind, bigram_buckets=32, **more), SIZES)
    alone = torch.cat([model(torch.tensor([row])) for row in ROWS])
    for collate in (pad, pack):
        torch.testing.assert_close(model(*collate(ROWS)), alone, rtol=0, atol=1e-12)
    wider = F.pad(pad(ROWS)[0], (0, 3), value=17)
    keep = F.pad(pad(ROWS)[1], (0, 3))
    torch.testing.assert_close(model(wider, keep), alone, rtol=0, atol=1e-12)


def test_the_ends_of_a_text_are_what_each_direction_knew_last() -> None:
    model = RecurrentClassifier(build_config("gru", pooling="last"), SIZES)
    tokens, keep = pad(ROWS)
    states, row = model.encoder(tokens, keep), 2
    pooled = torch.cat([states[row, len(ROWS[row]) - 1, :4], states[row, 0, 4:]])
    torch.testing.assert_close(model(tokens, keep)[row], model.classification_head(pooled))


@EVERY_KIND
def test_a_carried_state_equals_one_long_reading(kind: RecurrentKind) -> None:
    model = RecurrentDecoder(build_config(kind), SIZES)
    tokens = torch.randint(4, 19, (3, 30))  # longer than max_len: nothing is full
    full, recurrent_state = model(tokens), RecurrentState()
    parts = [model(part, recurrent_state=recurrent_state) for part in tokens.split(11, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), full, rtol=0, atol=1e-12)
    without_state = model(tokens[:, 11:])
    assert (without_state[:, 0] - full[:, 11]).abs().min() > 1e-6


@EVERY_KIND
def test_a_decoder_equals_torchs_own_layers(kind: RecurrentKind) -> None:
    model = RecurrentDecoder(build_config(kind), SIZES)
    theirs = REFERENCE[kind](8, 8, num_layers=2, batch_first=True)
    with torch.no_grad():
        for name, weights in theirs.named_parameters():
            part, layer = name.rsplit("_l", 1)
            weights.copy_(getattr(model.blocks[int(layer)].rnn, f"{part}_l0"))
    tokens = pad([ROWS[2]])[0]
    expected = model.lm_head(theirs(model.embedding(tokens, tokens))[0])
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-12)


@EVERY_KIND
@pytest.mark.parametrize("score", ["additive", "dot", "scaled_dot", "cosine"])
def test_a_translation_is_the_same_alone_padded_and_packed(kind: RecurrentKind, score: str) -> None:
    model = RecurrentSeq2Seq(build_config(kind, attention_score=score), SIZES)
    alone = [model(torch.tensor([s]), torch.tensor([t]))[0] for s, t in zip(SOURCES, ROWS, strict=True)]
    source, keep = pad(SOURCES, fill=3)
    for actual, one in zip(unpad(model(source, pad(ROWS)[0], keep)), alone, strict=True):
        torch.testing.assert_close(actual, one, rtol=0, atol=1e-12)
    (source, keep), (target, target_keep) = pack(SOURCES), pack(ROWS)
    packed = model(source, target, keep, target_keep)[0]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", ["additive", "dot", "scaled_dot"])
def test_attention_is_the_published_formula_and_its_weights_sum_to_one(score: str) -> None:
    model = RecurrentSeq2Seq(build_config("lstm", attention_score=score), SIZES)
    source, target = torch.tensor([SOURCES[1]]), torch.tensor([ROWS[0]])
    states = model.encoder(source)
    x, _ = model.blocks(model.embedding(target, target), model.initial_state(states, PaddedLayout(None)))
    q, (k, v) = model.cross_attn.q_proj(x), model.cross_attn.kv_proj(states).chunk(2, dim=-1)
    if score == "additive":
        scores = torch.tanh(q[:, :, None] + k[:, None]) @ model.cross_attn.score_fn.score.weight[0]
    else:
        scores = q @ k.transpose(1, 2) / (8**0.5 if score == "scaled_dot" else 1)
    weights = scores.softmax(dim=-1)
    expected = model.lm_head(torch.tanh(model.cross_attn.out_proj(weights @ v) + model.state_proj(x)))
    with record_attention(model) as recording:
        actual = model(source, target)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert recording.stacks() == ("cross",)
    recorded = recording["cross"]
    assert recorded.shape == (1, 1, 1, 5, 6)
    torch.testing.assert_close(recorded[0, :, 0], weights.float())
    torch.testing.assert_close(recorded.sum(-1), torch.ones(1, 1, 1, 5, dtype=torch.float32))


def test_a_decoder_begins_with_what_the_encoder_knew() -> None:
    model = RecurrentSeq2Seq(build_config("lstm"), SIZES)
    target = torch.tensor([[2]])
    first, second = (model(torch.tensor([source]), target) for source in ([4, 5, 6], [4, 5, 7]))
    assert (first - second).abs().max() > 1e-6


@EVERY_KIND
@pytest.mark.parametrize("task", ["classify", "generate", "translate"])
@pytest.mark.parametrize("more", [{}, {"attention_direction": "causal", "tie_embeddings": False, "bias": False}])
def test_the_parameters_are_those_of_the_formulas(kind: RecurrentKind, task: Any, more: Any) -> None:
    config = Config(task=task, model=build_config(kind, **more))
    build_model: Any = {"classify": build_classifier, "generate": build_decoder, "translate": build_seq2seq}[task]
    model = build_model(config.model, SIZES)
    assert sum(p.numel() for p in model.parameters()) == count_parameters(config, SIZES).total


def test_a_fresh_lstm_forgets_little_and_its_carried_matrices_are_orthogonal() -> None:
    cell = RecurrentDecoder(build_config("lstm"), SIZES).blocks[0].rnn
    assert cell.bias_ih_l0.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    for gate in cell.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8), rtol=0, atol=1e-12)


def test_checks_see_padding_that_gets_into_a_state() -> None:
    config = Config(task="classify", model=build_config("lstm"))
    model = RecurrentClassifier(config.model, SIZES)
    results = {finding.name: finding.good for finding in check_model(config, SIZES, model)}
    assert set(results.values()) == {True, None}
    assert results["padding and packing change nothing"]

    class IgnoresPadding(BidirectionalLayer):
        def forward(self, x: Tensor, reverse_index: Tensor) -> Tensor:
            return super().forward(x, torch.arange(x.shape[1]).flip(0)[None])

    model.encoder.blocks[0].__class__ = IgnoresPadding
    results = {finding.name: finding.good for finding in check_model(config, SIZES, model)}
    assert results["padding and packing change nothing"] is False
    assert results["masked tokens have no influence"] is False


@EVERY_KIND
@pytest.mark.parametrize("tie", [True, False])
def test_a_fresh_translator_reads_tokens_at_full_size_and_guesses_about_evenly(
    kind: RecurrentKind, tie: bool
) -> None:
    """What came in small would leave states small, attention flat, and little to learn it by."""
    torch.manual_seed(0)
    model = RecurrentSeq2Seq(
        build_config(kind, d_model=64, tie_embeddings=tie), DataSizes(vocab_size=500, max_len=12)
    )
    source, target = torch.randint(500, (2, 8, 12))
    embedded = model.encoder.embedding(source, source)
    assert embedded.std().item() == pytest.approx(1, abs=0.1)
    decoder_states = model.blocks(embedded, model.initial_state(model.encoder(source), PaddedLayout(None)))[0]
    keys = model.cross_attn.kv_proj(model.encoder(source)).chunk(2, dim=-1)[0]
    scores = model.cross_attn.q_proj(decoder_states) @ keys.transpose(1, 2)  # (B, T, S)
    assert scores.std(dim=-1).mean().item() > 0.03
    loss = F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())
    assert loss.item() == pytest.approx(math.log(500), abs=0.5)
