"""The reference of all settings, made from the config dataclasses: for `triform settings` and docs/settings.md."""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from triform.config import Config
from triform.config.bounds import BOUNDS
from triform.config.documentation import DOC_KEY, SettingDoc
from triform.config.settings import (
    DEFAULTS,
    SETTING_TYPES,
    SettingValue,
    format_setting,
    split_number_or_word,
    unknown_setting_error,
)

GENERAL_GROUP = "general"  # settings without a section
TYPE_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
SETTING_NAME = re.compile("|".join(re.escape(name) for name in sorted(SETTING_TYPES, reverse=True) if "." in name))
LIST_NAMES = {int: "list of whole numbers", float: "list of numbers", str: "list of texts"}


@dataclass(frozen=True, kw_only=True)
class SettingGroup:
    """A section of the settings, such as `model`."""

    name: str
    description: str
    settings: tuple[SettingInfo, ...]


@dataclass(frozen=True, kw_only=True)
class SettingInfo:
    """A setting with its type, default, accepted values and documentation."""

    name: str
    default: SettingValue
    doc: SettingDoc

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted values, or nothing if there are too many to list."""
        hint = SETTING_TYPES[self.name]
        return get_args(hint) if get_origin(hint) is Literal else ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The smallest and the largest accepted number."""
        return BOUNDS.get(self.name)

    @property
    def type_name(self) -> str:
        hint, words = split_number_or_word(SETTING_TYPES[self.name])
        if self.choices:
            return "one of " + ", ".join(self.choices)
        name = _list_name(get_args(hint)[0]) if get_origin(hint) is tuple else TYPE_NAMES[hint]
        if self.bounds:
            name += f", {_format_bound(self.bounds[0])} to {_format_bound(self.bounds[1])}"
        return ", or ".join([name, *words])

    @property
    def short_default(self) -> str:
        """The default as a word: `auto` if it is chosen automatically."""
        return "auto" if self.doc.auto else format_setting(self.default) or "none"

    @property
    def default_text(self) -> str:
        """The default, and how it is chosen if it depends on something else."""
        written = format_setting(self.default)
        value = f" ({written})" if written not in ("", "auto") else ""
        return f"automatic{value}. {self.doc.auto}" if self.doc.auto else self.short_default

    def to_dict(self) -> dict[str, Any]:
        """Return everything about the setting as JSON values."""
        return {
            "name": self.name,
            "type": self.type_name,
            "default": list(self.default) if isinstance(self.default, tuple) else self.default,
            "automatic_default": self.doc.auto or None,
            "choices": list(self.choices) or None,
            "bounds": list(self.bounds) if self.bounds else None,
            "meaning": self.doc.meaning,
            "details": self.doc.details or None,
            "applies_to": self.doc.applies_to or None,
        }


@cache
def setting_groups() -> tuple[SettingGroup, ...]:
    """Return every setting, by section and in the order of the dataclasses."""
    section_classes = get_type_hints(Config)
    sections = [item.name for item in fields(Config) if is_dataclass(section_classes[item.name])]
    general = SettingGroup(
        name=GENERAL_GROUP,
        description="The task and the random seed, which have no section.",
        settings=tuple(_setting_info(item, "") for item in fields(Config) if item.name not in sections),
    )
    return (
        general,
        *(
            SettingGroup(
                name=name,
                description=section_classes[name].__doc__.partition("\n")[0],
                settings=tuple(_setting_info(item, f"{name}.") for item in fields(section_classes[name])),
            )
            for name in sections
        ),
    )


def _setting_info(item: Field[Any], prefix: str) -> SettingInfo:
    name = prefix + item.name
    return SettingInfo(name=name, default=DEFAULTS[name], doc=item.metadata[DOC_KEY])


def find_settings(name: str) -> tuple[SettingInfo, ...]:
    """Return the setting of a name, or the settings of that name in several sections if the section is left out.

    Raises:
        ConfigError: The name is unknown; the message has the new name of an old setting, or the nearest name.
    """
    infos = [info for group in setting_groups() for info in group.settings]
    matches = [info for info in infos if info.name == name] or [
        info for info in infos if info.name.rpartition(".")[2] == name
    ]
    if not matches:
        raise unknown_setting_error(name, [*SETTING_TYPES, *(group.name for group in setting_groups())])
    return tuple(matches)


def settings_page() -> str:
    """Return the settings reference, docs/settings.md, as Markdown."""
    parts = [PAGE_START]
    parts += [
        f"- [{_group_title(group)}](#{_anchor(_group_title(group))}): {group.description}"
        for group in setting_groups()
    ]
    for group in setting_groups():
        links = " · ".join(f"[{info.name.rpartition('.')[2]}](#{_anchor(info.name)})" for info in group.settings)
        parts += [f"\n## {_group_title(group)}\n", f"{group.description}\n", links]
        parts += [_format_block(info) for info in group.settings]
    return "\n".join(parts) + "\n"


PAGE_START = """\
# Settings

This page lists every setting with its type, its default and its meaning. The command `triform settings` prints the
same in a terminal:

```sh
triform settings                  # all settings, one line each
triform settings model            # one group
triform settings train.lr         # everything about one setting
triform config show small         # the values that training would use, and where they come from
```

You can give settings in three ways. If a setting is given more than once, the last way in this list counts.

1. A preset: `triform train classify --preset small`
2. A TOML file: `triform train classify --config my.toml`, with `d_model = 64` under `[model]`
3. An option: `--set model.d_model=64`; some settings have a shorter option, such as `--lr 1e-3`. In Python, use
   keyword arguments: `triform.train("classify", model={"d_model": 64})`

Settings that you leave out keep their default. An automatic default is replaced by a suitable value, in most cases
when training starts and from the size of the data. In a file, write the value in parentheses for an automatic
default.
"""


def _list_name(item_type: Any) -> str:
    """Return the type of a list, with the values of its items if these are choices."""
    return LIST_NAMES.get(item_type) or f"list of {', '.join(get_args(item_type))}"


def _group_title(group: SettingGroup) -> str:
    return group.name.capitalize()


def _format_block(info: SettingInfo) -> str:
    doc = info.doc
    lines = [f"- Type: {info.type_name}", f"- Default: {info.default_text}"]
    if doc.applies_to:
        lines.append(f"- Applies to: {doc.applies_to}")
    meaning = f"{doc.meaning} {doc.details}".strip()
    return f"\n### {info.name}\n\n{_link_settings(meaning)}\n\n" + "\n".join(map(_link_settings, lines))


def _link_settings(text: str) -> str:
    """Turn the names of settings into links to their headings."""
    return SETTING_NAME.sub(lambda match: f"[{match[0]}](#{_anchor(match[0])})", text)


def _anchor(heading: str) -> str:
    """Return the anchor that Markdown renderers give a heading: lower case, without punctuation."""
    return "".join(character for character in heading.lower() if character.isalnum() or character in "_-")


def _format_bound(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and number < 10**12 else f"{number:g}"
