"""Read the vocabulary files of GPT-2, BERT and the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Core

from triform.errors import CheckpointError
from triform.io.files import read_json, read_text
from triform.text.bpe import byte_characters
from triform.text.imported_tokenizers import ImportedBpe, ImportedSubword, parse_backend, wrap_backend
from triform.text.special_tokens import (
    adds_bos,
    find_special_tokens,
    find_template_tokens,
    read_tokenizer_settings,
)
from triform.text.wordpiece import build_wordpiece_backend


def read_gpt2(vocab: Path, merges: Path) -> ImportedBpe:
    """Read GPT-2's vocab.json and merges.txt, which are also named encoder.json and vocab.bpe."""
    ids = read_vocab_json(vocab)
    pairs = _read_merges(merges, ids)
    reachable = {*byte_characters(), *("".join(pair) for pair in pairs)}
    if missing := set(byte_characters()) - ids.keys():
        raise CheckpointError(f"{vocab} lacks {len(missing)} of the 256 bytes that byte-level BPE starts from")
    backend = build_byte_level_backend(
        models.BPE(dict(ids), pairs), [name for name in ids if name not in reachable]
    )
    return ImportedBpe(backend, find_special_tokens(ids, read_tokenizer_settings(vocab.parent)))


def build_byte_level_backend(model: models.BPE, special_tokens: Iterable[str], pattern: str = "") -> Core:
    """Build byte-level BPE, with GPT-2's pattern by default. Text never encodes to the special tokens."""
    backend = Core(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    try:
        split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"the split pattern {pattern!r} is not valid ({error})") from None
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level]) if split else byte_level
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(build_added_tokens(special_tokens))
    return backend


def build_added_tokens(names: Iterable[str]) -> list[AddedToken]:
    """Return special tokens in the library's format."""
    return [AddedToken(name, normalized=False, special=True) for name in names]


def read_wordpiece(path: Path) -> ImportedSubword:
    """Read BERT's vocab.txt, one piece per line. Its settings file or its pieces tell whether it is cased."""
    ids: dict[str, int] = {}
    for line_number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        piece = line.rstrip("\r")
        if not piece:
            raise CheckpointError(f"{path}, line {line_number}: expected a piece, found an empty line")
        if piece in ids:
            raise CheckpointError(
                f"{path}, line {line_number}: duplicate of the piece {piece!r} in line {ids[piece] + 1}"
            )
        ids[piece] = line_number - 1
    settings, pieces = read_tokenizer_settings(path.parent), list(ids)
    special_tokens = find_special_tokens(ids, settings)
    if special_tokens.unk is None:
        raise CheckpointError(f"{path} has no piece for unknown words; BERT's files have [UNK]")
    unk_piece = pieces[special_tokens.unk]
    special_names = {piece for piece, token in ids.items() if token in special_tokens[:4] or piece == "[MASK]"}
    is_cased = any(
        piece != piece.lower() for piece in ids.keys() - special_names if not piece.startswith("[unused")
    )
    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", not is_cased),
    )
    backend = build_wordpiece_backend(ids, unk_piece, normalizer)
    backend.add_special_tokens(build_added_tokens(sorted(special_names, key=ids.__getitem__)))
    if special_tokens.bos is not None and special_tokens.eos is not None:
        first_id, last_id = special_tokens.bos, special_tokens.eos
        special_tokens = special_tokens._replace(before=(first_id,), after=(last_id,))
        backend.post_processor = processors.TemplateProcessing(
            single=f"{pieces[first_id]} $A {pieces[last_id]}",
            pair=f"{pieces[first_id]} $A {pieces[last_id]} $B:1 {pieces[last_id]}:1",
            special_tokens=[(pieces[first_id], first_id), (pieces[last_id], last_id)],
        )
    return ImportedSubword(backend, special_tokens)


def read_tokenizer_json(path: Path) -> ImportedBpe | ImportedSubword:
    """Read a tokenizer.json of Hugging Face."""
    content = read_json(path)
    if not isinstance(content, dict) or "model" not in content:
        raise CheckpointError(f"{path} is not a tokenizer.json: it has no model")
    try:
        backend = parse_backend(content)
    except Exception as error:  # the library raises bare Exception
        kind = content["model"].get("type") if isinstance(content["model"], dict) else None
        raise CheckpointError(
            f"{path}: the tokenizers library cannot read this tokenizer (model {kind}; {error})"
        ) from None
    backend.no_truncation()
    backend.no_padding()
    ids = backend.get_vocab()
    check_token_ids(path, ids)
    settings = {**_unknown_token_setting(content["model"], ids), **read_tokenizer_settings(path.parent)}
    before, after = find_template_tokens(backend)
    special_tokens = find_special_tokens(ids, settings)._replace(before=before, after=after)
    # A SentencePiece model as tokenizer.json that does not define the tokens around a text: use those of the model.
    has_no_template = content.get("post_processor") is None and content["model"].get("byte_fallback")
    if has_no_template and special_tokens.bos is not None and adds_bos(settings):
        special_tokens = special_tokens._replace(before=(special_tokens.bos,))
    try:
        return wrap_backend(backend, special_tokens)
    except Exception as error:  # for example a vocabulary of words without one for unknown words
        raise CheckpointError(f"{path}: the tokenizers library cannot encode text with it ({error})") from None


def read_vocab_json(path: Path) -> dict[str, int]:
    """Read a JSON file of pieces with their ids."""
    ids = read_json(path)
    if not isinstance(ids, dict) or not ids or not all(type(token) is int for token in ids.values()):
        raise CheckpointError(f"{path} is not a vocabulary: expected an object with an integer id for each piece")
    check_token_ids(path, ids)
    return ids


def check_token_ids(path: Path, ids: Mapping[str, int]) -> None:
    """Refuse a vocabulary that does not number its pieces 0, 1, 2 and so on."""
    piece_by_id: dict[int, str] = {}
    for piece, token in ids.items():
        if token in piece_by_id:
            raise CheckpointError(f"{path}: {piece_by_id[token]!r} and {piece!r} have the same id, {token}")
        piece_by_id[token] = piece
    if missing := sorted(set(range(len(ids))) - piece_by_id.keys()):
        raise CheckpointError(
            f"{path}: the ids of {len(ids)} pieces must be 0 to {len(ids) - 1}, but no piece has id {missing[0]}"
        )


def _read_merges(path: Path, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for line_number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip() or (line_number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise CheckpointError(f"{path}, line {line_number}: expected two pieces with a space between them")
        for piece in (*parts, "".join(parts)):
            if piece not in ids:
                raise CheckpointError(f"{path}, line {line_number}: {piece!r} is not in the vocabulary")
        pairs.append((parts[0], parts[1]))
    return pairs


def _unknown_token_setting(model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the unknown token that a model of the library defines, as a setting."""
    name, unk_id = model.get("unk_token"), model.get("unk_id")
    if isinstance(name, str) and name in ids:
        return {"unk_token": name}
    return {"unk_token_id": unk_id} if isinstance(unk_id, int) else {}
