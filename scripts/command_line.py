"""Prints the commands of `python -m aotgrad` and their options as Markdown, for docs/command_line.md.

python scripts/bench/document.py docs/command_line.md       writes them there
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from tabulate import tabulate

from aotgrad.inspect.command_line import make_parser, shared_parser


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of a parser, without `--help`."""
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (commands,) = [action for action in actions_of(parser) if isinstance(action, argparse._SubParsersAction)]
    return dict(commands.choices)


def name_of(action: argparse.Action) -> str:
    """An argument as it is written: `--jobs JOBS`, `REPORT.json`, `{info,clear}`."""
    shown = action.metavar or ("{" + ",".join(action.choices) + "}" if action.choices else action.dest.upper())
    value = "" if action.nargs == 0 else str(shown)
    several = " ..." if action.nargs in ("+", "*") else ""
    return f"`{' '.join([*action.option_strings[:1], *filter(None, [value])])}{several}`"


def meaning_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return "" if action.help is None else parser._get_formatter()._expand_help(action).replace("|", "\\|")


def table(parser: argparse.ArgumentParser, actions: Iterable[argparse.Action]) -> str:
    rows = [[name_of(action), meaning_of(parser, action)] for action in actions]
    return tabulate(rows, headers=["argument", "meaning"], tablefmt="pipe", disable_numparse=True)


def page() -> str:
    """The commands, each with the arguments that it alone has."""
    shared = shared_parser()
    common = {action.dest for action in actions_of(shared)}
    parts, on_functions = [], []
    for name, command in commands_of(make_parser()).items():
        actions = actions_of(command)
        is_on_function = common <= {action.dest for action in actions}
        own = [action for action in actions if not (is_on_function and action.dest in common)]
        on_functions += [f"`{name}`"] if is_on_function else []
        text = " ".join((command.description or "").split())
        parts.append("\n\n".join(filter(None, [f"### {name}", text, table(command, own) if own else ""])))
    title = f"### Arguments of {', '.join(on_functions)}"
    return "\n\n".join([*parts, f"{title}\n\n{table(shared, actions_of(shared))}"])


if __name__ == "__main__":
    print(page())
