"""What tests read off source code."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def top_level_names(tree: ast.Module) -> Iterator[str]:
    """The classes, functions and variables at the top level of a file."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
