"""A program -> a Python script that fails as the backend does.

In: a `Program`, the backend and how it fails. Out: source text that runs alone; large inputs that are not random go into a
file beside it.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx

from aotgrad.backends.base import AnyBackend
from aotgrad.debug.check import Failure
from aotgrad.debug.programs import Program

MOST_ELEMENTS = 64
"""Of an input that is written into the script itself."""

TEMPLATE = '''"""{failure}

{backend_note}
"""

from math import inf, nan

import torch
from torch import device

from aotgrad.debug import check
{imports}

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
    check(Repro(), inputs, backend={backend}{settings})
'''


def script_text(
    program: Program,
    backend: AnyBackend,
    failure: Failure,
    is_random: tuple[bool, ...],
    tolerance: float | None = None,
    data: Path | None = None,
    dynamic: bool = False,
) -> str:
    """The script.

    Args:
        program: small.
        backend: a name; or a compiler or `Backend`, which is imported from where it is defined, or whose source is copied.
        failure: how it fails.
        is_random: which of the inputs may be made of random numbers.
        tolerance: see `check`.
        data: the file that large inputs were saved to.
        dynamic: whether the graph is compiled for symbolic sizes.
    """
    name, imports, note = backend_code(backend)
    return TEMPLATE.format(
        failure=f"{failure.kind}: {first_line(failure.text)}".replace('"""', "'''").replace("\\", "/"),
        backend_note=note,
        imports=imports,
        attributes=textwrap.indent("".join(attribute_lines(program.module)), "    "),
        forward=textwrap.indent(code_of(program.module), "    "),
        inputs="\n".join(f"        {line}," for line in input_lines(program, is_random, data)),
        backend=name,
        settings=("" if tolerance is None else f", tolerance={tolerance}") + (", dynamic=True" if dynamic else ""),
    )


def code_of(module: fx.GraphModule) -> str:
    """The module's `forward`, without the statements that free values."""
    return re.sub(r";  (\w+ = )+None", "", module.code.strip())


def first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]


def backend_code(backend: AnyBackend) -> tuple[str, str, str]:
    """The expression for the backend, what to import or define for it, and a note for the reader."""
    if isinstance(backend, str):
        return repr(backend), "", f"Backend {backend!r}; one that is not built in has to be registered first."
    name, module = getattr(backend, "__qualname__", ""), getattr(backend, "__module__", "__main__")
    if name.isidentifier() and module != "__main__":
        return name, f"from {module} import {name}\n", f"The compiler is {module}.{name}."
    if name.isidentifier() and inspect.isfunction(backend) and not backend.__closure__:
        return (
            name,
            f"\n{textwrap.dedent(inspect.getsource(backend))}",
            f"The compiler {name} is copied; add what it imports.",
        )
    return "COMPILER", "\nCOMPILER = ...\n", "Set COMPILER to the compiler or backend, which has no name to import it by."


def attribute_lines(module: fx.GraphModule) -> Iterator[str]:
    """The constructor, if the graph reads attributes: graphs that control-flow ops call, printed as modules."""
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, node.target)
        if isinstance(value, fx.GraphModule):
            yield f"class {node.target}(torch.nn.Module):\n{textwrap.indent(code_of(value), '    ')}\n\n"
            yield f"{node.target} = {node.target}()\n\n"


def input_lines(program: Program, is_random: tuple[bool, ...], data: Path | None) -> Iterator[str]:
    for position, (value, random) in enumerate(zip(program.inputs, is_random, strict=True)):
        yield input_text(position, value, random, data)


def input_text(position: int, value: Any, random: bool, data: Path | None) -> str:
    """An expression that makes one input."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    place = str(value.device)
    if random:
        return f"random({tuple(value.shape)}, {value.stride()}, {value.dtype}, {place!r})"
    if value.numel() <= MOST_ELEMENTS and value.is_contiguous():
        return f"torch.tensor({value.tolist()}, dtype={value.dtype}, device={place!r})"
    assert data is not None, "inputs that are neither random nor small are in a file"
    return f"torch.load({str(data)!r})[{position}]"


def needs_data(program: Program, is_random: tuple[bool, ...]) -> bool:
    """Whether an input is neither random nor small."""
    pairs = zip(program.inputs, is_random, strict=True)
    tensors = [value for value, random in pairs if isinstance(value, torch.Tensor) and not random]
    return any(value.numel() > MOST_ELEMENTS or not value.is_contiguous() for value in tensors)
