"""One-line messages for mistakes on the command line. They say what to write instead."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from triform.cli.shorthands import SETTABLE, SHORTHANDS

EXTRA_ARGUMENT = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)")
URL = re.compile(r"(?:[\w.]+=)?((?:https?|ftp|s3|gs)://\S+)")  # URL or NAME=URL
PUBLISHED_MODEL = re.compile(r"https?://(?:www\.)?huggingface\.co/(?!datasets/|spaces/)([\w.-]+/[\w.-]+)/?")
# Problems with a value, in the words of different versions of typer, and in plain words.
PLAIN_PROBLEMS = (
    (r"Invalid value for '(\S+?)(?: / \S+)?': ", r"\1: "),
    (r"Input should be a valid integer.*|'.*' is not a valid int.*", "must be a whole number"),
    (r"Input should be a valid number.*|'.*' is not a valid float.*", "must be a number"),
    (r"Input should be greater than or equal to |\S+ is not in the range x>=", "must be at least "),
    (r"Input should be less than or equal to |\S+ is not in the range x<=", "must be at most "),
    (r"Option '(\S+)' requires an argument", r"\1 needs a value"),
    (r"Option '(\S+)' does not take a value", r"\1 takes no value"),
)
TEXT_COMMANDS = ("predict", "explain", "encode")  # they take a text, which looks like an option if it starts with -
SECTIONS = ("model", "train", "decode", "data", "tokenizer")  # in the order in which a name is looked up


def describe_usage_error(error: Any, arguments: Sequence[str], command: Any, name: str = "triform") -> str:
    """Return one line that says what is wrong with a command line and which help to read.

    Args:
        error: An exception of click.
        arguments: The command line without `triform`.
        command: The command `triform`, or another with its commands.
        name: How it is started.
    """
    words = [name]
    for argument in arguments:
        command = getattr(command, "commands", {}).get(argument)
        if command is None:
            break
        words.append(argument)
    problem = _describe_problem(error)
    return f"{problem}{'' if problem.endswith('?') else '.'} See {' '.join(words)} --help"


def _describe_problem(error: Any) -> str:
    ctx: Any = getattr(error, "ctx", None)
    command = ctx.info_name if ctx else ""
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        return _describe_unknown_option(error, command)
    param = getattr(error, "param", None)
    if param is not None and type(error).__name__ == "MissingParameter":
        kind, name = ("option", param.opts[0]) if param.param_type_name == "option" else ("argument", param.metavar)
        return f"missing {kind} {name}" + (f": {param.help.rstrip('.')}" if param.help else "")
    problem = " ".join(str(error.format_message()).split()).rstrip(".")
    if extra := EXTRA_ARGUMENT.fullmatch(problem):
        return f"unexpected argument {extra[1]}{_suggest_for_extra(command, extra[1], ctx.params)}"
    for pattern, plain_text in PLAIN_PROBLEMS:
        problem = re.sub(pattern, plain_text, problem)
    return problem


def describe_url(problem: str, arguments: Sequence[str]) -> str:
    """Return the problem; if it is about an argument that is a URL, return how to fetch the file instead.

    Files of data are read from URLs. If that fails, the cause is kept.
    """
    for argument in arguments:
        match = URL.fullmatch(argument.partition(",")[0])  # translate takes SOURCE,TARGET
        if not match or (match[1] not in problem and str(Path(match[1])) not in problem):
            continue
        url = match[1]
        if problem.startswith(f"{url.rstrip('/')}/"):  # a file of the folder at the URL, such as a token shard
            return problem
        if model := PUBLISHED_MODEL.fullmatch(url):
            remedy = f"import the published model with `triform convert import hub:{model[1]} --out RUN`"
        elif problem.startswith(f"{url}: ") and not url.startswith("http"):
            return problem
        else:
            remedy = f"fetch the file first, for example with `curl -LO {shlex.quote(url)}`, and give its name"
            if problem.startswith(f"{url}: "):
                return f"{problem}; or {remedy}"
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
    """Suggest an option of the command with a similar name, or the setting that the option means."""
    known_options = (
        {name for parameter in error.ctx.command.params for name in parameter.opts} if error.ctx else set()
    )
    option, setting = find_nearest(error.option_name, known_options)
    option = option or next(
        (name for name in known_options & SHORTHANDS.keys() if SHORTHANDS[name].setting == setting), ""
    )
    advice = ["write -- before a text that starts with a dash"] if command in TEXT_COMMANDS else []
    if option and not setting:
        advice = [f"did you mean {option}?"]
    elif option:
        advice.insert(0, f"write {option} VALUE")
    elif setting and setting.startswith(SETTABLE.get(command, ("",))):
        advice.insert(0, f"write --set {setting}=VALUE")
    elif setting:
        advice.insert(0, f"{setting} is a setting of `triform train`")
    return "; ".join([f"no such option {error.option_name}", *([", or ".join(advice)] if advice else [])])


def find_nearest(option: str, known_options: Collection[str]) -> tuple[str, str]:
    """Return the option or the setting that an unknown option most likely means; the other one is empty."""
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
