"""`triform settings`: what each setting means, its default and the values that it accepts."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

from triform.cli.completion import complete_setting_name
from triform.cli.help import OUTPUT, argument, flag
from triform.cli.options import JsonOption, print_json
from triform.formatting import echo, print_table

if TYPE_CHECKING:
    from triform.config.reference import SettingGroup, SettingInfo

WIDTH = 80  # of texts, in characters


def settings(
    name: Annotated[
        str,
        argument(
            "NAME|GROUP",
            "Setting, such as train.lr, or group of settings, such as model.",
            complete=complete_setting_name,
        ),
    ] = "",
    json_: JsonOption = False,
    markdown: Annotated[bool, flag(OUTPUT, "--markdown", "Print the whole reference as Markdown.")] = False,
) -> None:
    """Explain the settings of a model and of its training.

    Without an argument, every setting is listed with its default and its meaning.

    Examples:
        triform settings train.lr
        triform settings model
    """
    from triform.config.reference import find_settings, setting_groups, settings_page

    if markdown:
        echo(settings_page().rstrip("\n"))
        return
    groups = [group for group in setting_groups() if name in ("", group.name)]
    infos = [info for group in groups for info in group.settings] if groups else list(find_settings(name))
    if json_:
        print_json([info.to_dict() for info in infos])
    elif groups:
        for group in groups:
            _print_group(group)
        if not name:
            echo("Run `triform settings NAME` to read more about one setting.")
    else:
        echo("\n\n".join(map(_format_setting, infos)))


def _print_group(group: SettingGroup) -> None:
    echo(textwrap.fill(f"{group.name}: {group.description}", WIDTH))
    rows = [[info.name, info.short_default, info.doc.meaning] for info in group.settings]
    print_table([["setting", "default", "meaning"], *rows], align="lll")
    echo()


def _format_setting(info: SettingInfo) -> str:
    doc = info.doc
    entries = {
        "meaning": f"{doc.meaning} {doc.details}".strip(),
        "type": info.type_name,
        "default": info.default_text,
        "applies to": doc.applies_to,
    }
    lines = [info.name]
    for title, text in entries.items():
        if text:
            indent = " " * 14
            lines += textwrap.wrap(text, WIDTH, initial_indent=f"  {title:<12}", subsequent_indent=indent)
    return "\n".join(lines)
