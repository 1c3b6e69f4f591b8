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
from triform.decode.beam import Ending
from triform.decode.choose import best
from triform.decode.forms import DecoderForm, Seq2SeqForm
from triform.decode.search import write
from triform.decode.stepper import Cached
from triform.errors import ConfigError, DataError
from triform.explain.maps import Explanation
from triform.explain.record import record_attention
from triform.run import Run
from triform.settings import build
from triform.tasks import TASKS
from triform.text import BOS, EOS, PAD, UNK

MAX_LEN, LAYERS, HEADS = 8, 2, 2
TINY = {"data.max_len": MAX_LEN, "model.d_model": 16, "model.n_layers": LAYERS, "model.n_heads": HEADS}
WORDS = ["one", "two", "three", "four", "five", "six"]
OTHERS = ["un", "deux", "trois", "quatre", "cinq", "six"]
FRENCH = ["l’été à Noël", "où est-ce déjà", "le maïs du théâtre", "une fenêtre"]
TEXTS = {"classify": "one two three", "generate": "one two", "translate": "one two three"}
EVERY_TASK = pytest.mark.parametrize("task", TASKS)
Make = Callable[..., Run]


def rows(task: TaskName) -> str:
    numbers = [(n, (n * 5 + n // 6) % 6) for n in range(6)] * 6
    if task == "generate":
        return "\n".join(f"{WORDS[a]} {WORDS[b]} {WORDS[(a + b) % 6]}" for a, b in numbers)
    if task == "classify":
        return "text,label\n" + "".join(f"{WORDS[a]} {WORDS[b]},{'low' if a < 3 else 'high'}\n" for a, b in numbers)
    pairs = (f"{WORDS[a]} {WORDS[b]},{OTHERS[a]} {OTHERS[b]}\n" for a, b in numbers)
    return "source,target\n" + "".join(pairs)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """`make("classify")`: an untrained run; each is made once."""
    runs: dict[str, Run] = {}

    def run(task: TaskName, data: str = "", **asked: Any) -> Run:
        key = f"{task} {asked} {data}"
        if key not in runs:
            folder = tmp_path_factory.mktemp(task)
            file = folder / ("data.txt" if task == "generate" else "data.csv")
            file.write_text(data or rows(task), encoding="utf-8")
            kind = {"tokenizer.kind": "word", "decode.strategy": "greedy"}
            config = build({"task": task, "data.train": str(file), **TINY, **kind, **asked}, Config())
            made = TASKS[task].prepare(config, folder / "run").task
            torch.manual_seed(0)
            for parameter in made.model.parameters():
                nn.init.normal_(parameter, std=0.5)
            made.model.eval()
            runs[key] = Run(path=folder / "run", task=made)
        return runs[key]

    return run


def shapes(seen: Explanation) -> dict[str, tuple[int, ...]]:
    return {each.name: each.weights.shape for each in seen.maps}


def pieces(seen: Explanation, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = next(each for each in seen.maps if each.name == name)
    return found.queries, found.keys


# ------------------------------------------------------------------------------------------ every task


@EVERY_TASK
def test_maps_have_the_text_as_names_and_rows_that_sum_to_one(make: Make, task: TaskName) -> None:
    seen = make(task).explain(TEXTS[task])
    words = tuple(TEXTS[task].split())
    n = len(words)
    expected = {"classify": "encoder", "generate": "decoder", "translate": "encoder"}[task]
    assert pieces(seen, expected) == (words, words)
    assert shapes(seen)[expected] == (LAYERS, HEADS, n, n)
    assert set(shapes(seen)) == ({"encoder", "decoder", "cross"} if task == "translate" else {expected})
    for each in seen.maps:
        np.testing.assert_allclose(each.weights.sum(-1), 1, atol=1e-5)
        if each.name == "decoder":
            assert not np.triu(each.weights, 1).any()
    assert seen.text == TEXTS[task]
    assert seen.title == "run"


@EVERY_TASK
@pytest.mark.parametrize("text", ["", "   ", "\n\t "])
def test_a_blank_text_is_refused(make: Make, task: TaskName, text: str) -> None:
    with pytest.raises(DataError, match="nothing to look at"):
        make(task).explain(text)


@EVERY_TASK
def test_a_lone_surrogate_is_refused(make: Make, task: TaskName) -> None:
    with pytest.raises(DataError, match="surrogate"):
        make(task).explain("one \udcff")


@EVERY_TASK
def test_a_model_that_does_not_attend_has_no_maps_and_is_refused_where_there_is_nothing_else(
    make: Make, task: TaskName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(make(task).task.model), "attention_stacks", lambda self: {})
    if task == "classify":
        seen = make(task).explain(TEXTS[task])
        assert seen.maps == ()
        assert seen.attributions
        return
    with pytest.raises(ConfigError, match="no attention to look at"):
        make(task).explain(TEXTS[task])


@EVERY_TASK
def test_looking_changes_neither_weights_nor_kernels_nor_random_numbers(make: Make, task: TaskName) -> None:
    model: Any = make(task).task.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kernels = [layer.kernel for stack in model.attention_stacks().values() for layer in stack]
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    make(task).explain(TEXTS[task], n_new=2)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [layer.kernel for stack in model.attention_stacks().values() for layer in stack] == kernels


@EVERY_TASK
@pytest.mark.parametrize("suffix", ["html", "png", "svg"])
def test_what_was_seen_can_be_saved(make: Make, task: TaskName, suffix: str, tmp_path: Path) -> None:
    seen = make(task).explain(TEXTS[task])
    path = seen.save(tmp_path / "new" / f"maps.{suffix}")
    start = {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert path.read_bytes()[: len(start)].lower() == start.lower()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_an_unknown_suffix_or_map_is_refused_and_leaves_nothing(make: Make, tmp_path: Path) -> None:
    seen = make("classify").explain("one two")
    with pytest.raises(ConfigError, match=r"must end in \.html, \.png, \.svg"):
        seen.save(tmp_path / "maps.pdf")
    with pytest.raises(ConfigError, match="no attention map 'cross' here; there is encoder"):
        seen.save(tmp_path / "maps.html", map="cross")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------ classify


def test_the_predicted_label_is_explained_unless_another_is_named(make: Make) -> None:
    run = make("classify")
    predicted = run.predict(["one two"])[0]
    seen = run.explain("one two")
    assert seen.output == predicted.output
    assert seen.probabilities == pytest.approx(predicted.probabilities)
    assert {each.label for each in seen.attributions} == {predicted.output}
    assert [each.pieces for each in seen.attributions] == [("one", "two")] * 2
    for label in ("low", "high"):
        named = run.explain("one two", target=label)
        assert {each.label for each in named.attributions} == {label}
        assert named.output == predicted.output  # what is explained is not what is predicted
    with pytest.raises(DataError, match="there is no label 'middle'; known are high, low"):
        run.explain("one two", target="middle")


def test_attributions_are_of_the_label_that_is_named(make: Make) -> None:
    run = make("classify")
    tokens = torch.tensor([run.task.tokenizer.encode("one two")])
    with torch.no_grad():
        gains = (run.task.model(tokens) - run.task.model(torch.ones_like(tokens)))[0].tolist()
    for number, label in enumerate(run.task.labels):
        assert run.explain("one two", target=label).attributions[0].total == pytest.approx(gains[number], abs=1e-5)


def test_a_label_is_explained_in_inference_mode_too(make: Make) -> None:
    expected = make("classify").explain("one two").attributions
    with torch.inference_mode():
        assert make("classify").explain("one two").attributions[0].values == expected[0].values


def test_only_the_beginning_of_a_long_text_is_read_and_said_so(make: Make) -> None:
    text = " ".join(WORDS * 2)
    seen = make("classify").explain(text)
    assert pieces(seen, "encoder")[0] == tuple((WORDS * 2)[:MAX_LEN])
    assert seen.notes == ("only the first 8 of 12 tokens of the text were read",)
    assert seen.text == text
    assert make("classify").explain(" ".join((WORDS * 2)[:MAX_LEN])).notes == ()


def test_unknown_words_are_shown_as_such(make: Make) -> None:
    seen = make("classify").explain("one zebra")
    assert pieces(seen, "encoder")[0] == ("one", "<unk>")
    assert seen.attributions[0].values[1] == pytest.approx(0, abs=1e-6)


def test_pieces_of_bytes_are_readable(make: Make) -> None:
    data = "text,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(FRENCH * 5))
    run = make("classify", data, **{"tokenizer.kind": "bpe", "tokenizer.vocab_size": 262, "data.max_len": 64})
    queries, _ = pieces(run.explain("déjà ça"), "encoder")
    assert not any("\N{REPLACEMENT CHARACTER}" in piece or "<0x" in piece for piece in queries)
    joined = "".join(queries)
    assert "ç⟨1/2⟩ç⟨2/2⟩" in joined


# ------------------------------------------------------------------------------------------ translate


def test_rows_of_cross_attention_are_named_after_the_token_being_written(make: Make) -> None:
    seen = make("translate").explain("one two three", target="deux un")
    assert pieces(seen, "encoder") == (("one", "two", "three"),) * 2
    assert pieces(seen, "decoder") == (("<bos>", "deux", "un"),) * 2
    assert pieces(seen, "cross") == (("deux", "un", "<eos>"), ("one", "two", "three"))
    assert seen.output == "deux un"
    assert seen.notes == ("rows of cross-attention are named after the token that is being written",)


def test_a_target_is_looked_at_as_in_one_pass_over_it(make: Make) -> None:
    run = make("translate")
    seen = run.explain("one two three", target="deux un")
    source, target = run.task.source.encode("one two three"), run.task.target.encode("deux un")
    with record_attention(run.task.model) as recording, torch.no_grad():
        run.task.model(torch.tensor([source]), torch.tensor([[BOS, *target]]))
    for each in seen.maps:
        assert np.array_equal(each.weights, recording[each.name][:, 0].numpy())


def test_the_models_own_translation_is_looked_at_as_it_was_written(make: Make) -> None:
    run = make("translate", **{"decode.max_new_tokens": 4})
    seen = run.explain("one two three")
    assert seen.output == run.predict(["one two three"])[0].output
    source = run.task.source.encode("one two three")
    with record_attention(run.task.model) as steps, torch.inference_mode():
        stepper = Cached(Seq2SeqForm(run.task.model, MAX_LEN, bos=BOS), [source])
        written = write(stepper, best, Ending(eos=EOS, limits=(4,), banned=(PAD, UNK, BOS)))[0]
    assert len(written) > 1
    assert pieces(seen, "decoder")[0] == ("<bos>", *run.task.target.pieces(written))
    for each in seen.maps:
        stepped = steps[each.name][:, 0].numpy()
        t, s = stepped.shape[-2:]
        np.testing.assert_allclose(each.weights[:, :, :t, :s], stepped, atol=1e-6)
        assert each.weights.shape[2] - t in (0, 1)  # at the limit the last token is written and not read


def test_long_sources_and_targets_are_cut_and_said_so(make: Make) -> None:
    seen = make("translate").explain(" ".join(WORDS * 2), target=" ".join(OTHERS * 2))
    assert pieces(seen, "encoder")[0] == tuple((WORDS * 2)[:MAX_LEN])
    assert pieces(seen, "decoder")[0] == ("<bos>", *(OTHERS * 2)[: MAX_LEN - 1])
    assert shapes(seen)["cross"] == (LAYERS, HEADS, MAX_LEN, MAX_LEN)
    assert seen.notes[:2] == (
        "only the first 8 of 12 tokens of the text were read",
        "only the first 7 of 12 tokens of the target were read",
    )


def test_the_last_row_of_a_cut_target_is_named_after_what_follows_in_it(make: Make) -> None:
    seen = make("translate").explain("one", target=" ".join(OTHERS * 2))
    assert pieces(seen, "cross")[0] == tuple((OTHERS * 2)[:MAX_LEN])


def test_two_vocabularies_name_each_its_own_side(make: Make) -> None:
    run = make("translate", **{"tokenizer.shared": False})
    assert run.task.source.encode("six") != run.task.target.encode("six")
    seen = run.explain("six one", target="six cinq")
    assert pieces(seen, "cross") == (("six", "cinq", "<eos>"), ("six", "one"))


# ------------------------------------------------------------------------------------------ generate


def test_a_given_continuation_is_looked_at(make: Make) -> None:
    run = make("generate")
    seen = run.explain("one two", target="three four")
    assert pieces(seen, "decoder") == (("one", "two", "three", "four"),) * 2
    assert seen.output.strip() == "three four"
    tokens = run.task.tokenizer.encode("one two three four")
    with record_attention(run.task.model) as recording, torch.no_grad():
        run.task.model(torch.tensor([tokens]))
    assert np.array_equal(seen.maps[0].weights, recording["decoder"][:, 0].numpy())


def test_without_a_continuation_only_the_text_is_looked_at(make: Make) -> None:
    seen = make("generate").explain("one two")
    assert seen.output == ""
    assert pieces(seen, "decoder")[0] == ("one", "two")


def test_the_models_own_continuation_is_the_likeliest_and_looked_at_as_it_was_written(make: Make) -> None:
    run = make("generate", **{"decode.strategy": "sample"})
    prompt = run.task.tokenizer.encode("one two")
    with record_attention(run.task.model) as steps:
        stepper = Cached(DecoderForm(run.task.model, MAX_LEN), [prompt])
        written = write(stepper, best, Ending(eos=EOS, limits=(3,), banned=(PAD, UNK, BOS)))[0]
    assert written
    seen = run.explain("one two", n_new=3)
    assert pieces(seen, "decoder")[0] == tuple(run.task.tokenizer.pieces(prompt + written))
    stepped = steps["decoder"][:, 0].numpy()
    t = stepped.shape[-1]
    np.testing.assert_allclose(seen.maps[0].weights[:, :, :t, :t], stepped, atol=1e-6)


def test_only_the_end_of_a_long_text_is_read_and_said_so(make: Make) -> None:
    run = make("generate")
    seen = run.explain(" ".join(WORDS * 2))
    assert pieces(seen, "decoder")[0] == tuple((WORDS * 2)[-MAX_LEN:])
    assert seen.notes == ("only the last 8 of 12 tokens of the text were read",)
    longer = run.explain(" ".join(WORDS), target=" ".join(WORDS))
    assert pieces(longer, "decoder")[0] == tuple((WORDS * 2)[-MAX_LEN:])
    assert len(run.explain(" ".join(WORDS), n_new=20).maps[0].queries) == MAX_LEN


def test_what_was_never_seen_is_read_as_unknown_and_said_so(make: Make) -> None:
    seen = make("generate").explain("one zebra", target=" two")
    assert pieces(seen, "decoder")[0] == ("one", "<unk>", "two")
    assert seen.notes == ("not in the vocabulary, so read as <unk>: 'zebra'",)


def test_known_words_side_by_side_are_known(make: Make) -> None:
    assert make("generate").explain("one two", target="three four").notes == ()


def test_characters_and_line_breaks_are_pieces_too(make: Make) -> None:
    seen = make("generate", **{"tokenizer.kind": "char"}).explain("e\no n")
    assert pieces(seen, "decoder")[0] == ("e", "\n", "o", " ", "n")
