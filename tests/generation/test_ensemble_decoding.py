"""An ensemble generates what the mean of its members' probabilities gives by hand, without a cache or a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference_decoding import (
    ModelStepper,
    choose_greedily,
    make_sampler,
    reference_beam_search,
    reference_decode,
)
from torch import Tensor, nn

from triform.config import DataSizes, DecodeConfig, ModelConfig
from triform.generation.adapters import GenerationAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.next_tokens import top_next_tokens
from triform.generation.scheduler import build_decoder_adapter, build_seq2seq_adapter, generate, search_n_best
from triform.models.ensemble import EnsembleDecoder, EnsembleSeq2Seq
from triform.models.factory import build_decoder, build_seq2seq

V, EOS, BANNED, BOS = 9, 3, (0, 1, 2), 2
MAX_LEN = 12
ROWS = [[4, 5, 6, 7, 8], [8], [7, 4], [5, 5, 5, 5, 5, 5, 5, 5], [6, 7, 8]]
WIDTHS = (8, 12)  # the members of an ensemble may differ in size
CONSTRAINTS = TokenConstraints(eos=EOS, banned=BANNED)
DECODE = {
    "greedy": DecodeConfig(strategy="greedy"),
    "sample": DecodeConfig(strategy="sample", temperature=1.3, top_k=5),
    "beam": DecodeConfig(strategy="beam", beam_size=3, length_penalty=0.6),
}


def tiny_model(form: str, kind: str, seed: int, width: int, vocab_size: int = V) -> Any:
    """A model in float64 whose weights are large enough that what it writes is not one token repeated."""
    torch.manual_seed(seed)
    transformer = {"n_heads": 2, "d_ff": 16} if kind == "transformer" else {}
    config = ModelConfig(
        kind=kind, d_model=width, n_layers=1 + seed % 2, dropout=0.0, tie_embeddings=False, **transformer
    )
    sizes = DataSizes(vocab_size=vocab_size, max_len=MAX_LEN if form == "decoder" else 64)
    model: nn.Module = (build_decoder if form == "decoder" else build_seq2seq)(config, sizes)
    model = model.double().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter)
    return model


def build_adapter(form: str, model: Any) -> GenerationAdapter:
    return build_decoder_adapter(model, MAX_LEN) if form == "decoder" else build_seq2seq_adapter(model, 64, BOS)


class AveragedStepper:
    """Runs every member over the whole text, without a cache, and averages what they say by hand."""

    def __init__(self, adapters: Sequence[GenerationAdapter], rows: Sequence[Sequence[int]]) -> None:
        self.steppers = [ModelStepper(adapter, rows) for adapter in adapters]

    def logits(self) -> Tensor:
        probabilities = [stepper.logits().double().exp() for stepper in self.steppers]
        mean = sum(values / values.sum(dim=-1, keepdim=True) for values in probabilities) / len(self.steppers)
        return torch.as_tensor(mean).log().float()

    def append(self, tokens: list[int]) -> None:
        for stepper in self.steppers:
            stepper.append(tokens)

    def select(self, rows: list[int]) -> None:
        for stepper in self.steppers:
            stepper.select(rows)


def decode_by_hand(adapters: Sequence[GenerationAdapter], strategy: str, limit: int) -> list[list[int]]:
    config = DECODE[strategy]
    if strategy == "beam":
        beam = {"beam_size": config.beam_size, "length_penalty": config.length_penalty}
        return [
            reference_beam_search(AveragedStepper(adapters, [row]), CONSTRAINTS, [limit], **beam)[0] for row in ROWS
        ]
    outputs = []
    for index, row in enumerate(ROWS):
        choose = choose_greedily if strategy == "greedy" else make_sampler(config, seed=index)
        outputs.append(reference_decode(AveragedStepper(adapters, [row]), CONSTRAINTS, limit, choose))
    return outputs


@pytest.mark.parametrize("strategy", DECODE)
@pytest.mark.parametrize("kind", ["transformer", "gru"])
@pytest.mark.parametrize("form", ["decoder", "seq2seq"])
def test_an_ensemble_decodes_as_the_mean_of_its_members_does(form: str, kind: str, strategy: str) -> None:
    models = [tiny_model(form, kind, seed, width) for seed, width in enumerate(WIDTHS, start=8)]
    ensemble = (EnsembleDecoder if form == "decoder" else EnsembleSeq2Seq)(models, WIDTHS)
    limit = 16 if form == "decoder" else 6  # a text outgrows the context of the decoder
    requests = [Request(row, limit, index, DECODE[strategy]) for index, row in enumerate(ROWS)]
    outputs = generate(build_adapter(form, ensemble), requests, CONSTRAINTS)
    adapters = [build_adapter(form, model) for model in models]
    assert outputs == decode_by_hand(adapters, strategy, limit)
    assert any(outputs)
    assert outputs != generate(adapters[0], requests, CONSTRAINTS)  # the second member counts


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all_texts(length_penalty: float) -> None:
    vocab_size, limit = 6, 3  # of which 4 and 5 are words, and 3 is the end
    models = [tiny_model("seq2seq", "transformer", seed, width, vocab_size) for seed, width in enumerate(WIDTHS)]
    ensemble = EnsembleSeq2Seq(models, WIDTHS)
    source = torch.tensor([[4, 5, 4]])

    def score(words: tuple[int, ...]) -> float:
        """The log of the product of mean probabilities, the end included, over the penalty of its length."""
        target, total = [*words, EOS], 0.0
        for index, token in enumerate(target):
            prefix = torch.tensor([[BOS, *words[:index]]])
            rows = [model(source, prefix)[0, -1].exp() for model in models]
            total += math.log(sum(float(row[token] / row.sum()) for row in rows) / len(rows))
        return total / ((5 + len(target)) / 6) ** length_penalty

    texts = [words for n in range(limit) for words in itertools.product((4, 5), repeat=n)]
    expected = sorted(((score(words), list(words)) for words in texts), reverse=True)
    decode = DecodeConfig(strategy="beam", beam_size=16, length_penalty=length_penalty)
    request = Request(source[0].tolist(), limit, 0, decode)
    hypotheses = search_n_best(build_seq2seq_adapter(ensemble, 64, BOS), [request], CONSTRAINTS, n_best=3)[0]
    assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens for _, tokens in expected[:3]]
    assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
        [value for value, _ in expected[:3]], abs=1e-5
    )


def test_next_tokens_have_the_mean_probability() -> None:
    models = [tiny_model("decoder", "transformer", seed, width) for seed, width in enumerate(WIDTHS)]
    [top] = top_next_tokens(build_decoder_adapter(EnsembleDecoder(models, WIDTHS), MAX_LEN), [[4, 5]], 3)
    mean = sum(model(torch.tensor([[4, 5]]))[0, -1].softmax(-1) for model in models) / 2
    expected = mean.topk(3)
    assert [item.token for item in top] == expected.indices.tolist()
    assert [item.probability for item in top] == pytest.approx(expected.values.tolist(), abs=1e-6)


def test_an_ensemble_of_one_generates_and_scores_the_same_bits() -> None:
    model = tiny_model("decoder", "transformer", 0, 8)
    ensemble = EnsembleDecoder([model], [8])
    tokens = torch.tensor([ROWS[0]])
    assert torch.equal(ensemble(tokens), model(tokens))
    adapters = [build_decoder_adapter(item, MAX_LEN) for item in (model, ensemble)]
    steppers = [adapter.build_stepper() for adapter in adapters]
    assert torch.equal(*(stepper.append_rows(ROWS) for stepper in steppers))
    step_tokens = torch.tensor([[4]] * len(ROWS))
    assert torch.equal(*(stepper.step(step_tokens) for stepper in steppers))
