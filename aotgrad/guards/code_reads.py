"""Which names the code of a function reads and assigns, its inner functions included.

code_reads((lambda x: helper(x) * config.scale).__code__)              globals: helper, config; attributes: scale
code_reads((lambda x: x * getattr(config, "scale")).__code__)          the same; scale is optional
code_reads((lambda x, name: x * getattr(config, name)).__code__)       computes_names
"""

from __future__ import annotations

import dis
import functools
import operator
import sysconfig
import types
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch


@dataclass(frozen=True)
class CodeReads:
    """Names in a piece of code.

    Attributes:
        globals: variables of its module, and builtins.
        attributes: of any objects.
        optional: attributes that may be missing: assigned, deleted, or read by `getattr` and `hasattr`.
        modules: imported ones.
        computes_names: whether the code reads attributes or globals under names that no constant tells.
        computed_of: globals of which it reads attributes so, and no others (`getattr(functional, name)`).
    """

    globals: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    computes_names: bool = False
    computed_of: frozenset[str] = frozenset()

    def __or__(self, other: CodeReads) -> CodeReads:
        return CodeReads(*(getattr(self, each.name) | getattr(other, each.name) for each in fields(self)))


@functools.lru_cache(maxsize=4096)
def code_reads(code: types.CodeType) -> CodeReads:
    """The names in a piece of code."""
    inner = (code_reads(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return functools.reduce(operator.or_, inner, own_reads(code))


def own_reads(code: types.CodeType) -> CodeReads:
    """The names in a piece of code without those in its inner functions."""
    instructions = list(dis.get_instructions(code))
    names = [(each.opname, each.argval) for each in instructions if isinstance(each.argval, str)]
    found = {kind: {name for each, name in names if each.startswith(own)} for kind, own in OPERATIONS.items()}
    variables = (k for k, each in enumerate(instructions, 1) if each.opname in LOADS_VARIABLE and each.argval in TAKES_NAME)
    asked = [arguments_asked(instructions[k:]) for k in variables]
    constants = {each.name for each in asked if each.name is not None}
    operations = {each.opname for each in instructions}
    implied = {name for each in IMPLIED if each.is_in(operations, found["globals"]) for name in each.methods}
    computed = [each.owner for each in asked if each.name is None]
    computes_names = None in computed or not (
        found["globals"].isdisjoint({*READS_GLOBALS, "vars", "dir"})
        and READS_ATTRIBUTES.isdisjoint(found["globals"] | found["attributes"])
    )
    return CodeReads(
        globals=frozenset(found["globals"]),
        attributes=frozenset(found["attributes"] | constants | implied),
        optional=frozenset(found["optional"] | constants),
        modules=frozenset(found["modules"]),
        computes_names=computes_names and code.co_name not in TAKES_NAME_OF_CALLER,
        computed_of=frozenset(owner for owner in computed if owner is not None),
    )


OPERATIONS: dict[str, tuple[str, ...]] = {
    "globals": ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"),
    "attributes": ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM"),
    "optional": ("STORE_ATTR", "DELETE_ATTR"),
    "modules": ("IMPORT_NAME",),
}
"""The beginnings of the names of Python's operations, by what their argument is."""


class Implied(NamedTuple):
    """Methods that Python calls for some operations and builtins, although their names do not occur in the code."""

    operations: tuple[str, ...]
    builtins: tuple[str, ...]
    methods: tuple[str, ...]

    def is_in(self, operations: Iterable[str], variables: Collection[str]) -> bool:
        named = any(name in variables for name in self.builtins)
        return named or any(operation.startswith(self.operations) for operation in operations)


TEXTS = Implied(("FORMAT_", "CONVERT_VALUE"), ("str", "repr", "format"), ("__str__", "__repr__", "__format__"))
COMPARISONS = Implied(
    ("COMPARE_OP", "CONTAINS_OP"),
    ("sorted", "min", "max", "set", "dict", "hash"),
    ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"),
)
IMPLIED = (TEXTS, COMPARISONS)

LOADS_VARIABLE = ("LOAD_GLOBAL", "LOAD_NAME")
TAKES_NAME = ("getattr", "hasattr", "setattr", "delattr")
TAKES_NAME_OF_CALLER = ("__getattr__", "__getattribute__", "__setattr__", "__delattr__")
"""The methods whose callers have the name in their code."""

READS_GLOBALS = frozenset({"globals", "eval", "exec"})
READS_ATTRIBUTES = frozenset({"__dict__", "attrgetter", "methodcaller", "getattr_static", "getmembers", "asdict", "astuple"})
"""What reads names that the code does not have: builtins (`vars` and `dir`, too), an attribute, functions of libraries."""


class Asked(NamedTuple):
    """An attribute that a call reads, assigns or deletes: the global that its object belongs to, and its name, if known."""

    owner: str | None = None
    name: str | None = None


def arguments_asked(instructions: Sequence[dis.Instruction]) -> Asked:
    """The arguments of a call like `getattr(config, "rate", 1.0)`, whose function was just loaded.

    Follows the depth of the stack above the function. The last operation that raises it from one to two begins the second
    argument, which is a constant if no later one but the call returns to a depth of two. After the call, it is zero.
    """
    depth, owner, name = 0, None, None
    for each in instructions:
        if each.opname in LEAVES_STACK:
            continue
        if each.opcode in JUMPS:
            return Asked()
        before, depth = depth, depth + dis.stack_effect(each.opcode, each.arg)
        if depth < 1:
            return Asked(owner, name)
        if depth == 1:
            loaded = each.argval if (before, each.opname) == (0, "LOAD_GLOBAL") else None
            owner = owner if (before, each.opname) == (1, "LOAD_ATTR") else loaded
        if depth <= 2:
            begins = before == 1 and each.opname == "LOAD_CONST" and isinstance(each.argval, str)
            name = each.argval if begins else None
    return Asked()


JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
LEAVES_STACK = ("EXTENDED_ARG", "KW_NAMES", "NOP", "PUSH_NULL")
"""Operations that do nothing to the arguments of a call."""


def is_installed(file: str | None) -> bool:
    """Whether a file belongs to Python, to an installed package, or to aotgrad. Names in such code are constants."""
    return file is None or file.startswith((*INSTALLED_FOLDERS, "<frozen"))


def folders(*paths: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(path).rstrip("/") + "/" for path in paths if path))


SCHEMES: dict[str, Any] = sysconfig.get_paths()
INSTALLED_FOLDERS = folders(
    *(SCHEMES.get(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
)
