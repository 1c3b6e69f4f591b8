"""Cached and uncached, batched and alone, beam and exhaustive search: each pair writes the same tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_beam import listed_beam_search
from scipy.stats import chisquare
from torch import Tensor

from triform.config import DecodeConfig, ModelConfig, Sizes
from triform.decode.beam import Ending
from triform.decode.choose import Sample, best, row_seeds, top_k, top_p
from triform.decode.forms import DecoderForm, Form, Seq2SeqForm
from triform.decode.search import beam_search, write
from triform.decode.stepper import Cached, Rereading, Steps
from triform.models.decoder import Decoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.rows import pad

V, EOS, BANNED = 11, 3, (0, 1, 2)
MAX_LEN = 12
PROMPTS = [[4, 5, 6, 7, 8], [9], [10, 4], [5, 5, 5, 5, 5, 5, 5, 5], [6, 7, 8]]
SHAPE = ModelConfig(d_model=8, d_ff=16, n_layers=2, n_heads=2, dropout=0.0, tie_embeddings=False)
FORMS = ["decoder", "seq2seq"]
STRATEGIES = ["greedy", "sample", "beam"]
STYLES: list[dict[str, object]] = [
    *({"positions": positions} for positions in ("sinusoidal", "rotary", "alibi", "relative", "t5", "none")),
    *({"score": score, "positions": "t5", "window": 3} for score in ("dot", "cosine", "additive")),
    {"window": 3},
    {"layer_windows": (2, -1), "positions": "rotary", "n_kv_heads": 1},
    {"n_kv_heads": 1, "positions": "alibi", "norm": "rms", "activation": "swiglu"},
]
Find = Callable[[Steps, Ending, Sequence[int]], list[list[int]]]


def tiny(kind: type[Decoder] | type[Seq2Seq], seed: int, max_len: int, **style: object) -> Decoder | Seq2Seq:
    """A model in float64 whose weights are large enough that what it writes is not one token repeated."""
    torch.manual_seed(seed)
    model = kind(ModelConfig(**(vars(SHAPE) | style)), Sizes(vocab_size=V, max_len=max_len)).double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter)
    return model.requires_grad_(False)


def stepper_for(form: str, rows: list[list[int]], *, seed: int = 0, cached: bool = True, **style: object) -> Steps:
    return (Cached if cached else Rereading)(form_of(form, seed, **style), rows)


def form_of(form: str, seed: int = 0, **style: object) -> Form:
    if form == "decoder":
        return DecoderForm(tiny(Decoder, seed, MAX_LEN, **style), MAX_LEN)
    return Seq2SeqForm(tiny(Seq2Seq, seed, 64, **style), 64, bos=2)


def _sampled(stepper: Steps, ending: Ending, rows: Sequence[int]) -> list[list[int]]:
    return write(stepper, Sample(DecodeConfig(temperature=1.5), row_seeds(7, rows)), ending)


SEARCHES: dict[str, Find] = {
    "greedy": lambda stepper, ending, rows: write(stepper, best, ending),
    "sample": _sampled,
    "beam": lambda stepper, ending, rows: _beam(stepper)(stepper, ending, size=3, length_penalty=0.6),
}


def _beam(stepper: Steps) -> Callable[..., list[list[int]]]:
    """What reads everything again is searched by the plain beam search too."""
    return beam_search if isinstance(stepper, Cached) else listed_beam_search


def ending_of(n_rows: int, limit: int = 40) -> Ending:
    return Ending(eos=EOS, limits=(limit,) * n_rows, banned=BANNED)


class Scripted:
    """A stepper without a model: scores are a function of what a row has written, and calls are noted."""

    def __init__(self, n_rows: int, scores: Callable[[int, tuple[int, ...]], Tensor]) -> None:
        self.scores, self.size = scores, 1
        self.rows: list[list[tuple[int, tuple[int, ...]]]] = [[(row, ())] for row in range(n_rows)]
        self.sizes: list[int] = []

    def start(self) -> Tensor:
        return torch.stack([torch.stack([self.scores(*text) for text in row]) for row in self.rows]).squeeze(1)

    def fork(self, size: int) -> None:
        self.rows, self.size = [row[:1] * size for row in self.rows], size

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        self.sizes.append(len(tokens))
        grid = tokens.view(len(tokens), -1).tolist()
        origins = [range(self.size)] * len(grid) if parents is None else parents.tolist()
        self.rows = [
            [(row[origin][0], (*row[origin][1], token)) for origin, token in zip(origin_of, texts, strict=True)]
            for row, origin_of, texts in zip(self.rows, origins, grid, strict=True)
        ]
        return self.start().view(*tokens.shape, -1)

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[place] for place in rows.tolist()]

    def join(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """A row that joins is told by its number alone."""
        joining = [[(int(row[0]), ())] * self.size for row in rows]
        self.rows += joining
        return torch.stack([self.scores(*row[0]) for row in joining])


def chances(**by_history: Sequence[float]) -> Callable[[int, tuple[int, ...]], Tensor]:
    """Scores from probabilities; a history is named by its tokens, `_` is the empty one, `rest` is any other."""

    def scores(row: int, written: tuple[int, ...]) -> Tensor:
        name = "_" + "".join(map(str, written))
        return torch.tensor(by_history[name if name in by_history else "rest"]).log()

    return scores


def random_scores(seed: int, size: int, spread: float = 1.5) -> Callable[[int, tuple[int, ...]], Tensor]:
    """A fixed random model: scores drawn from the seed, the row and the history."""

    def scores(row: int, written: tuple[int, ...]) -> Tensor:
        rng = np.random.default_rng([seed, row, *written])
        return torch.from_numpy(rng.normal(0, spread, size))

    return scores


# -- two paths, one answer


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_cache_does_not_change_a_token(form: str, strategy: str, seed: int) -> None:
    ending, rows = ending_of(len(PROMPTS)), range(len(PROMPTS))
    cached, plain = (
        SEARCHES[strategy](stepper_for(form, PROMPTS, seed=seed, cached=cached), ending, rows)
        for cached in (True, False)
    )
    assert cached == plain
    assert len({tuple(tokens) for tokens in cached}) > 1  # there was something to compare


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("form", FORMS)
def test_in_no_variant_does_a_cache_or_the_rest_of_the_batch_change_a_token(
    form: str, style: dict[str, object]
) -> None:
    ending = ending_of(len(PROMPTS), limit=8)
    together, plain = (
        write(stepper_for(form, PROMPTS, seed=2, cached=cached, **style), best, ending) for cached in (True, False)
    )
    assert together == plain
    for row, prompt in enumerate(PROMPTS):
        alone = write(stepper_for(form, [prompt], seed=2, **style), best, ending_of(1, limit=8))
        assert alone == [together[row]]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_writes_the_same_alone_and_in_a_batch(form: str, strategy: str) -> None:
    together = SEARCHES[strategy](stepper_for(form, PROMPTS), ending_of(len(PROMPTS)), range(len(PROMPTS)))
    for row, prompt in enumerate(PROMPTS):
        assert SEARCHES[strategy](stepper_for(form, [prompt]), ending_of(1), [row]) == [together[row]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_beam_of_one_is_greedy(form: str, seed: int) -> None:
    ending = ending_of(len(PROMPTS))
    greedy = write(stepper_for(form, PROMPTS, seed=seed), best, ending)
    for penalty in (0.0, 0.6):
        stepper = stepper_for(form, PROMPTS, seed=seed)
        assert beam_search(stepper, ending, size=1, length_penalty=penalty) == greedy


def greedy_by_hand(model: Decoder, prompt: list[int], max_len: int, limit: int) -> list[int]:
    """A full context goes on from its newer half; everything is read again at each step."""
    context, written = prompt[-max_len:], []
    while len(written) < limit:
        scores = model(torch.tensor([context]))[0, -1].float()
        scores[list(BANNED)] = float("-inf")
        token = int(scores.argmax())
        if token == EOS:
            break
        written.append(token)
        if len(context) == max_len:
            context = context[-(max_len // 2) :]
        context = [*context, token]
    return written


@pytest.mark.parametrize("style", [{}, {"window": 3}, {"positions": "sinusoidal"}, STYLES[-2]])
@pytest.mark.parametrize("max_len", [7, 12])
def test_writing_goes_on_far_beyond_the_context(max_len: int, style: dict[str, object]) -> None:
    model = tiny(Decoder, 5, max_len, **style)
    model.head.bias.data[EOS] = -50.0  # never ends by itself
    prompts = [*PROMPTS, list(range(4, 11)) * 4]  # the last is longer than the context
    ending = Ending(eos=EOS, limits=(50, 45, 50, 31, 50, 38), banned=BANNED)
    got = write(Cached(DecoderForm(model, max_len), prompts), best, ending)
    assert [len(tokens) for tokens in got] == list(ending.limits)
    for prompt, tokens, limit in zip(prompts, got, ending.limits, strict=True):
        assert tokens == greedy_by_hand(model, prompt, max_len, limit)


@pytest.mark.parametrize("left", [False, True])
def test_padding_marks_what_is_real(left: bool) -> None:
    tokens, keep = pad([[5, 6], [7], [8, 9, 4]], left=left)
    assert [row[real].tolist() for row, real in zip(tokens, keep, strict=True)] == [[5, 6], [7], [8, 9, 4]]
    assert keep[:, -1 if left else 0].all()
    assert pad([[5, 6], [7, 8]], left=left)[1] is None


# -- endings


def test_rows_that_are_done_leave_the_batch_and_disturb_no_one() -> None:
    """Row r writes 1 until it has r + 1 tokens, then ends; the others never notice."""

    def scores(row: int, written: tuple[int, ...]) -> Tensor:
        return torch.tensor([1.0, 0.0] if len(written) > row else [0.0, 1.0])

    stepper = Scripted(4, scores)
    assert write(stepper, best, Ending(eos=0, limits=(9,) * 4)) == [[1], [1, 1], [1, 1, 1], [1, 1, 1, 1]]
    assert stepper.sizes == [4, 3, 2, 1]
    stepper = Scripted(4, scores)
    found = beam_search(stepper, Ending(eos=0, limits=(9,) * 4), size=1, length_penalty=0.6)
    assert found == [[1], [1, 1], [1, 1, 1], [1, 1, 1, 1]]
    assert stepper.sizes == [4, 3, 2, 1]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", FORMS)
def test_each_row_has_a_limit_of_its_own_and_banned_tokens_never_appear(form: str, strategy: str) -> None:
    limits = (1, 7, 3, 20, 2)
    for seed in range(3):
        ending = Ending(eos=EOS, limits=limits, banned=BANNED)
        stepper = stepper_for(form, PROMPTS, seed=seed)
        found = SEARCHES[strategy](stepper, ending, range(len(PROMPTS)))
        assert all(len(tokens) <= limit for tokens, limit in zip(found, limits, strict=True))
        assert not {*BANNED, EOS} & {token for tokens in found for token in tokens}


def test_a_ban_falls_on_the_best_token_too() -> None:
    stepper = Scripted(1, lambda row, written: torch.tensor([9.0, 8.0, 1.0, 0.0]))
    ending = Ending(eos=3, limits=(3,), banned=(0, 1))
    assert write(stepper, best, ending) == [[2, 2, 2]]


# -- beam search


def penalised(total: float, length: int, alpha: float) -> float:
    return total / ((5 + length) / 6) ** alpha


def log_chance(scores: Callable[[int, tuple[int, ...]], Tensor], tokens: Sequence[int]) -> float:
    steps = (scores(0, tuple(tokens[:place])).log_softmax(-1)[token] for place, token in enumerate(tokens))
    return float(sum(steps))


def exhaustive(
    scores: Callable[[int, tuple[int, ...]], Tensor], size: int, eos: int, limit: int, alpha: float
) -> list[int]:
    """The best of every sequence that ends within the limit; the end token is one of its tokens."""
    words = [token for token in range(size) if token != eos]
    texts = itertools.chain.from_iterable(itertools.product(words, repeat=n) for n in range(limit))
    return list(max(texts, key=lambda text: penalised(log_chance(scores, [*text, eos]), len(text) + 1, alpha)))


def plain_beam(
    scores: Callable[[int, tuple[int, ...]], Tensor], size: int, n_tokens: int, eos: int, limit: int, alpha: float
) -> list[int]:
    """Beam search written out over a list of hypotheses, with the rules of the docstring."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        steps = []
        for total, text in beams:
            logs = scores(0, text).log_softmax(-1).tolist()
            steps += [(total + logs[token], (*text, token)) for token in range(n_tokens)]
        steps.sort(key=lambda step: -step[0])
        done += [(penalised(total, length, alpha), text) for total, text in steps[:size] if text[-1] == eos]
        beams = [step for step in steps if step[1][-1] != eos][:size]
        best_end = max((worth for worth, _ in done), default=-math.inf)
        if len(done) >= size and not (beams and penalised(beams[0][0], length, alpha) > best_end):
            break
    done = done or [(total, (*text, eos)) for total, text in beams]
    return list(max(done, key=lambda hypothesis: hypothesis[0])[1][:-1])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0, 4.0])
def test_a_wide_beam_finds_what_exhaustive_search_finds(alpha: float) -> None:
    for seed in range(25):
        scores = random_scores(seed, 4)
        found = beam_search(Scripted(1, scores), Ending(eos=0, limits=(4,)), size=128, length_penalty=alpha)
        assert found == [exhaustive(scores, 4, 0, 4, alpha)], seed


@given(
    seed=st.integers(0, 10_000),
    n_tokens=st.integers(2, 6),
    size=st.integers(1, 6),
    limit=st.integers(1, 6),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
)
@settings(max_examples=120)
def test_beam_search_is_the_plain_one(seed: int, n_tokens: int, size: int, limit: int, alpha: float) -> None:
    scores = random_scores(seed, n_tokens)
    found = beam_search(Scripted(1, scores), Ending(eos=1, limits=(limit,)), size=size, length_penalty=alpha)
    assert found == [plain_beam(scores, size, n_tokens, 1, limit, alpha)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_poor_ends_do_not_stop_a_search_that_is_sure_of_going_on(size: int) -> None:
    """Ending early is always second best, and hardly likely: as many such ends as beams are no reason to stop."""

    def scores(row: int, written: tuple[int, ...]) -> Tensor:
        return torch.tensor([9.0, 0.0, -9.0] if len(written) >= 6 else [0.0, 9.0, -9.0])

    found = beam_search(Scripted(1, scores), Ending(eos=0, limits=(12,)), size=size, length_penalty=0.6)
    assert found == [[1] * 6]


def test_the_length_penalty_decides_as_its_formula_says() -> None:
    """Ending at once has ln 0.4 = -0.916; `1` and then the end has ln 0.36 = -1.022, divided by (7/6)^alpha.

    They are equal at alpha = ln(1.022 / 0.916) / ln(7/6) = 0.706.
    """
    turn = math.log(math.log(0.36) / math.log(0.4)) / math.log(7 / 6)
    assert turn == pytest.approx(0.706, abs=1e-3)
    scores = chances(_=[0.4, 0.5999, 0.0001], _1=[0.6, 0.2, 0.2], rest=[0.1, 0.45, 0.45])
    for alpha, expected in ((0.0, []), (0.6, []), (0.70, []), (0.72, [1]), (1.0, [1])):
        found = beam_search(Scripted(1, scores), Ending(eos=0, limits=(5,)), size=2, length_penalty=alpha)
        assert found == [expected], alpha


def test_at_the_limit_the_unfinished_count_only_when_nothing_has_ended() -> None:
    never = chances(_=[1e-9, 0.7, 0.3], _1=[1e-9, 0.4, 0.6], _2=[1e-9, 0.99, 0.01])
    found = beam_search(Scripted(1, never), Ending(eos=0, limits=(2,)), size=2, length_penalty=0.0)
    assert found == [[1, 2]]  # 0.42 beats 0.297 and 0.28
    ended = chances(_=[0.3, 0.6, 0.1], _1=[0.01, 0.98, 0.01], _2=[0.1, 0.8, 0.1])
    found = beam_search(Scripted(1, ended), Ending(eos=0, limits=(2,)), size=2, length_penalty=0.0)
    assert found == [[]]  # `1 1` has 0.59, but it has not ended


# -- drawing

eighths = st.integers(-32, 32).map(lambda number: number / 8)
distributions = st.lists(eighths, min_size=2, max_size=9, unique=True).map(lambda row: torch.tensor([row]))


@given(distributions, st.integers(0, 10))
def test_top_k_keeps_the_k_best(scores: Tensor, k: int) -> None:
    values = scores[0].tolist()
    kept = sorted(values, reverse=True)[: k or None]
    assert top_k(scores, k)[0].tolist() == [value if value in kept else -math.inf for value in values]


@given(distributions, st.floats(0.01, 1.0))
def test_top_p_keeps_the_fewest_that_reach_p(scores: Tensor, p: float) -> None:
    shares = scores.double().softmax(-1)[0].tolist()
    kept, mass = set(), 0.0
    for place in sorted(range(len(shares)), key=lambda place: -shares[place]):
        if mass >= p:
            break
        kept.add(place)
        mass += shares[place]
    got = top_p(scores.double(), p)[0]
    assert {place for place, value in enumerate(got.tolist()) if value > -math.inf} == kept


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"temperature": 0.7, "top_k": 4},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.7},
    ],
)
def test_draws_follow_the_distribution_asked_for(asked: dict[str, float]) -> None:
    scores, draws = torch.tensor([2.0, 0.5, -1.0, 1.5, 0.0, 1.0, -0.5]), 40_000
    chance = torch.softmax(scores.double() / asked["temperature"], -1).numpy()
    order = np.argsort(-chance)
    chance[order[int(asked.get("top_k", len(chance))) :]] = 0  # first the k best, then the nucleus among them
    chance /= chance.sum()
    before = np.cumsum(chance[order]) - chance[order]
    chance[order[before >= asked.get("top_p", 1.0)]] = 0
    chance /= chance.sum()
    sample = Sample(DecodeConfig(**asked), [3])
    counts = np.bincount(sample(scores.expand(draws, -1), [0] * draws).numpy(), minlength=len(chance))
    assert not counts[chance == 0].any()
    assert chisquare(counts[chance > 0], chance[chance > 0] * draws).pvalue > 1e-3


def test_the_same_seed_draws_the_same_and_another_seed_does_not() -> None:
    scores = torch.zeros(6, 50)
    rows = range(6)
    first, again, other = (Sample(DecodeConfig(), row_seeds(seed, rows))(scores, rows) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert len(set(first.tolist())) > 1  # rows do not share a generator


def test_no_two_rows_of_two_seeds_share_a_generator() -> None:
    seeds = [one for seed in range(5) for one in row_seeds(seed, range(1000))]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("point", [0.0, 1 - 2**-53])
def test_the_edges_of_a_draw_do_not_reach_a_token_without_a_chance(
    point: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda *size, **how: torch.full(size, point, dtype=torch.float64))
    scores = torch.tensor([[-math.inf, 0.3, -math.inf, 0.1, 0.2, -math.inf]])
    assert Sample(DecodeConfig(), [0])(scores, [0]).item() == (1 if point == 0 else 4)
