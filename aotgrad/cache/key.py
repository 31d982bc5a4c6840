"""What a compiled graph depends on, as one digest: the same in another process exactly if everything there is the same.

In: Dynamo's graph, its inputs, how it is compiled. Out: 64 hexadecimal digits, or `NotStored` with the reason why what is
made of the graph is kept for this process only.

    key_of(module, dedupe, tensors, hints, compiler, mode)

A function is known by its name if it is torch's own, which the version of torch stands for. What is the user's own (an
operator, a function, a pass) may change without a sign, so nothing is stored that depends on it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx

from aotgrad import passes, torch_compat
from aotgrad.backends.base import Backend
from aotgrad.cache.graphs import digest, text_of
from aotgrad.cache.serialize import BUILT_IN_NAMESPACES, HIGHER_ORDER, NotPlain, Writer
from aotgrad.capture.fake import make_input_specs
from aotgrad.convention import Dedupe
from aotgrad.ir import InputHint, TensorInput
from aotgrad.options import Options
from aotgrad.partition import is_typed
from aotgrad.pipeline import Compiler
from aotgrad.plan_cache.module_state import slots_of
from aotgrad.torch_compat import FakeTensorMode

TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Classes without rules of their own."""

RUN_THROUGH = frozenset({"tag_activation_checkpoint", "autograd_function_apply"})
"""Higher-order operators that a trace runs through, so that nothing is left of them but what their graphs compute."""

TRACED_META = ("recompute", "custom", "ac_graph_id", "has_backward_hook")
"""What else of a node a trace hands on; a graph that has some is not stored."""

PLACES = ("joint", "forward", "backward")
WITHOUT_EFFECT = ("cache", "enabled", "on_error", "plan_limit", "verify", *(f"{place}_passes" for place in PLACES))
"""Options that change nothing of what is made. With passes nothing is stored at all."""


class NotStored(Exception):
    """Why something is compiled in every process anew."""


def key_of(
    module: fx.GraphModule,
    dedupe: Dedupe,
    tensors: Sequence[Any],
    hints: Sequence[InputHint],
    compiler: Compiler,
    mode: FakeTensorMode,
) -> str:
    """The key of what is made of Dynamo's graph.

    Args:
        module: Dynamo's graph.
        dedupe: which of the arguments are one tensor.
        tensors: the distinct arguments.
        hints: what is known of each.
        compiler: how it is compiled.
        mode: of the fakes that it is traced with.

    Raises:
        NotStored
    """
    try:
        symbols = torch_compat.symbolic_state(mode)
        places = tensors if symbols is None else symbolic_places(mode, tensors, hints)
        parts = (
            *compilation_key(compiler.backend, compiler.partition_fn, compiler.options),
            repr(dedupe),
            repr(symbols),
            text_of([input_key(*each) for each in zip(tensors, places, hints, strict=True)]),
            repr(shared_storages(tensors)),
            repr([slot.name for slot in slots_of(module)]),
            text_of(graph_key(module)),
        )
    except NotPlain as error:
        raise NotStored(str(error)) from None
    return digest(*parts)


def compilation_key(backend: Backend, partition_fn: Callable, options: Options) -> tuple[str, ...]:
    """How a graph is compiled, wherever it came from.

    Raises:
        NotStored
    """
    build = repr(torch_compat.torch_build())
    return code_version(), build, repr(settings()), options_key(options), backend_key(backend, partition_fn)


@functools.cache
def code_version() -> str:
    """A digest of aotgrad's own code."""
    folder = Path(__file__).parents[1]
    files = sorted(folder.rglob("*.py"))
    return digest(*(f"{file.relative_to(folder)} {file.read_text()}" for file in files))


def settings() -> tuple:
    """Global state.

    Raises:
        NotStored: a mode or kernel of the user's changes what operators do.
    """
    if not torch_compat.function_modes_are_defaults():
        raise NotStored("a mode of the user's is on")
    if replaced := torch_compat.replaced_rules():
        raise NotStored(f"torch's own operator {replaced[0]} has a kernel in Python")
    return torch_compat.global_settings()


def options_key(options: Options) -> str:
    """The options that matter.

    Raises:
        NotStored: there are passes of the user's.
    """
    if any(getattr(options, f"{place}_passes") or passes.registered(place) for place in PLACES):
        raise NotStored("there are passes of the user's own")
    values = ((field.name, getattr(options, field.name)) for field in dataclasses.fields(options))
    return repr([(name, value) for name, value in values if name not in WITHOUT_EFFECT])


def backend_key(backend: Backend, partition_fn: Callable) -> str:
    """What the backend makes of a graph, and how that is partitioned.

    Raises:
        NotStored: the backend or the partition function is the user's own.
    """
    key = backend.cache_key()
    if key is None:
        raise NotStored(f"the backend {backend.name!r} has no key for what it makes")
    if not is_typed(partition_fn):
        raise NotStored("the partition function is the user's own")
    budget = None
    if isinstance(partition_fn, functools.partial):
        partition_fn, budget = partition_fn.func, partition_fn.keywords.get("memory_budget")
    return repr((backend.name, key, backend.fuses, backend.min_graph_ops, partition_fn.__qualname__, budget))


# --- Inputs ----------------------------------------------------------------------------------------------------------


def symbolic_places(mode: FakeTensorMode, tensors: Sequence[Any], hints: Sequence[InputHint]) -> list[Any]:
    """The fakes of the inputs, and the symbolic numbers among them."""
    specs = make_input_specs(mode, tensors, hints)
    return [spec.fake if isinstance(spec, TensorInput) else value for spec, value in zip(specs, tensors, strict=True)]


def input_key(value: Any, place: Any, hint: InputHint) -> list[Any]:
    """What a trace assumes of an input; `place` has its sizes as they are traced.

    Raises:
        NotPlain: a size depends on data.
        NotStored: it is no plain tensor, or its sizes get symbols only when it is traced.
    """
    writer = Writer()
    if not isinstance(value, torch.Tensor):
        return ["number", writer.write(value)]
    if hint.dynamic_dims or torch_compat.has_symbolic_shape(value):
        raise NotStored("sizes are symbolic from now on")
    if type(value) not in TENSORS or value.layout is not torch.strided or value.is_quantized:
        raise NotStored(f"an input is a {type(value).__name__} of layout {value.layout}")
    geometry = [*map(writer.numbers_of, (place.size(), place.stride())), writer.write(place.storage_offset())]
    flags = [value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.is_inference()]
    views = [torch_compat.is_differentiable_view(value), torch_compat.is_view_of_leaf(value)]
    views += [torch_compat.is_forbidden_after_a_write(value), torch_compat.is_converted_view(value)]
    return [type(value).__name__, str(value.dtype), str(value.device), geometry, flags, views, hint.static]


def shared_storages(tensors: Sequence[Any]) -> list[list[int]]:
    """The inputs that lie in one storage."""
    sharers: dict[int, list[int]] = {}
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            continue
        sharers.setdefault(torch_compat.storage_key(tensor), []).append(position)
    return [positions for positions in sharers.values() if len(positions) > 1]


# --- Graphs ----------------------------------------------------------------------------------------------------------


def graph_key(module: fx.GraphModule) -> list[Any]:
    """What a graph computes before it is traced, as Dynamo makes it, and which of its nodes have a stack trace in common.

    Raises:
        NotPlain: a constant in it has no plain form.
        NotStored: it calls what is the user's own.
    """
    if not torch_compat.takes_plain_arguments(module.graph):
        raise NotStored("the graph takes its arguments apart")
    nodes = list(module.graph.nodes)
    writer = Writer({node: k for k, node in enumerate(nodes)})
    traces: dict[Hashable, int] = {}
    return [
        [*node_key(module, writer, node), traces.setdefault(node.meta.get("stack_trace"), len(traces))] for node in nodes
    ]


def node_key(module: fx.GraphModule, writer: Writer, node: fx.Node) -> list[Any]:
    if found := [name for name in TRACED_META if node.meta.get(name)]:
        raise NotStored(f"a node is marked by {found[0]!r}")
    return [node.op, target_key(module, node), writer.write(node.args), writer.write(node.kwargs)]


def target_key(module: fx.GraphModule, node: fx.Node) -> Any:
    match node.op:
        case "placeholder" | "output" | "call_method":
            return node.target
        case "get_attr":
            return attribute_key(module, str(node.target))
        case "call_function":
            return function_key(node.target)
    raise NotStored(f"a node {node.op}")


def attribute_key(module: fx.GraphModule, name: str) -> Any:
    """A graph inside, or a parameter or buffer, which is an input."""
    value = functools.reduce(getattr, name.split("."), module)
    if isinstance(value, fx.GraphModule):
        if "_checkpoint_context_fn" in value.meta:
            raise NotStored("a checkpoint has a policy of the user's own")
        return graph_key(value)
    if isinstance(value, torch.nn.Parameter) or name in dict(module.named_buffers(remove_duplicate=False)):
        return name
    raise NotStored(f"the graph has a {type(value).__name__} as a constant")


def function_key(function: Any) -> str:
    higher_order = torch_compat.higher_order_name(function)
    if higher_order is not None:
        if higher_order not in RUN_THROUGH | HIGHER_ORDER:
            raise NotStored(f"the graph calls the higher-order operator {higher_order}")
        return higher_order
    name = torch_compat.function_name(function)
    if name is None or not is_of_torch(name):
        raise NotStored(f"the graph calls {getattr(function, '__qualname__', function)}, which is not torch's own")
    return name


def is_of_torch(name: str) -> bool:
    """Whether an operator, or a function that was found in a module, is no user's."""
    if name.startswith("torch.ops."):
        return name.split(".")[2] in BUILT_IN_NAMESPACES
    return "::" not in name or name.partition("::")[0] in BUILT_IN_NAMESPACES


def stack_traces(module: fx.GraphModule) -> Iterator[str | None]:
    """Those of the nodes of a graph and of the graphs inside, in their order."""
    for node in module.graph.nodes:
        yield node.meta.get("stack_trace")
        if node.op == "get_attr":
            inside = functools.reduce(getattr, str(node.target).split("."), module)
            if isinstance(inside, fx.GraphModule):
                yield from stack_traces(inside)
