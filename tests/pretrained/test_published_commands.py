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
from published import randomise_weights, relative_difference, save_model
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

import triform
from triform.cli.main import app
from triform.pretrained import run_import
from triform.training.run_folder import RunFolder

PAIRS = [
    ("the cat sat on the mat", "le chat est assis sur le tapis"),
    ("the other cat is late", "l’autre chat est en retard"),
    ("a dog sees the cat", "un chien voit le chat"),
    ("the dog is on the mat", "le chien est sur le tapis"),
] * 4


def run_cli(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, f"{result.output} {result.exception!r}"
    return result.stdout


def train_sentencepiece(path: Path, texts: list[str], **options: Any) -> list[str]:
    with path.open("wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=out, model_type="unigram", hard_vocab_limit=False,
            minloglevel=2, vocab_size=60, **options,
        )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(token) for token in range(processor.get_piece_size())]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As OPUS-MT publishes them: the end is 0, the padding last, and decoding begins with it."""
    folder = tmp_path_factory.mktemp("published") / "marian"
    folder.mkdir()
    pieces = [
        *train_sentencepiece(folder / "source.spm", [source for source, _ in PAIRS])[3:],
        *train_sentencepiece(folder / "target.spm", [target for _, target in PAIRS])[3:],
    ]
    ids = {piece: token for token, piece in enumerate(dict.fromkeys(["</s>", "<unk>", *pieces, "<pad>"]))}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    tokenizer_config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "fr"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    config = transformers.MarianConfig(
        vocab_size=len(ids), d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=48,
        activation_function="swish", scale_embedding=True, pad_token_id=ids["<pad>"], eos_token_id=0,
        decoder_start_token_id=ids["<pad>"], forced_eos_token_id=None,
    )  # fmt: skip
    return publish_model(transformers.MarianMTModel(config), folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As SmolLM2 and Llama 3 are published: byte BPE in a tokenizer.json that begins every text."""
    folder = tmp_path_factory.mktemp("published") / "llama"
    hf_tokenizer = Core(models.BPE())
    hf_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf_tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    hf_tokenizer.train_from_iterator([source for source, _ in PAIRS], trainer)
    hf_tokenizer.post_processor = processors.TemplateProcessing(
        f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=hf_tokenizer, bos_token=special[0], eos_token=special[1]
    )
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=hf_tokenizer.get_vocab_size(), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return publish_model(transformers.LlamaForCausalLM(config), folder)


def publish_model(model: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    randomise_weights(model)
    return save_model(model.eval(), folder)


def load_reference(folder: Path) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        auto_class = "AutoModelForSeq2SeqLM" if (folder / "source.spm").exists() else "AutoModelForCausalLM"
        model = getattr(transformers, auto_class).from_pretrained(folder, dtype=torch.float32).eval()
        return model, transformers.AutoTokenizer.from_pretrained(folder)


def write_pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    return path


def translate_with_reference(folder: Path, text: str, max_new_tokens: int = 12) -> str:
    model, tokenizer = load_reference(folder)
    inputs = tokenizer([text], return_tensors="pt")
    suppressed = [[model.config.pad_token_id]]
    with torch.no_grad():
        generated = model.generate(
            **inputs, max_new_tokens=max_new_tokens, num_beams=1, do_sample=False, bad_words_ids=suppressed
        )
    return tokenizer.decode(generated[0], skip_special_tokens=True)


def test_a_published_marian_translates_learns_and_leaves(marian: Path, tmp_path: Path) -> None:
    assert "marian" in run_cli("convert", "import", marian, "--out", tmp_path / "run")
    for command in ("check", "params"):
        assert run_cli(command, tmp_path / "run", "--json")
    text = PAIRS[2][0]
    greedy = ("--set", "decode.strategy=greedy", "--set", "decode.max_new_tokens=12", "--device", "cpu")
    assert run_cli("predict", tmp_path / "run", text, *greedy).rstrip("\n") == translate_with_reference(
        marian, text
    )
    data = write_pairs(tmp_path)
    metrics = json.loads(run_cli("evaluate", tmp_path / "run", "--data", data, "--json", *greedy))
    assert metrics
    run_cli(
        "train", "translate", "--from", marian, "--data", data, "--out", tmp_path / "tuned", "--device", "cpu",
        "--set", "train.max_steps=1", "--set", "train.lr=0.01",
    )  # fmt: skip
    tuned = triform.load(tmp_path / "tuned", device="cpu")
    original = triform.load(tmp_path / "run", device="cpu").task.model.state_dict()
    assert any(not torch.equal(original[name], tensor) for name, tensor in tuned.task.model.state_dict().items())
    assert run_cli("predict", tmp_path / "tuned", text, *greedy)
    run_cli("convert", "export", tmp_path / "tuned", "--to", "hf", "--out", tmp_path / "hf")
    expected = tuned.predict([text], strategy="greedy", max_new_tokens=12)[0].output
    assert translate_with_reference(tmp_path / "hf", text) == expected
    _, tokenizer = load_reference(tmp_path / "hf")
    assert tokenizer(text)["input_ids"] == tuned.task.source_tokenizer.special_tokens.wrap(
        tuned.task.source_tokenizer.encode(text)
    )


def test_a_published_marian_leaves_for_ctranslate2(marian: Path, tmp_path: Path) -> None:
    run_cli("convert", "import", marian, "--out", tmp_path / "run")
    run_cli("convert", "export", tmp_path / "run", "--to", "ctranslate2", "--out", tmp_path / "ct2")
    run: Any = triform.load(tmp_path / "run", device="cpu")
    vocabulary = run.task.source_tokenizer.vocabulary
    source = run.task.source_tokenizer.special_tokens.wrap(run.task.source_tokenizer.encode(PAIRS[0][0]))
    result = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1).translate_batch(
        [[vocabulary[token] for token in source]], beam_size=1, min_decoding_length=0, max_decoding_length=12,
        suppress_sequences=[["<pad>"]],
    )[0]  # fmt: skip
    expected = run.predict([PAIRS[0][0]], strategy="greedy", max_new_tokens=12)[0].output
    assert run.task.target_tokenizer.decode([vocabulary.index(piece) for piece in result.hypotheses[0]]) == expected
    code = (tmp_path / "ct2/README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(code, {})


def test_a_published_llama_writes_learns_and_leaves(llama: Path, tmp_path: Path) -> None:
    assert "llama" in run_cli("convert", "import", llama, "--out", tmp_path / "run")
    model, tokenizer = load_reference(llama)
    text = "the cat sat"
    inputs = tokenizer([text], return_tensors="pt")
    with torch.no_grad():
        generated = model.generate(**inputs, max_new_tokens=12, do_sample=False, pad_token_id=1)
    greedy = ("--set", "decode.strategy=greedy", "--set", "decode.max_new_tokens=12", "--device", "cpu")
    prediction = json.loads(run_cli("predict", tmp_path / "run", text, "--json", *greedy))[0]
    assert text + prediction["output"] == tokenizer.decode(generated[0], skip_special_tokens=True)
    text_file = tmp_path / "book.txt"
    text_file.write_text("\n".join(source for source, _ in PAIRS * 8), encoding="utf-8")
    metrics = json.loads(run_cli("evaluate", tmp_path / "run", "--data", text_file, "--json", "--device", "cpu"))
    assert metrics
    run_cli(
        "train", "generate", "--from", llama, "--data", text_file, "--out", tmp_path / "tuned", "--device", "cpu",
        "--set", "train.max_steps=1", "--set", "train.lora_rank=2", "--set", "data.max_len=32",
    )  # fmt: skip
    assert run_cli("predict", tmp_path / "tuned", text, *greedy)
    run_cli("convert", "export", tmp_path / "tuned", "--to", "hf", "--out", tmp_path / "hf")
    tuned: Any = triform.load(tmp_path / "tuned", device="cpu")
    exported_model, tokenizer = load_reference(tmp_path / "hf")
    assert type(exported_model).__name__ == "LlamaForCausalLM"
    tokens = tokenizer(["the dog is on the mat"], return_tensors="pt")["input_ids"]
    assert tokens[0].tolist() == [0, *tuned.task.tokenizer.encode("the dog is on the mat")]
    with torch.no_grad():
        assert relative_difference(tuned.task.model(tokens), exported_model(tokens).logits) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("name", ["llama", "marian"])
def test_shards_of_half_precision_are_read(
    dtype: torch.dtype, tolerance: float, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    full_folder: Path = request.getfixturevalue(name)
    model, _ = load_reference(full_folder)
    shutil.copytree(full_folder, tmp_path / "half", ignore=shutil.ignore_patterns("model.safetensors"))
    save_model(model.to(dtype), tmp_path / "half", max_shard_size="4KB")
    assert len(list((tmp_path / "half").glob("model-*.safetensors"))) > 2
    run_cli("convert", "import", tmp_path / "half", "--out", tmp_path / "run")
    run_cli("convert", "import", full_folder, "--out", tmp_path / "full")
    imported_model, full_model = (
        triform.load(tmp_path / name, device="cpu").task.model for name in ("run", "full")
    )
    rounded_reference, _ = load_reference(tmp_path / "half")
    tokens = torch.tensor([[5, 9, 14, 20]])
    inputs = (tokens, tokens) if name == "marian" else (tokens,)
    extra = {"decoder_input_ids": tokens} if name == "marian" else {}
    with torch.no_grad():
        assert (
            relative_difference(imported_model(*inputs), rounded_reference(input_ids=tokens, **extra).logits) < 1e-5
        )
        assert relative_difference(imported_model(*inputs), full_model(*inputs)) < 50 * tolerance
    assert all(parameter.dtype == torch.float32 for parameter in imported_model.parameters())


def test_a_folder_is_read_once(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original_read, calls = run_import.read_checkpoint, []
    monkeypatch.setattr(run_import, "read_checkpoint", lambda path: calls.append(path) or original_read(path))
    run_import.import_run(llama, tmp_path / "run")
    assert calls == [llama]
    assert RunFolder(tmp_path / "run").read_config().task == "generate"
