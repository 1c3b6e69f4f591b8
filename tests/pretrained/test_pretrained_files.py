"""Folders as people have them: in parts, in half precision, as torch files, with and without heads, of old."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from published import BERT, EVERY_MODEL, Published, apart, greedy, rewritten, saved, stir, tokens, told
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from triform.errors import ConfigError
from triform.explain.checks import CHECKS, check_model
from triform.models.budget import budget
from triform.nn.rows import pack
from triform.pretrained import open_folder

ONE_OF_EACH = ("gpt2", "llama", "bert", "distilbert", "marian")
GPT2_MODEL = EVERY_MODEL["gpt2"]


def same(one: nn.Module, two: nn.Module) -> bool:
    first, second = one.state_dict(), two.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_folder_in_parts_equals_one_file(name: str, tmp_path: Path) -> None:
    case = EVERY_MODEL[name]
    model = case.make()
    whole = open_folder(saved(model, tmp_path / "whole"), case.task)
    parts = saved(model, tmp_path / "parts", max_shard_size="8KB")
    assert len(list(parts.glob("model-*.safetensors"))) > 1
    assert same(open_folder(parts, case.task).model, whole.model)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_torch_file_equals_safetensors(name: str, tmp_path: Path) -> None:
    case = EVERY_MODEL[name]
    folder = saved(case.make(), tmp_path)
    before = open_folder(folder, case.task)
    torch.save(OrderedDict(load_file(folder / "model.safetensors")), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert same(open_folder(folder, case.task).model, before.model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_half_precision_is_read_as_what_it_says(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    case = EVERY_MODEL[name]
    model = case.make().to(dtype)
    half = open_folder(saved(model, tmp_path / "half"), case.task)
    assert {tensor.dtype for tensor in load_file(tmp_path / "half/model.safetensors").values()} == {dtype}
    full = open_folder(saved(model.float(), tmp_path / "full"), case.task)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}
    assert same(half.model, full.model)


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_parameters_are_counted_as_they_are_built_and_all_checks_pass(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = EVERY_MODEL[name]
    got = open_folder(saved(case.make(), tmp_path), case.task)
    assert budget(got.config, got.sizes).total == sum(each.numel() for each in got.model.parameters())
    monkeypatch.delitem(CHECKS, "one batch can be learned by heart")  # of a fresh model, which others try
    wrong = [finding for finding in check_model(got.config, got.sizes, got.model) if finding.good is False]
    assert not wrong


# ------------------------------------------------------------------------------------------ names and heads


def test_a_model_without_a_head_has_names_without_a_prefix(tmp_path: Path) -> None:
    model = GPT2_MODEL.make()
    with_head = open_folder(saved(model, tmp_path / "head"), "generate")
    bare = saved(model.transformer, tmp_path / "bare")
    assert "wte.weight" in load_file(bare / "model.safetensors")
    assert same(open_folder(bare, "generate").model, with_head.model)


def test_buffers_and_second_copies_in_old_files_are_left_out(tmp_path: Path) -> None:
    folder = saved(GPT2_MODEL.make(), tmp_path)
    before = open_folder(folder, "generate")

    def older(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        mask = torch.ones(1, 1, 24, 24).tril()
        masks = {f"transformer.h.{layer}.attn.bias": mask.clone() for layer in range(3)}
        masks |= {f"transformer.h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(3)}
        return tensors | masks | {"lm_head.weight": tensors["transformer.wte.weight"].clone()}

    after = open_folder(rewritten(folder, older), "generate")
    assert same(after.model, before.model)
    assert not after.notices


def test_norms_may_have_their_tensorflow_names(tmp_path: Path) -> None:
    folder = saved(EVERY_MODEL["bert"].make(), tmp_path)
    before = open_folder(folder, "classify")

    def older(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        ends = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for new, old in ends:
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
        return tensors

    assert same(open_folder(rewritten(folder, older), "classify").model, before.model)


def test_marians_own_table_of_positions_is_looked_at(tmp_path: Path) -> None:
    model = EVERY_MODEL["marian"].make()
    folder = saved(model, tmp_path)
    before = open_folder(folder, "translate")
    table = model.model.encoder.embed_positions.weight.detach().clone()
    name = "model.encoder.embed_positions.weight"
    rewritten(folder, lambda tensors: tensors | {name: table})
    assert same(open_folder(folder, "translate").model, before.model)
    rewritten(folder, lambda tensors: tensors | {name: table + 1})
    with pytest.raises(Exception, match=f"{name} is not the sinusoids"):
        open_folder(folder, "translate")


def test_old_and_new_ways_to_tell_rotary_scaling_are_one(tmp_path: Path) -> None:
    folder = saved(EVERY_MODEL["llama llama3"].make(), tmp_path)
    new = open_folder(folder, "generate")
    scaling = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 16
    old = open_folder(told(folder, rope_parameters=None, rope_theta=50.0, rope_scaling=scaling), "generate")
    assert old.config == new.config
    assert new.config.model.rotary_scaling == (8.0, 1.0, 4.0, 16.0)


def test_dynamic_scaling_is_said_to_change_nothing(tmp_path: Path) -> None:
    got = open_folder(saved(EVERY_MODEL["llama dynamic"].make(), tmp_path), "generate")
    assert got.config.model.rotary_scaling == ()
    assert any("begins beyond 24 tokens" in notice for notice in got.notices)


def test_fewer_tokens_may_be_read_than_the_model_could(tmp_path: Path) -> None:
    for name in ("gpt2", "llama", "bert"):
        case = EVERY_MODEL[name]
        folder = saved(case.make(), tmp_path / name)
        whole, short = open_folder(folder, case.task), open_folder(folder, case.task, max_len=12)
        assert short.sizes.max_len == short.config.data.max_len == 12
        with torch.no_grad():
            assert torch.equal(short.model.eval()(tokens()), whole.model.eval()(tokens()))
        with pytest.raises(Exception, match=r"reads 24 tokens at once, not data\.max_len=25"):
            open_folder(folder, case.task, max_len=25)


# ------------------------------------------------------------------------------------------ encoders for labels


def test_labels_are_those_of_the_folder(tmp_path: Path) -> None:
    case = Published("classify", "BertForSequenceClassification", BERT | {"num_labels": None})
    names = {0: "bad", 1: "so so", 2: "good"}
    case.settings["id2label"] = names
    case.settings.pop("num_labels")
    got = open_folder(saved(case.make(), tmp_path), "classify")
    assert got.config.data.labels == ("bad", "so so", "good")
    assert got.sizes.n_labels == 3
    assert not got.notices


@pytest.mark.parametrize("names", [{"0": "bad", "1": "good"}, {"0": "a", "1": "b", "x": "c"}, ["a"], None])
def test_labels_whose_names_do_not_fit_are_numbered(names: Any, tmp_path: Path) -> None:
    folder = told(saved(EVERY_MODEL["bert"].make(), tmp_path), id2label=names)
    assert open_folder(folder, "classify").config.data.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_scores_that_are_no_choice_among_labels_are_told_of(tmp_path: Path) -> None:
    one = Published("classify", "BertForSequenceClassification", BERT | {"num_labels": 1})
    folder = saved(one.make(), tmp_path / "one")
    assert any("it gives one score" in notice for notice in open_folder(folder, "classify").notices)
    assert not any("one score" in each for each in open_folder(folder, "classify", labels=("a", "b")).notices)
    several = told(saved(EVERY_MODEL["bert"].make(), tmp_path / "more"), problem_type="multi_label_classification")
    assert any("several labels at once" in notice for notice in open_folder(several, "classify").notices)


@pytest.mark.parametrize("labels", [("a",), ("a", "b", "a")])
def test_labels_are_two_or_more_and_differ(labels: tuple[str, ...], tmp_path: Path) -> None:
    folder = saved(EVERY_MODEL["bert"].make(), tmp_path)
    with pytest.raises(ConfigError, match="two or more are expected, each another"):
        open_folder(folder, "classify", labels=labels)


def test_labels_are_for_classifiers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="labels are for a classifier; gpt2 is to generate"):
        open_folder(saved(GPT2_MODEL.make(), tmp_path), "generate", labels=("a", "b"))


def test_other_labels_get_a_fresh_head_and_the_rest_stays(tmp_path: Path) -> None:
    folder = saved(EVERY_MODEL["bert"].make(), tmp_path)
    old, new = open_folder(folder, "classify"), open_folder(folder, "classify", labels=("no", "yes"))
    assert new.sizes.n_labels == 2
    assert same(new.model.encoder, old.model.encoder)
    assert torch.equal(new.model.head[0].weight, old.model.head[0].weight)  # the pooler
    assert new.notices == ("the scores of labels are new: they know nothing before they are trained",)


def test_a_bert_that_only_read_has_its_pooler_and_new_scores(tmp_path: Path) -> None:
    theirs = Published("classify", "BertModel", {key: BERT[key] for key in BERT if key != "num_labels"}).make()
    got = open_folder(saved(theirs, tmp_path), "classify", labels=("a", "b", "c"))
    assert (got.config.model.pooling, got.config.model.head_activation) == ("first", "tanh")
    assert got.config.model.head_hidden == 16
    keep = torch.ones(2, 11, dtype=torch.bool)
    keep[1, 6:] = False
    model = got.model.eval()
    with torch.no_grad():
        wanted = theirs(input_ids=tokens(), attention_mask=keep.long()).pooler_output
        pooled = model.head[1](model.head[0](model.encoder(tokens(), keep)[:, 0]))
    assert apart(pooled, wanted) < 1e-5


def test_segments_are_read_where_they_are_told(tmp_path: Path) -> None:
    theirs = EVERY_MODEL["bert"].make()
    ours = open_folder(saved(theirs, tmp_path), "classify").model.eval()
    segments = (torch.arange(11) > 5).long().expand(2, -1)
    with torch.no_grad():
        wanted = theirs(input_ids=tokens(), token_type_ids=segments).logits
        assert apart(ours(tokens(), None, segments), wanted) < 1e-5
        assert apart(ours(tokens()), wanted) > 1e-3
        rows, packed = pack([row[:n].tolist() for row, n in zip(tokens(), (11, 4), strict=True)])
        alone = [theirs(input_ids=tokens()[n : n + 1, :length]).logits for n, length in ((0, 11), (1, 4))]
        assert apart(ours(rows, packed), torch.cat(alone)) < 1e-5


def test_sentence_transformers_folders_pool_by_the_mean(tmp_path: Path) -> None:
    theirs = Published("classify", "BertModel", {key: BERT[key] for key in BERT if key != "num_labels"}).make()
    folder = saved(theirs, tmp_path)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    got = open_folder(folder, "classify")
    assert (got.config.model.pooling, got.config.model.head_hidden) == ("mean", 0)
    assert (
        got.notices[0] == "left out, for nothing here reads them: bert.pooler.dense.bias, bert.pooler.dense.weight"
    )
    keep = torch.ones(2, 11, dtype=torch.bool)
    keep[1, 6:] = False
    with torch.no_grad():
        states = theirs(input_ids=tokens(), attention_mask=keep.long()).last_hidden_state
        wanted = torch.stack([states[0].mean(0), states[1, :6].mean(0)])
        model = got.model.eval()
        seen: list[Tensor] = []
        model.dropout.register_forward_hook(lambda _m, _i, y: seen.append(y))
        model(tokens(), keep)
    assert apart(seen[0], wanted) < 1e-5


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "DistilBertForMaskedLM"])
def test_heads_for_other_tasks_are_left_out_with_a_notice(kind: str, tmp_path: Path) -> None:
    base = EVERY_MODEL["bert" if kind.startswith("Bert") else "distilbert"]
    settings = {key: value for key, value in base.settings.items() if key != "num_labels"}
    got = open_folder(saved(Published("classify", kind, settings).make(), tmp_path), "classify")
    assert "left out, for nothing here reads them: " in got.notices[0]
    assert got.config.model.pooling == "mean"  # there is no pooler to use
    assert len(got.notices) == 2


# ------------------------------------------------------------------------------------------ nanoGPT


class PlainGPT(nn.Module):
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
        inner: Any = self.transformer
        x = inner["wte"](tokens) + inner["wpe"].weight[: tokens.shape[1]]
        for block in inner["h"]:
            parts = block["attn"]["c_attn"](block["ln_1"](x)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["attn"]["c_proj"](y.transpose(1, 2).flatten(2))
            wide = nn.functional.gelu(block["mlp"]["c_fc"](block["ln_2"](x)))
            x = x + block["mlp"]["c_proj"](wide)
        return self.lm_head(inner["ln_f"](x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_nanogpts_checkpoint_equals_the_model_it_was_saved_from(bias: bool, compiled: bool, tmp_path: Path) -> None:
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 16, "block_size": 24, "vocab_size": 61, "bias": bias}
    model = PlainGPT(**sizes)
    stir(model)
    prefix = "_orig_mod." if compiled else ""
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    kept = {
        "model": state,
        "model_args": sizes | {"dropout": 0.2},
        "iter_num": 7,
        "best_val_loss": torch.tensor(1.0),
    }
    torch.save(kept | {"optimizer": {"state": {}}, "config": {"device": "cpu"}}, tmp_path / "ckpt.pt")
    for place in (tmp_path, tmp_path / "ckpt.pt"):
        got = open_folder(place, "generate")
        assert (got.family, got.config.model.dropout) == ("nanogpt", 0.2)
        with torch.no_grad():
            assert apart(got.model.eval()(tokens()), model(tokens())) < 1e-5


def test_the_rows_by_which_nanogpt_fills_up_gpt2s_vocabulary_are_left_out(tmp_path: Path) -> None:
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 4, "block_size": 24, "vocab_size": 50_304, "bias": False}
    model = PlainGPT(**sizes)
    stir(model)
    torch.save({"model": model.state_dict(), "model_args": {**sizes, "dropout": 0.0}}, tmp_path / "ckpt.pt")
    got = open_folder(tmp_path, "generate")
    assert got.sizes.vocab_size == 50_257
    assert got.notices == ("47 rows beyond GPT-2's 50257 tokens are filling, and left out",)
    with torch.no_grad():
        assert apart(got.model.eval()(tokens()), model(tokens())[..., :50_257]) < 1e-5


# ------------------------------------------------------------------------------------------ the real shape


def learned(scores: Callable[[], Tensor], model: nn.Module, text: Tensor) -> list[float]:
    """The loss before and after one step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=1e-3), []
    for _ in range(2):
        loss = nn.functional.cross_entropy(scores().flatten(0, 1), text[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def test_gpt2s_own_shape_is_read_writes_the_same_64_tokens_and_learns_alike(tmp_path: Path) -> None:
    """124,439,808 parameters; the published weights are not here, random ones stand in for them."""
    with torch.device("meta"):
        empty = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    tensors = {name: 0.1 * torch.randn(parameter.shape) for name, parameter in empty.named_parameters()}
    for name in tensors:
        tensors[name] += 1.0 if "ln_" in name and name.endswith("weight") else 0.0
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    empty.config.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs: Any = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    ours = open_folder(tmp_path, "generate")
    ours.model.eval()
    assert sum(parameter.numel() for parameter in ours.model.parameters()) == 124_439_808
    prompt = torch.tensor([[464, 3290, 373, 257]])
    theirs.generation_config.eos_token_id = None
    wanted = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False)
    got = greedy(ours, prompt.tolist(), 64)
    assert got == wanted[:, 4:].tolist()
    assert len(set(got[0])) > 20
    text = wanted[:, :9]
    mine = learned(lambda: ours.model(text[:, :-1]), ours.model, text)
    other = learned(lambda: theirs(text[:, :-1]).logits, theirs, text)
    assert mine == pytest.approx(other, rel=1e-4)
    assert mine[1] < mine[0]
