"""The pins: command lines whose runs must not change, the data that they read, and what was renamed on purpose.

The command lines are written in the language of the old tree. For the new tree they are translated, and so is what
the old tree writes, by the tables under "Translation". When the old commit has the new names, write them into the
pins and empty the tables.
"""

from __future__ import annotations

import io
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

# -- the pins


@dataclass(frozen=True)
class Pin:
    """A command line and what is asked of its result.

    Args:
        name: The name of the pin and of its run folder.
        command: The arguments of `triform`, without `--out`. `{inputs}` is the folder of `write_inputs`, `{runs}`
            that of the runs, `{out}` the run folder.
        settings: Settings, each as NAME=VALUE. A later value of a setting replaces an earlier one.
        answers: Commands whose results are compared, too.
        needs: Pins whose runs the commands read.
        ranks: The number of processes.
        killed_at: The command is also killed after the first checkpoint of this step or a later one, and resumed.
            With -1 it is not: it writes no checkpoints.
        same_weights_as: A pin whose run has the same weights in the same tree.
        checked_run: The folder below the run folder whose settings are compared. None: there is no run.
    """

    name: str
    command: str
    settings: str = ""
    answers: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    ranks: int = 1
    killed_at: int = 0
    same_weights_as: str = ""
    checked_run: str | None = ""


CLASSIFY = (
    "predict {out} --input {inputs}/texts.txt --json",
    "evaluate {out} --data {inputs}/valid.tsv --details --json",
)
GENERATE = (
    "predict {out} 'the old harbour' a --set decode.strategy=greedy --max-new-tokens 12 --json",
    "predict {out} 'the old harbour' a --seed 5 --temperature 0.9 --top-k 30 --top-p 0.9 --max-new-tokens 9 --json",
    "predict {out} 'my new' --max-new-tokens 1 --top 5 --json",
    "evaluate {out} --data {inputs}/valid.txt --stride 7 --details --json",
)
TRANSLATE = (
    "predict {out} --input {inputs}/texts.txt --set decode.strategy=greedy --max-new-tokens 10 --json",
    "predict {out} --input {inputs}/texts.txt --beam-size 3 --top 2 --max-new-tokens 10 --json",
    "evaluate {out} --data {inputs}/valid-pairs.tsv --details --set decode.max_new_tokens=8 --json",
)
EXPLAIN = "explain {out} 'the old harbour was lively' --json"
TOKENS = "tokenizer encode {out} 'The old café, my HARBOUR! 12' --json"
MIXTURE = (
    "predict {out} 'the old harbour' --mix ngram,cache --set decode.strategy=greedy --max-new-tokens 12 --json",
    "predict {out} 'the old harbour' --mix ngram --seed 5 --max-new-tokens 12 --json",
    "evaluate {out} --data {inputs}/valid.txt --mix ngram,cache --json",
)
LEARN_LABELS = "train classify --data {inputs}/rows.tsv"
LEARN_TEXT = "train generate --data {inputs}/prose.txt"
LEARN_PAIRS = "train translate --data {inputs}/pairs.tsv"
STEPS = (
    "train.max_steps=12 train.checkpoint_every=4 train.eval_every=6 train.log_every=1 train.batch_size=8"
    " train.warmup_steps=3"
)
SMALL = f"{STEPS} model.d_model=16 model.n_layers=2 model.n_heads=2"
SHORT = f"{SMALL} data.max_len=16"

PINS = (
    # Nothing is given but data: all that Triform chooses.
    Pin(
        "classify-defaults",
        LEARN_LABELS,
        "train.checkpoint_every=100",
        (
            *CLASSIFY,
            EXPLAIN,
            "evaluate {out} --data {inputs}/valid.tsv --lengths 8,12 --json",
            "evaluate {out} --baselines --json",
            "audit {inputs}/rows.tsv --test {inputs}/valid.tsv --json",
        ),
    ),
    Pin("classify-many", "train classify --data {inputs}/many.tsv", "train.checkpoint_every=200", CLASSIFY),
    Pin("generate-defaults", "train generate --data {inputs}/short.txt", answers=(*GENERATE, EXPLAIN, *MIXTURE)),
    Pin("translate-defaults", LEARN_PAIRS, answers=(*TRANSLATE, EXPLAIN)),
    Pin("classify-steps", "train classify --max-steps 6", "train.checkpoint_every=3", CLASSIFY[:1]),
    Pin("generate-steps", f"{LEARN_TEXT} --max-steps 4", "train.checkpoint_every=2", GENERATE[:1]),
    Pin("translate-steps", f"{LEARN_PAIRS} --max-steps 4", "train.checkpoint_every=2", TRANSLATE[1:2]),
    # Every position scheme, attention score, optimizer, schedule and tokenizer once.
    Pin(
        "sinusoidal",
        LEARN_LABELS,
        f"{SMALL} model.positions=sinusoidal model.attention_score=dot model.norm=rms model.activation=swiglu"
        " model.pooling=first tokenizer.kind=char train.optimizer=sgd train.lr=0.05 train.schedule=plateau"
        " train.plateau_patience=0 train.eval_every=2",
        (*CLASSIFY, TOKENS),
    ),
    Pin(
        "rotary",
        LEARN_TEXT,
        f"{SHORT} model.positions=rotary model.rotary_scaling=2 model.n_heads=4 model.n_kv_heads=2"
        " model.layer_windows=4,-1 model.norm=rms train.optimizer=muon train.ema_decay=0.9 tokenizer.kind=bpe"
        " tokenizer.vocab_size=300",
        (*GENERATE, TOKENS),
        killed_at=8,
    ),
    Pin(
        "alibi",
        LEARN_TEXT,
        f"{SHORT} model.positions=alibi model.attention_score=cosine model.window=6 model.tie_embeddings=false"
        " tokenizer.kind=word train.schedule=linear train.optimizer=adam",
        (*GENERATE, *MIXTURE, TOKENS),
    ),
    Pin(
        "relative",
        LEARN_PAIRS,
        f"{SMALL} model.positions=relative model.attention_scale=d_model model.attention_dropout=0.1 train.r_drop=1"
        " train.label_smoothing=0.1 train.schedule=cosine tokenizer.kind=bpe tokenizer.vocab_size=280",
        TRANSLATE,
    ),
    Pin(
        "t5",
        LEARN_LABELS,
        f"{SMALL} model.positions=t5 model.n_buckets=8 model.attention_score=additive model.head_hidden=8"
        " model.bigram_buckets=64 train.token_cutoff=0.1 train.simcut=2 train.schedule=constant"
        " tokenizer.kind=wordpiece tokenizer.vocab_size=120",
        (*CLASSIFY, TOKENS),
    ),
    Pin(
        "halves",
        "train translate --source {inputs}/source.txt --target {inputs}/target.txt",
        f"{SMALL} model.positions=sinusoidal_halves model.norm_position=post model.scale_embeddings=true"
        " tokenizer.joint_vocab=false tokenizer.bpe_dropout=0.1 tokenizer.vocab_size=280 train.schedule=noam"
        " train.label_smoothing=0.1 train.batch_size=0 train.batch_tokens=64 train.grad_accumulation=2",
        TRANSLATE,
    ),
    Pin(
        "no-positions",
        LEARN_TEXT,
        f"{SHORT} model.positions=none model.attention_dropout=0.2 model.bias=false model.activation=silu"
        " train.weight_decay=0.2 train.clip_norm=0.3 train.r_drop=0.5 data.train_max_len=8",
        GENERATE,
    ),
    # Recurrent models.
    Pin("rnn", LEARN_TEXT, f"{STEPS} model.kind=rnn model.d_model=16 model.n_layers=2 data.max_len=16", GENERATE),
    Pin(
        "gru",
        LEARN_LABELS,
        f"{STEPS} model.kind=gru model.d_model=16 model.n_layers=1 model.pooling=last",
        CLASSIFY,
    ),
    Pin(
        "lstm",
        LEARN_PAIRS,
        f"{STEPS} model.kind=lstm model.d_model=16 model.n_layers=1 model.attention_score=additive",
        TRANSLATE,
    ),
    # What a training may add.
    Pin(
        "linear-part",
        "train classify --data {inputs}/rows.csv --text-column body --label-column kind",
        f"{SMALL} model.term_buckets=512 train.refit_linear_part=true train.ema_decay=0.8 model.dropout=0.3",
        (CLASSIFY[0], "evaluate {out} --json"),
    ),
    Pin(
        "several-sets",
        "train classify --data {inputs}/rows.tsv --extra-data {inputs}/more.jsonl --valid {inputs}/valid.tsv"
        " --valid far={inputs}/far.tsv",
        f"{SMALL} train.patience=4 train.max_steps=60 train.eval_every=2 train.checkpoint_every=2"
        " train.eval_train=20 train.lr=0.03",
        CLASSIFY,
    ),
    Pin(
        "fine-tuned",
        "train classify --data {inputs}/more.jsonl --from {runs}/sinusoidal",
        f"{STEPS} train.freeze_layers=1 train.layer_decay=0.7",
        CLASSIFY,
        ("sinusoidal",),
    ),
    Pin(
        "lora",
        "train generate --data {inputs}/prose.txt --from {runs}/rotary",
        f"{STEPS} train.lora_rank=2 train.lora_dropout=0.1 train.lora_layers=attention",
        (*GENERATE, "predict {runs}/rotary 'the old' --adapter {out}/adapter.safetensors --top 4 --json"),
        ("rotary",),
    ),
    Pin(
        "masked",
        "pretrain --data {inputs}/texts.txt --data {inputs}/rows.tsv",
        f"{SMALL} tokenizer.kind=word train.mask_rate=0.3",
        ("predict {out} 'the old <mask> was lively' --top 3 --json", "evaluate {out} --json"),
    ),
    Pin("from-masked", f"{LEARN_LABELS} --from {{runs}}/masked", STEPS, CLASSIFY, ("masked",)),
    Pin(
        "denoised",
        "pretrain --for translate --data {inputs}/source.txt --data {inputs}/target.txt",
        f"{SMALL} tokenizer.vocab_size=280",
        ("predict {out} 'the old harbour was' --set decode.strategy=greedy --json", "evaluate {out} --json"),
    ),
    Pin(
        "from-denoised",
        f"{LEARN_PAIRS} --from {{runs}}/denoised",
        f"{STEPS} train.token_cutoff=0.1 train.simcut=2",
        TRANSLATE,
        ("denoised",),
    ),
    Pin(
        "vectors",
        "vectors train {inputs}/prose.txt --out {out}.safetensors --size 16 --min-count 1 --epochs 2 --json",
        answers=("vectors nearest {out}.safetensors harbour --json",),
        killed_at=-1,
        checked_run=None,
    ),
    Pin(
        "embeddings",
        f"{LEARN_LABELS} --embeddings {{runs}}/vectors.safetensors",
        f"{STEPS} model.n_layers=1 model.n_heads=2 train.freeze_layers=0",
        CLASSIFY,
        ("vectors",),
    ),
    # Several models.
    Pin(
        "seeds",
        f"{LEARN_LABELS} --seeds 2 --json",
        f"{SMALL} train.r_drop=1 tokenizer.kind=word",  # without R-Drop, the seeds would be one stacked model
        (*CLASSIFY, "predict {out}/seed-1,{out}/seed-0 'a cold station' --json"),
        checked_run="/seed-1",
    ),
    Pin(
        "distilled",
        "distill {runs}/seeds --seed 4",
        "train.r_drop=0 train.distill_temperature=3 train.distill_weight=0.7 train.optimizer=muon",
        CLASSIFY,
        ("seeds",),
    ),
    Pin("study", "compare {inputs}/study.toml --json", killed_at=-1, checked_run="/plain/seed-0"),
    Pin("search", "search {inputs}/space.toml --json", killed_at=-1, checked_run="/trials/trial-0001/seed-0"),
    # Several processes.
    Pin("exact", LEARN_LABELS, f"{SMALL} train.exact=true train.ema_decay=0.9", CLASSIFY),
    Pin(
        "exact-2",
        LEARN_LABELS,
        f"{SMALL} train.exact=true train.ema_decay=0.9",
        CLASSIFY[:1],
        ("exact",),
        ranks=2,
        same_weights_as="exact",
    ),
    Pin("ddp-2", LEARN_PAIRS, f"{SMALL} train.parallel=ddp train.label_smoothing=0.1", TRANSLATE[:1], ranks=2),
    Pin("fsdp-2", LEARN_TEXT, f"{SHORT} train.parallel=fsdp train.ema_decay=0.9", GENERATE[:1], ranks=2),
    # Large corpora and published models.
    Pin(
        "shards",
        "data tokenize {inputs}/prose.txt {inputs}/rows.tsv --tokenizer {runs}/rotary --shards 3 --workers 1",
        needs=("rotary",),
        killed_at=-1,
        checked_run=None,
    ),
    Pin("from-shards", "train generate --data {runs}/shards", SHORT, GENERATE, ("shards",)),
    Pin(
        "llama",
        "train generate --data {inputs}/prose.txt --from {inputs}/published/llama",
        f"{STEPS} data.max_len=16 train.lora_rank=2",
        (*GENERATE, "convert export {out} --to hf --out {out}.exported"),
    ),
    Pin(
        "bert",
        "convert import {inputs}/published/bert --out {out}",
        answers=(*CLASSIFY, "convert export {out} --to hf --out {out}.exported"),
        killed_at=-1,
    ),
    Pin(
        "marian",
        "convert import {inputs}/published/marian --out {out}",
        answers=(*TRANSLATE, "convert export {out} --to hf --out {out}.exported"),
        killed_at=-1,
    ),
)

# -- what is not compared

# Files of runs that are not read: pages, what repeats others, settings, which `config show` prints, and hidden
# files, which a killed command leaves behind.
IGNORED_FILES = r"\.(html|md|toml|svg|lock|log)$|(^|/)((digests|sources|state|study|search|plan|seconds|tests)?\.)"
# Items that differ from run to run: a pattern of names, and the reason.
IGNORED: tuple[tuple[str, str], ...] = (
    (r"/(seconds|time|step_ms|tokens_per_s|words_per_second)$", "clocks"),
    (r"/peak_memory$", "the memory of the process"),
    (r"^events/.*/start/\d+/version$", "the version of Triform"),
    (r"/worker$", "the process that trained"),
)
# Items that differ in a run that was resumed.
IGNORED_IF_RESUMED: tuple[tuple[str, str], ...] = (
    (r"^events/.*/real_share$", "a checkpoint does not count the padding since the last logged step"),
)
# The event that says that a run was resumed, in the old tree and in the new one. An unbroken run has none.
RESUME_EVENT = ("resume", "resume")

# -- translation: from the old tree to the new one

# Renamed options and settings of the command lines: a pattern of an argument, and what replaces the match. An
# argument of `--set` that becomes empty is left out with its option.
ARGUMENTS: tuple[tuple[str, str], ...] = ()
# Renamed files: a pattern of the path in the folder of runs, and what replaces the match.
FILES: tuple[tuple[str, str], ...] = ()
# Where the checkpoints of a run are, in the old tree and in the new one.
CHECKPOINTS = ("**/checkpoints/step-*", "**/checkpoints/step-*")
# Renamed tensors, settings, events and fields: a pattern of the name of an item, and what replaces the match. None:
# the new tree has no such item. A difference is printed with the name of its item, for example
# `settings/train.lr/value`, `events/rotary/metrics.jsonl/valid/0/loss`, `answers/rotary/1/0/output` or
# `tensors/rotary/model.safetensors/final_norm.weight`.
ITEMS: tuple[tuple[str, str | None], ...] = (
    (r"^settings/(data\.bidirectional|data\.bidirectional_tag|train\.mixup|train\.swa_fraction)/.*", None),
    (r"^settings/decode\.draft_tokens/.*", None),
)
# Items that only the new tree has.
NEW_ITEMS: tuple[str, ...] = ()
# Groups of tensors without common names: a pattern for the old tree, and one for the new tree. Their contents are
# compared in any order.
UNNAMED: tuple[tuple[str, str], ...] = ()
# Intended differences: a pattern of pins, a pattern of items, and the reason.
INTENDED: tuple[tuple[str, str, str], ...] = ()

# -- the data

SUBJECTS = tuple(
    f"{first} {second}"
    for first in ("the old", "a quiet", "my new", "this small", "our last", "their empty")
    for second in ("harbour", "station", "kitchen", "garden", "journey", "village", "theatre")
)
VERBS = ("was", "felt", "seemed", "looked", "stayed")
ADJECTIVES = {
    "good": ("wonderful", "pleasant", "warm", "lively"),
    "bad": ("dull", "cold", "broken", "noisy"),
    "neither": ("plain", "grey", "usual", "wooden"),
}
PUBLISHED = "published"


def draw_text(rng: random.Random) -> tuple[str, str]:
    """Return a text and its label, which is sometimes wrong."""
    label = rng.choice(list(ADJECTIVES))
    words = " and ".join(rng.sample(SUBJECTS, rng.randint(1, 3))), rng.choice(VERBS), rng.choice(ADJECTIVES[label])
    return " ".join(words), rng.choice(list(ADJECTIVES)) if rng.random() < 0.1 else label


def write_inputs(folder: Path) -> None:
    """Write the data that the pins read, the same on every machine."""
    folder.mkdir(parents=True)
    rng = random.Random(3)

    def write_table(name: str, n_rows: int, header: str = "label\ttext") -> None:
        separator = "," if name.endswith(".csv") else "\t"
        rows = [separator.join(draw_text(rng)[::-1]) for _ in range(n_rows)]
        write_lines(name, [header, *rows])

    def write_lines(name: str, lines: list[str]) -> None:
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    for name, n_rows in (("rows", 120), ("valid", 30), ("far", 20), ("many", 2300)):
        write_table(f"{name}.tsv", n_rows)
    write_table("rows.csv", 90, "kind,body")
    rows = [dict(zip(("text", "label"), draw_text(rng), strict=True)) for _ in range(40)]
    write_lines("more.jsonl", list(map(json.dumps, rows)))
    for name, n_lines in (("prose", 60), ("short", 20), ("valid", 12), ("texts", 6)):
        write_lines(f"{name}.txt", [f"{draw_text(rng)[0]}." for _ in range(n_lines)])
    for name, n_pairs in (("pairs", 70), ("valid-pairs", 8)):
        sources = [draw_text(rng)[0] for _ in range(n_pairs)]
        targets = [" ".join(word[::-1] for word in source.split()) for source in sources]
        write_lines(f"{name}.tsv", [f"{source}\t{target}" for source, target in zip(sources, targets, strict=True)])
        if name == "pairs":
            write_lines("source.txt", sources)
            write_lines("target.txt", targets)
    settings = dict(setting.split("=") for setting in SHORT.split())
    settings["data.train"] = f'"{folder}/rows.tsv"'
    common = "\n".join(f"{name} = {value}" for name, value in settings.items())
    for name, section in {
        "study": '[variants.plain]\n[variants.smooth]\ntrain.label_smoothing = 0.2\n[tests]\nfar = "far.tsv"',
        "space": '[space]\ntrain.lr = [0.001, 0.01]\ntrain.optimizer = ["adamw", "muon"]',
    }.items():
        head = "seeds = 2" if name == "study" else 'seeds = 1\nfinal_seeds = 0\ntrials = 3\nsampler = "tpe"'
        write_lines(f"{name}.toml", [f'task = "classify"\n{head}\n[common]\n{common}', section])


def write_published(folder: Path) -> None:
    """Write tiny models as `transformers` publishes them, with random weights."""
    import sentencepiece
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
    from tokenizers.models import BPE

    torch.manual_seed(3)
    rng = random.Random(4)
    texts = [draw_text(rng)[0] for _ in range(200)]

    def publish(name: str, model: torch.nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(folder / name)  # type: ignore[operator]

    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe_trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    bpe.train_from_iterator(texts, bpe_trainer)
    bpe.post_processor = processors.TemplateProcessing(f"{special[0]} $A", special_tokens=[(special[0], 0)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=special[0], eos_token=special[1]
    ).save_pretrained(folder / "llama")
    publish("llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=bpe.get_vocab_size(), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
    )))  # fmt: skip

    words = sorted({word for text in texts for word in text.split()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *(f"##{letter}" for letter in "aenrst")]
    (folder / "bert").mkdir()
    (folder / "bert" / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer_config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "bert" / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    publish("bert", transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=40, id2label=dict(enumerate(ADJECTIVES)),
    )))  # fmt: skip

    spm = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=spm, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    (folder / "marian").mkdir()
    for name in ("source.spm", "target.spm"):
        (folder / "marian" / name).write_bytes(spm.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm.getvalue())
    learned = [processor.id_to_piece(token) for token in range(3, processor.get_piece_size())]
    ids = {piece: token for token, piece in enumerate(["</s>", "<unk>", *learned, "<pad>"])}
    (folder / "marian" / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    tokenizer_config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "fr"}
    (folder / "marian" / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    publish("marian", transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=len(ids), d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=48,
        activation_function="swish", scale_embedding=True, pad_token_id=ids["<pad>"], eos_token_id=0,
        decoder_start_token_id=ids["<pad>"], forced_eos_token_id=None,
    )))  # fmt: skip


if __name__ == "__main__":
    write_published(Path(sys.argv[1]))
