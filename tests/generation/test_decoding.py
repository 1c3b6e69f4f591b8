"""Cached and uncached, batched and alone, beam and exhaustive search: each pair generates the same tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_decoding import (
    ModelStepper,
    choose_greedily,
    make_sampler,
    reference_beam_search,
    reference_decode,
    sample_tokens,
)
from scipy.stats import chisquare
from torch import Tensor

from triform.config import DataSizes, DecodeConfig, ModelConfig
from triform.generation.adapters import DecoderAdapter, GenerationAdapter, Seq2SeqAdapter, TransformerAdapter
from triform.generation.backend import Request, SampledRow, SamplePicker, TokenConstraints
from triform.generation.sampling import top_k, top_p
from triform.generation.scheduler import Scheduler, beam_settings, row_seeds, search_n_best
from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.layouts import pad

V, EOS, BANNED = 11, 3, (0, 1, 2)
MAX_LEN = 12
PROMPTS = [[4, 5, 6, 7, 8], [9], [10, 4], [5, 5, 5, 5, 5, 5, 5, 5], [6, 7, 8]]
SHAPE = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2, dropout=0.0, tie_embeddings=False)
ARCHITECTURES = ["decoder", "seq2seq"]
STRATEGIES = ["greedy", "sample", "beam"]
STYLES: list[dict[str, object]] = [
    *({"positions": positions} for positions in ("sinusoidal", "rotary", "alibi", "relative", "t5", "none")),
    *({"attention_score": score, "positions": "t5", "window": 3} for score in ("dot", "cosine", "additive")),
    {"window": 3},
    {"layer_windows": (2, -1), "positions": "rotary", "n_kv_heads": 1},
    {"n_kv_heads": 1, "positions": "alibi", "norm": "rms", "activation": "swiglu"},
]
CONFIG = DecodeConfig(temperature=1.5, beam_size=3, length_penalty=0.6)
CONSTRAINTS = TokenConstraints(eos=EOS, banned=BANNED)


def tiny_model(
    model_class: type[Decoder] | type[Seq2Seq], seed: int, max_len: int, **model_settings: object
) -> Decoder | Seq2Seq:
    """A model in float64 whose weights are large enough that what it writes is not one token repeated."""
    torch.manual_seed(seed)
    model = (
        model_class(ModelConfig(**(vars(SHAPE) | model_settings)), DataSizes(vocab_size=V, max_len=max_len))
        .double()
        .eval()
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter)
    return model.requires_grad_(False)


def build_adapter(architecture: str, seed: int = 0, **model_settings: object) -> TransformerAdapter:
    if architecture == "decoder":
        return DecoderAdapter(tiny_model(Decoder, seed, MAX_LEN, **model_settings), MAX_LEN)
    return Seq2SeqAdapter(tiny_model(Seq2Seq, seed, 64, **model_settings), 64, bos=2)


def decode(
    adapter: GenerationAdapter,
    rows: Sequence[Sequence[int]],
    strategy: str = "greedy",
    *,
    limits: Sequence[int] | int = 40,
    seeds: Sequence[int] | None = None,
    config: DecodeConfig = CONFIG,
    constraints: TokenConstraints = CONSTRAINTS,
    use_cuda_graphs: bool = False,
) -> list[list[int]]:
    """Decode all rows together, submitted in their order."""
    limits = [limits] * len(rows) if isinstance(limits, int) else limits
    seeds = row_seeds(7, range(len(rows))) if seeds is None else seeds
    outputs: dict[int, list[int]] = {}
    settings = replace(config, strategy=strategy)
    with Scheduler(adapter, constraints, beam_settings(settings), use_cuda_graphs=use_cuda_graphs) as scheduler:
        for fields in zip(rows, limits, seeds, strict=True):
            scheduler.submit(Request(*fields, settings))
        while scheduler.n_unfinished:
            outputs |= scheduler.step()
    return [outputs[row] for row in range(len(rows))]


def decode_reference(
    adapter: GenerationAdapter,
    rows: Sequence[Sequence[int]],
    strategy: str = "greedy",
    *,
    limits: Sequence[int] | int = 40,
    seeds: Sequence[int] | None = None,
    config: DecodeConfig = CONFIG,
    constraints: TokenConstraints = CONSTRAINTS,
) -> list[list[int]]:
    """Decode every row alone, running the model over the whole text at every step."""
    limits = [limits] * len(rows) if isinstance(limits, int) else limits
    seeds = row_seeds(7, range(len(rows))) if seeds is None else seeds
    outputs = []
    for row, limit, seed in zip(rows, limits, seeds, strict=True):
        stepper = ModelStepper(adapter, [row])
        if strategy == "beam":
            outputs += reference_beam_search(
                stepper, constraints, [limit], beam_size=config.beam_size, length_penalty=config.length_penalty
            )
        else:
            choose = make_sampler(config, seed) if strategy == "sample" else choose_greedily
            outputs.append(reference_decode(stepper, constraints, limit, choose))
    return outputs


LogitsFn = Callable[[int, tuple[int, ...]], Tensor]  # of a row number and the tokens generated for it


class ScriptedAdapter:
    """A model whose logits are a function of what a row has generated. The prompt of a row is its number."""

    max_len, sliding_context, device = 1000, False, torch.device("cpu")

    def __init__(self, logits_fn: LogitsFn) -> None:
        self.logits_fn = logits_fn
        self.batch_sizes: list[int] = []  # of each step

    def initial_tokens(self, row: Sequence[int]) -> list[int]:
        return list(row)

    def build_stepper(self, beam_size: int = 1) -> ScriptedStepper:
        return ScriptedStepper(self, beam_size)

    def decode(self, n_rows: int, strategy: str = "greedy", **options: Any) -> list[list[int]]:
        return decode(self, [[row] for row in range(n_rows)], strategy, **options)


class ScriptedStepper:
    def __init__(self, adapter: ScriptedAdapter, beam_size: int) -> None:
        self.adapter, self.beam_size = adapter, beam_size
        self.rows: list[list[tuple[int, tuple[int, ...]]]] = []

    def append_rows(self, rows: Sequence[Sequence[int]]) -> Tensor:
        new_rows = [[(int(row[0]), ())] * self.beam_size for row in rows]
        self.rows += new_rows
        return torch.stack([self.adapter.logits_fn(*row[0]) for row in new_rows])

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        self.adapter.batch_sizes.append(len(tokens))
        parent_rows = [range(self.beam_size)] * len(tokens) if parents is None else parents.tolist()
        self.rows = [
            [
                (row[parent][0], (*row[parent][1], token))
                for parent, token in zip(row_parents, row_tokens, strict=True)
            ]
            for row, row_parents, row_tokens in zip(self.rows, parent_rows, tokens.tolist(), strict=True)
        ]
        return torch.stack(
            [torch.stack([self.adapter.logits_fn(*hypothesis) for hypothesis in row]) for row in self.rows]
        )

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[index] for index in rows.tolist()]

    def restart(self, contexts: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        raise AssertionError("the context is never full")


def beam_search(
    logits_fn: LogitsFn, limits: Sequence[int], eos: int, *, beam_size: int, length_penalty: float
) -> list[list[int]]:
    config = DecodeConfig(beam_size=beam_size, length_penalty=length_penalty)
    constraints = TokenConstraints(eos=eos)
    return ScriptedAdapter(logits_fn).decode(
        len(limits), "beam", limits=limits, config=config, constraints=constraints
    )


def logits_from_probabilities(**by_history: Sequence[float]) -> LogitsFn:
    """Scores from probabilities; a history is named by its tokens, `_` is the empty one, `rest` is any other."""

    def logits(row: int, history: tuple[int, ...]) -> Tensor:
        name = "_" + "".join(map(str, history))
        return torch.tensor(by_history[name if name in by_history else "rest"]).log()

    return logits


def random_logits(seed: int, vocab_size: int, std: float = 1.5) -> LogitsFn:
    """A fixed random model: scores drawn from the seed, the row and the history."""

    def logits(row: int, history: tuple[int, ...]) -> Tensor:
        rng = np.random.default_rng([seed, row, *history])
        return torch.from_numpy(rng.normal(0, std, vocab_size))

    return logits


# -- two paths, one answer


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_neither_a_cache_nor_the_rest_of_the_batch_changes_a_token(
    architecture: str, strategy: str, seed: int
) -> None:
    adapter = build_adapter(architecture, seed)
    outputs = decode(adapter, PROMPTS, strategy)
    assert outputs == decode_reference(adapter, PROMPTS, strategy)
    assert len({tuple(tokens) for tokens in outputs}) > 1  # there was something to compare


@pytest.mark.parametrize("model_settings", STYLES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_in_no_variant_does_a_cache_or_the_rest_of_the_batch_change_a_token(
    architecture: str, model_settings: dict[str, object]
) -> None:
    adapter = build_adapter(architecture, 2, **model_settings)
    outputs = decode(adapter, PROMPTS, limits=8)
    assert outputs == decode_reference(adapter, PROMPTS, limits=8)
    for row, prompt in enumerate(PROMPTS):
        assert decode(adapter, [prompt], limits=8) == [outputs[row]]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_generates_the_same_alone_and_in_a_batch(architecture: str, strategy: str) -> None:
    adapter, seeds = build_adapter(architecture), row_seeds(7, range(len(PROMPTS)))
    batched = decode(adapter, PROMPTS, strategy)
    for row, prompt in enumerate(PROMPTS):
        assert decode(adapter, [prompt], strategy, seeds=[seeds[row]]) == [batched[row]]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_beam_of_one_is_greedy(architecture: str, seed: int) -> None:
    adapter = build_adapter(architecture, seed)
    expected = decode(adapter, PROMPTS)
    for penalty in (0.0, 0.6):
        config = DecodeConfig(beam_size=1, length_penalty=penalty)
        assert decode(adapter, PROMPTS, "beam", config=config) == expected


def greedy_by_hand(model: Decoder, prompt: list[int], max_len: int, limit: int) -> list[int]:
    """A full context goes on from its newer half; everything is read again at each step."""
    context, generated = prompt[-max_len:], []
    while len(generated) < limit:
        logits = model(torch.tensor([context]))[0, -1].float()
        logits[list(BANNED)] = float("-inf")
        token = int(logits.argmax())
        if token == EOS:
            break
        generated.append(token)
        if len(context) == max_len:
            context = context[-(max_len // 2) :]
        context = [*context, token]
    return generated


@pytest.mark.parametrize("model_settings", [{}, {"window": 3}, {"positions": "sinusoidal"}, STYLES[-2]])
@pytest.mark.parametrize("max_len", [7, 12])
def test_writing_goes_on_far_beyond_the_context(max_len: int, model_settings: dict[str, object]) -> None:
    model = tiny_model(Decoder, 5, max_len, **model_settings)
    model.lm_head.bias.data[EOS] = -50.0  # never ends by itself
    prompts = [*PROMPTS, list(range(4, 11)) * 4]  # the last is longer than the context
    limits = [50, 45, 50, 31, 50, 38]
    outputs = decode(DecoderAdapter(model, max_len), prompts, limits=limits)
    assert [len(tokens) for tokens in outputs] == limits
    for prompt, tokens, limit in zip(prompts, outputs, limits, strict=True):
        assert tokens == greedy_by_hand(model, prompt, max_len, limit)


@pytest.mark.parametrize("left", [False, True])
def test_padding_marks_what_is_real(left: bool) -> None:
    tokens, keep = pad([[5, 6], [7], [8, 9, 4]], left=left)
    assert [row[row_keep].tolist() for row, row_keep in zip(tokens, keep, strict=True)] == [[5, 6], [7], [8, 9, 4]]
    assert keep[:, -1 if left else 0].all()
    assert pad([[5, 6], [7, 8]], left=left)[1] is None


# -- endings


def test_rows_that_are_done_leave_the_batch_and_disturb_no_one() -> None:
    """Row r writes 1 until it has r + 1 tokens, then ends; the others never notice."""

    def logits(row: int, written: tuple[int, ...]) -> Tensor:
        return torch.tensor([1.0, 0.0] if len(written) > row else [0.0, 1.0])

    for strategy, config in (("greedy", CONFIG), ("beam", DecodeConfig(beam_size=1))):
        adapter = ScriptedAdapter(logits)
        outputs = adapter.decode(4, strategy, config=config, constraints=TokenConstraints(eos=0))
        assert outputs == [[1], [1, 1], [1, 1, 1], [1, 1, 1, 1]]
        assert adapter.batch_sizes == [4, 3, 2, 1]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_row_has_a_limit_of_its_own_and_banned_tokens_never_appear(architecture: str, strategy: str) -> None:
    limits = (1, 7, 3, 20, 2)
    for seed in range(3):
        outputs = decode(build_adapter(architecture, seed), PROMPTS, strategy, limits=limits)
        assert all(len(tokens) <= limit for tokens, limit in zip(outputs, limits, strict=True))
        assert not {*BANNED, EOS} & {token for tokens in outputs for token in tokens}


def test_a_ban_falls_on_the_best_token_too() -> None:
    adapter = ScriptedAdapter(lambda row, written: torch.tensor([9.0, 8.0, 1.0, 0.0]))
    constraints = TokenConstraints(eos=3, banned=(0, 1))
    assert adapter.decode(1, limits=[3], constraints=constraints) == [[2, 2, 2]]


# -- beam search


def penalised(total: float, length: int, alpha: float) -> float:
    return total / ((5 + length) / 6) ** alpha


def log_probability(logits_fn: LogitsFn, tokens: Sequence[int]) -> float:
    steps = (logits_fn(0, tuple(tokens[:index])).log_softmax(-1)[token] for index, token in enumerate(tokens))
    return float(sum(steps))


def exhaustive_search(logits_fn: LogitsFn, vocab_size: int, eos: int, limit: int, alpha: float) -> list[int]:
    """The best of every sequence that ends within the limit; the end token is one of its tokens."""
    words = [token for token in range(vocab_size) if token != eos]
    sequences = itertools.chain.from_iterable(itertools.product(words, repeat=n) for n in range(limit))
    return list(
        max(
            sequences,
            key=lambda sequence: penalised(log_probability(logits_fn, [*sequence, eos]), len(sequence) + 1, alpha),
        )
    )


def plain_beam_search(
    logits_fn: LogitsFn,
    beam_size: int,
    vocab_size: int,
    eos: int,
    limit: int,
    alpha: float,
) -> list[int]:
    """The best hypothesis of `plain_n_best`."""
    return plain_n_best(logits_fn, beam_size, vocab_size, eos, limit, alpha)[0][1]


def plain_n_best(
    logits_fn: LogitsFn, beam_size: int, vocab_size: int, eos: int, limit: int, alpha: float
) -> list[tuple[float, list[int]]]:
    """Beam search written out over a list of hypotheses, with the rules of the docstring."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        steps = []
        for total, sequence in beams:
            log_probs = logits_fn(0, sequence).log_softmax(-1).tolist()
            steps += [(total + log_probs[token], (*sequence, token)) for token in range(vocab_size)]
        steps.sort(key=lambda step: -step[0])
        ended += [
            (penalised(total, length, alpha), sequence)
            for total, sequence in steps[:beam_size]
            if sequence[-1] == eos
        ]
        beams = [step for step in steps if step[1][-1] != eos][:beam_size]
        best_ended = max((value for value, _ in ended), default=-math.inf)
        if len(ended) >= beam_size and not (beams and penalised(beams[0][0], length, alpha) > best_ended):
            break
    ended.sort(key=lambda hypothesis: -hypothesis[0])
    unfinished = [(penalised(total, limit, alpha), (*sequence, eos)) for total, sequence in beams]
    return [(score, list(sequence[:-1])) for score, sequence in [*ended, *unfinished][:beam_size]]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0, 4.0])
def test_a_wide_beam_finds_what_exhaustive_search_finds(alpha: float) -> None:
    for seed in range(25):
        logits_fn = random_logits(seed, 4)
        outputs = beam_search(logits_fn, [4], 0, beam_size=128, length_penalty=alpha)
        assert outputs == [exhaustive_search(logits_fn, 4, 0, 4, alpha)], seed


@given(
    seed=st.integers(0, 10_000),
    n_tokens=st.integers(2, 6),
    size=st.integers(1, 6),
    limit=st.integers(1, 6),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
)
@settings(max_examples=120)
def test_beam_search_is_the_plain_one(seed: int, n_tokens: int, size: int, limit: int, alpha: float) -> None:
    logits_fn = random_logits(seed, n_tokens)
    outputs = beam_search(logits_fn, [limit], 1, beam_size=size, length_penalty=alpha)
    assert outputs == [plain_beam_search(logits_fn, size, n_tokens, 1, limit, alpha)]


@given(
    seed=st.integers(0, 10_000),
    n_tokens=st.integers(2, 6),
    size=st.integers(1, 6),
    limits=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    alpha=st.sampled_from([0.0, 0.6, 2.0]),
)
@settings(max_examples=60)
def test_the_n_best_hypotheses_are_those_of_the_plain_search(
    seed: int, n_tokens: int, size: int, limits: list[int], alpha: float
) -> None:
    logits_fn = random_logits(seed, n_tokens)
    config = DecodeConfig(strategy="beam", beam_size=size, length_penalty=alpha)
    requests = [Request([0], limit, decode=config) for limit in limits]
    adapter: Any = ScriptedAdapter(logits_fn)
    for limit, hypotheses in zip(
        limits, search_n_best(adapter, requests, TokenConstraints(eos=1), n_best=size), strict=True
    ):
        expected = plain_n_best(logits_fn, size, n_tokens, 1, limit, alpha)
        assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens for _, tokens in expected]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([score for score, _ in expected])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_poor_ends_do_not_stop_a_search_that_is_sure_of_going_on(size: int) -> None:
    """Ending early is always second best, and hardly likely: as many such ends as beams are no reason to stop."""

    def logits(row: int, written: tuple[int, ...]) -> Tensor:
        return torch.tensor([9.0, 0.0, -9.0] if len(written) >= 6 else [0.0, 9.0, -9.0])

    outputs = beam_search(logits, [12], 0, beam_size=size, length_penalty=0.6)
    assert outputs == [[1] * 6]


def test_the_length_penalty_decides_as_its_formula_says() -> None:
    """Ending at once has ln 0.4 = -0.916; `1` and then the end has ln 0.36 = -1.022, divided by (7/6)^alpha.

    They are equal at alpha = ln(1.022 / 0.916) / ln(7/6) = 0.706.
    """
    threshold = math.log(math.log(0.36) / math.log(0.4)) / math.log(7 / 6)
    assert threshold == pytest.approx(0.706, abs=1e-3)
    logits_fn = logits_from_probabilities(_=[0.4, 0.5999, 0.0001], _1=[0.6, 0.2, 0.2], rest=[0.1, 0.45, 0.45])
    for alpha, expected in ((0.0, []), (0.6, []), (0.70, []), (0.72, [1]), (1.0, [1])):
        outputs = beam_search(logits_fn, [5], 0, beam_size=2, length_penalty=alpha)
        assert outputs == [expected], alpha


def test_at_the_limit_the_unfinished_count_only_when_nothing_has_ended() -> None:
    unfinished_logits = logits_from_probabilities(_=[1e-9, 0.7, 0.3], _1=[1e-9, 0.4, 0.6], _2=[1e-9, 0.99, 0.01])
    outputs = beam_search(unfinished_logits, [2], 0, beam_size=2, length_penalty=0.0)
    assert outputs == [[1, 2]]  # 0.42 beats 0.297 and 0.28
    ended_logits = logits_from_probabilities(_=[0.3, 0.6, 0.1], _1=[0.01, 0.98, 0.01], _2=[0.1, 0.8, 0.1])
    outputs = beam_search(ended_logits, [2], 0, beam_size=2, length_penalty=0.0)
    assert outputs == [[]]  # `1 1` has 0.59, but it has not ended


# -- drawing

logit_values = st.integers(-32, 32).map(lambda number: number / 8)
logit_rows = st.lists(logit_values, min_size=2, max_size=9, unique=True).map(lambda row: torch.tensor([row]))


@given(logit_rows, st.integers(0, 10))
def test_top_k_keeps_the_k_best(logits: Tensor, k: int) -> None:
    values = logits[0].tolist()
    top_values = sorted(values, reverse=True)[: k or None]
    filtered = top_k(logits, torch.tensor([[k]]), max(1, k))[0]
    assert filtered.tolist() == [value if value in top_values else -math.inf for value in values]


@given(logit_rows, st.floats(0.01, 1.0))
def test_top_p_keeps_the_fewest_that_reach_p(logits: Tensor, p: float) -> None:
    probabilities = logits.double().softmax(-1)[0].tolist()
    expected, mass = set(), 0.0
    for index in sorted(range(len(probabilities)), key=lambda index: -probabilities[index]):
        if mass >= p:
            break
        expected.add(index)
        mass += probabilities[index]
    filtered = top_p(logits.double(), torch.tensor([[p]], dtype=torch.float64))[0]
    assert {index for index, value in enumerate(filtered.tolist()) if value > -math.inf} == expected


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"temperature": 0.7, "top_k": 4},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.7},
    ],
)
def test_draws_follow_the_distribution_asked_for(options: dict[str, float]) -> None:
    logits, n_draws = torch.tensor([2.0, 0.5, -1.0, 1.5, 0.0, 1.0, -0.5]), 40_000
    probabilities = torch.softmax(logits.double() / options["temperature"], -1).numpy()
    order = np.argsort(-probabilities)
    probabilities[order[int(options.get("top_k", len(probabilities))) :]] = (
        0  # first the k best, then the nucleus among them
    )
    probabilities /= probabilities.sum()
    preceding_mass = np.cumsum(probabilities[order]) - probabilities[order]
    probabilities[order[preceding_mass >= options.get("top_p", 1.0)]] = 0
    probabilities /= probabilities.sum()
    uniforms = SampledRow(0, Request([], 1, seed=3), []).draw(n_draws)[:, None]
    tokens = sample_tokens(logits.expand(n_draws, -1), uniforms, DecodeConfig(**options))
    counts = np.bincount(tokens.numpy(), minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    assert chisquare(counts[probabilities > 0], probabilities[probabilities > 0] * n_draws).pvalue > 1e-3


def sample(logits: Tensor, seeds: Sequence[int]) -> list[int]:
    """One token for each row of logits (B, V)."""
    picker, settings = SamplePicker(TokenConstraints(eos=-1), torch.device("cpu")), DecodeConfig(strategy="sample")
    picker.prepare([picker.make_row(row, Request([], 1, seed, settings), []) for row, seed in enumerate(seeds)], 1)
    return picker.pick(logits[:, None], torch.zeros(1, dtype=torch.long))[0][:, 0].tolist()


def test_the_same_seed_draws_the_same_and_another_seed_does_not() -> None:
    logits = torch.zeros(6, 50)
    first, repeated, other = (sample(logits, row_seeds(seed, range(6))) for seed in (1, 1, 2))
    assert first == repeated != other
    assert len(set(first)) > 1  # rows do not share a generator


def test_no_two_rows_of_two_seeds_share_a_generator() -> None:
    seeds = [row_seed for seed in range(5) for row_seed in row_seeds(seed, range(1000))]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("uniform_value", [0.0, 1 - 2**-53])
def test_the_edges_of_a_draw_do_not_reach_a_token_without_a_chance(
    uniform_value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch, "rand", lambda *size, **options: torch.full(size, uniform_value, dtype=torch.float64)
    )
    logits = torch.tensor([[-math.inf, 0.3, -math.inf, 0.1, 0.2, -math.inf]])
    assert sample(logits, [0]) == [1 if uniform_value == 0 else 4]
