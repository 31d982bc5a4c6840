"""The package exports what its modules define, and each of its names is tested."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from aotgrad import torch_compat as compat
from tests.sources import top_level_names

FOLDER = Path(compat.__file__).parent
MODULES = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted(FOLDER.rglob("*.py"))
}
GATHERED = MODULES.pop("__init__")


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_defines_is_gathered(name):
    defined = sorted(each for each in top_level_names(MODULES[name]) if not each.startswith("_"))
    assert sorted(imported_names(GATHERED, f"{compat.__name__}.{name}")) == defined


def test_every_name_has_a_feature_test():
    tests = [ast.parse(path.read_text()) for path in Path(__file__).parent.rglob("*.py")]
    used = {node.attr for tree in tests for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert sorted({*imported_names(GATHERED, "torch"), *imported_names(GATHERED, compat.__name__)} - used) == []


def imported_names(module: ast.Module, package: str) -> Iterator[str]:
    """The names imported from a package, or from a module in it."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            yield from (alias.asname or alias.name for alias in node.names)
