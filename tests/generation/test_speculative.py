"""Drafted and verified together, or one token after the other: greedy decoding generates the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_decoding import (
    CONFIG,
    CONSTRAINTS,
    EOS,
    MAX_LEN,
    PROMPTS,
    STYLES,
    V,
    build_adapter,
    decode,
    decode_reference,
    tiny_model,
)
from torch import Tensor

from triform.config import DataSizes, DecodeConfig, ModelConfig
from triform.generation import speculative
from triform.generation.adapters import CachedStepper, DecoderAdapter
from triform.generation.backend import EagerBackend, Request, TokenConstraints
from triform.generation.graph import GraphBackend
from triform.generation.scheduler import Scheduler, beam_settings, build_decoder_adapter, generate
from triform.generation.speculative import NgramDrafter, SpeculativeBackend, draft_unavailable_reason
from triform.models.decoder import Decoder
from triform.models.factory import build_decoder
from triform.nn.kernels.dispatch import use_fast_kernels
from triform.nn.kernels.precision import cast_model

DRAFTS = replace(CONFIG, draft_tokens=7)
ENDLESS = TokenConstraints(eos=-1)
TEXTS = [*PROMPTS, [4, EOS, 5, 4, EOS, 5, 4], [6, 7, 8, 9] * 5, [10, 9, 10, 9, 10, 9, 10]]


class Passes:
    """Counts the tokens that are fed in each pass that verifies a draft, and those that are taken back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.n_fed = self.n_passes = self.n_rejected = 0
        step_several, rewind = CachedStepper.step_several, CachedStepper.rewind

        def counted_step(stepper: CachedStepper, tokens: Tensor) -> Tensor:
            self.n_fed, self.n_passes = self.n_fed + tokens.shape[1], self.n_passes + 1
            return step_several(stepper, tokens)

        def counted_rewind(stepper: CachedStepper, n_tokens: int) -> None:
            self.n_rejected += n_tokens
            rewind(stepper, n_tokens)

        patch.setattr(CachedStepper, "step_several", counted_step)
        patch.setattr(CachedStepper, "rewind", counted_rewind)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


@pytest.fixture
def always_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every match be drafted in full length, so that many drafts are wrong."""
    monkeypatch.setattr(speculative, "PASS_COST", 0.0)
    monkeypatch.setattr(speculative, "TOKEN_COST", 1e-9)


def decode_alone(adapter: DecoderAdapter, texts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
    """Decode each text by itself, with drafts."""
    return [tokens for text in texts for tokens in decode(adapter, [text], **{"config": DRAFTS, **options})]


@pytest.mark.parametrize("model_settings", [*STYLES, {"positions": "learned"}])
@pytest.mark.usefixtures("always_draft")
def test_every_kind_of_model_generates_the_tokens_of_plain_greedy_decoding(
    model_settings: dict[str, object], passes: Passes
) -> None:
    """The texts outgrow the context of 12 tokens several times."""
    adapter: Any = build_adapter("decoder", 1, **model_settings)
    use_fast_kernels(adapter.model)
    options: dict[str, Any] = {"limits": 30, "constraints": ENDLESS}
    texts = [TEXTS[0], TEXTS[7]]
    assert decode_alone(adapter, texts, **options) == decode_alone(adapter, texts, config=CONFIG, **options)
    assert 0 < passes.n_rejected < passes.n_fed - passes.n_passes  # some drafts were right, and some were wrong


@pytest.mark.usefixtures("always_draft")
def test_a_text_ends_with_its_end_token_although_more_was_drafted() -> None:
    for seed in range(3):
        adapter: Any = build_adapter("decoder", seed)
        expected = decode_reference(adapter, TEXTS, limits=20)
        assert any(0 < len(tokens) < 20 for tokens in expected)
        assert decode_alone(adapter, TEXTS, limits=20) == expected


PATTERN = [4, 5, 6, 7, 8, 4, 9, 10]
PATTERN_PROMPT = (PATTERN * 2)[:11]


@pytest.fixture(scope="module")
def trained_adapter() -> DecoderAdapter:
    """A model in float64 with a context of 24 tokens that has learned to repeat `PATTERN`."""
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, d_ff=32, n_layers=1, n_heads=2, dropout=0.0)
    model = use_fast_kernels(Decoder(config, DataSizes(vocab_size=V, max_len=24))).double()
    parameters = list(model.parameters())
    tokens = torch.tensor([(PATTERN * 4)[start : start + 25] for start in range(len(PATTERN))])
    for step in range(60):  # signed gradients, because importing an optimizer takes longer than the training
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter -= 0.02 * (1 - step / 60) * gradient.sign()
    assert loss < 0.2
    return DecoderAdapter(model.eval().requires_grad_(False), 24)


def test_a_trained_model_that_repeats_a_pattern_needs_few_passes(
    trained_adapter: DecoderAdapter, passes: Passes
) -> None:
    for draft_tokens in (0, 3, 15):
        config = DecodeConfig(strategy="greedy", draft_tokens=draft_tokens)
        request = Request(PATTERN_PROMPT, 120, decode=config)
        assert generate(trained_adapter, [request], CONSTRAINTS) == [(PATTERN * 17)[3:123]]
    n_verified = passes.n_fed - passes.n_rejected  # tokens of both drafted texts that came from a verifying pass
    assert passes.n_passes < n_verified / 3
    assert n_verified > 120


@pytest.mark.usefixtures("always_draft")
def test_a_text_ends_at_its_limit(trained_adapter: DecoderAdapter, passes: Passes) -> None:
    for limit in (1, 2, 3, 5, 8, 13, 21, 30):
        outputs = decode_alone(trained_adapter, [PATTERN_PROMPT], limits=limit)
        assert outputs == [(PATTERN * 5)[3 : 3 + limit]]
    assert passes.n_passes > 8


@pytest.mark.usefixtures("always_draft")
def test_rows_that_join_and_leave_get_the_same_tokens(trained_adapter: DecoderAdapter, passes: Passes) -> None:
    """The first text is drafted until others join it, and again when it is prefilled alone."""
    settings = replace(DRAFTS, strategy="greedy")
    prompts, limits = [PATTERN_PROMPT, PATTERN[2:], PATTERN[5:]], (60, 3, 6)
    with Scheduler(trained_adapter, CONSTRAINTS) as scheduler:
        rows = [scheduler.submit(Request(prompts[0], limits[0], decode=settings))]
        scheduler.step()
        scheduler.step()
        assert passes.n_passes == 1
        for prompt, limit in zip(prompts[1:], limits[1:], strict=True):
            rows.append(scheduler.submit(Request(prompt, limit, decode=settings)))
        scheduler.step()
        assert passes.n_passes == 1
        while scheduler.n_unfinished:
            scheduler.step()
        backend: Any = scheduler.backend
    assert [row.output for row in rows] == [(PATTERN * 9)[3:63], PATTERN[:3], PATTERN[:6]]
    assert passes.n_passes > 1
    known_tokens = backend.drafter.tokens  # those that were generated in between too
    assert known_tokens == (PATTERN * 9)[: len(known_tokens)]
    assert len(known_tokens) > 50


@pytest.mark.usefixtures("always_draft")
def test_other_strategies_and_requests_for_log_probabilities_are_decoded_step_by_step(passes: Passes) -> None:
    adapter: Any = build_adapter("decoder")
    for strategy in ("sample", "beam"):
        expected = decode_alone(adapter, TEXTS[5:], strategy=strategy, config=CONFIG)
        assert decode_alone(adapter, TEXTS[5:], strategy=strategy) == expected
    (greedy_tokens,) = decode(adapter, TEXTS[6:7])
    with Scheduler(adapter, CONSTRAINTS) as scheduler:
        row = scheduler.submit(Request(TEXTS[6], 40, decode=replace(DRAFTS, strategy="greedy"), n_logprobs=1))
        while scheduler.n_unfinished:
            scheduler.step()
    assert (row.output, len(row.logprobs)) == (greedy_tokens, len(greedy_tokens))
    assert not passes.n_passes


# -- the drafter


def test_a_draft_is_what_followed_the_longest_match() -> None:
    drafter = NgramDrafter([1, 2, 3, 9, 9, 7, 2, 3, 5, 5, 1, 2, 3])
    drafter.hit_rates = [1.0] * len(drafter.hit_rates)
    assert drafter.propose(4) == [9, 9, 7, 2]  # after 1 2 3, although 2 3 has a later place
    assert NgramDrafter([1, 2, 3]).propose(4) == []
    assert drafter.propose(0) == []


def test_a_draft_that_reaches_the_end_of_the_text_repeats_it() -> None:
    drafter = NgramDrafter([8, 1, 2, 3, 1, 2, 3])
    drafter.hit_rates = [1.0] * len(drafter.hit_rates)
    assert drafter.propose(7) == [1, 2, 3, 1, 2, 3, 1]


def run_drafter(prompt: Sequence[int], text: Sequence[int], max_tokens: int) -> tuple[int, int]:
    """Return how many passes generate a text, and how many tokens were drafted in vain."""
    drafter, n_done, n_passes, n_wrong = NgramDrafter(prompt), 0, 0, 0
    while n_done < len(text):
        draft = drafter.propose(min(max_tokens, len(text) - n_done - 1))
        n_right = 0
        while n_right < len(draft) and draft[n_right] == text[n_done + n_right]:
            n_right += 1
        drafter.extend(text[n_done : n_done + n_right + 1])
        n_done, n_passes, n_wrong = n_done + n_right + 1, n_passes + 1, n_wrong + len(draft) - n_right
    return n_passes, n_wrong


def test_text_that_repeats_is_drafted_and_random_text_is_not() -> None:
    n_passes, n_wrong = run_drafter([], list(range(20)) * 20, 15)
    assert (n_passes < 80, n_wrong < 16) == (True, True)  # 400 tokens, the first 20 of them new
    random_text = torch.randint(6, (2_000,), generator=torch.Generator().manual_seed(0)).tolist()
    n_passes, n_wrong = run_drafter([], random_text, 15)  # pairs of 6 tokens recur often, by chance
    assert (n_passes > 1_960, n_wrong < 40) == (True, True)


def test_drafts_stop_when_a_text_no_longer_repeats_and_start_again() -> None:
    generator = torch.Generator().manual_seed(1)
    random_text = torch.randint(4, (600,), generator=generator).tolist()
    loop = [5, 6, 7, 8, 9] * 40
    _, n_wrong = run_drafter([], loop + random_text, 15)
    assert n_wrong < 90  # far fewer than 15 for each of the 600 tokens
    n_passes, _ = run_drafter([], loop + random_text + loop, 15)
    assert n_passes < len(random_text) + len(loop)


def test_the_index_starts_anew_when_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "MAX_INDEXED_GRAMS", 100)
    drafter = NgramDrafter(list(range(500)))
    assert len(drafter.followers) <= 100 + len(speculative.MATCH_LENGTHS)
    assert run_drafter(list(range(500)), [1, 2, 3] * 50, 15)[0] < 75


# -- where drafts are used


def test_drafts_are_for_transformers_in_fp32_on_a_cpu_and_the_reason_is_given_elsewhere() -> None:
    config = ModelConfig(d_model=16, d_ff=32, n_layers=1, n_heads=2)
    sizes = DataSizes(vocab_size=40, max_len=MAX_LEN)
    models = {precision: Decoder(config, sizes).eval() for precision in ("fp32", "bf16", "int8")}
    for precision, model in models.items():
        cast_model(model, precision)  # type: ignore[arg-type]
    reasons = {name: draft_unavailable_reason(DecoderAdapter(model, MAX_LEN)) for name, model in models.items()}
    assert reasons == {
        "fp32": "",
        "bf16": "it needs fp32, and this model computes in bf16",
        "int8": "it needs fp32, and this model computes in int8",
    }
    recurrent = build_decoder(ModelConfig(kind="gru", d_model=8), sizes)
    meta = DecoderAdapter(Decoder(config, sizes).to("meta"), MAX_LEN)
    assert "Transformer" in draft_unavailable_reason(build_decoder_adapter(recurrent, MAX_LEN))
    assert draft_unavailable_reason(meta) == "on meta, tokens are decoded one by one"


def test_the_back_end_for_drafts_is_used_where_they_are_available() -> None:
    decoder, seq2seq = build_adapter("decoder"), build_adapter("seq2seq")
    beam = beam_settings(replace(CONFIG, strategy="beam"))
    assert type(Scheduler(decoder, CONSTRAINTS).backend) is SpeculativeBackend
    assert type(Scheduler(decoder, CONSTRAINTS, beam).backend) is EagerBackend
    assert type(Scheduler(seq2seq, CONSTRAINTS).backend) is EagerBackend
    assert type(Scheduler(decoder, CONSTRAINTS, use_cuda_graphs=True).backend) is GraphBackend
    bf16: Any = DecoderAdapter(tiny_model(Decoder, 0, MAX_LEN).bfloat16(), MAX_LEN)  # type: ignore[arg-type]
    assert type(Scheduler(bf16, CONSTRAINTS).backend) is EagerBackend
