"""What the tables of results have in common.

>>> escaped("a | b")
'a \\\\| b'
"""

from __future__ import annotations

TABLE = "github"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
