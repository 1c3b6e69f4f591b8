"""`top` gives the most probable labels, next tokens or translations; `keep` chooses which end of a text is read."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from task_cases import NAMES, WORDS, prepare_task, sentences

import triform
from triform.config import TaskName
from triform.run import Run
from triform.tasks import Task
from triform.tasks.prediction import truncate_with_notes
from triform.text import SpecialTokens

BEAM = {"strategy": "beam", "beam_size": 4, "length_penalty": 0.8}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("alternatives")
    for name in NAMES:
        (folder / name).mkdir()
    tasks: dict[str, Task] = {name: prepare_task(name, folder / name).task for name in NAMES}
    (folder / "gru").mkdir()
    tasks["gru"] = prepare_task("generate", folder / "gru", **{"model.kind": "gru", "model.n_heads": 0}).task
    return {name: Run(path=folder / name, task=task) for name, task in tasks.items()}


@pytest.mark.parametrize("name", ["generate", "gru"])
def test_next_token_probabilities_are_the_softmax_of_the_logits(name: str, runs: dict[str, Run]) -> None:
    task, prompts = runs[name].task, sentences()[:70]  # more than one batch
    tokenizer, predictions = task.tokenizer, runs[name].predict(prompts, top=5)
    for prompt, prediction in zip(prompts, predictions, strict=True):
        with torch.no_grad():
            logits = task.model(torch.tensor([tokenizer.encode(prompt)[-14 if name == "generate" else 0 :]]))[0, -1]
        exponentials = [math.exp(logit) for logit in logits.double().tolist()]
        by_text = {
            tokenizer.format_piece(token): value / sum(exponentials)
            for token, value in enumerate(exponentials)
            if token not in tokenizer.banned_tokens
        }
        expected = sorted(by_text.items(), key=lambda item: -item[1])[:5]
        assert [item.text for item in prediction.alternatives] == [text for text, _ in expected]
        assert [item.probability for item in prediction.alternatives] == pytest.approx(
            [probability for _, probability in expected], abs=1e-5
        )
        assert {item.score for item in prediction.alternatives} == {None}
        first_token = tokenizer.encode(prediction.output)[:1]  # greedy decoding takes the most probable one
        assert [tokenizer.format_piece(token) for token in first_token] in ([], [prediction.alternatives[0].text])


def test_alternatives_of_a_batch_are_those_of_each_text_and_change_no_prediction(runs: dict[str, Run]) -> None:
    for name in NAMES:
        decode = BEAM if name == "translate" else {}
        texts = sentences()[:9]
        batched = runs[name].predict(texts, top=3, **decode)
        for text, prediction in zip(texts, batched, strict=True):
            assert len(prediction.alternatives) == 3
            alone = runs[name].predict(text, top=3, **decode)[0]
            assert [item.text for item in alone.alternatives] == [item.text for item in prediction.alternatives]
        plain = [prediction.output for prediction in runs[name].predict(texts, **decode)]
        assert [prediction.output for prediction in batched] == plain
        assert runs[name].predict([], top=3, **decode) == []


def test_the_best_labels_come_with_their_probabilities(runs: dict[str, Run]) -> None:
    prediction = runs["classify"].predict("amber birch", top=2)[0]
    assert prediction.probabilities is not None
    expected = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    assert [(item.text, item.probability) for item in prediction.alternatives] == expected[:2]
    assert prediction.alternatives[0].text == prediction.output
    assert len(runs["classify"].predict("amber", top=99)[0].alternatives) == len(expected)  # there are no more


def test_scores_of_translations_are_log_probabilities_with_the_length_penalty(runs: dict[str, Run]) -> None:
    task: Any = runs["translate"].task
    tokenizer, texts = task.target_tokenizer, sentences()[:6]
    for text, prediction in zip(texts, runs["translate"].predict(texts, top=4, **BEAM), strict=True):
        assert (
            prediction.alternatives[0].text
            == prediction.output
            == runs["translate"].predict(text, **BEAM)[0].output
        )
        assert len({item.text for item in prediction.alternatives}) == 4
        for item in prediction.alternatives:
            words = tokenizer.encode(item.text)
            target = [*words, *[tokenizer.eos] * (len(words) < 9)]  # at the limit of 9 tokens, a text is unfinished
            source = torch.tensor([task.source_tokenizer.encode(text)[:14]])
            with torch.no_grad():
                logits = task.model(source, torch.tensor([[tokenizer.bos, *target[:-1]]]))[0]
            total = sum(logits.double().log_softmax(-1)[range(len(target)), target].tolist())
            assert item.score == pytest.approx(total / ((5 + len(target)) / 6) ** 0.8, abs=1e-4)
            assert item.probability is None


def test_a_translator_says_when_it_cannot_give_so_many_hypotheses(runs: dict[str, Run]) -> None:
    with pytest.raises(triform.ConfigError, match=r"top=5 is more than the 4 hypotheses .* decode.beam_size to 5"):
        runs["translate"].predict("amber", top=5, **BEAM)
    with pytest.raises(triform.ConfigError, match=r"top=2 needs beam search, and decode.strategy is greedy"):
        runs["translate"].predict("amber", top=2)
    for top in (-1, True, "3", 1.0):
        with pytest.raises(triform.ConfigError, match="top must be an integer of 0 or more"):
            runs["classify"].predict("amber", top=top)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_keep_chooses_the_end_of_a_long_text_that_is_read(name: TaskName, runs: dict[str, Run]) -> None:
    run, words = runs[name], WORDS * 2
    subject = "prompt" if name == "generate" else "text"
    for keep, part in (("first", words[:14]), ("last", words[6:])):
        long, short = run.predict([" ".join(words), " ".join(part)], keep=keep)  # type: ignore[arg-type]
        assert (long.output, long.probabilities) == (short.output, pytest.approx(short.probabilities))
        assert long.notes == (f"only the {keep} 14 of 20 tokens of the {subject} were read",)
        assert (long.cut, short.cut, short.notes) == (True, False, ())
    default = run.predict(" ".join(words))[0]
    assert default == run.predict(" ".join(words), keep="last" if name == "generate" else "first")[0]
    with pytest.raises(triform.ConfigError, match="keep must be first or last, found 'middle'"):
        run.predict("amber", keep="middle")  # type: ignore[arg-type]


def test_next_tokens_follow_the_part_of_the_prompt_that_is_kept(runs: dict[str, Run]) -> None:
    words = WORDS * 2
    long, short = runs["generate"].predict([" ".join(words), " ".join(words[:14])], keep="first", top=2)
    assert [item.text for item in long.alternatives] == [item.text for item in short.alternatives]
    assert not runs["gru"].predict(" ".join(words), keep="first")[0].notes  # it reads a prompt of any length


@pytest.mark.parametrize("keep_last", [False, True])
def test_special_tokens_stay_around_the_part_that_is_kept(keep_last: bool) -> None:
    special = SpecialTokens(before=(8,), after=(9,))
    tokens, notes = truncate_with_notes([1, 2, 3, 4, 5], 5, "text", special, keep_last=keep_last)
    assert tokens == ([8, 3, 4, 5, 9] if keep_last else [8, 1, 2, 3, 9])
    assert notes == [f"only the {'last' if keep_last else 'first'} 3 of 5 tokens of the text were read"]
    assert truncate_with_notes([1, 2, 3], 5, "text", special, keep_last=keep_last) == ([8, 1, 2, 3, 9], [])
    row = torch.tensor([8, 1, 2, 3, 4, 5, 9]).numpy()
    assert special.truncate(row, 5, keep_last=keep_last).tolist() == tokens
