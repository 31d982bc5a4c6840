"""The Python code that Inductor generates around its kernels, without the parts that compile them.

In: its text, and its module. Out: a `Wrapper`, from which another process restores the module. Kernels are loaded from their
compiled libraries, without asking a compiler or the processor. Functions of torch are found by name, without importing
Inductor, which would take longer than everything else.

    cpp_fused_0 = async_compile.cpp_pybinding([...], '''...''')      ->    kernels = {"cpp_fused_0": (module, path, name)}
    from torch._inductor.select_algorithm import extern_kernels      ->    functions = {"mm": "torch.mm"}
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

from aotgrad import torch_compat

DROPPED_IMPORTS = ("AsyncCompile", "extern_kernels", "align")
DROPPED_FUNCTIONS = ("get_args", "benchmark_compiled_module")
NEEDS_INDUCTOR = re.compile(r"\b(?:async_compile|AsyncCompile|align|inductor_ops|_quantized|triton\w*)\b|prims\.inductor")
"""Matches a remaining use of Inductor itself."""

HARMLESS = ("inductor_ops = torch.ops.inductor", "_quantized = torch.ops._quantized")


@dataclass(frozen=True)
class Wrapper:
    """A module as text.

    Attributes:
        kernels: for each kernel, the module name and the path of its library, its name in it, and a digest of the library.
        functions: the qualified names of torch's functions.
    """

    source: str
    kernels: Mapping[str, tuple[str, str, str, str]]
    functions: Mapping[str, str]

    @classmethod
    def of(cls, source: str, module: ModuleType) -> Wrapper | None:
        """The wrapper of a module; `None` if it needs more than its kernels and functions of torch."""
        lean, names = remove_compilation(source)
        used = sorted(set(re.findall(r"\bextern_kernels\.(\w+)", lean)))
        libraries = {name: torch_compat.library_of(getattr(module, name, None)) for name in names}
        externs = getattr(module, "extern_kernels", None)
        functions = {name: torch_compat.function_name(getattr(externs, name, None)) for name in used}
        if NEEDS_INDUCTOR.search(lean) or None in (*libraries.values(), *functions.values()):
            return None
        kernels = {name: (*library, digest(library[1])) for name, library in libraries.items() if library is not None}
        return cls(lean, kernels, {name: function for name, function in functions.items() if function is not None})

    @classmethod
    def of_text(cls, text: str) -> Wrapper:
        return cls(**json.loads(text))

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    def module(self, name: str) -> ModuleType:
        """The restored module.

        Raises:
            OSError: a library is missing or has changed.
        """
        module = ModuleType(name)
        found = dict(self.checked_kernels())
        functions = {key: torch_compat.function_named(function) for key, function in self.functions.items()}
        vars(module).update(found, extern_kernels=SimpleNamespace(**functions))
        exec(compile(self.source, f"<{name}>", "exec", dont_inherit=True), vars(module))
        return module

    def checked_kernels(self) -> Iterator[tuple[str, Callable]]:
        """The kernels, loaded from their libraries.

        Raises:
            OSError: a library is missing or has changed.
        """
        digests = {path: digest(path) for _, path, _, _ in self.kernels.values()}
        for key, (module, path, name, expected) in self.kernels.items():
            if digests[path] != expected:
                raise OSError(f"{path} has changed")
            yield key, torch_compat.kernel_in(module, path, name)


def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def remove_compilation(source: str) -> tuple[str, list[str]]:
    """The text without the statements that compile kernels, and what only these need, and the names of the kernels.

    Other lines keep their line numbers.
    """
    lines, names = source.splitlines(), []
    for statement in ast.parse(source).body:
        kernel = defined_kernel(statement)
        names += [kernel] if kernel else []
        if kernel or is_dropped(statement) or ast.unparse(statement) in HARMLESS:
            end = statement.end_lineno or statement.lineno
            lines[statement.lineno - 1 : end] = [""] * (end - statement.lineno + 1)
    return "\n".join(lines) + "\n", names


def defined_kernel(statement: ast.stmt) -> str | None:
    """The name of the C++ kernel that a statement defines, or `None`."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr="cpp_pybinding"))):
            return name
    return None


def is_dropped(statement: ast.stmt) -> bool:
    match statement:
        case ast.ImportFrom():
            return any(name in DROPPED_IMPORTS for name in imported_names(statement))
        case ast.FunctionDef(name=name):
            return name in DROPPED_FUNCTIONS
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return ast.unparse(statement) in (
        "async_compile = AsyncCompile()",
        "async_compile.wait(globals())",
        "del async_compile",
    )


def imported_names(statement: ast.ImportFrom) -> Iterator[str]:
    return (alias.asname or alias.name for alias in statement.names)
