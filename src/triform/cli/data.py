"""`triform data`: list, download and verify known datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from triform.cli.options import JsonOption, print_json
from triform.formatting import echo

data = typer.Typer(help="List, download and verify known datasets.", rich_markup_mode=None)
DataFolderOption = Annotated[
    str, typer.Option("--data", metavar="DIR", help="The folder of datasets; the default is the user's cache.")
]


@data.command("list")
def list_(json_: JsonOption = False) -> None:
    """List the known datasets with sizes and licences."""
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
    for dataset in DATASETS.values():
        size = sum(file.size for file in dataset.files) / 1e6
        echo(f"{dataset.name:<16} {size:5.1f} MB  {dataset.description}")
        echo(f"{'':<26}licence: {dataset.licence}")
        if not all(file.url for file in dataset.files):
            echo(f"{'':<26}{dataset.manual_instructions}")


@data.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The dataset; see `triform data list`.")],
    data: DataFolderOption = "",
) -> None:
    """Download a dataset and verify its checksums. Files that are already there are kept."""
    from triform.data import catalogue

    dataset = catalogue.get_dataset(name)
    catalogue.download_dataset(dataset, data, log=lambda line: echo(line, err=True))
    echo(f"{dataset.name}: in {catalogue.dataset_folder(dataset, data)}, every file as it should be")


@data.command()
def check(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The dataset; the default is every dataset in the folder.")
    ] = "",
    data: DataFolderOption = "",
) -> None:
    """Verify the checksums of downloaded files, and name the first that is missing or altered."""
    from triform.data import catalogue
    from triform.errors import DataError

    present = [
        dataset for dataset in catalogue.DATASETS.values() if catalogue.dataset_folder(dataset, data).is_dir()
    ]
    datasets = [catalogue.get_dataset(name)] if name else present
    if not datasets:
        folder = catalogue.dataset_folder(catalogue.SPEECHES, data).parent
        data_option = f" --data {data}" if data else ""
        raise DataError(f"holds no known set; get one with: triform data get NAME{data_option}", path=folder)
    for dataset in datasets:
        catalogue.verify_dataset(dataset, data)
        echo(f"{dataset.name}: every file as it should be")
