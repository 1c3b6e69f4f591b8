"""Every position, score, grouping of heads and pattern of windows, in whole models of all three forms.

Packed equals padded equals row by row; cached equals uncached; the future is not seen and padding changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from triform.config import Config, DataSizes, ModelConfig, PositionKind, ScoreKind
from triform.errors import ConfigError
from triform.generation.adapters import LeftPaddedLayout
from triform.generation.kv_cache import KVCache
from triform.models.decoder import Decoder
from triform.models.encoder import Classifier, Encoder
from triform.models.seq2seq import Seq2Seq
from triform.nn.embedding import hash_bigrams
from triform.nn.kernels.packing import PackedLayout, pack
from triform.nn.layouts import PaddedLayout, pad

V = 13
SIZES = DataSizes(vocab_size=V, max_len=24, n_labels=3)
LENGTHS, TARGET_LENGTHS = (4, 8), (7, 2)
WINDOWS: dict[str, dict[str, Any]] = {
    "all": {"n_layers": 1},
    "window": {"n_layers": 1, "window": 3},
    "layers": {"n_layers": 2, "layer_windows": (2, -1)},
}
N_KV_HEADS = (0, 2, 1)  # each head its own keys, two heads to a key, all to one
SCORE_CASES = [
    (positions, score)
    for positions, score in product(get_args(PositionKind), get_args(ScoreKind))
    if not (score == "additive" and positions in ("rotary", "relative"))
]
every_score_case = pytest.mark.parametrize(("positions", "score"), SCORE_CASES)
every_window = pytest.mark.parametrize("windows", WINDOWS)


def build_config(positions: PositionKind, score: ScoreKind, windows: str, **settings: Any) -> ModelConfig:
    """A model whose heads are grouped in another way for each pattern of windows.

    Each kind of position and score meets each grouping and each pattern, and so do groupings and patterns.
    """
    index = SCORE_CASES.index((positions, score)) + list(WINDOWS).index(windows)
    sizes = {"d_model": 16, "d_ff": 20, "n_heads": 4, "n_kv_heads": N_KV_HEADS[index % 3], "dropout": 0.0}
    score_settings = {"positions": positions, "attention_score": score, "n_buckets": 8, "max_distance": 6}
    return ModelConfig(**sizes | score_settings | WINDOWS[windows] | settings)


def randomise(model: Any) -> Any:
    """Random biases, norms and tables too, so that all of them have a say."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def random_rows(lengths: tuple[int, ...]) -> list[list[int]]:
    return [torch.randint(V, (length,)).tolist() for length in lengths]


def outputs_and_gradients(model: nn.Module, outputs: list[Tensor]) -> Tensor:
    """What was answered, and the gradients of all parameters, end to end; the cotangents are always the same."""
    output = torch.cat([output.flatten() for output in outputs])
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad(output, list(model.parameters()), cotangent)
    return torch.cat([output.detach(), *(grad.flatten() for grad in grads)])


def replace_token(tokens: Tensor, position: int) -> Tensor:
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] + 1) % V
    return changed


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------------ pairs of tokens


def test_pairs_of_tokens_have_vectors_of_their_own_however_rows_lie() -> None:
    """A token's vector is its own and that of the pair it makes with the one before it in its text."""
    torch.manual_seed(0)
    config = build_config("none", "scaled_dot", "all", n_layers=1, bigram_buckets=11)
    model = randomise(Classifier(config, DataSizes(vocab_size=V, max_len=16, n_labels=3))).eval()
    assert (
        Classifier(
            config, DataSizes(vocab_size=V, max_len=16, n_labels=3)
        ).encoder.embedding.bigram_embedding.weight
        == 0
    ).all()
    rows = random_rows((5, 1, 9))
    alone, padded, packed = (torch.stack(outputs) for outputs in classifier_outputs(model, rows, []))
    assert_close(padded, alone)
    assert_close(packed, alone)
    embedding = model.encoder.embedding
    tokens = torch.tensor([rows[0]])
    bigram_rows = hash_bigrams(tokens, torch.arange(5), 11)[0]
    for position, token in enumerate(rows[0]):
        expected = (
            embedding.token_embedding.weight[token] + embedding.bigram_embedding.weight[bigram_rows[position]]
        )
        assert_close(embedding(tokens, torch.arange(5))[0, position], expected)


@pytest.mark.parametrize("n", [1_000, 50_000, 250_000, 1_000_000, 1 << 17, 99_991])
def test_pairs_spread_over_all_rows_of_any_table(n: int) -> None:
    """As many rows are used as by chance, even by pairs of few tokens and in a table of a round size."""
    tokens = torch.cartesian_prod(torch.arange(200), torch.arange(200))  # (40000, 2): every pair
    rows = hash_bigrams(tokens, torch.arange(2), n)
    expected = n * (1 - (1 - 1 / n) ** len(tokens))
    assert abs(len(rows[:, 1].unique()) - expected) < 0.02 * expected
    assert rows.min() >= 0
    assert rows.max() < n
    assert rows[:, 0].view(200, 200).unique(dim=1).shape[1] == 1, "the first token has nothing before it"
    assert len(hash_bigrams(tokens.flip(1), torch.arange(2), n)[:, 1].eq(rows[:, 1]).nonzero()) < 0.05 * len(tokens)


def test_pairs_are_for_classifiers() -> None:
    with pytest.raises(ConfigError, match="applies to classify only"):
        Config(task="generate", model=ModelConfig(bigram_buckets=9))


# ------------------------------------------------------------------------------------------ how rows lie


def classifier_outputs(model: Classifier, rows: list[list[int]], _: list[list[int]]) -> Iterator[list[Tensor]]:
    yield [model(torch.tensor([row]))[0] for row in rows]
    yield list(model(*pad(rows, fill=7)))
    yield list(model(*pack(rows)))


def decoder_outputs(model: Decoder, rows: list[list[int]], _: list[list[int]]) -> Iterator[list[Tensor]]:
    yield [model(torch.tensor([row]))[0] for row in rows]
    padded = model(*pad(rows, fill=7))
    yield [output[: len(row)] for output, row in zip(padded, rows, strict=True)]
    yield list(model(*pack(rows))[0].split([len(row) for row in rows]))


def seq2seq_outputs(model: Seq2Seq, rows: list[list[int]], targets: list[list[int]]) -> Iterator[list[Tensor]]:
    pairs = list(zip(rows, targets, strict=True))
    yield [model(torch.tensor([row]), torch.tensor([target]))[0] for row, target in pairs]
    (source, keep), (target, _) = pad(rows, fill=7), pad(targets, fill=7)
    padded = model(source, target, keep)  # padding after a target is its future: it need not be hidden
    yield [output[: len(target)] for output, target in zip(padded, targets, strict=True)]
    (source, packed), (target, packed_target) = pack(rows), pack(targets)
    yield list(model(source, target, packed, packed_target)[0].split([len(target) for target in targets]))


@every_score_case
@every_window
@pytest.mark.parametrize(
    ("form", "compute_logits"),
    [
        (Classifier, classifier_outputs),
        (Decoder, decoder_outputs),
        (Seq2Seq, seq2seq_outputs),
    ],
    ids=["classify", "generate", "translate"],
)
def test_packed_equals_padded_equals_row_by_row(
    form: Any, compute_logits: Any, positions: PositionKind, score: ScoreKind, windows: str
) -> None:
    rows, targets = random_rows(LENGTHS), random_rows(TARGET_LENGTHS)
    config = build_config(positions, score, windows)
    model = randomise(form(config, SIZES))
    alone, *others = compute_logits(model, rows, targets)
    expected = outputs_and_gradients(model, alone)
    for other in others:
        assert_close(outputs_and_gradients(model, other), expected)


@pytest.mark.parametrize("positions", get_args(PositionKind))
@every_window
def test_so_it_is_in_an_encoder_that_reads_back_only(positions: PositionKind, windows: str) -> None:
    model = randomise(
        Classifier(build_config(positions, "scaled_dot", windows, attention_direction="causal"), SIZES)
    )
    alone, *others = classifier_outputs(model, random_rows((5, 1, 8)), [])
    expected = outputs_and_gradients(model, alone)
    for other in others:
        assert_close(outputs_and_gradients(model, other), expected)


@pytest.mark.parametrize("positions", get_args(PositionKind))
def test_padding_of_a_target_may_be_hidden_or_not(positions: PositionKind) -> None:
    model = randomise(Seq2Seq(build_config(positions, "scaled_dot", "layers"), SIZES))
    (source, keep), (target, target_keep) = pad(random_rows((5, 1, 8)), fill=7), pad(random_rows((3, 7, 2)), fill=7)
    assert_close(model(source, target, keep)[target_keep], model(source, target, keep, target_keep)[target_keep])


def test_the_mean_of_packed_rows_is_each_rows_own() -> None:
    x = torch.tensor([[[1.0], [3.0], [100.0], [5.0], [6.0], [7.0]]])
    assert PackedLayout([2, 1, 3]).mean(x).flatten().tolist() == [2.0, 100.0, 6.0]
    padded = torch.tensor([[[1.0], [3.0], [9.0]], [[100.0], [9.0], [9.0]], [[5.0], [6.0], [7.0]]])
    keep = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    assert PaddedLayout(keep).mean(padded).flatten().tolist() == [2.0, 100.0, 6.0]


def test_packed_rows_each_start_at_their_own_beginning() -> None:
    tokens, packed = pack([[5, 6], [7], [8, 9, 4]])
    assert tokens.tolist() == [[5, 6, 7, 8, 9, 4]]
    assert packed.lengths == (2, 1, 3)
    assert packed.positions(0, 6, torch.device("cpu")).tolist() == [0, 1, 0, 0, 1, 2]


# ------------------------------------------------------------------------------------------ cached and uncached


@every_score_case
@every_window
@torch.no_grad()
def test_a_cache_changes_nothing_even_with_padding_on_the_left(
    positions: PositionKind, score: ScoreKind, windows: str
) -> None:
    prompts, new = random_rows((6, 2)), torch.randint(V, (2, 4))
    tokens, keep = pad(prompts, fill=7, left=True)
    config = build_config(positions, score, windows)
    model, cache = randomise(Decoder(config, SIZES)), KVCache(config.n_layers)
    actual = [model(tokens, LeftPaddedLayout(keep), cache)]
    full_keep = keep
    for chunk in new.split([1, 2, 1], dim=1):
        full_keep = torch.cat([full_keep, torch.ones_like(chunk, dtype=torch.bool)], dim=1)
        actual.append(model(chunk, LeftPaddedLayout(full_keep), cache))
    full = model(torch.cat([tokens, new], dim=1), LeftPaddedLayout(full_keep))
    assert_close(torch.cat(actual, dim=1)[full_keep], full[full_keep])
    for b, prompt in enumerate(prompts):
        alone = torch.tensor([[*prompt, *new[b].tolist()]])
        assert_close(full[b, 6 - len(prompt) :], model(alone)[0])


@every_score_case
@every_window
@torch.no_grad()
def test_a_cache_changes_no_translation(positions: PositionKind, score: ScoreKind, windows: str) -> None:
    (source, keep), target = pad(random_rows(LENGTHS), fill=7), torch.randint(V, (2, 6))
    config = build_config(positions, score, windows)
    model, cache = randomise(Seq2Seq(config, SIZES)), KVCache(config.n_layers)
    states = model.encoder(source, keep)
    actual = [
        model.lm_head(model.decoder_states(chunk, states, keep, cache)) for chunk in target.split([1, 4, 1], dim=1)
    ]
    assert_close(torch.cat(actual, dim=1), model(source, target, keep))


def test_a_cache_holds_only_the_shared_heads() -> None:
    for n_kv_heads in N_KV_HEADS:
        config = build_config("learned", "scaled_dot", "all", n_kv_heads=n_kv_heads)
        model, cache = Seq2Seq(config, SIZES), KVCache(config.n_layers)
        with torch.no_grad():
            model.lm_head(
                model.decoder_states(torch.zeros(1, 2, dtype=torch.long), torch.randn(1, 3, 16), cache=cache)
            )
        past, source = cache.stores[0]
        assert past.buffer.shape[2] == source.key_value[0].shape[1] == config.kv_heads


# ------------------------------------------------------------------------------------------ what is seen


@every_score_case
@every_window
@torch.no_grad()
def test_no_variant_sees_the_future(positions: PositionKind, score: ScoreKind, windows: str) -> None:
    tokens, source, position = torch.randint(V, (1, 7)), torch.randint(V, (1, 4)), 4
    config = build_config(positions, score, windows)
    decoder, translator = randomise(Decoder(config, SIZES)), randomise(Seq2Seq(config, SIZES))
    encoder = randomise(Encoder(replace(config, attention_direction="causal"), SIZES))
    for forward in (decoder, encoder, lambda target, model=translator: model(source, target)):
        before, after = forward(tokens), forward(replace_token(tokens, position))
        assert_close(after[:, :position], before[:, :position])
        assert not torch.isclose(after[:, position:], before[:, position:]).all(-1).any(-1)[0]


@pytest.mark.parametrize("positions", get_args(PositionKind))
def test_an_encoder_told_to_read_back_only_differs_from_one_that_reads_all(positions: PositionKind) -> None:
    full, causal = (
        build_config(positions, "scaled_dot", "all", attention_direction=direction)
        for direction in ("full", "causal")
    )
    full_encoder, causal_encoder = randomise(Encoder(full, SIZES)), Encoder(causal, SIZES)
    causal_encoder.load_state_dict(full_encoder.state_dict())
    tokens = torch.randint(V, (2, 6))
    full_states, causal_states = full_encoder(tokens), causal_encoder(tokens)
    assert not torch.isclose(full_states[:, :-1], causal_states[:, :-1]).all()
    auto = Encoder(build_config(positions, "scaled_dot", "all"), SIZES)
    auto.load_state_dict(full_encoder.state_dict())
    assert torch.equal(auto(tokens), full_states)


class InputRecorder:
    """What each block of a model was called with."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.hooks = [block.register_forward_pre_hook(self.record) for block in blocks]

    def record(self, _: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.calls.append(arguments)


def moved_positions(block: nn.Module, arguments: tuple[Any, ...]) -> list[list[int]]:
    """For each position of the block's input, which positions of its output a change of it moves."""
    x, *others = arguments
    before, moved = block(x, *others), []
    for position in range(x.shape[1]):
        changed = x.clone()
        changed[:, position] += torch.randn_like(changed[:, position])
        after = block(changed, *others)
        moved.append([n for n in range(x.shape[1]) if not torch.allclose(after[:, n], before[:, n], 0, 1e-12)])
    return moved


@pytest.mark.parametrize("score", get_args(ScoreKind))
@pytest.mark.parametrize("pattern", [(2, -1), (-1, 3), (1, 2, 4, -1)])
@torch.no_grad()
def test_each_layer_keeps_its_own_reach(pattern: tuple[int, ...], score: ScoreKind) -> None:
    length = 7
    config = ModelConfig(
        d_model=16, d_ff=20, n_layers=4, n_heads=4, dropout=0.0, layer_windows=pattern, attention_score=score
    )
    widths = [length if width < 0 else width for width in pattern * (4 // len(pattern))]
    decoder, encoder = randomise(Decoder(config, SIZES)), randomise(Encoder(config, SIZES))
    translator = randomise(Seq2Seq(config, SIZES))
    for model, arguments, bidirectional in ((decoder, 1, False), (encoder, 1, True), (translator, 2, False)):
        inputs = InputRecorder(model.blocks)
        model(*(torch.randint(V, (1, length)) for _ in range(arguments)))
        for block, call, width in zip(model.blocks, inputs.calls.copy(), widths, strict=True):
            assert moved_positions(block, call) == [
                [
                    n
                    for n in range(length)
                    if position <= n < position + width or (bidirectional and position - width < n < position)
                ]
                for position in range(length)
            ]


def test_layers_that_reach_alike_share_one_rule() -> None:
    config = ModelConfig(d_model=16, d_ff=20, n_layers=4, n_heads=4, layer_windows=(2, -1))
    model = Decoder(config, SIZES)
    assert model.layer_masks[0] is model.layer_masks[2]
    assert model.layer_masks[1] is model.layer_masks[3]
    inputs = InputRecorder(model.blocks)
    model(*pad([[1, 2, 3], [4]]))
    masks = [context.mask for _, context in inputs.calls]
    assert masks[0] is masks[2]
    assert masks[1] is masks[3]
    assert masks[0] is not masks[1]


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "swiglu"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_other_parts_too_treat_rows_alike_however_they_lie(norm: str, activation: str, norm_position: str) -> None:
    more = {"norm": norm, "activation": activation, "norm_position": norm_position}
    model = randomise(Decoder(build_config("rotary", "scaled_dot", "window", **more), SIZES))
    alone, *others = decoder_outputs(model, random_rows(LENGTHS), [])
    expected = outputs_and_gradients(model, alone)
    for other in others:
        assert_close(outputs_and_gradients(model, other), expected)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, in tracing
@pytest.mark.parametrize(
    ("settings", "packed"),
    [
        ({"window": 8}, True),
        ({"positions": "t5", "n_kv_heads": 1}, True),
        ({"positions": "relative", "window": 8}, False),
        ({"attention_score": "additive"}, False),
    ],
    ids=str,
)
def test_a_model_can_be_traced_whole_and_gives_the_same(settings: dict[str, Any], packed: bool) -> None:
    """What a compiler needs: no break, no trace left behind, the same numbers."""
    rows = [[5, 6, 7, 8, 9, 4] * 25, [7, 8] * 30, [9, 4, 5] * 10]
    config = ModelConfig(d_model=16, n_heads=4, n_layers=1, d_ff=24, dropout=0.0, **settings)
    model = Decoder(config, DataSizes(vocab_size=12, max_len=160))
    tokens, keep = pack(rows) if packed else pad(rows)
    torch.compiler.reset()
    traced = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(traced(tokens, keep), model(tokens, keep))
