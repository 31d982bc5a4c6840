"""Who may import whom, and who may touch torch's private names: read off the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "aotgrad"
FILES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
STAGES = ("analysis", "backends", "capture", "convention", "joint", "partition", "passes", "runtime")
SHARED = (
    "counters",
    "errors",
    "gradient_masks",
    "ir",
    "lazy_module",
    "locks",
    "native",
    "op_table",
    "options",
    "overlap",
    "slots",
    "source_lines",
    "symbols",
    "torch_compat",
    "value_guards",
)
PEER = ("torch._functorch.aot_autograd", "torch._functorch._aot_autograd", "torch._functorch.partitioners", "functorch")
# Types without a public name, the only pytree module there is, and attributes of tensors and ops without a substitute.
PRIVATE_BUT_ALLOWED = {"torch._ops.OpOverload", "torch._ops.HigherOrderOperator", "torch.utils._pytree"}
PRIVATE_ATTRIBUTES_ALLOWED = {"_base", "_schema", "_version"}

every_file = pytest.mark.parametrize("name", FILES)


@pytest.mark.parametrize("name", [name for name in FILES if name.split("/")[0] in STAGES])
def test_a_stage_imports_only_its_own_folder_and_what_all_share(name):
    allowed = tuple(f"aotgrad.{module}" for module in (name.split("/")[0], *SHARED))
    imported = [module for module in imports(FILES[name]) if module.startswith("aotgrad.")]
    assert [module for module in imported if not within(module, allowed)] == []


@every_file
def test_nothing_imports_the_peer(name):
    assert [module for module in imports(FILES[name]) if within(module, PEER)] == []


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("torch_compat/")])
def test_only_torch_compat_touches_private_names_of_torch(name):
    assert sorted({*private_names(FILES[name]), *private_attributes(FILES[name])}) == []


def imports(tree: ast.Module) -> Iterator[str]:
    """Every imported name in full; `from aotgrad import verify` is `aotgrad.verify`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def private_names(tree: ast.Module) -> Iterator[str]:
    """Imports and attribute chains that start at `torch` and go through a name with an underscore."""
    chains = (dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    for name in (*imports(tree), *filter(None, chains)):
        is_private = any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
        if name.startswith("torch.") and is_private and not is_allowed(name):
            yield name


def is_allowed(name: str) -> bool:
    """Part of an allowed name, or something inside it."""
    return any(within(name, (allowed,)) or within(allowed, (name,)) for allowed in PRIVATE_BUT_ALLOWED)


def dotted(node: ast.AST) -> str | None:
    """`torch.nn.Module` for the expression, or `None` if it is no chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    owner = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return f"{owner}.{node.attr}" if owner else None


def private_attributes(tree: ast.Module) -> Iterator[str]:
    """Underscored attributes that the package does not define itself; chains that start at a module are names."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        if (dotted(node) or "").split(".")[0] not in ("torch", "sys"):
            yield from {f".{node.attr}"} - {f".{known}" for known in OWN_NAMES | PRIVATE_ATTRIBUTES_ALLOWED}


def defined_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and dotted(node.value) == "self" and isinstance(node.ctx, ast.Store):
            yield node.attr


OWN_NAMES = {name for tree in FILES.values() for name in defined_names(tree)}
