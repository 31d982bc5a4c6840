"""An extension of Markdown: a doctest in a docstring -> a block of code, where plain Markdown makes quotes of `>>>`."""

from __future__ import annotations

import re

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

BEFORE_FENCES = 30
"""A priority above that of the preprocessor that reads fenced blocks."""


class Doctests(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        """Put a fence around each doctest outside of one.

        >>> Doctests().run(["A sum:", ">>> 1 + 1", "2", "", "That is all."])
        ['A sum:', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'That is all.']
        """
        return fenced("\n".join(lines)).split("\n")


def fenced(text: str) -> str:
    blocks = re.split(r"(^`{3,}.*?^`{3,}$)", text, flags=re.MULTILINE | re.DOTALL)
    blocks[::2] = (re.sub(r"^>>> (?:.+\n?)+", fence, block, flags=re.MULTILINE) for block in blocks[::2])
    return "".join(blocks)


def fence(doctest: re.Match[str]) -> str:
    return f"\n```pycon\n{doctest[0].rstrip()}\n```\n"


class DoctestExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Doctests(md), "doctests", BEFORE_FENCES)


def makeExtension(**settings: object) -> Extension:
    """What Markdown calls."""
    return DoctestExtension(**settings)
