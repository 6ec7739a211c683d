"""Reference of the command line: a page for each command, from its argument parser."""

import argparse
import importlib
import os
from collections.abc import Iterator
from unittest.mock import patch

from asr.__main__ import COMMANDS
from docs.pages.markdown import table

FOLDER = "reference/commands"
# The commands that take overrides, and the page of their settings.
OVERRIDES = {"train": "index", "plan": "index", "doctor": "index", "train_lm": "train_lm"}


class _ParserError(Exception):
    """Raised to stop the `main` of a command and to carry its parser to the caller."""


def commands_pages() -> dict[str, str]:
    """Return the text of each page, keyed by its path in the site."""
    about = (
        "`asr COMMAND` and `python -m asr.COMMAND` are the same program; `--help` prints the options. Exit statuses: 0 "
    )
    about += "success; 1 an error, in one line on standard error; 2 wrong options; 130 Ctrl-C."
    parts = [f"# Command line\n\n{about}\n"]
    pages: dict[str, str] = {}
    for title, commands in COMMANDS.items():
        rows = [[f"[`asr {name}`]({name}.md)", about] for name, about in commands.items()]
        parts.append(f"## {title}\n\n{table(['command', 'what it does'], rows)}")
        pages |= {f"{FOLDER}/{name}.md": _page(name) for name in commands}
    return {f"{FOLDER}/index.md": "\n".join(parts)} | pages


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the argument parser of a command."""

    def caught(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _ParserError(parser)

    module = importlib.import_module(f"asr.{command}")
    with patch.object(argparse.ArgumentParser, "parse_args", caught):
        try:
            module.main([])
        except _ParserError as error:
            parser: argparse.ArgumentParser = error.args[0]
            return parser
    raise RuntimeError(f"asr.{command} must parse its arguments with argparse before anything else.")


def _page(command: str) -> str:
    if command not in OVERRIDES:
        return "\n".join(_of_parser(parser_of(command), f"# asr {command}"))
    module = importlib.import_module(f"asr.{command}")
    usage, _, about = (module.__doc__ or "").partition(": ")
    text = f"# asr {command}\n\n{about[0].upper()}{about[1:]}\n\n```\n{usage}\n```\n\n"
    text += f"Overrides are settings, `KEY=VALUE`: [the settings](../settings/{OVERRIDES[command]}.md).\n\n"
    rows = [
        ["`--help`", "print the files that can be chosen and the default settings"],
        ["`--multirun`", "one run for each combination of values separated by commas; must be the first argument"],
        ["`--cfg job`", "print all settings with the overrides applied, and exit"],
        ["`--hydra-help`", "list Hydra's own options"],
    ]
    return text + table(["option", "meaning"], rows)


def _of_parser(parser: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    """Yield the parts of a page: description, usage, and a table for each group of options."""
    yield f"{heading}\n\n{parser.description or ''}\n\n```\n{_usage(parser)}\n```\n"
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._SubParsersAction)]
        rows = [[_invocation(action), _help(parser, action)] for action in actions if action.help != argparse.SUPPRESS]
        if rows:
            name = str(group.title)
            yield f"{heading.split()[0]}# {name[0].upper()}{name[1:]}\n\n{table(['argument', 'meaning'], rows)}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _of_parser(inner, f"{heading.split()[0]}# {name}")
    if parser.epilog:
        yield f"{parser.epilog}\n"


def _usage(parser: argparse.ArgumentParser) -> str:
    with patch.dict(os.environ, COLUMNS="84"):  # argparse wraps lines for this width
        return parser.format_usage().removeprefix("usage: ").replace(" [-h]", "", 1).rstrip()


def _invocation(action: argparse.Action) -> str:
    names = ", ".join(f"`{option}`" for option in action.option_strings)
    if action.nargs == 0:
        return names
    metavar = action.metavar or (action.dest.upper().replace("_", "-") if names else action.dest)
    shown = " ".join(metavar) if isinstance(metavar, tuple) else str(metavar)
    value = f"{shown} ..." if action.nargs in ("+", "*") else shown
    return f"{names} `{value}`" if names else f"`{value}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    text = (action.help or "") % values
    if action.choices is not None and action.metavar is None:
        text += f". Values: {', '.join(f'`{choice}`' for choice in action.choices)}"
    return f"{text} (required)" if action.required and action.option_strings else text
