"""`triform data`: download and verify known datasets, and write and verify token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from triform.cli.completion import complete_dataset
from triform.cli.help import DATA, OUTPUT, HelpCommand, argument, new_group, option
from triform.cli.options import JsonOption, print_json
from triform.cli.shorthands import TextColumnOption
from triform.formatting import echo, print_table

data = new_group(
    "data",
    """
    Download known datasets, and tokenize large corpora.

    Examples:
        triform data get tinyshakespeare
        triform data tokenize story.txt --tokenizer tokenizer.json --out shards
    """,
)
DataFolderOption = Annotated[
    str,
    option(
        DATA,
        "FOLDER",
        "Folder that holds the datasets. The default is the cache folder of the user.",
        name="--data",
    ),
]


CorpusArgument = Annotated[list[str], argument("FILE", "Files or addresses with text, read in this order.")]
ShardFolderOption = Annotated[Path, option(OUTPUT, "FOLDER", "Folder of the token shards.", name="--out")]
TokenizerOption = Annotated[
    str,
    option(DATA, "TOKENIZER", "Run folder, tokenizer.json, or tokenizer of another library.", name="--tokenizer"),
]
ShardsOption = Annotated[
    int | None,
    option(OUTPUT, "N", "Divide the tokens into N shards. The text is tokenized twice, first to count.", minimum=1),
]
ShardTokensOption = Annotated[
    int | None, option(OUTPUT, "N", "Tokens of a shard. The default is 67,108,864.", minimum=1)
]
WorkersOption = Annotated[
    int | None,
    option(
        DATA,
        "N",
        "Processes that tokenize. The default is one for each core. The shards do not depend on it.",
        minimum=1,
    ),
]


@data.command("list", cls=HelpCommand)
def list_(json_: JsonOption = False) -> None:
    """List the known datasets with their sizes and licences.

    Examples:
        triform data list
        triform data list --json
    """
    from triform.data.catalogue import DATASETS

    if json_:
        print_json(
            {
                dataset.name: {
                    "about": dataset.description,
                    "licence": dataset.licence,
                    "by_hand": dataset.manual_instructions,
                    "files": {file.name: {"bytes": file.size, "sha256": file.sha256} for file in dataset.files},
                }
                for dataset in DATASETS.values()
            }
        )
        return
    rows = [["dataset", "size", "licence", "description"]]
    for dataset in DATASETS.values():
        size = f"{sum(file.size for file in dataset.files) / 1e6:.1f} MB"
        rows.append([dataset.name, size, dataset.licence, dataset.description])
    print_table(rows, align="lrll")
    for dataset in DATASETS.values():
        if not all(file.url for file in dataset.files):
            echo(f"{dataset.name}: {dataset.manual_instructions}")


@data.command(cls=HelpCommand)
def get(
    name: Annotated[
        str, argument("NAME", "Dataset to download; see triform data list.", complete=complete_dataset)
    ],
    data: DataFolderOption = "",
) -> None:
    """Download a dataset and verify its checksums.

    Files that are already there and intact are not downloaded again.

    Examples:
        triform data get tinyshakespeare
        triform data get multi30k_en_de --data datasets
    """
    from triform.data import catalogue

    dataset = catalogue.get_dataset(name)
    catalogue.download_dataset(dataset, data, log=lambda line: echo(line, err=True))
    echo(f"{dataset.name}: all files are verified: {catalogue.dataset_folder(dataset, data)}")


@data.command(cls=HelpCommand)
def check(
    name: Annotated[
        str,
        argument(
            "NAME", "Dataset to verify. The default is every dataset in the folder.", complete=complete_dataset
        ),
    ] = "",
    data: DataFolderOption = "",
) -> None:
    """Verify the checksums of downloaded datasets.

    The first file that is missing or altered is named in an error.

    Examples:
        triform data check
        triform data check multi30k_en_de --data datasets
    """
    from triform.data import catalogue
    from triform.errors import DataError

    present = [
        dataset for dataset in catalogue.DATASETS.values() if catalogue.dataset_folder(dataset, data).is_dir()
    ]
    datasets = [catalogue.get_dataset(name)] if name else present
    if not datasets:
        folder = catalogue.dataset_folder(catalogue.SPEECHES, data).parent
        data_option = f" --data {data}" if data else ""
        raise DataError(
            f"there is no known dataset here; download one with triform data get NAME{data_option}", path=folder
        )
    for dataset in datasets:
        catalogue.verify_dataset(dataset, data)
        echo(f"{dataset.name}: all files are verified")


@data.command(cls=HelpCommand)
def tokenize(
    files: CorpusArgument,
    out: ShardFolderOption,
    tokenizer: TokenizerOption = "",
    text_column: TextColumnOption = "",
    shards: ShardsOption = None,
    shard_tokens: ShardTokensOption = None,
    workers: WorkersOption = None,
) -> None:
    """Tokenize a corpus into shards for training.

    The formats are those of triform train, also at addresses such as s3:// and hf://. To continue a job that was
    interrupted, repeat the command. Train on the shards with triform train generate --data FOLDER.

    Examples:
        triform data tokenize story.txt --tokenizer tokenizer.json --out shards
        triform data tokenize reviews.csv --tokenizer runs/reviews --out shards
    """
    from triform.config.merging import is_url
    from triform.data.shard_writer import TokenizeJob, write_shards
    from triform.errors import ConfigError, RunInterruptedError
    from triform.text import read_tokenizer

    if not tokenizer:
        raise ConfigError(
            "there is no tokenizer; add --tokenizer RUN or --tokenizer FILE, which this command makes: "
            f"triform tokenizer train {files[0]} --out tokenizer.json"
        )
    if shards and shard_tokens:
        raise ConfigError("--shards and --shard-tokens cannot be used together; one follows from the other")
    if is_url(str(out)):
        raise ConfigError(f"--out {out}: write the shards to a folder, and copy it to the address afterwards")
    job = TokenizeJob(
        files=files,
        tokenizer=read_tokenizer(tokenizer),
        shard_tokens=shard_tokens or 0,
        n_shards=shards or 0,
        text_column=text_column,
        workers=workers or 0,
    )
    try:
        manifest = write_shards(job, out, log=lambda line: echo(line, err=True))
    except KeyboardInterrupt:
        raise RunInterruptedError(
            f"stopped; the shards that are complete are in {out}, and the same command continues"
        ) from None
    n_shards = len(manifest.shards)
    echo(f"{out}: {manifest.n_tokens:,} tokens in {n_shards:,} shard{'s' if n_shards > 1 else ''}")


@data.command(cls=HelpCommand)
def verify(
    folder: Annotated[str, argument("FOLDER", "Folder or address of token shards.")],
) -> None:
    """Verify the checksums of token shards.

    Every shard that is missing or damaged is named. Shards at an address are copied to the cache one by one.

    Examples:
        triform data verify shards
        triform data verify s3://corpus/shards
    """
    from triform.data.shard_reader import ShardReader
    from triform.errors import DataError

    reader = ShardReader(folder)
    problems: list[str] = []
    for index in range(len(reader.manifest.shards)):
        try:
            reader.verify(index)
        except DataError as error:
            problems.append(str(error))
            echo(str(error), err=True)
    n_shards = len(reader.manifest.shards)
    if problems:
        raise DataError(f"{len(problems)} of {n_shards} shards are damaged; the others are intact", path=folder)
    echo(f"{folder}: {n_shards:,} shards with {reader.manifest.n_tokens:,} tokens are intact")
