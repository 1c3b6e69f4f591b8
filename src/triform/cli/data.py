"""`triform data`: list, download and verify known datasets."""

from __future__ import annotations

from typing import Annotated

from triform.cli.completion import complete_dataset
from triform.cli.help import DATA, HelpCommand, argument, new_group, option
from triform.cli.options import JsonOption, print_json
from triform.formatting import echo, print_table

data = new_group(
    "data",
    """
    List, download and verify known datasets.

    Examples:
        triform data list
        triform data get tinyshakespeare
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
