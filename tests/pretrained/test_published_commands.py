"""Marian's and Llama's published folders through the command line: in, used, trained further, out again."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import sentencepiece
import torch
import transformers
from published import apart, saved, stir
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

import triform
from triform.cli.main import app
from triform.pretrained import runs
from triform.training.folder import RunFolder

PAIRS = [
    ("the cat sat on the mat", "le chat est assis sur le tapis"),
    ("the other cat is late", "l’autre chat est en retard"),
    ("a dog sees the cat", "un chien voit le chat"),
    ("the dog is on the mat", "le chien est sur le tapis"),
] * 4


def ran(*arguments: object) -> str:
    answer = CliRunner().invoke(app, [*map(str, arguments)])
    assert answer.exit_code == 0, f"{answer.output} {answer.exception!r}"
    return answer.stdout


def spm(path: Path, texts: list[str], **more: Any) -> list[str]:
    with path.open("wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=out, model_type="unigram", hard_vocab_limit=False,
            minloglevel=2, vocab_size=60, **more,
        )  # fmt: skip
    read = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [read.id_to_piece(token) for token in range(read.get_piece_size())]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As OPUS-MT publishes them: the end is 0, the padding last, and decoding begins with it."""
    folder = tmp_path_factory.mktemp("published") / "marian"
    folder.mkdir()
    pieces = [
        *spm(folder / "source.spm", [source for source, _ in PAIRS])[3:],
        *spm(folder / "target.spm", [target for _, target in PAIRS])[3:],
    ]
    ids = {piece: token for token, piece in enumerate(dict.fromkeys(["</s>", "<unk>", *pieces, "<pad>"]))}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    told = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "fr"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    config = transformers.MarianConfig(
        vocab_size=len(ids), d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=48,
        activation_function="swish", scale_embedding=True, pad_token_id=ids["<pad>"], eos_token_id=0,
        decoder_start_token_id=ids["<pad>"], forced_eos_token_id=None,
    )  # fmt: skip
    return published(transformers.MarianMTModel(config), folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As SmolLM2 and Llama 3 are published: byte BPE in a tokenizer.json that begins every text."""
    folder = tmp_path_factory.mktemp("published") / "llama"
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    core.train_from_iterator([source for source, _ in PAIRS], trainer)
    core.post_processor = processors.TemplateProcessing(f"{special[0]} $A", special_tokens=[(special[0], 0)])
    spoken = transformers.PreTrainedTokenizerFast(tokenizer_object=core, bos_token=special[0], eos_token=special[1])
    spoken.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=core.get_vocab_size(), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return published(transformers.LlamaForCausalLM(config), folder)


def published(model: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    stir(model)
    return saved(model.eval(), folder)


def theirs(folder: Path) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = "AutoModelForSeq2SeqLM" if (folder / "source.spm").exists() else "AutoModelForCausalLM"
        model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()
        return model, transformers.AutoTokenizer.from_pretrained(folder)


def pairs_file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    return path


def translated(folder: Path, text: str, n_new: int = 12) -> str:
    model, spoken = theirs(folder)
    given = spoken([text], return_tensors="pt")
    never = [[model.config.pad_token_id]]
    with torch.no_grad():
        written = model.generate(**given, max_new_tokens=n_new, num_beams=1, do_sample=False, bad_words_ids=never)
    return spoken.decode(written[0], skip_special_tokens=True)


def test_a_published_marian_translates_learns_and_leaves(marian: Path, tmp_path: Path) -> None:
    assert "marian" in ran("convert", "import", marian, "--out", tmp_path / "run")
    for command in ("check", "params"):
        assert ran(command, tmp_path / "run", "--json")
    text = PAIRS[2][0]
    greedy = ("--set", "decode.strategy=greedy", "--set", "decode.max_new_tokens=12", "--device", "cpu")
    assert ran("predict", tmp_path / "run", text, *greedy).rstrip("\n") == translated(marian, text)
    data = pairs_file(tmp_path)
    scores = json.loads(ran("evaluate", tmp_path / "run", "--data", data, "--json", *greedy))
    assert scores
    ran(
        "train", "translate", "--from", marian, "--data", data, "--out", tmp_path / "tuned", "--device", "cpu",
        "--set", "train.max_steps=1", "--set", "train.lr=0.01",
    )  # fmt: skip
    tuned = triform.load(tmp_path / "tuned", device="cpu")
    before = triform.load(tmp_path / "run", device="cpu").task.model.state_dict()
    assert any(not torch.equal(before[name], now) for name, now in tuned.task.model.state_dict().items())
    assert ran("predict", tmp_path / "tuned", text, *greedy)
    ran("convert", "export", tmp_path / "tuned", "--to", "hf", "--out", tmp_path / "hf")
    mine = tuned.predict([text], strategy="greedy", max_new_tokens=12)[0].output
    assert translated(tmp_path / "hf", text) == mine
    _, spoken = theirs(tmp_path / "hf")
    assert spoken(text)["input_ids"] == tuned.task.source.special.whole(tuned.task.source.encode(text))


def test_a_published_marian_leaves_for_ctranslate2(marian: Path, tmp_path: Path) -> None:
    ran("convert", "import", marian, "--out", tmp_path / "run")
    ran("convert", "export", tmp_path / "run", "--to", "ctranslate2", "--out", tmp_path / "ct2")
    run: Any = triform.load(tmp_path / "run", device="cpu")
    pieces = run.task.source.vocabulary
    source = run.task.source.special.whole(run.task.source.encode(PAIRS[0][0]))
    answer = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1).translate_batch(
        [[pieces[token] for token in source]], beam_size=1, min_decoding_length=0, max_decoding_length=12,
        suppress_sequences=[["<pad>"]],
    )[0]  # fmt: skip
    wanted = run.predict([PAIRS[0][0]], strategy="greedy", max_new_tokens=12)[0].output
    assert run.task.target.decode([pieces.index(piece) for piece in answer.hypotheses[0]]) == wanted
    code = (tmp_path / "ct2/README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(code, {})


def test_a_published_llama_writes_learns_and_leaves(llama: Path, tmp_path: Path) -> None:
    assert "llama" in ran("convert", "import", llama, "--out", tmp_path / "run")
    model, spoken = theirs(llama)
    text = "the cat sat"
    given = spoken([text], return_tensors="pt")
    with torch.no_grad():
        written = model.generate(**given, max_new_tokens=12, do_sample=False, pad_token_id=1)
    greedy = ("--set", "decode.strategy=greedy", "--set", "decode.max_new_tokens=12", "--device", "cpu")
    said = json.loads(ran("predict", tmp_path / "run", text, "--json", *greedy))[0]
    assert text + said["output"] == spoken.decode(written[0], skip_special_tokens=True)
    book = tmp_path / "book.txt"
    book.write_text("\n".join(source for source, _ in PAIRS * 8), encoding="utf-8")
    scores = json.loads(ran("evaluate", tmp_path / "run", "--data", book, "--json", "--device", "cpu"))
    assert scores
    ran(
        "train", "generate", "--from", llama, "--data", book, "--out", tmp_path / "tuned", "--device", "cpu",
        "--set", "train.max_steps=1", "--set", "train.lora_rank=2", "--set", "data.max_len=32",
    )  # fmt: skip
    assert ran("predict", tmp_path / "tuned", text, *greedy)
    ran("convert", "export", tmp_path / "tuned", "--to", "hf", "--out", tmp_path / "hf")
    tuned: Any = triform.load(tmp_path / "tuned", device="cpu")
    again, spoken = theirs(tmp_path / "hf")
    assert type(again).__name__ == "LlamaForCausalLM"
    tokens = spoken(["the dog is on the mat"], return_tensors="pt")["input_ids"]
    assert tokens[0].tolist() == [0, *tuned.task.tokenizer.encode("the dog is on the mat")]
    with torch.no_grad():
        assert apart(tuned.task.model(tokens), again(tokens).logits) < 1e-5


@pytest.mark.parametrize(("kind", "most"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("name", ["llama", "marian"])
def test_shards_of_half_precision_are_read(
    kind: torch.dtype, most: float, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    whole: Path = request.getfixturevalue(name)
    model, _ = theirs(whole)
    shutil.copytree(whole, tmp_path / "half", ignore=shutil.ignore_patterns("model.safetensors"))
    saved(model.to(kind), tmp_path / "half", max_shard_size="4KB")
    assert len(list((tmp_path / "half").glob("model-*.safetensors"))) > 2
    ran("convert", "import", tmp_path / "half", "--out", tmp_path / "run")
    ran("convert", "import", whole, "--out", tmp_path / "full")
    mine, full = (triform.load(tmp_path / name, device="cpu").task.model for name in ("run", "full"))
    rounded, _ = theirs(tmp_path / "half")
    tokens = torch.tensor([[5, 9, 14, 20]])
    given = (tokens, tokens) if name == "marian" else (tokens,)
    more = {"decoder_input_ids": tokens} if name == "marian" else {}
    with torch.no_grad():
        assert apart(mine(*given), rounded(input_ids=tokens, **more).logits) < 1e-5
        assert apart(mine(*given), full(*given)) < 50 * most
    assert all(parameter.dtype == torch.float32 for parameter in mine.parameters())


def test_a_folder_is_read_once(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, times = runs.read_folder, []
    monkeypatch.setattr(runs, "read_folder", lambda place: times.append(place) or read(place))
    runs.import_run(llama, tmp_path / "run")
    assert times == [llama]
    assert RunFolder(tmp_path / "run").read_config().task == "generate"
