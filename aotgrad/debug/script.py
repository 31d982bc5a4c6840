"""A program -> a Python script on which the backend fails.

In: a `ConcreteProgram`, the backend and how it fails. Out: the source of a standalone script. Large inputs that are not
random go into a file beside it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.base import AnyBackend
from aotgrad.debug.check import BackendFailure
from aotgrad.debug.programs import ConcreteProgram
from aotgrad.graph.copies import copy_graph_module
from aotgrad.graph.functionalized_call import FunctionalizedCall
from aotgrad.graph.kept_calls import KeptBackward

MOST_ELEMENTS = 64
"""The size limit of an input that the script spells out."""

TEMPLATE = '''"""{failure}

{backend_note}
"""

from math import inf, nan

import torch
from torch import device

{of_kept}from aotgrad.debug import check_backend
{imports}
{kept}
class Repro(torch.nn.Module):
{attributes}{forward}


def random(size, stride, dtype, place):
    """Random numbers, the same ones in each run."""
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride)) if 0 not in size else 0
    low = -1 if dtype.is_floating_point else 0
    values = torch.testing.make_tensor((extent,), dtype=dtype, device=place, low=low, high=1)
    return values.as_strided(size, stride)


if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = [
{inputs}
    ]
    check_backend(Repro(), inputs, backend={backend}{settings})
'''


def script_text(
    program: ConcreteProgram,
    backend: AnyBackend,
    failure: BackendFailure,
    is_random: tuple[bool, ...],
    tolerance: float | None = None,
    data: Path | None = None,
    dynamic: bool = False,
) -> str:
    """The script.

    Args:
        program: a reduced program.
        backend: a name, or a compiler or `Backend`; the script imports it, or contains a copy of its source.
        failure: how it fails.
        is_random: which inputs may be random.
        tolerance: see `check_backend`.
        data: the file of large inputs.
        dynamic: compile for symbolic sizes.
    """
    module, kept = with_named_targets(program.module)
    name, imports, note = backend_code(backend)
    return TEMPLATE.format(
        failure=f"{failure.kind}: {first_line(failure.text)}".replace('"""', "'''").replace("\\", "/"),
        backend_note=note,
        of_kept=IMPORTS_OF_KEPT if kept else "",
        imports=imports,
        kept="".join(itertools.starmap(kept_text, kept.items())),
        attributes=textwrap.indent("".join(attribute_lines(module)), "    "),
        forward=textwrap.indent(code_of(module), "    "),
        inputs="\n".join(f"        {line}," for line in input_lines(program, is_random, data)),
        backend=name,
        settings=("" if tolerance is None else f", tolerance={tolerance}") + (", dynamic=True" if dynamic else ""),
    )


KEPT_TEMPLATE = """
class {kind}(torch.nn.Module):
{forward}


{name} = KeptBackward({function}, torch.fx.symbolic_trace({kind}()), {parts})
torch.fx.wrap("{name}")

"""

CALL_TEMPLATE = """
{name} = FunctionalizedCall({function}, {changed}, {reads_changed})
torch.fx.wrap("{name}")

"""

IMPORTS_OF_KEPT = "from aotgrad.backends import CallArgument, FunctionalizedCall, KeptBackward\n"


def with_named_targets(module: fx.GraphModule) -> tuple[fx.GraphModule, dict[str, KeptBackward | FunctionalizedCall]]:
    """A copy whose nodes with targets of aotgrad's own call functions of a script, and the names of these."""
    copy = copy_graph_module(module)
    kept: dict[str, KeptBackward | FunctionalizedCall] = {}
    for node in copy.graph.nodes:
        if isinstance(node.target, (KeptBackward, FunctionalizedCall)):
            kept[f"kept_{node.name}"] = node.target
            node.target = NamedFunction(node.name)
    copy.recompile()
    return copy, kept


class NamedFunction:
    """What the code of a graph calls by its name, behind that of the module."""

    __module__ = "kept"

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError(f"{self.__name__} is a name in a script")


def kept_text(name: str, target: KeptBackward | FunctionalizedCall) -> str:
    """The source of a kept call that changes arguments, or of the gradients of a kept call."""
    function = torch_compat.function_name(target.function) or f"torch.{target.function.__name__}"
    if isinstance(target, FunctionalizedCall):
        return CALL_TEMPLATE.format(name=name, function=function, changed=target.changed, reads_changed=target.reads_changed)
    parts = ", ".join(map(repr, (target.inputs, target.outputs, target.args, dict(target.kwargs))))
    return KEPT_TEMPLATE.format(
        kind="".join(part.capitalize() for part in name.split("_")[1:]),
        forward=textwrap.indent(code_of(target.graph), "    "),
        **{"name": name, "function": function, "parts": parts},
    )


def code_of(module: fx.GraphModule) -> str:
    """The module's `forward`, without the statements that free values."""
    return re.sub(r";  (\w+ = )+None", "", module.code.strip())


def first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]


def backend_code(backend: AnyBackend) -> tuple[str, str, str]:
    """The expression for the backend, its imports or definitions, and a note for the reader."""
    if isinstance(backend, str):
        return repr(backend), "", f"Backend {backend!r}; register it first if it is not built in."
    name, module = getattr(backend, "__qualname__", ""), getattr(backend, "__module__", "__main__")
    if name.isidentifier() and module != "__main__":
        return name, f"from {module} import {name}\n", f"The compiler is {module}.{name}."
    if name.isidentifier() and inspect.isfunction(backend) and not backend.__closure__:
        return (
            name,
            f"\n{textwrap.dedent(inspect.getsource(backend))}",
            f"The compiler {name} is copied; add what it imports.",
        )
    if is_spelled_by_repr(backend):
        kind = type(backend)
        return (
            repr(backend),
            f"from {kind.__module__} import {kind.__name__}\n",
            f"The backend is {kind.__module__}.{kind.__name__}.",
        )
    return "COMPILER", "\nCOMPILER = ...\n", "Set COMPILER to the compiler or backend, which has no name to import it by."


def is_spelled_by_repr(backend: Any) -> bool:
    """Whether a backend is a dataclass of literals."""
    if not dataclasses.is_dataclass(backend) or type(backend).__module__ == "__main__":
        return False
    shown = [getattr(backend, field.name) for field in dataclasses.fields(backend) if field.repr]
    try:
        return all(ast.literal_eval(repr(value)) == value for value in shown)
    except (ValueError, SyntaxError):
        return False


def attribute_lines(module: fx.GraphModule) -> Iterator[str]:
    """The inner graphs of control-flow ops, as modules."""
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, node.target)
        if isinstance(value, fx.GraphModule):
            yield f"class {node.target}(torch.nn.Module):\n{textwrap.indent(code_of(value), '    ')}\n\n"
            yield f"{node.target} = {node.target}()\n\n"


def input_lines(program: ConcreteProgram, is_random: tuple[bool, ...], data: Path | None) -> Iterator[str]:
    for position, (value, random) in enumerate(zip(program.inputs, is_random, strict=True)):
        yield input_text(position, value, random, data)


def input_text(position: int, value: Any, random: bool, data: Path | None) -> str:
    """The expression of one input."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    place = str(value.device)
    if random:
        return f"random({tuple(value.shape)}, {value.stride()}, {value.dtype}, {place!r})"
    if value.numel() <= MOST_ELEMENTS and value.is_contiguous():
        return f"torch.tensor({value.tolist()}, dtype={value.dtype}, device={place!r})"
    assert data is not None, "large inputs that are not random are in a file"
    return f"torch.load({str(data)!r})[{position}]"


def needs_data(program: ConcreteProgram, is_random: tuple[bool, ...]) -> bool:
    """Whether an input is neither random nor small."""
    pairs = zip(program.inputs, is_random, strict=True)
    tensors = [value for value, random in pairs if isinstance(value, torch.Tensor) and not random]
    return any(value.numel() > MOST_ELEMENTS or not value.is_contiguous() for value in tensors)
