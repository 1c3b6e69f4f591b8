"""Folders as people have them: in parts, in half precision, as torch files, with and without heads, of old."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from published import (
    BERT_SETTINGS,
    TINY_MODELS,
    TinyModel,
    decode_greedy,
    edit_config,
    random_tokens,
    randomise_weights,
    relative_difference,
    rewrite_tensors,
    save_model,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from triform.analysis.parameters import count_parameters
from triform.errors import ConfigError
from triform.explain.checks import CHECKS, check_model
from triform.nn.kernels.packing import pack
from triform.pretrained import load_pretrained

FAMILY_NAMES = ("gpt2", "llama", "bert", "distilbert", "marian")
GPT2_MODEL = TINY_MODELS["gpt2"]


def weights_equal(left: nn.Module, right: nn.Module) -> bool:
    first, second = left.state_dict(), right.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_folder_in_parts_equals_one_file(name: str, tmp_path: Path) -> None:
    case = TINY_MODELS[name]
    model = case.build()
    single_file = load_pretrained(save_model(model, tmp_path / "whole"), case.task)
    shards_folder = save_model(model, tmp_path / "parts", max_shard_size="8KB")
    assert len(list(shards_folder.glob("model-*.safetensors"))) > 1
    assert weights_equal(load_pretrained(shards_folder, case.task).model, single_file.model)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_torch_file_equals_safetensors(name: str, tmp_path: Path) -> None:
    case = TINY_MODELS[name]
    folder = save_model(case.build(), tmp_path)
    before = load_pretrained(folder, case.task)
    torch.save(OrderedDict(load_file(folder / "model.safetensors")), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert weights_equal(load_pretrained(folder, case.task).model, before.model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_half_precision_is_read_as_what_it_says(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    case = TINY_MODELS[name]
    model = case.build().to(dtype)
    half_precision = load_pretrained(save_model(model, tmp_path / "half"), case.task)
    assert {tensor.dtype for tensor in load_file(tmp_path / "half/model.safetensors").values()} == {dtype}
    full_precision = load_pretrained(save_model(model.float(), tmp_path / "full"), case.task)
    assert {parameter.dtype for parameter in half_precision.model.parameters()} == {torch.float32}
    assert weights_equal(half_precision.model, full_precision.model)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_parameters_are_counted_as_they_are_built_and_all_checks_pass(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TINY_MODELS[name]
    imported = load_pretrained(save_model(case.build(), tmp_path), case.task)
    assert count_parameters(imported.config, imported.sizes).total == sum(
        parameter.numel() for parameter in imported.model.parameters()
    )
    monkeypatch.delitem(CHECKS, "the model can overfit one batch")  # of a fresh model, which others try
    failures = [
        finding for finding in check_model(imported.config, imported.sizes, imported.model) if finding.good is False
    ]
    assert not failures


# ------------------------------------------------------------------------------------------ names and heads


def test_a_model_without_a_head_has_names_without_a_prefix(tmp_path: Path) -> None:
    model = GPT2_MODEL.build()
    with_head = load_pretrained(save_model(model, tmp_path / "head"), "generate")
    headless_folder = save_model(model.transformer, tmp_path / "bare")
    assert "wte.weight" in load_file(headless_folder / "model.safetensors")
    assert weights_equal(load_pretrained(headless_folder, "generate").model, with_head.model)


def test_buffers_and_second_copies_in_old_files_are_left_out(tmp_path: Path) -> None:
    folder = save_model(GPT2_MODEL.build(), tmp_path)
    before = load_pretrained(folder, "generate")

    def add_old_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        mask = torch.ones(1, 1, 24, 24).tril()
        masks = {f"transformer.h.{layer}.attn.bias": mask.clone() for layer in range(3)}
        masks |= {f"transformer.h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(3)}
        return tensors | masks | {"lm_head.weight": tensors["transformer.wte.weight"].clone()}

    after = load_pretrained(rewrite_tensors(folder, add_old_tensors), "generate")
    assert weights_equal(after.model, before.model)
    assert not after.notices


def test_norms_may_have_their_tensorflow_names(tmp_path: Path) -> None:
    folder = save_model(TINY_MODELS["bert"].build(), tmp_path)
    before = load_pretrained(folder, "classify")

    def use_old_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        suffixes = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for new, old in suffixes:
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
        return tensors

    assert weights_equal(load_pretrained(rewrite_tensors(folder, use_old_names), "classify").model, before.model)


def test_a_stored_position_table_of_marian_is_checked(tmp_path: Path) -> None:
    model = TINY_MODELS["marian"].build()
    folder = save_model(model, tmp_path)
    before = load_pretrained(folder, "translate")
    table = model.model.encoder.embed_positions.weight.detach().clone()
    name = "model.encoder.embed_positions.weight"
    rewrite_tensors(folder, lambda tensors: tensors | {name: table})
    assert weights_equal(load_pretrained(folder, "translate").model, before.model)
    rewrite_tensors(folder, lambda tensors: tensors | {name: table + 1})
    with pytest.raises(Exception, match=f"{name} differs from the sinusoidal positions"):
        load_pretrained(folder, "translate")


def test_old_and_new_ways_to_tell_rotary_scaling_are_one(tmp_path: Path) -> None:
    folder = save_model(TINY_MODELS["llama llama3"].build(), tmp_path)
    new = load_pretrained(folder, "generate")
    scaling = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 16
    old = load_pretrained(
        edit_config(folder, rope_parameters=None, rope_theta=50.0, rope_scaling=scaling), "generate"
    )
    assert old.config == new.config
    assert new.config.model.rotary_scaling == (8.0, 1.0, 4.0, 16.0)


def test_dynamic_scaling_is_said_to_change_nothing(tmp_path: Path) -> None:
    imported = load_pretrained(save_model(TINY_MODELS["llama dynamic"].build(), tmp_path), "generate")
    assert imported.config.model.rotary_scaling == ()
    assert any("starts beyond 24 tokens" in notice for notice in imported.notices)


def test_fewer_tokens_may_be_read_than_the_model_could(tmp_path: Path) -> None:
    for name in ("gpt2", "llama", "bert"):
        case = TINY_MODELS[name]
        folder = save_model(case.build(), tmp_path / name)
        full_length, limited = load_pretrained(folder, case.task), load_pretrained(folder, case.task, max_len=12)
        assert limited.sizes.max_len == limited.config.data.max_len == 12
        with torch.no_grad():
            assert torch.equal(limited.model.eval()(random_tokens()), full_length.model.eval()(random_tokens()))
        with pytest.raises(
            Exception, match=r"data\.max_len=25 is too large; this model reads at most 24 tokens at once"
        ):
            load_pretrained(folder, case.task, max_len=25)


# ------------------------------------------------------------------------------------------ encoders for labels


def test_labels_are_those_of_the_folder(tmp_path: Path) -> None:
    case = TinyModel("classify", "BertForSequenceClassification", BERT_SETTINGS | {"num_labels": None})
    names = {0: "bad", 1: "so so", 2: "good"}
    case.hf_settings["id2label"] = names
    case.hf_settings.pop("num_labels")
    imported = load_pretrained(save_model(case.build(), tmp_path), "classify")
    assert imported.config.data.labels == ("bad", "so so", "good")
    assert imported.sizes.n_labels == 3
    assert not imported.notices


@pytest.mark.parametrize("names", [{"0": "bad", "1": "good"}, {"0": "a", "1": "b", "x": "c"}, ["a"], None])
def test_labels_whose_names_do_not_fit_are_numbered(names: Any, tmp_path: Path) -> None:
    folder = edit_config(save_model(TINY_MODELS["bert"].build(), tmp_path), id2label=names)
    assert load_pretrained(folder, "classify").config.data.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_a_head_that_does_not_choose_one_label_gives_a_notice(tmp_path: Path) -> None:
    one_label = TinyModel("classify", "BertForSequenceClassification", BERT_SETTINGS | {"num_labels": 1})
    folder = save_model(one_label.build(), tmp_path / "one")
    assert any("one output instead of labels" in notice for notice in load_pretrained(folder, "classify").notices)
    assert not any(
        "one score" in other_notice
        for other_notice in load_pretrained(folder, "classify", labels=("a", "b")).notices
    )
    multi_label = edit_config(
        save_model(TINY_MODELS["bert"].build(), tmp_path / "more"), problem_type="multi_label_classification"
    )
    assert any("several labels to a text" in notice for notice in load_pretrained(multi_label, "classify").notices)


@pytest.mark.parametrize("labels", [("a",), ("a", "b", "a")])
def test_labels_are_two_or_more_and_differ(labels: tuple[str, ...], tmp_path: Path) -> None:
    folder = save_model(TINY_MODELS["bert"].build(), tmp_path)
    with pytest.raises(ConfigError, match="at least two different labels are required"):
        load_pretrained(folder, "classify", labels=labels)


def test_labels_are_for_classifiers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the task generate has no labels"):
        load_pretrained(save_model(GPT2_MODEL.build(), tmp_path), "generate", labels=("a", "b"))


def test_other_labels_get_a_fresh_head_and_the_rest_stays(tmp_path: Path) -> None:
    folder = save_model(TINY_MODELS["bert"].build(), tmp_path)
    old, new = load_pretrained(folder, "classify"), load_pretrained(folder, "classify", labels=("no", "yes"))
    assert new.sizes.n_labels == 2
    assert weights_equal(new.model.encoder, old.model.encoder)
    # The pooler.
    assert torch.equal(new.model.classification_head[0].weight, old.model.classification_head[0].weight)
    assert new.notices == ("the classification head is new and untrained; train it before you use the model",)


def test_a_bert_that_only_read_has_its_pooler_and_new_scores(tmp_path: Path) -> None:
    reference = TinyModel(
        "classify", "BertModel", {key: BERT_SETTINGS[key] for key in BERT_SETTINGS if key != "num_labels"}
    ).build()
    imported = load_pretrained(save_model(reference, tmp_path), "classify", labels=("a", "b", "c"))
    assert (imported.config.model.pooling, imported.config.model.head_activation) == ("first", "tanh")
    assert imported.config.model.head_hidden == 16
    keep = torch.ones(2, 11, dtype=torch.bool)
    keep[1, 6:] = False
    model = imported.model.eval()
    with torch.no_grad():
        expected = reference(input_ids=random_tokens(), attention_mask=keep.long()).pooler_output
        pooled = model.classification_head[1](
            model.classification_head[0](model.encoder(random_tokens(), keep)[:, 0])
        )
    assert relative_difference(pooled, expected) < 1e-5


def test_segments_are_read_where_they_are_told(tmp_path: Path) -> None:
    reference = TINY_MODELS["bert"].build()
    imported = load_pretrained(save_model(reference, tmp_path), "classify").model.eval()
    segments = (torch.arange(11) > 5).long().expand(2, -1)
    with torch.no_grad():
        expected = reference(input_ids=random_tokens(), token_type_ids=segments).logits
        assert relative_difference(imported(random_tokens(), None, segments), expected) < 1e-5
        assert relative_difference(imported(random_tokens()), expected) > 1e-3
        rows, packed = pack([row[:n].tolist() for row, n in zip(random_tokens(), (11, 4), strict=True)])
        separate_logits = [
            reference(input_ids=random_tokens()[n : n + 1, :length]).logits for n, length in ((0, 11), (1, 4))
        ]
        assert relative_difference(imported(rows, packed), torch.cat(separate_logits)) < 1e-5


def test_sentence_transformers_folders_pool_by_the_mean(tmp_path: Path) -> None:
    reference = TinyModel(
        "classify", "BertModel", {key: BERT_SETTINGS[key] for key in BERT_SETTINGS if key != "num_labels"}
    ).build()
    folder = save_model(reference, tmp_path)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    imported = load_pretrained(folder, "classify")
    assert (imported.config.model.pooling, imported.config.model.head_hidden) == ("mean", 0)
    assert (
        imported.notices[0]
        == "these tensors are not used and were skipped: bert.pooler.dense.bias, bert.pooler.dense.weight"
    )
    keep = torch.ones(2, 11, dtype=torch.bool)
    keep[1, 6:] = False
    with torch.no_grad():
        hidden_states = reference(input_ids=random_tokens(), attention_mask=keep.long()).last_hidden_state
        expected = torch.stack([hidden_states[0].mean(0), hidden_states[1, :6].mean(0)])
        model = imported.model.eval()
        outputs: list[Tensor] = []
        model.dropout.register_forward_hook(lambda _m, _i, y: outputs.append(y))
        model(random_tokens(), keep)
    assert relative_difference(outputs[0], expected) < 1e-5


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "DistilBertForMaskedLM"])
def test_heads_for_other_tasks_are_left_out_with_a_notice(kind: str, tmp_path: Path) -> None:
    base = TINY_MODELS["bert" if kind.startswith("Bert") else "distilbert"]
    settings = {key: value for key, value in base.hf_settings.items() if key != "num_labels"}
    imported = load_pretrained(save_model(TinyModel("classify", kind, settings).build(), tmp_path), "classify")
    assert "these tensors are not used and were skipped: " in imported.notices[0]
    assert imported.config.model.pooling == "mean"  # there is no pooler to use
    assert len(imported.notices) == 2


# ------------------------------------------------------------------------------------------ nanoGPT


class ReferenceGPT(nn.Module):
    """A model with nanoGPT's names and formulas, written again from its description."""

    def __init__(self, *, n_layer: int, n_head: int, n_embd: int, block_size: int, vocab_size: int, bias: bool):
        super().__init__()
        self.n_head = n_head

        def block() -> nn.ModuleDict:
            attn = {"c_attn": nn.Linear(n_embd, 3 * n_embd, bias), "c_proj": nn.Linear(n_embd, n_embd, bias)}
            mlp = {"c_fc": nn.Linear(n_embd, 4 * n_embd, bias), "c_proj": nn.Linear(4 * n_embd, n_embd, bias)}
            norms = {name: nn.LayerNorm(n_embd, bias=bias) for name in ("ln_1", "ln_2")}
            return nn.ModuleDict({**norms, "attn": nn.ModuleDict(attn), "mlp": nn.ModuleDict(mlp)})

        tables = {"wte": nn.Embedding(vocab_size, n_embd), "wpe": nn.Embedding(block_size, n_embd)}
        blocks = nn.ModuleList(block() for _ in range(n_layer))
        self.transformer = nn.ModuleDict({**tables, "h": blocks, "ln_f": nn.LayerNorm(n_embd, bias=bias)})
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = tables["wte"].weight

    def forward(self, tokens: Tensor) -> Tensor:
        modules: Any = self.transformer
        x = modules["wte"](tokens) + modules["wpe"].weight[: tokens.shape[1]]
        for block in modules["h"]:
            qkv = block["attn"]["c_attn"](block["ln_1"](x)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in qkv)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["attn"]["c_proj"](y.transpose(1, 2).flatten(2))
            hidden = nn.functional.gelu(block["mlp"]["c_fc"](block["ln_2"](x)))
            x = x + block["mlp"]["c_proj"](hidden)
        return self.lm_head(modules["ln_f"](x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_nanogpts_checkpoint_equals_the_model_it_was_saved_from(bias: bool, compiled: bool, tmp_path: Path) -> None:
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 16, "block_size": 24, "vocab_size": 61, "bias": bias}
    model = ReferenceGPT(**sizes)
    randomise_weights(model)
    prefix = "_orig_mod." if compiled else ""
    state_dict = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    checkpoint = {
        "model": state_dict,
        "model_args": sizes | {"dropout": 0.2},
        "iter_num": 7,
        "best_val_loss": torch.tensor(1.0),
    }
    torch.save(checkpoint | {"optimizer": {"state": {}}, "config": {"device": "cpu"}}, tmp_path / "ckpt.pt")
    for path in (tmp_path, tmp_path / "ckpt.pt"):
        imported = load_pretrained(path, "generate")
        assert (imported.family, imported.config.model.dropout) == ("nanogpt", 0.2)
        with torch.no_grad():
            assert relative_difference(imported.model.eval()(random_tokens()), model(random_tokens())) < 1e-5


def test_the_padding_rows_of_nanogpts_vocabulary_are_removed(tmp_path: Path) -> None:
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 4, "block_size": 24, "vocab_size": 50_304, "bias": False}
    model = ReferenceGPT(**sizes)
    randomise_weights(model)
    torch.save({"model": model.state_dict(), "model_args": {**sizes, "dropout": 0.0}}, tmp_path / "ckpt.pt")
    imported = load_pretrained(tmp_path, "generate")
    assert imported.sizes.vocab_size == 50_257
    assert imported.notices == ("47 padding rows beyond GPT-2's 50257 tokens were removed",)
    with torch.no_grad():
        assert (
            relative_difference(imported.model.eval()(random_tokens()), model(random_tokens())[..., :50_257]) < 1e-5
        )


# ------------------------------------------------------------------------------------------ the real shape


def test_gpt2s_own_shape_is_read_and_writes_the_same_tokens(tmp_path: Path) -> None:
    """124,439,808 parameters; the published weights are not here, random ones stand in for them."""
    with torch.device("meta"):
        meta_model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    tensors = {name: 0.1 * torch.randn(parameter.shape) for name, parameter in meta_model.named_parameters()}
    for name in tensors:
        tensors[name] += 1.0 if "ln_" in name and name.endswith("weight") else 0.0
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    meta_model.config.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference: Any = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    imported = load_pretrained(tmp_path, "generate")
    imported.model.eval()
    assert sum(parameter.numel() for parameter in imported.model.parameters()) == 124_439_808
    prompt = torch.tensor([[464, 3290, 373, 257]])
    reference.generation_config.eos_token_id = None
    expected = reference.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False
    )
    generated = decode_greedy(imported, prompt.tolist(), 16)
    assert generated == expected[:, 4:].tolist()
    assert len(set(generated[0])) > 5
