"""`triform data`: known sets, listed, downloaded and checked."""

from __future__ import annotations

from typing import Annotated

import typer

from triform.cli.options import Json, print_json
from triform.formatting import echo

data = typer.Typer(help="Known sets: list them, get them, check them.", rich_markup_mode=None)
Folder = Annotated[str, typer.Option("--data", metavar="DIR", help="Folder of sets; default: the user's cache.")]


@data.command("list")
def list_(json_: Json = False) -> None:
    """The known sets, with sizes and licences."""
    from triform.data.catalogue import SETS

    if json_:
        print_json(
            {
                known.name: {
                    "about": known.about,
                    "licence": known.licence,
                    "by_hand": known.by_hand,
                    "files": {file.name: {"bytes": file.size, "sha256": file.sha256} for file in known.files},
                }
                for known in SETS.values()
            }
        )
        return
    for known in SETS.values():
        size = sum(file.size for file in known.files) / 1e6
        echo(f"{known.name:<16} {size:5.1f} MB  {known.about}")
        echo(f"{'':<26}licence: {known.licence}")
        if not all(file.url for file in known.files):
            echo(f"{'':<26}{known.by_hand}")


@data.command()
def get(name: Annotated[str, typer.Argument(metavar="NAME", help="A set, see list.")], data: Folder = "") -> None:
    """Download a set and check it; what is there already is kept."""
    from triform.data import catalogue

    known = catalogue.known_set(name)
    catalogue.get(known, data, say=lambda line: echo(line, err=True))
    echo(f"{known.name}: in {catalogue.folder_of(known, data)}, every file as it should be")


@data.command()
def check(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A set; without one, all that are there.")] = "",
    data: Folder = "",
) -> None:
    """Compare files with their checksums; the first that is missing or altered is named."""
    from triform.data import catalogue
    from triform.errors import DataError

    every = [known for known in catalogue.SETS.values() if catalogue.folder_of(known, data).is_dir()]
    names = [catalogue.known_set(name)] if name else every
    if not names:
        place = catalogue.folder_of(catalogue.SPEECHES, data).parent
        where = f" --data {data}" if data else ""
        raise DataError(f"holds no known set; get one with: triform data get NAME{where}", path=place)
    for known in names:
        catalogue.checked(known, data)
        echo(f"{known.name}: every file as it should be")
