"""The blocks for datatrove: each rank writes its shards, a last step merges them, and the folder trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from triform.config import TokenizerConfig
from triform.data.datatrove import MergeShards, WriteShards
from triform.data.shard_reader import ShardReader
from triform.data.shards import read_manifest
from triform.errors import ConfigError, DataError
from triform.launch import train
from triform.text import train_tokenizer

TEXTS = [f"document {number} says " + "word " * (number % 7) for number in range(60)]


def test_a_local_pipeline_writes_shards_that_train(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    executor = pytest.importorskip("datatrove.executor")
    readers = pytest.importorskip("datatrove.pipeline.readers")
    corpus, shards, tokenizer = tmp_path / "corpus", tmp_path / "shards", tmp_path / "tokenizer.json"
    corpus.mkdir()
    for number in range(3):
        texts = TEXTS[20 * number : 20 * number + 20]
        parquet.write_table(pyarrow.table({"text": texts}), corpus / f"{number}.parquet")
    train_tokenizer(TokenizerConfig(kind="char"), TEXTS).save(tokenizer)
    write = executor.LocalPipelineExecutor(
        [readers.ParquetReader(str(corpus)), WriteShards(str(shards), str(tokenizer), shard_tokens=300)],
        tasks=4,  # one rank has no file
        workers=1,
        logging_dir=str(tmp_path / "logs1"),
    )
    executor.LocalPipelineExecutor(
        [MergeShards(str(shards))], depends=write, workers=1, logging_dir=str(tmp_path / "logs2")
    ).run()
    manifest = read_manifest(str(shards))
    assert manifest.n_documents == len(TEXTS)
    assert [Path(source.path).name for source in manifest.sources] == ["0.parquet", "1.parquet", "2.parquet"]
    assert all(source.bytes and source.fingerprint for source in manifest.sources)
    assert {shard.name[:10] for shard in manifest.shards} == {"rank-00000", "rank-00001", "rank-00002"}
    reader = ShardReader(str(shards))
    tokens = [token for index in range(len(manifest.shards)) for token in reader.open(index).tokens.tolist()]
    eos = reader.tokenizer.special_tokens.eos
    assert tokens == [token for text in TEXTS for token in [*reader.tokenizer.encode(text), eos]]
    tiny = {"model.d_model": 8, "model.n_heads": 1, "model.n_layers": 1, "train.max_steps": 2, "data.max_len": 16}
    run = train("generate", data=str(shards), out=str(tmp_path / "run"), device="cpu", quiet=True, **tiny)
    assert run.config.tokenizer.kind == "char"
    MergeShards(str(shards))()  # a second merge changes nothing
    with pytest.raises(ConfigError, match="already has token shards"):
        WriteShards(str(shards), str(tokenizer))([])


def test_a_rank_that_has_not_finished_is_named(tmp_path: Path) -> None:
    train_tokenizer(TokenizerConfig(kind="char"), TEXTS).save(tmp_path / "tokenizer.json")
    shards = tmp_path / "shards"
    WriteShards(str(shards), str(tmp_path / "tokenizer.json"))([], rank=0, world_size=3)
    with pytest.raises(DataError, match="cannot be merged: rank 1 has not finished"):
        MergeShards(str(shards))()
    for rank in (1, 2):
        WriteShards(str(shards), str(tmp_path / "tokenizer.json"))([], rank=rank, world_size=3)
    with pytest.raises(DataError, match="the ranks have written no tokens"):
        MergeShards(str(shards))()
