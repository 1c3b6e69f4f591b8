"""Usage errors of the command line, and URLs given instead of files, as one line that says what to write."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from triform.cli.predict import TABLE_SETTINGS
from triform.cli.shorthands import SHORTHANDS

EXTRA_ARGUMENT = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)")
URL = re.compile(r"(?:[\w.]+=)?((?:https?|ftp|s3|gs)://\S+)")  # by itself, or as NAME=URL
PUBLISHED_MODEL = re.compile(r"https?://(?:www\.)?huggingface\.co/(?!datasets/|spaces/)([\w.-]+/[\w.-]+)/?")
TEXT_COMMANDS = ("predict", "explain", "encode")  # a text that begins with a dash looks like an option to them
SECTIONS = ("model", "train", "decode", "data", "tokenizer")  # where a name is looked for first
# Options that were renamed.
RENAMED_OPTIONS = {
    "--new": "--max-new-tokens",
    "--map": "--stack",
    "--like": "--format",
    "--setting": "--variant",
    "--quick": "--smoke",
    "--most": "--max-words",
}
# Settings that --set changes in a command; those that are not listed take all settings or have no --set.
SETTABLE = {
    "predict": ("decode.", *TABLE_SETTINGS),
    "evaluate": ("decode.",),
    "audit": ("data.", "decode."),
}


def describe_usage_error(error: Any) -> str:
    """What is wrong with a command line, from click's exception, without a full stop."""
    command = error.ctx.info_name if getattr(error, "ctx", None) else ""
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        return _describe_unknown_option(error, command)
    problem = str(error.format_message()).rstrip(".")
    if extra := EXTRA_ARGUMENT.fullmatch(problem):
        return f"Got unexpected extra argument {extra[1]}{_suggest_for_extra(command, extra[1], error.ctx.params)}"
    return problem


def describe_url(problem: str, arguments: Sequence[str]) -> str:
    """The problem, or how to fetch the file where the problem is that an argument is a URL."""
    for argument in arguments:
        match = URL.fullmatch(argument.partition(",")[0])  # translate takes SOURCE,TARGET
        if not match or (match[1] not in problem and str(Path(match[1])) not in problem):
            continue
        url = match[1]
        if model := PUBLISHED_MODEL.fullmatch(url):
            remedy = f"import the published model with `triform convert import hub:{model[1]} --out RUN`"
        else:
            remedy = f"fetch the file first, for example with `curl -LO {shlex.quote(url)}`, and give its name"
        return f"{url}: Triform does not download from a URL; {remedy}"
    return problem


def _suggest_for_extra(command: str, extra: str, parameters: Mapping[str, Any]) -> str:
    first, _, second = extra.partition(" ")
    if command == "train" and parameters.get("task") == "translate" and second:
        return f"; to train on aligned files, write --source {first} --target {second}"
    if command == "train":
        return f"; to train on a file, write --data {extra}"
    if command == "audit":
        return f"; to compare with a test set, write --test {extra}"
    if command in ("evaluate", "vectors"):
        return f"; to name a file, write --data {extra}"
    return ""


def _describe_unknown_option(error: Any, command: str) -> str:
    """An option of the command that is spelt much like it, the setting that it means, or neither."""
    known_options = (
        {name for parameter in error.ctx.command.params for name in parameter.opts} if error.ctx else set()
    )
    if (new_name := RENAMED_OPTIONS.get(error.option_name)) in known_options:
        return f"No such option {error.option_name}; it is called {new_name} now"
    option, setting = find_nearest(error.option_name, known_options)
    option = option or next(
        (name for name in known_options & SHORTHANDS.keys() if SHORTHANDS[name].setting == setting), ""
    )
    advice = ["put -- before a text that begins with a dash"] if command in TEXT_COMMANDS else []
    if option and not setting:
        advice.append(f"did you mean {option}?")
    elif option:
        advice.insert(0, f"write {option} VALUE")
    elif setting and setting.startswith(SETTABLE.get(command, ("",))):
        advice.insert(0, f"write --set {setting}=VALUE")
    elif setting:
        advice.insert(0, f"{setting} is a setting of `triform train`")
    return "; ".join([f"No such option {error.option_name}", *([", or ".join(advice)] if advice else [])])


def find_nearest(option: str, known_options: Collection[str]) -> tuple[str, str]:
    """The option, or else the setting, that an unknown option most likely means; "" for what it is not."""
    from triform.config.settings import SETTING_ALIASES, SETTING_TYPES

    option_name = _normalize_option(option)
    options = {_normalize_option(name): name for name in known_options if name.startswith("--")}
    settings: dict[str, str] = {}
    if "--set" in known_options:
        for name in sorted(SETTING_TYPES, key=lambda name: _section_priority(name.partition(".")[0])):
            settings.setdefault(name.rpartition(".")[2], name)
            settings[name.replace(".", "_")] = name  # --model-dropout
        settings |= SETTING_ALIASES
    if option_name in settings:
        return "", settings[option_name]
    matches = difflib.get_close_matches(option_name, [*options, *settings], n=1, cutoff=0.65)
    if not matches:
        return "", ""
    return (options[matches[0]], "") if matches[0] in options else ("", settings[matches[0]])


def _normalize_option(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _section_priority(section: str) -> int:
    return SECTIONS.index(section) if section in SECTIONS else len(SECTIONS)
