"""How good files, settings and texts are made bad: strategies of Hypothesis that draw a few changes."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

LONG_NUMBER = "9" * 5000
DEEP_NESTING = "[" * 50_000
# Small, or far beyond any use: numbers in between ask for real work, which may take its time.
EDGE_INTEGERS = (
    0,
    -1,
    1,
    2,
    3,
    7,
    40,
    -(2**63),
    10**9,
    10**12,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    10**20,
    10**30,
)
EDGE_FLOATS = (
    0.0,
    -0.0,
    1e-308,
    1e-12,
    0.5,
    1.0,
    -1.5,
    1e12,
    1e300,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
)
EDGE_STRINGS = (
    "",
    " ",
    "auto",
    "true",
    "None",
    "nan",
    "-",
    "é",
    "\x00",
    "\x1b[2J",
    "\udcff",
    "a/b",
    "../x",
    "[1,2",
    "0x10",
)
EDGE_BYTES = (
    *(
        b"",
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\r\n",
        b"\t",
        b",",
        b'"',
        b'""',
        b"'",
        b"{",
        b"}",
        b"[",
        b"]",
    ),
    *(
        b"null",
        b"NaN",
        b"-1",
        b"0",
        b"1e999",
        b"\\ud800",
        b"\xc3",
        b"\x1b]0;x\x07",
        b"\xe2\x80\xa8",
        b"\xf0\x9f\x98\x80",
    ),
    *(LONG_NUMBER.encode(), b"[" * 3000, b'{"a":' * 3000, b"x" * 200_000, b"\x80\x04\x95", b"PK\x03\x04"),
)

RAW_JSON_MARKER = "what JSON can spell and Python's own writer cannot"
RAW_JSON = (
    LONG_NUMBER,
    DEEP_NESTING,
    '{"a":' * 3000 + "1" + "}" * 3000,
    "[" * 900 + "]" * 900,
    "1e999",
    '"\\ud800"',
    "-" + LONG_NUMBER,
)

integers = st.sampled_from(EDGE_INTEGERS) | st.integers(-3, 40)
floats = st.sampled_from(EDGE_FLOATS) | st.floats()


def nested_lists(depth: int) -> Any:
    """Lists inside lists."""
    result: Any = []
    for _ in range(depth):
        result = [result]
    return result


json_values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    floats,
    st.just(RAW_JSON_MARKER),
    st.sampled_from(EDGE_STRINGS),
    st.text(max_size=8),
    st.sampled_from([[], {}, [1], [[]], {"a": 1}, {"0": "x"}, ["x", 3], nested_lists(50)]),
)


@st.composite
def setting_texts(draw: Draw) -> str:
    """A value as it is typed behind `--set name=`."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return str(draw(integers))
    if kind == 1:
        return repr(draw(floats))
    if kind == 2:
        return str(
            draw(
                st.sampled_from(
                    (*EDGE_STRINGS[:-6], "\x1b[2J", LONG_NUMBER, "1e999", "-0", "1_000", "[8,-1]", "[]", "[1e308]")
                )
            )
        )
    if kind == 3:
        return "[" + ",".join(map(str, draw(st.lists(integers, max_size=4)))) + "]"
    return str(draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=12)))


@st.composite
def mutated_bytes(draw: Draw, content: bytes) -> bytes:
    """A file's bytes with a few changes anywhere."""
    for _ in range(draw(st.integers(1, 3))):
        size = len(content)
        position = draw(st.integers(0, size))
        kind = draw(st.integers(0, 6))
        if kind == 0:  # cut off
            content = content[:position]
        elif kind == 1:  # a part is missing
            content = content[:position] + content[position + draw(st.integers(1, 64)) :]
        elif kind in (2, 3):  # something put in
            content = content[:position] + draw(st.sampled_from(EDGE_BYTES)) + content[position:]
        elif kind == 4:  # other bytes
            new_bytes = draw(st.binary(min_size=1, max_size=8))
            content = content[:position] + new_bytes + content[position + len(new_bytes) :]
        elif kind == 5:  # a part stands there twice
            content = content[:position] + content[max(0, position - draw(st.integers(1, 200))) :]
        else:  # something else altogether
            content = draw(
                st.sampled_from((*EDGE_BYTES, DEEP_NESTING.encode(), b"a\n" * 50, b"\n" * 50, b"\x00" * 4096))
            )
    return content


@st.composite
def mutated_tree(draw: Draw, tree: Any) -> Any:
    """JSON with a value somewhere in it that is another, missing, or of another kind."""
    if not isinstance(tree, dict | list) or not tree or draw(st.integers(0, 12)) == 0:
        return draw(json_values)
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = draw(st.sampled_from(keys))
    if draw(st.integers(0, 5)) == 0:
        if isinstance(tree, dict):
            return {name: value for name, value in tree.items() if name != key}
        return [value for index, value in enumerate(tree) if index != key]
    changed = draw(mutated_tree(tree[key]))
    if isinstance(tree, dict):
        return {**tree, key: changed}
    return [*tree[:key], changed, *tree[key + 1 :]]


@st.composite
def mutated_json(draw: Draw, content: bytes) -> bytes:
    """A JSON file: now its tree, now its bytes."""
    if draw(st.integers(0, 3)) == 0:
        return bytes(draw(mutated_bytes(content)))
    tree = json.loads(content)
    for _ in range(draw(st.integers(1, 2))):
        tree = draw(mutated_tree(tree))
    return json.dumps(tree).replace(f'"{RAW_JSON_MARKER}"', draw(st.sampled_from(RAW_JSON))).encode()


@st.composite
def mutated_toml(draw: Draw, content: bytes) -> bytes:
    """A TOML file: now the value of a line, now its bytes."""
    if draw(st.integers(0, 3)) == 0:
        return bytes(draw(mutated_bytes(content)))
    lines = content.decode().split("\n")
    for _ in range(draw(st.integers(1, 2))):
        index = draw(st.integers(0, len(lines) - 1))
        name = lines[index].partition("=")[0].strip() or "seed"
        value = draw(
            st.one_of(
                json_values.map(lambda value: json.dumps(value).replace("null", '""').replace("Infinity", "inf")),
                st.sampled_from(
                    (LONG_NUMBER, DEEP_NESTING, "{" * 2000, "1e999", "nan", "2020-01-01", "[[", '"""', "0x1")
                ),
            )
        )
        lines[index] = f"{name} = {value}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@st.composite
def mutated_tensors(draw: Draw, content: bytes) -> bytes:
    """A safetensors file: its header, its header's length, its numbers, or any bytes."""
    kind = draw(st.integers(0, 4))
    (length,) = struct.unpack("<Q", content[:8])
    header, tensor_bytes = content[8 : 8 + length], content[8 + length :]
    if kind == 0:
        return bytes(draw(mutated_bytes(content)))
    if kind == 1:
        return (
            struct.pack("<Q", draw(st.sampled_from((0, 1, 2**31, 2**63, 2**64 - 1, length + 1, length - 1))))
            + content[8:]
        )
    if kind == 2:  # not finite, or another number
        position = draw(st.integers(0, max(0, len(tensor_bytes) - 4)))
        bad_float = struct.pack("<f", draw(st.sampled_from((float("nan"), float("inf"), 1e38, -1.0))))
        return content[: 8 + length] + tensor_bytes[:position] + bad_float + tensor_bytes[position + 4 :]
    changed = draw(mutated_json(header))
    return struct.pack("<Q", len(changed)) + changed + tensor_bytes


def gzip_bytes(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=1, mtime=0)


def mutation_for_file(name: str) -> Callable[[bytes], st.SearchStrategy[bytes]]:
    """What fits a file of this name."""
    if name.endswith(".safetensors"):
        return mutated_tensors
    if name.endswith(".json"):
        return mutated_json
    return mutated_toml if name.endswith(".toml") else mutated_bytes


prompts: st.SearchStrategy[str] = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Co"]), max_size=20),
    st.sampled_from(
        [
            *(
                "",
                " ",
                "\n",
                "\x00",
                "\x1b[31mred",
                "\x1b]0;title\x07",
                "\u202eright to left",
                "👩‍👩‍👧‍👦" * 50,
                "\udcff\udcfe",
            ),
            *(
                "a" * 100_000,
                "the soup " * 5_000,
                "é" * 3000,
                "\ufeffx",
                "e\u0301" * 500,
                "one and two",
                LONG_NUMBER,
                DEEP_NESTING[:9000],
            ),
        ]
    ),
).map(lambda text: text if text != "-" else "--")
