"""Checks on the source: allowed imports between packages, and allowed uses of torch's private names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.sources import top_level_names

PACKAGE = Path(__file__).parents[1] / "aotgrad"
FILES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
STAGES = ("analysis", "backends", "capture", "convention", "joint", "partition", "passes", "runtime")
SHARED = (
    "eager_calls",  # the trace records them, and no backend compiles them
    "errors",
    "graph",
    "guards.captured_values",  # what an island changes while it is traced is undone
    "guards.data_dependent",  # the trace reads what it guards
    "guards.module_attributes",
    "ir",
    "native",
    "options",
    "plan_cache.lock",  # some stages compile on first use
    "plan_cache.unfinished",  # one stage begins what another one ends
    "slots",
    "subclasses.bridge",  # gradients of wrapper subclasses pass in parts
    "subclasses.forms",
    "subclasses.passages",
    "telemetry",
    "torch_compat",
)
TOP_LEVEL = ("__init__", "__main__", "api", "errors", "options", "pipeline", "slots")
PEER = ("torch._functorch.aot_autograd", "torch._functorch._aot_autograd", "torch._functorch.partitioners", "functorch")
# Types without a public name, the only pytree module there is, and attributes of tensors and ops without a substitute.
PRIVATE_BUT_ALLOWED = {"torch._ops.OpOverload", "torch._ops.HigherOrderOperator", "torch.utils._pytree"}
PRIVATE_ATTRIBUTES_ALLOWED = {"_base", "_schema", "_version", "_replace"}  # the last is a public method of named tuples

ROOMS = sorted(str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.glob("*/**/__init__.py"))

every_file = pytest.mark.parametrize("name", FILES)


@pytest.mark.parametrize("name", [name for name in FILES if name.split("/")[0] in STAGES])
def test_a_stage_imports_only_its_own_folder_and_what_all_share(name):
    allowed = tuple(f"aotgrad.{module}" for module in (name.split("/")[0], *SHARED))
    imported = [module for module in imports(FILES[name]) if module.startswith("aotgrad.")]
    assert [module for module in imported if not within(module, allowed)] == []


def test_the_top_level_is_small():
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(TOP_LEVEL)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_says_what_it_is_for(name):
    assert len((ast.get_docstring(FILES[f"{name}/__init__.py"]) or "").splitlines()) >= 3


@pytest.mark.parametrize("name", [".", *ROOMS])
def test_a_room_names_every_module(name):
    """As `stem`, `stem.name` or `stem.py`, or at the left of a table."""
    docstring = ast.get_docstring(FILES[str(Path(name, "__init__.py"))]) or ""
    inside = {*(PACKAGE / name).glob("[!_]*.py"), *(path.parent for path in (PACKAGE / name).glob("*/__init__.py"))}
    stems = sorted(path.stem for path in inside)
    assert [stem for stem in stems if not re.search(rf"`{stem}(\.\w+)?`|^{stem}  ", docstring, re.MULTILINE)] == []


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_has_tests(name):
    assert list((Path(__file__).parent / name).glob("**/test_*.py"))


def test_no_module_imports_itself_by_way_of_others():
    modules = {module_name(name): tree for name, tree in FILES.items()}
    imported = {module: set(modules_of(imports_at_run_time(tree), modules)) - {module} for module, tree in modules.items()}
    assert circle_in(imported) is None


def test_a_circle_is_found():
    assert circle_in({"a": {"b", "c"}, "b": set(), "c": {"a"}}) == ["a", "c", "a"]


def module_name(file: str) -> str:
    return ".".join(("aotgrad", *file.removesuffix(".py").split("/"))).removesuffix(".__init__")


def modules_of(names: Iterable[str], modules: Container[str]) -> Iterator[str]:
    """The modules of imported names: `a.b.f` gives `a.b` if `f` is no module."""
    for name in names:
        yield name if name in modules else name.rpartition(".")[0]


def imports_at_run_time(tree: ast.AST) -> Iterator[str]:
    """Imported names, also inside functions, except those used only in types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from imports(ast.Module([node], []))
        yield from imports_at_run_time(node)


def circle_in(imported: Mapping[str, Collection[str]]) -> list[str] | None:
    """A cycle of modules: each imports the next, the last imports the first."""
    finished: set[str] = set()

    def search(path: list[str]) -> list[str] | None:
        *before, module = path
        if module in before:
            return path[before.index(module) :]
        if module in finished:
            return None
        found = next(filter(None, (search([*path, each]) for each in sorted(imported.get(module, ())))), None)
        finished.add(module)
        return found

    return next(filter(None, (search([module]) for module in sorted(imported))), None)


@every_file
def test_nothing_imports_the_peer(name):
    assert [module for module in imports(FILES[name]) if within(module, PEER)] == []


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("torch_compat/")])
def test_only_torch_compat_touches_private_names_of_torch(name):
    assert sorted({*private_names(FILES[name]), *private_attributes(FILES[name])}) == []


IDIOMS = {"T", "aten", "log"}
"""Names that mean the same in every file."""


def test_no_name_stands_at_the_top_of_two_files():
    files: dict[str, list[str]] = defaultdict(list)
    for file, tree in FILES.items():
        for name in {*top_level_names(tree)} - IDIOMS:
            files[name].append(file)
    assert {name: found for name, found in files.items() if len(found) > 1 and not name.startswith("__")} == {}


def test_private_names_of_other_packages_are_not_imported():
    for file, tree in FILES.items():
        inside = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        ours = [node for node in inside if node.module.startswith("aotgrad")]
        private = [f"{node.module}.{a.name}" for node in ours for a in node.names if a.name.startswith("_")]
        package = f"aotgrad.{file.rsplit('/', 1)[0].replace('/', '.')}" if "/" in file else "aotgrad"
        assert [name for name in private if not name.startswith(package)] == [], file


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
