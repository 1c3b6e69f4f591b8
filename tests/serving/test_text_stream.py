"""Text arrives in pieces that are never taken back, and ends before a stop string wherever its tokens begin."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest

from triform.config import TokenizerConfig
from triform.generation.backend import TokenLogprobs
from triform.serving import text_stream
from triform.serving.text_stream import TextStream, TokenInfo
from triform.text import Tokenizer, train_tokenizer

TEXTS = [
    "She said: \"I don't know, it's 3.5% of $10.\" He can't (or won't) go; l'homme s'en va...",
    "Grüße aus Köln, naïve café — 東京の夜、🎉🎉 fin de l'été.",
    "one two three four five six seven eight nine ten, eleven; twelve!",
]
KINDS = ["char", "bpe", "word", "wordpiece"]


@cache
def build_tokenizer(kind: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind), TEXTS * 3)


def stream_text(stream: TextStream, tokens: Sequence[int]) -> tuple[list[str], list[TokenInfo]]:
    """Return the pieces of text and the tokens, as a client receives them."""
    pieces, infos = [], []
    for token in tokens:
        stream.append(token)
        text, new_infos = stream.pop()
        pieces.append(text)
        infos += new_infos
        if stream.stopped:
            break
    text, new_infos = stream.finish()
    return [*pieces, text], [*infos, *new_infos]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_of_a_text_add_up_to_its_decoding(kind: str, text: str) -> None:
    tokenizer = build_tokenizer(kind)
    tokens = tokenizer.encode(text)
    for n_prompt in (0, 1, len(tokens) // 2):
        prompt, rest = tokens[:n_prompt], tokens[n_prompt:]
        pieces, infos = stream_text(TextStream(tokenizer, prompt), rest)
        assert "".join(pieces) == tokenizer.decode(tokens)[len(tokenizer.decode(prompt)) :]
        assert "".join(info.text for info in infos) == "".join(pieces)
        assert [info.token for info in infos] == rest
        assert sum(map(bool, pieces)) > min(5, len(rest) // 2)  # it is streamed


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_random_tokens_add_up_to_their_decoding(kind: str) -> None:
    """Random bytes are hardly ever characters."""
    tokenizer, rng = build_tokenizer(kind), random.Random(0)
    for _ in range(40):
        tokens = [rng.randrange(4, tokenizer.vocab_size) for _ in range(rng.randrange(1, 150))]
        pieces, infos = stream_text(TextStream(tokenizer), tokens)
        assert "".join(pieces) == tokenizer.decode(tokens)
        assert [info.token for info in infos] == tokens


def test_a_character_of_several_tokens_arrives_with_its_last_one() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=260), ["plain text"])
    tokens = tokenizer.encode("a🎉b")
    assert len(tokens) == 6
    pieces, infos = stream_text(TextStream(tokenizer), tokens)
    assert pieces == ["a", "", "", "", "🎉", "b", ""]
    assert [info.text for info in infos] == ["a", "", "", "", "🎉", "b"]
    pieces, infos = stream_text(TextStream(tokenizer), tokens[:3])  # it ends within the character
    assert "".join(pieces) == "a\N{REPLACEMENT CHARACTER}"
    assert [info.text for info in infos] == ["a", "", "\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (("seven",), "one two three four five six "),
        (("qu", "n eight", "six seven eight"), "one two three four five "),
        (("ne two",), "o"),
        (("one",), ""),
        (("!",), TEXTS[2][:-1]),
        (("!?", "twelve!!"), TEXTS[2]),
        (("never",), TEXTS[2]),
        (("even eight",), "one two three four five six s"),
    ],
)
@pytest.mark.parametrize("kind", ["char", "bpe", "word"])
def test_a_text_ends_before_the_first_stop_string(kind: str, stop: tuple[str, ...], expected: str) -> None:
    tokenizer = build_tokenizer(kind)
    stream = TextStream(tokenizer, stop=stop)
    pieces, infos = stream_text(stream, tokenizer.encode(TEXTS[2]))
    assert "".join(pieces) == expected
    assert stream.stopped == (expected != TEXTS[2])
    assert "".join(info.text for info in infos) == expected
    assert stream.cut(TEXTS[2]) == expected


def test_a_stop_string_is_found_however_many_tokens_arrive_at_once() -> None:
    tokenizer = build_tokenizer("bpe")
    tokens = tokenizer.encode(TEXTS[2])
    counts = set()
    for n in (1, 3, 16):
        stream = TextStream(tokenizer, stop=("eight",))
        pieces = []
        for start in range(0, len(tokens), n):
            for token in tokens[start : start + n]:
                stream.append(token)
            pieces.append(stream.pop()[0])
        pieces.append(stream.finish()[0])
        assert "".join(pieces) == "one two three four five six seven "
        counts.add(len(stream.tokens))
    assert len(counts) == 1


def test_alternatives_have_the_text_that_they_would_add() -> None:
    tokenizer = build_tokenizer("word")
    one, two, comma = (tokenizer.encode(word)[0] for word in ("one", "two", ","))
    stream = TextStream(tokenizer, prompt=[one])
    stream.append(two, TokenLogprobs(-0.5, [(two, -0.5), (comma, -1.5), (3, -2.0)]))
    _, (info,) = stream.finish()
    assert (info.text, info.logprob) == (" two", -0.5)
    assert info.alternatives == ((two, " two", -0.5), (comma, ",", -1.5), (3, "<eos>", -2.0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_work_is_proportional_to_the_length_of_a_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that are decoded for each token of the text, counted, do not grow with it."""
    monkeypatch.setattr(text_stream, "EXACT_STEPS", 16)
    tokenizer = build_tokenizer(kind)
    original, n_decoded = type(tokenizer).decode, [0]

    def counting_decode(self: Tokenizer, tokens: Sequence[int]) -> str:
        n_decoded[0] += len(tokens)
        return original(self, tokens)

    monkeypatch.setattr(type(tokenizer), "decode", counting_decode)
    costs = []
    for repeats in (8, 32):
        tokens = tokenizer.encode(TEXTS[2]) * repeats
        n_decoded[0] = 0
        stream_text(TextStream(tokenizer), tokens)
        costs.append(n_decoded[0] / len(tokens))
    assert costs[1] < 1.5 * costs[0] + 16
