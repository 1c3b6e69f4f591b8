"""Much text to tokens: in order, on several cores, whatever happens to the helpers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triform.config import TokenizerConfig
from triform.errors import DataError
from triform.text import EOS, Tokenizer, TokenRows, encode_stream, parallel, train_tokenizer

TEXT = "The cat sat on the mat; le chat s'est assis sur le tapis.\nThen 1234 more: 猫が座った 🙂 𝔘𝔫𝔦\n"
PARTS = [[f"{TEXT}{number}", "", TEXT * (number % 3)] for number in range(11)]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="bpe"), [TEXT] * 50)


def to_lists(parts: Iterator[TokenRows]) -> list[list[int]]:
    token_lists: list[list[int]] = []
    for rows in parts:
        ends = np.cumsum(rows.lengths).tolist()
        assert sum(rows.lengths) == len(rows.tokens)
        token_lists += [
            rows.tokens[end - size : end].tolist() for end, size in zip(ends, rows.lengths, strict=True)
        ]
    return token_lists


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "MIN_PARALLEL_CHARS", 200)
    monkeypatch.setattr(parallel, "available_cpus", lambda: 2)


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_a_stream_gives_the_tokens_of_each_text_in_order(shared: None, kind: str) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), [TEXT] * 50)
    expected = [tokens for part in PARTS for tokens in tokenizer.encode_batch(part)]
    assert to_lists(encode_stream(tokenizer, PARTS)) == expected


def test_the_parts_are_shared_among_processes_that_end_with_the_stream(
    shared: None, bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    responses: list[object] = []
    popen, receive = subprocess.Popen, parallel.EncodeWorker.receive
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: processes.append(popen(*a, **k)) or processes[-1])
    monkeypatch.setattr(
        parallel.EncodeWorker, "receive", lambda process: responses.append(receive(process)) or responses[-1]
    )
    assert len(to_lists(encode_stream(bpe, PARTS))) == 33
    assert len(processes) == 2
    assert len(responses) > 5
    assert all(isinstance(response, TokenRows) for response in responses)  # nothing had to be done again here
    assert all(process.poll() is not None for process in processes)


def test_little_text_starts_no_process(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a process was started"))
    assert len(to_lists(encode_stream(bpe, PARTS))) == 33
    assert to_lists(encode_stream(bpe, [])) == []


@pytest.mark.parametrize("program", ["/no/such/python", "false", "true"])
def test_where_no_process_can_help_the_text_is_encoded_all_the_same(
    shared: None, bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    expected = [tokens for part in PARTS for tokens in bpe.encode_batch(part)]
    assert to_lists(encode_stream(bpe, PARTS)) == expected


def test_a_process_that_dies_half_way_is_done_without(shared: None, bpe: Tokenizer) -> None:
    expected = [tokens for part in PARTS for tokens in bpe.encode_batch(part)]
    workers: list[parallel.EncodeWorker] = []
    init = parallel.EncodeWorker.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            parallel.EncodeWorker,
            "__init__",
            lambda self, tokenizer: (init(self, tokenizer), workers.append(self))[0],
        )
        received = []
        for number, rows in enumerate(encode_stream(bpe, PARTS)):
            received.append(rows)
            if number == 5:
                workers[0]._process.kill()
    assert to_lists(iter(received)) == expected


def test_bad_text_is_an_error_wherever_it_is_met(shared: None, bpe: Tokenizer) -> None:
    with pytest.raises(DataError, match="lone surrogate"):
        list(encode_stream(bpe, [*PARTS, ["\ud800"]]))


def test_a_stream_left_early_ends_its_processes(
    shared: None, bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: processes.append(popen(*a, **k)) or processes[-1])
    parts = encode_stream(bpe, PARTS)
    for _ in range(6):
        next(parts)
    assert [process.poll() for process in processes] == [None, None]
    parts.close()
    # One that was still writing ends with another code.
    assert all(process.poll() is not None for process in processes)


@given(rows=st.lists(st.tuples(st.lists(st.integers(4, 99), max_size=4), st.booleans()), max_size=6))
def test_a_token_is_put_after_the_chosen_rows_only(rows: list[tuple[list[int], bool]]) -> None:
    flat = np.array([token for tokens, _ in rows for token in tokens], np.uint16)
    lengths = np.array([len(tokens) for tokens, _ in rows], np.int64)
    appended = TokenRows(flat, lengths).append_token(EOS, np.array([is_selected for _, is_selected in rows], bool))
    assert to_lists(iter([appended])) == [[*tokens, EOS] if is_selected else tokens for tokens, is_selected in rows]
    assert appended.tokens.dtype == np.uint16
