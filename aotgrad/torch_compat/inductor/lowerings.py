"""Inductor's lowerings of single ops, changed where they differ from eager."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from aotgrad.torch_compat.expressions import expression_of


@contextlib.contextmanager
def use_traced_offsets() -> Iterator[None]:
    """Inside, Inductor takes the storage offset of a tensor from the trace, as it does with sizes."""
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    def offset(_: Any) -> Any:
        return expression_of(V.graph.current_node.meta["val"])

    with mock.patch.dict(lowerings, {torch.ops.aten.sym_storage_offset.default: offset}):
        yield


@contextlib.contextmanager
def use_aten_conversions() -> Iterator[None]:
    """Inside, Inductor converts dtypes with ATen's kernel where it calls one; that of `prims` copies `requires_grad`."""
    from torch._inductor import graph, lowering

    plain = lowering.fallback_handler

    def handler(op: Any, *args: Any, **kwargs: Any) -> Any:
        if op is not torch.ops.prims.convert_element_type.default:
            return plain(op, *args, **kwargs)
        convert = plain(torch.ops.aten._to_copy.default, add_to_fallback_set=False)
        return lambda x, dtype: convert(x, dtype=dtype)

    with mock.patch.object(graph, "fallback_handler", handler), mock.patch.object(lowering, "fallback_handler", handler):
        yield


@contextlib.contextmanager
def count_input_offsets() -> Iterator[None]:
    """Inside, `as_strided` of an input counts from the start of its storage, as in eager.

    Inductor of torch < 2.13 counts from the first element of the input.
    """
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    if "storage_offset_relative_to_input_storage" in inspect.signature(lowering.as_strided).parameters:
        yield
        return

    def relative(x: Any, size: Any, stride: Any, offset: Any = None, *, plain: Callable) -> Any:
        layout = x.maybe_get_layout()
        box = x.data.unwrap_view() if isinstance(x.data, ir.BaseView) else x.data
        if offset is None:
            offset = 0 if layout is None else layout.offset
        elif isinstance(getattr(box, "data", None), ir.InputBuffer):
            offset = offset - _traced_offset(V.graph, box.get_name())
        return plain(x, size, stride, offset)

    aten = torch.ops.aten
    ops = (aten.as_strided.default, aten.as_strided_.default, aten.as_strided_copy.default)
    changed = {op: functools.partial(relative, plain=lowering.lowerings[op]) for op in ops}
    with mock.patch.dict(lowering.lowerings, changed):
        yield


def _traced_offset(graph: Any, name: str) -> Any:
    """The storage offset that an input of Inductor's graph had in the trace."""
    values = [node.meta["val"] for node in graph.module.graph.find_nodes(op="placeholder") if node.name == name]
    return expression_of(values[0].storage_offset()) if values else 0


@contextlib.contextmanager
def view_traced_strides() -> Iterator[None]:
    """Inside, a value that is viewed as another dtype is laid out as in the trace, if either dtype is complex."""
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    op = torch.ops.aten.view.dtype
    plain = lowerings[op]

    def view(x: Any, dtype: torch.dtype) -> Any:
        if dtype.is_complex or x.get_dtype().is_complex:
            strides = V.graph.current_node.args[0].meta["val"].stride()
            x = ir.ExternKernel.require_exact_strides(x, [expression_of(stride) for stride in strides])
        return plain(x, dtype)

    with mock.patch.dict(lowerings, {op: view}):
        yield


@contextlib.contextmanager
def keep_host_numbers() -> Iterator[None]:
    """Inside, a number that the CPU computes and another device reads gets a buffer, whose value Inductor passes to kernels.

    Inductor would compute it again in the kernel that reads it, from memory of the CPU, which a GPU cannot read.
    """
    from torch._inductor import ir
    from torch._inductor.graph import GraphLowering
    from torch.utils._pytree import tree_map_only

    plain = GraphLowering.call_function

    def keep(value: Any) -> Any:
        if value.get_device().type == "cpu" and not value.get_size():
            value.realize()
        return value

    def call(graph: Any, target: Any, args: Any, kwargs: Any) -> Any:
        result = graph.current_node.meta.get("val")
        results = result if isinstance(result, (list, tuple)) else [result]
        if any(isinstance(each, torch.Tensor) and each.device.type != "cpu" for each in results):
            args, kwargs = tree_map_only(ir.TensorBox, keep, (args, kwargs))
        return plain(graph, target, args, kwargs)

    with mock.patch.object(GraphLowering, "call_function", call):
        yield
