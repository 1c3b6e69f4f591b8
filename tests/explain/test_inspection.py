"""`Run.explain`: for each task the right maps with readable names, and what is seen is what the model does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from triform.config import Config, TaskName
from triform.config.settings import build_config
from triform.errors import ConfigError, DataError
from triform.explain import inspection
from triform.explain.attention_maps import Explanation
from triform.explain.recorder import record_attention
from triform.generation.adapters import DecoderAdapter, GenerationAdapter, Seq2SeqAdapter
from triform.generation.backend import Request, TokenConstraints
from triform.generation.scheduler import generate
from triform.run import Run
from triform.tasks import TASKS
from triform.text import BOS, EOS, PAD, UNK

MAX_LEN, N_LAYERS, N_HEADS = 8, 2, 2
TINY_SETTINGS = {"data.max_len": MAX_LEN, "model.d_model": 16, "model.n_layers": N_LAYERS, "model.n_heads": N_HEADS}
WORDS = ["one", "two", "three", "four", "five", "six"]
FRENCH_WORDS = ["un", "deux", "trois", "quatre", "cinq", "six"]
FRENCH_TEXTS = ["l’été à Noël", "où est-ce déjà", "le maïs du théâtre", "une fenêtre"]
TEXTS = {"classify": "one two three", "generate": "one two", "translate": "one two three"}
EVERY_TASK = pytest.mark.parametrize("task", TASKS)
BuildRun = Callable[..., Run]


def decode_greedily(adapter: GenerationAdapter, row: list[int], limit: int) -> list[int]:
    constraints = TokenConstraints(eos=EOS, banned=(PAD, UNK, BOS))
    return generate(adapter, [Request(row, limit)], constraints)[0]


def make_data(task: TaskName) -> str:
    index_pairs = [(index, (index * 5 + index // 6) % 6) for index in range(6)] * 6
    if task == "generate":
        return "\n".join(f"{WORDS[a]} {WORDS[b]} {WORDS[(a + b) % 6]}" for a, b in index_pairs)
    if task == "classify":
        return "text,label\n" + "".join(
            f"{WORDS[a]} {WORDS[b]},{'low' if a < 3 else 'high'}\n" for a, b in index_pairs
        )
    pairs = (f"{WORDS[a]} {WORDS[b]},{FRENCH_WORDS[a]} {FRENCH_WORDS[b]}\n" for a, b in index_pairs)
    return "source,target\n" + "".join(pairs)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> BuildRun:
    """`make("classify")`: an untrained run; each is made once."""
    runs: dict[str, Run] = {}

    def build_run(task: TaskName, data: str = "", **settings: Any) -> Run:
        key = f"{task} {settings} {data}"
        if key not in runs:
            folder = tmp_path_factory.mktemp(task)
            file = folder / ("data.txt" if task == "generate" else "data.csv")
            file.write_text(data or make_data(task), encoding="utf-8")
            fixed_settings = {"tokenizer.kind": "word", "decode.strategy": "greedy"}
            flat_settings = {"task": task, "data.train": str(file), **TINY_SETTINGS, **fixed_settings, **settings}
            if "model.kind" in settings:  # a recurrent model has no heads
                del flat_settings["model.n_heads"]
            config = build_config(flat_settings, Config())
            task_object = TASKS[task].prepare(config, folder / "run").task
            torch.manual_seed(0)
            for parameter in task_object.model.parameters():
                nn.init.normal_(parameter, std=0.5)
            task_object.model.eval()
            runs[key] = Run(path=folder / "run", task=task_object)
        return runs[key]

    return build_run


def map_shapes(explanation: Explanation) -> dict[str, tuple[int, ...]]:
    return {attention_map.name: attention_map.weights.shape for attention_map in explanation.maps}


def map_pieces(explanation: Explanation, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    attention_map = next(candidate for candidate in explanation.maps if candidate.name == name)
    return attention_map.queries, attention_map.keys


# ------------------------------------------------------------------------------------------ every task


@EVERY_TASK
def test_maps_have_the_text_as_names_and_rows_that_sum_to_one(make: BuildRun, task: TaskName) -> None:
    explanation = make(task).explain(TEXTS[task])
    words = tuple(TEXTS[task].split())
    n = len(words)
    expected = {"classify": "encoder", "generate": "decoder", "translate": "encoder"}[task]
    assert map_pieces(explanation, expected) == (words, words)
    assert map_shapes(explanation)[expected] == (N_LAYERS, N_HEADS, n, n)
    assert set(map_shapes(explanation)) == ({"encoder", "decoder", "cross"} if task == "translate" else {expected})
    for attention_map in explanation.maps:
        np.testing.assert_allclose(attention_map.weights.sum(-1), 1, atol=1e-5)
        if attention_map.name == "decoder":
            assert not np.triu(attention_map.weights, 1).any()
    assert explanation.text == TEXTS[task]
    assert explanation.title == "run"


@EVERY_TASK
@pytest.mark.parametrize("settings", [{}, {"model.window": 2}])
def test_padding_is_shown_on_request_and_read_by_no_token(
    make: BuildRun, task: TaskName, settings: dict[str, Any]
) -> None:
    run = make(task, **settings)
    plain, padded = run.explain(TEXTS[task]), run.explain(TEXTS[task], pad_to=7)
    assert padded.output == plain.output
    assert padded.notes == plain.notes
    for before, after in zip(plain.maps, padded.maps, strict=True):
        n_padding = max(0, 7 - len(before.keys))  # the target may be longer than 7 tokens
        assert (after.queries, after.n_padding) == (before.queries, n_padding)
        assert after.keys == (*before.keys, *["<pad>"] * after.n_padding)
        np.testing.assert_allclose(after.weights[..., : len(before.keys)], before.weights, atol=1e-5)
        for sums in after.sums():
            assert sums["padding"] == 0
            assert sums["row_sum_min"] == pytest.approx(1) == sums["row_sum_max"]
            assert sums["future"] == 0 or not after.causal
            assert sums["outside_window"] == (0 if settings and after.name != "cross" else None)
        assert after.causal == (after.name == "decoder")


@EVERY_TASK
def test_padding_that_is_not_needed_is_noted_and_too_much_is_refused(make: BuildRun, task: TaskName) -> None:
    assert make(task).explain(TEXTS[task], pad_to=1).notes[-1] == (
        "no padding is shown, because the text is at least 1 tokens long"
    )
    for pad_to in (MAX_LEN + 1, -1):
        with pytest.raises(ConfigError, match=rf"cannot pad a text to {pad_to} tokens; .* from 1 to 8"):
            make(task).explain(TEXTS[task], pad_to=pad_to)


@EVERY_TASK
def test_keep_chooses_the_end_of_a_long_text_that_is_shown(make: BuildRun, task: TaskName) -> None:
    words = tuple(WORDS[index % 6] for index in range(11))
    stack = "decoder" if task == "generate" else "encoder"
    for keep, part in (("first", words[:8]), ("last", words[-8:])):
        explanation = make(task).explain(" ".join(words), keep=keep)
        assert map_pieces(explanation, stack) == (part, part)
        assert f"only the {keep} 8 of 11 tokens of the text were read" in explanation.notes
    with pytest.raises(ConfigError, match="keep must be first or last"):
        make(task).explain("one", keep="both")


@EVERY_TASK
@pytest.mark.parametrize("text", ["", "   ", "\n\t "])
def test_a_blank_text_is_refused(make: BuildRun, task: TaskName, text: str) -> None:
    with pytest.raises(DataError, match="nothing to explain"):
        make(task).explain(text)


@EVERY_TASK
def test_a_lone_surrogate_is_refused(make: BuildRun, task: TaskName) -> None:
    with pytest.raises(DataError, match="surrogate"):
        make(task).explain("one \udcff")


@EVERY_TASK
def test_a_model_that_does_not_attend_has_no_maps_and_is_refused_where_there_is_nothing_else(
    make: BuildRun, task: TaskName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(make(task).task.model), "attention_stacks", lambda self: {})
    if task == "classify":
        explanation = make(task).explain(TEXTS[task])
        assert explanation.maps == ()
        assert explanation.attributions
    else:
        with pytest.raises(ConfigError, match="no attention to show"):
            make(task).explain(TEXTS[task])
    with pytest.raises(ConfigError, match="no attention to show"):
        make(task).explain(TEXTS[task], attributions=False)


@EVERY_TASK
def test_looking_changes_neither_weights_nor_kernels_nor_random_numbers(make: BuildRun, task: TaskName) -> None:
    model: Any = make(task).task.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kernels = [layer.kernel for stack in model.attention_stacks().values() for layer in stack]
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    make(task).explain(TEXTS[task], max_new_tokens=2)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [layer.kernel for stack in model.attention_stacks().values() for layer in stack] == kernels


@EVERY_TASK
@pytest.mark.parametrize("suffix", ["html", "png", "svg"])
def test_what_was_seen_can_be_saved(make: BuildRun, task: TaskName, suffix: str, tmp_path: Path) -> None:
    explanation = make(task).explain(TEXTS[task])
    path = explanation.save(tmp_path / "new" / f"maps.{suffix}")
    start = {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert path.read_bytes()[: len(start)].lower() == start.lower()
    assert [child_path.name for child_path in path.parent.iterdir()] == [path.name]


def test_an_unknown_suffix_or_map_is_refused_and_leaves_nothing(make: BuildRun, tmp_path: Path) -> None:
    explanation = make("classify").explain("one two")
    with pytest.raises(ConfigError, match=r"must end in \.html, \.png, \.svg"):
        explanation.save(tmp_path / "maps.pdf")
    with pytest.raises(ConfigError, match="no attention map 'cross'; available maps: encoder"):
        explanation.save(tmp_path / "maps.html", stack="cross")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------ classify


def test_the_predicted_label_is_explained_unless_another_is_named(make: BuildRun) -> None:
    run = make("classify")
    predicted = run.predict(["one two"])[0]
    explanation = run.explain("one two")
    assert explanation.output == predicted.output
    assert explanation.probabilities == pytest.approx(predicted.probabilities)
    assert {attribution.label for attribution in explanation.attributions} == {predicted.output}
    assert [attribution.pieces for attribution in explanation.attributions] == [("one", "two")] * 2
    for label in ("low", "high"):
        named = run.explain("one two", target=label)
        assert {attribution.label for attribution in named.attributions} == {label}
        assert named.output == predicted.output  # what is explained is not what is predicted
    with pytest.raises(DataError, match="unknown label 'middle'; choose from high, low"):
        run.explain("one two", target="middle")


def test_attributions_are_of_the_label_that_is_named(make: BuildRun) -> None:
    run = make("classify")
    tokens = torch.tensor([run.task.tokenizer.encode("one two")])
    with torch.no_grad():
        gains = (run.task.model(tokens) - run.task.model(torch.ones_like(tokens)))[0].tolist()
    for number, label in enumerate(run.task.config.data.labels):
        assert run.explain("one two", target=label).attributions[0].total == pytest.approx(gains[number], abs=1e-5)


def test_maps_or_attributions_are_left_out_on_request(make: BuildRun) -> None:
    run = make("classify")
    both = run.explain("one five")
    only_maps = run.explain("one five", attributions=False)
    only_attributions = run.explain("one five", maps=False)
    assert only_maps.attributions == ()
    np.testing.assert_array_equal(only_maps.maps[0].weights, both.maps[0].weights)
    assert only_attributions.maps == ()
    assert only_attributions.attributions == both.attributions
    assert only_maps.output == only_attributions.output == both.output


@EVERY_TASK
def test_maps_that_do_not_fit_into_memory_are_refused(
    make: BuildRun, task: TaskName, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_weights = sum(attention_map.weights.size for attention_map in make(task).explain(TEXTS[task]).maps)
    for available_bytes in (12 * n_weights, 12 * n_weights - 1):
        monkeypatch.setattr(inspection, "available_memory", lambda size=available_bytes: size)
        if available_bytes == 12 * n_weights:
            assert make(task).explain(TEXTS[task]).maps
        else:
            with pytest.raises(ConfigError, match=r"the attention maps of \d tokens need .* shorten the text"):
                make(task).explain(TEXTS[task])


def test_a_label_is_explained_in_inference_mode_too(make: BuildRun) -> None:
    expected = make("classify").explain("one two").attributions
    with torch.inference_mode():
        assert make("classify").explain("one two").attributions[0].values == expected[0].values


def test_only_the_beginning_of_a_long_text_is_read_and_said_so(make: BuildRun) -> None:
    text = " ".join(WORDS * 2)
    explanation = make("classify").explain(text)
    assert map_pieces(explanation, "encoder")[0] == tuple((WORDS * 2)[:MAX_LEN])
    assert explanation.notes == ("only the first 8 of 12 tokens of the text were read",)
    assert explanation.text == text
    assert make("classify").explain(" ".join((WORDS * 2)[:MAX_LEN])).notes == ()


def test_unknown_words_are_shown_as_such(make: BuildRun) -> None:
    explanation = make("classify").explain("one zebra")
    assert map_pieces(explanation, "encoder")[0] == ("one", "<unk>")
    assert explanation.attributions[0].values[1] == pytest.approx(0, abs=1e-6)


def test_pieces_of_bytes_are_readable(make: BuildRun) -> None:
    data = "text,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(FRENCH_TEXTS * 5))
    run = make("classify", data, **{"tokenizer.kind": "bpe", "tokenizer.vocab_size": 262, "data.max_len": 64})
    queries, _ = map_pieces(run.explain("déjà ça"), "encoder")
    assert not any("\N{REPLACEMENT CHARACTER}" in piece or "<0x" in piece for piece in queries)
    joined = "".join(queries)
    assert "ç⟨1/2⟩ç⟨2/2⟩" in joined


# ------------------------------------------------------------------------------------------ translate


def test_rows_of_cross_attention_are_named_after_the_token_being_written(make: BuildRun) -> None:
    explanation = make("translate").explain("one two three", target="deux un")
    assert map_pieces(explanation, "encoder") == (("one", "two", "three"),) * 2
    assert map_pieces(explanation, "decoder") == (("<bos>", "deux", "un"),) * 2
    assert map_pieces(explanation, "cross") == (("deux", "un", "<eos>"), ("one", "two", "three"))
    assert explanation.output == "deux un"
    assert explanation.notes == ("each row of cross-attention is labelled with the token that is being generated",)


def test_a_target_is_looked_at_as_in_one_pass_over_it(make: BuildRun) -> None:
    run = make("translate")
    explanation = run.explain("one two three", target="deux un")
    source, target = run.task.source_tokenizer.encode("one two three"), run.task.target_tokenizer.encode("deux un")
    with record_attention(run.task.model) as recording, torch.no_grad():
        run.task.model(torch.tensor([source]), torch.tensor([[BOS, *target]]))
    for attention_map in explanation.maps:
        assert np.array_equal(attention_map.weights, recording[attention_map.name][:, 0].numpy())


def test_the_models_own_translation_is_looked_at_as_it_was_written(make: BuildRun) -> None:
    run = make("translate", **{"decode.max_new_tokens": 4})
    explanation = run.explain("one two three")
    assert explanation.output == run.predict(["one two three"])[0].output
    source = run.task.source_tokenizer.encode("one two three")
    with record_attention(run.task.model) as steps, torch.inference_mode():
        written = decode_greedily(Seq2SeqAdapter(run.task.model, MAX_LEN, bos=BOS), source, 4)
    assert len(written) > 1
    assert map_pieces(explanation, "decoder")[0] == ("<bos>", *run.task.target_tokenizer.format_pieces(written))
    for attention_map in explanation.maps:
        stepped = steps[attention_map.name][:, 0].numpy()
        t, s = stepped.shape[-2:]
        np.testing.assert_allclose(attention_map.weights[:, :, :t, :s], stepped, atol=1e-6)
        assert attention_map.weights.shape[2] - t in (0, 1)  # at the limit the last token is written and not read


def test_long_sources_and_targets_are_cut_and_said_so(make: BuildRun) -> None:
    explanation = make("translate").explain(" ".join(WORDS * 2), target=" ".join(FRENCH_WORDS * 2))
    assert map_pieces(explanation, "encoder")[0] == tuple((WORDS * 2)[:MAX_LEN])
    assert map_pieces(explanation, "decoder")[0] == ("<bos>", *(FRENCH_WORDS * 2)[: MAX_LEN - 1])
    assert map_shapes(explanation)["cross"] == (N_LAYERS, N_HEADS, MAX_LEN, MAX_LEN)
    assert explanation.notes[:2] == (
        "only the first 8 of 12 tokens of the text were read",
        "only the first 7 of 12 tokens of the target were read",
    )


def test_the_last_row_of_a_cut_target_is_named_after_what_follows_in_it(make: BuildRun) -> None:
    explanation = make("translate").explain("one", target=" ".join(FRENCH_WORDS * 2))
    assert map_pieces(explanation, "cross")[0] == tuple((FRENCH_WORDS * 2)[:MAX_LEN])


def test_a_recurrent_translator_has_cross_attention_only(make: BuildRun) -> None:
    explanation = make("translate", **{"model.kind": "gru"}).explain("one two three", target="un deux")
    assert map_shapes(explanation) == {"cross": (1, 1, 3, 3)}


def test_two_vocabularies_name_each_its_own_side(make: BuildRun) -> None:
    run = make("translate", **{"tokenizer.joint_vocab": False})
    assert run.task.source_tokenizer.encode("six") != run.task.target_tokenizer.encode("six")
    explanation = run.explain("six one", target="six cinq")
    assert map_pieces(explanation, "cross") == (("six", "cinq", "<eos>"), ("six", "one"))


# ------------------------------------------------------------------------------------------ generate


def test_a_given_continuation_is_looked_at(make: BuildRun) -> None:
    run = make("generate")
    explanation = run.explain("one two", target="three four")
    assert map_pieces(explanation, "decoder") == (("one", "two", "three", "four"),) * 2
    assert explanation.output.strip() == "three four"
    tokens = run.task.tokenizer.encode("one two three four")
    with record_attention(run.task.model) as recording, torch.no_grad():
        run.task.model(torch.tensor([tokens]))
    assert np.array_equal(explanation.maps[0].weights, recording["decoder"][:, 0].numpy())


def test_without_a_continuation_only_the_text_is_looked_at(make: BuildRun) -> None:
    explanation = make("generate").explain("one two")
    assert explanation.output == ""
    assert map_pieces(explanation, "decoder")[0] == ("one", "two")


def test_the_models_own_continuation_is_the_likeliest_and_looked_at_as_it_was_written(make: BuildRun) -> None:
    run = make("generate", **{"decode.strategy": "sample"})
    prompt = run.task.tokenizer.encode("one two")
    with record_attention(run.task.model) as steps:
        written = decode_greedily(DecoderAdapter(run.task.model, MAX_LEN), prompt, 3)
    assert written
    explanation = run.explain("one two", max_new_tokens=3)
    assert map_pieces(explanation, "decoder")[0] == tuple(run.task.tokenizer.format_pieces(prompt + written))
    stepped = steps["decoder"][:, 0].numpy()
    t = stepped.shape[-1]
    np.testing.assert_allclose(explanation.maps[0].weights[:, :, :t, :t], stepped, atol=1e-6)


def test_only_the_end_of_a_long_text_is_read_and_said_so(make: BuildRun) -> None:
    run = make("generate")
    explanation = run.explain(" ".join(WORDS * 2))
    assert map_pieces(explanation, "decoder")[0] == tuple((WORDS * 2)[-MAX_LEN:])
    assert explanation.notes == ("only the last 8 of 12 tokens of the text were read",)
    longer = run.explain(" ".join(WORDS), target=" ".join(WORDS))
    assert map_pieces(longer, "decoder")[0] == tuple((WORDS * 2)[-MAX_LEN:])
    assert len(run.explain(" ".join(WORDS), max_new_tokens=20).maps[0].queries) == MAX_LEN


def test_what_was_never_seen_is_read_as_unknown_and_said_so(make: BuildRun) -> None:
    explanation = make("generate").explain("one zebra", target=" two")
    assert map_pieces(explanation, "decoder")[0] == ("one", "<unk>", "two")
    assert explanation.notes == ("not in the vocabulary, so read as <unk>: 'zebra'",)


def test_known_words_side_by_side_are_known(make: BuildRun) -> None:
    assert make("generate").explain("one two", target="three four").notes == ()


def test_characters_and_line_breaks_are_pieces_too(make: BuildRun) -> None:
    explanation = make("generate", **{"tokenizer.kind": "char"}).explain("e\no n")
    assert map_pieces(explanation, "decoder")[0] == ("e", "\n", "o", " ", "n")
