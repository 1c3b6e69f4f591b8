"""The table of docs/pretrained.md, cell by cell: each family is imported, fine-tuned, adapted and leaves again."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from published import MAX_LEN, TINY_MODELS, VOCAB_SIZE, relative_difference, save_model
from tokenizers import Tokenizer as Core
from tokenizers import models, pre_tokenizers

import triform
from triform.pretrained import export
from triform.pretrained.run_import import import_run
from triform.run import Run

FAMILIES = ["gpt2", "llama", "bert", "megatron-bert", "distilbert", "marian", "blenderbot", "nanogpt"]
VOCABULARY = ["</s>", "<pad>", "<unk>", "<s>", *(f"w{number}" for number in range(4, VOCAB_SIZE))]
AUTO_CLASSES = {"generate": "AutoModelForCausalLM", "classify": "AutoModelForSequenceClassification"}
AUTO_CLASSES["translate"] = "AutoModelForSeq2SeqLM"
TRANSPOSED_SUFFIXES = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def publish_model(name: str, folder: Path) -> Path:
    case = TINY_MODELS["gpt2" if name == "nanogpt" else name]
    model = case.build()
    hf_tokenizer = Core(
        models.WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="<unk>")
    )
    hf_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special_tokens = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=hf_tokenizer, **special_tokens).save_pretrained(folder)
    if name != "nanogpt":
        return save_model(model, folder)
    state = model.state_dict()
    state |= {key: tensor.T for key, tensor in state.items() if key.endswith(TRANSPOSED_SUFFIXES)}
    model_args = {
        "n_layer": 3,
        "n_head": 4,
        "n_embd": 16,
        "block_size": MAX_LEN,
        "vocab_size": VOCAB_SIZE,
        "bias": True,
    }
    torch.save({"model": state, "model_args": {**model_args, "dropout": 0.0}}, folder / "ckpt.pt")
    return folder


def write_data(task: str, folder: Path) -> Path:
    texts = [" ".join(f"w{4 + (n * 7 + position * 3) % 50}" for position in range(6)) for n in range(24)]
    if task == "generate":
        (folder / "rows.txt").write_text("\n".join(texts), encoding="utf-8")
        return folder / "rows.txt"
    second_column = texts[::-1] if task == "translate" else [f"LABEL_{n % 3}" for n in range(24)]
    lines = [f"{text}\t{second}\n" for text, second in zip(texts, second_column, strict=True)]
    (folder / "rows.tsv").write_text("".join(lines), encoding="utf-8")
    return folder / "rows.tsv"


def changed_parameters(base: dict[str, torch.Tensor], run: Run) -> set[str]:
    current = run.task.model.state_dict()
    return {name for name, tensor in base.items() if name in current and not torch.equal(tensor, current[name])}


def model_inputs(run: Run) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    tokens, target = torch.tensor([[5, 9, 14, 33, 8]]), torch.tensor([[1, 7, 12]])
    if run.config.task == "translate":
        return (tokens, target), {"input_ids": tokens, "decoder_input_ids": target}
    return (tokens,), {"input_ids": tokens}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_comes_learns_is_adapted_and_leaves(name: str, tmp_path: Path) -> None:
    folder = publish_model(name, tmp_path / "theirs")
    folder = folder / "ckpt.pt" if name == "nanogpt" else folder
    _, imported = import_run(folder, tmp_path / "run")
    assert imported.family == name
    task = imported.config.task
    train_settings = {"max_steps": 1, "lr": 0.01, "eval_every": 1000}
    tuned, adapted = (
        triform.train(
            task, data=str(write_data(task, tmp_path)), init_from=str(folder), out=tmp_path / out, device="cpu",
            quiet=True, train=train_settings | extra, decode={"max_new_tokens": 4},
        )
        for out, extra in (("tuned", {}), ("adapted", {"lora_rank": 2}))
    )  # fmt: skip
    base = imported.model.state_dict()
    assert len(changed_parameters(base, tuned)) > len(base) // 2
    adapted_names = {
        key for key in changed_parameters(base, adapted) if not key.startswith(("classification_head", "lm_head"))
    }
    assert adapted_names
    assert all(re.search(r"(attn|cross_attn|ffn)\..*weight", key) for key in adapted_names)
    for run in (tuned, adapted):
        export(run.task, "hf", tmp_path / f"{run.path.name}-hf")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = (
                getattr(transformers, AUTO_CLASSES[task]).from_pretrained(tmp_path / f"{run.path.name}-hf").eval()
            )
        assert reference.config.model_type == name.replace("nanogpt", "gpt2")
        arguments, keyword_arguments = model_inputs(run)
        with torch.no_grad():
            assert (
                relative_difference(run.task.model.eval()(*arguments), reference(**keyword_arguments).logits) < 1e-5
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_leaves_for_the_engine_that_serves_its_form(name: str, tmp_path: Path) -> None:
    run_folder, _ = import_run(publish_model(name, tmp_path / "theirs"), tmp_path / "run")
    run: Any = triform.load(run_folder.path, device="cpu")
    supported, unsupported = ("onnx", "ctranslate2") if run.config.task == "classify" else ("ctranslate2", "onnx")
    with pytest.raises(triform.TriformError, match="classifiers"):
        export(run.task, unsupported, tmp_path / "other")
    if name == "bert":  # its graph has the same parts as DistilBERT's; writing one takes seconds
        return
    export(run.task, supported, tmp_path / "out")
    (tokens, *_), _ = model_inputs(run)
    if supported == "onnx":
        session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx")
        inputs = {"input_ids": tokens.numpy(), "attention_mask": np.ones_like(tokens.numpy())}
        with torch.no_grad():
            assert (
                relative_difference(torch.from_numpy(session.run(None, inputs)[0]), run.task.model(tokens)) < 1e-5
            )
        return
    pieces = [[VOCABULARY[token] for token in tokens[0].tolist()]]
    text = " ".join(pieces[0])
    actual = run.predict([text], strategy="greedy", max_new_tokens=8)[0].output
    if run.config.task == "translate":
        answer = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1).translate_batch(
            pieces, beam_size=1, min_decoding_length=0, max_decoding_length=8, suppress_sequences=[["<pad>"]]
        )[0]
        words = answer.hypotheses[0]
    else:
        generated = ctranslate2.Generator(str(tmp_path / "out"), intra_threads=1).generate_batch(
            pieces, max_length=8, sampling_topk=1, include_prompt_in_result=False, suppress_sequences=[["<pad>"]]
        )[0]
        words = generated.sequences[0]
    assert words
    assert " ".join(words) == actual.strip()
