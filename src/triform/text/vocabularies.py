"""GPT-2's pair of files, BERT's list of pieces and the library's own file, each as a core of the library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Core

from triform.errors import CheckpointError
from triform.text.bpe import byte_characters
from triform.text.imported import ImportedBpe, ImportedPieces, import_core, parse_core
from triform.text.special import adds_bos, find_special, frame, read_json, read_settings, read_text

LONGEST_WORD = 100  # characters; BERT takes a longer word for unknown


def read_gpt2(vocab: Path, merges: Path) -> ImportedBpe:
    """vocab.json and merges.txt, also as encoder.json and vocab.bpe."""
    ids = numbered(vocab)
    pairs = _merges(merges, ids)
    made = {*byte_characters(), *("".join(pair) for pair in pairs)}
    if lacking := set(byte_characters()) - ids.keys():
        raise CheckpointError(f"{vocab}: lacks {len(lacking)} of the 256 bytes that byte-level BPE starts from")
    core = byte_core(models.BPE(dict(ids), pairs), [name for name in ids if name not in made])
    return ImportedBpe(core, find_special(ids, read_settings(vocab.parent)))


def byte_core(model: models.BPE, special: Iterable[str], pattern: str = "") -> Core:
    """Byte-level BPE; without a pattern, GPT-2's. What no merge makes is special: no text gives it."""
    core = Core(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    try:
        split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"the pattern {pattern!r} cannot be read ({error})") from None
    core.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level]) if split else byte_level
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(as_special(special))
    return core


def as_special(names: Iterable[str]) -> list[AddedToken]:
    return [AddedToken(name, normalized=False, special=True) for name in names]


def read_wordpiece(path: Path) -> ImportedPieces:
    """BERT's vocab.txt, one piece a line; cased or not is told beside it, or seen in its pieces."""
    ids: dict[str, int] = {}
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        piece = line.rstrip("\r")
        if not piece:
            raise CheckpointError(f"{path}, line {number}: an empty line, where a piece belongs")
        if piece in ids:
            raise CheckpointError(f"{path}, line {number}: {piece!r} already stands in line {ids[piece] + 1}")
        ids[piece] = number - 1
    settings, pieces = read_settings(path.parent), list(ids)
    special = find_special(ids, settings)
    if special.unk is None:
        raise CheckpointError(f"{path}: no piece is for unknown words; BERT's files have [UNK]")
    unknown = pieces[special.unk]
    names = {piece for piece, token in ids.items() if token in special[:4] or piece == "[MASK]"}
    cased = any(piece != piece.lower() for piece in ids.keys() - names if not piece.startswith("[unused"))
    core = Core(models.WordPiece(dict(ids), unk_token=unknown, max_input_chars_per_word=LONGEST_WORD))
    core.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", not cased),
    )
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.add_special_tokens(as_special(sorted(names, key=ids.__getitem__)))
    if special.bos is not None and special.eos is not None:
        first, last = special.bos, special.eos
        special = special._replace(before=(first,), after=(last,))
        core.post_processor = processors.TemplateProcessing(
            single=f"{pieces[first]} $A {pieces[last]}",
            pair=f"{pieces[first]} $A {pieces[last]} $B:1 {pieces[last]}:1",
            special_tokens=[(pieces[first], first), (pieces[last], last)],
        )
    return ImportedPieces(core, special)


def read_library_file(path: Path) -> ImportedBpe | ImportedPieces:
    """A tokenizer.json of Hugging Face, of any model that the library reads."""
    content = read_json(path)
    if not isinstance(content, dict) or "model" not in content:
        raise CheckpointError(f"{path}: not a tokenizer.json: it has no model")
    try:
        core = parse_core(content)
    except Exception as error:  # the library raises bare Exception
        kind = content["model"].get("type") if isinstance(content["model"], dict) else None
        raise CheckpointError(f"{path}: the library cannot read this tokenizer (model {kind}; {error})") from None
    core.no_truncation()
    core.no_padding()
    ids = core.get_vocab()
    check_numbers(path, ids)
    settings = {**_unknown(content["model"], ids), **read_settings(path.parent)}
    before, after = frame(core)
    special = find_special(ids, settings)._replace(before=before, after=after)
    # A SentencePiece model as tokenizer.json, with no word on what stands around a text: as for the model itself.
    says_nothing = content.get("post_processor") is None and content["model"].get("byte_fallback")
    if says_nothing and special.bos is not None and adds_bos(settings):
        special = special._replace(before=(special.bos,))
    try:
        return import_core(core, special)
    except Exception as error:  # as above: a vocabulary of words without one for the unknown
        raise CheckpointError(f"{path}: the library cannot encode a text with this tokenizer ({error})") from None


def numbered(path: Path) -> dict[str, int]:
    """A JSON file of pieces with their numbers."""
    ids = read_json(path)
    if not isinstance(ids, dict) or not ids or not all(type(token) is int for token in ids.values()):
        raise CheckpointError(f"{path}: not a vocabulary: a number for each piece is expected")
    check_numbers(path, ids)
    return ids


def check_numbers(path: Path, ids: Mapping[str, int]) -> None:
    """Refuse a vocabulary that does not number its pieces 0, 1, 2 ..."""
    owner: dict[int, str] = {}
    for piece, token in ids.items():
        if token in owner:
            raise CheckpointError(f"{path}: {owner[token]!r} and {piece!r} have the same number, {token}")
        owner[token] = piece
    if lacking := sorted(set(range(len(ids))) - owner.keys()):
        raise CheckpointError(
            f"{path}: {len(ids)} pieces are not numbered 0 to {len(ids) - 1}: no piece has number {lacking[0]}"
        )


def _merges(path: Path, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise CheckpointError(f"{path}, line {number}: two pieces with a space between them are expected")
        for piece in (*parts, "".join(parts)):
            if piece not in ids:
                raise CheckpointError(f"{path}, line {number}: {piece!r} is not in the vocabulary")
        pairs.append((parts[0], parts[1]))
    return pairs


def _unknown(model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """What a model of the library itself says of unknown pieces."""
    name, number = model.get("unk_token"), model.get("unk_id")
    if isinstance(name, str) and name in ids:
        return {"unk_token": name}
    return {"unk_token_id": number} if isinstance(number, int) else {}
