"""The page of the command line has what the parsers say, each option once."""

from __future__ import annotations

from pathlib import Path

from aotgrad.inspect.command_line import make_parser
from scripts.bench.document import commands, output_of, with_output
from scripts.command_line import commands_of

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"
COMMAND = "python scripts/command_line.py"


def test_the_page_is_up_to_date():
    text = PAGE.read_text()
    assert list(commands(text)) == [COMMAND]
    assert with_output(text, COMMAND, output_of(COMMAND)) == text, f"run python scripts/bench/document.py docs/{PAGE.name}"


def test_every_command_and_option_is_there_once():
    text = PAGE.read_text()
    for name in commands_of(make_parser()):
        assert text.count(f"### {name}\n") == 1
    for option in ("--backend", "--inputs", "--tolerance", "--html", "--stage"):
        assert text.count(f"`{option} ") == 1
