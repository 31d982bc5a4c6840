"""The key of a compiled graph: a digest of everything that it depends on, the same in every process.

In: Dynamo's graph, its inputs, how it is compiled. Out: 64 hexadecimal digits, or `NotCacheable` with the reason why only
this process can use the compiled graph.

    plan_key(module, dedupe, tensors, hints, compiler, mode)

The key identifies torch's own functions by name, together with torch's version. The user's own operators, functions and
passes may change unnoticed, so graphs that depend on them have no key.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad import passes, torch_compat
from aotgrad.backends.base import PartitionCompiler
from aotgrad.cache.graphs import digest_of, kept_name, text_of
from aotgrad.cache.serialize import BUILT_IN_NAMESPACES, HIGHER_ORDER, Encoder, NotSerializable
from aotgrad.cache.store import IS_SUPPORTED
from aotgrad.capture.fake import make_input_specs
from aotgrad.convention import Dedupe
from aotgrad.graph.node_tags import REGION_TAGS
from aotgrad.guards.module_slots import slots_of
from aotgrad.ir import InputHint, TensorInput
from aotgrad.options import Options
from aotgrad.partition import is_typed
from aotgrad.passes.base import PLACES
from aotgrad.pipeline import Compiler
from aotgrad.subclasses.forms import is_wrapper
from aotgrad.subclasses.layout import WrapperLayout
from aotgrad.telemetry.code_version import code_version
from aotgrad.torch_compat import FakeTensorMode

TENSORS = (torch.Tensor, torch.nn.Parameter)
"""The classes of tensor without `__torch_function__` or `__torch_dispatch__`."""

RUN_THROUGH = frozenset({"tag_activation_checkpoint", "autograd_function_apply"})
"""Higher-order operators that a trace inlines: only the computation of their graphs remains."""

TRACED_META = (*REGION_TAGS, "custom")
"""Further metadata that a trace copies to its nodes; a graph with such metadata is not stored."""

IRRELEVANT_OPTIONS = ("cache", "enabled", "on_error", "plan_limit", "verify", *(f"{place}_passes" for place in PLACES))
"""Options that do not change what is compiled, and passes, which have their own place in the key."""


class NotCacheable(Exception):
    """Not cacheable; the message says why."""


def plan_key(
    module: fx.GraphModule,
    dedupe: Dedupe,
    tensors: Sequence[Any],
    hints: Sequence[InputHint],
    compiler: Compiler,
    mode: FakeTensorMode,
) -> str:
    """The key of a compiled graph.

    Args:
        module: Dynamo's graph.
        dedupe: which of the arguments are one tensor.
        tensors: the distinct arguments.
        hints: the hint for each.
        compiler: how it is compiled.
        mode: the fake mode of the trace.

    Raises:
        NotCacheable
    """
    try:
        symbols = torch_compat.symbolic_state(mode)
        traced = tensors if symbols is None else traced_inputs(mode, tensors, hints)
        parts = (
            *compilation_key(compiler.backend, compiler.partition_fn, compiler.options),
            repr(dedupe),
            repr(symbols),
            text_of([input_key(*each) for each in zip(tensors, traced, hints, strict=True)]),
            repr(shared_storages(tensors)),
            repr([slot.name for slot in slots_of(module)]),
            text_of(graph_key(module)),
        )
    except NotSerializable as error:
        raise NotCacheable(str(error)) from None
    return digest_of(*parts)


def reject_code_of_subclasses(module: fx.GraphModule, layout: WrapperLayout) -> None:
    """Raise if a graph takes or returns wrapper subclasses: their ops run code that only a trace shows.

    Raises:
        NotCacheable: names the class.
    """
    if layout.ends or layout.fixed:
        names = [*(end.form.name for end in layout.ends), *(type(value).__name__ for value in layout.fixed.values())]
        raise NotCacheable(f"an input is a {names[0]}, which no digest describes")
    for result in module.graph.output_node().all_input_nodes:
        if is_wrapper(value := result.meta.get("example_value")):
            raise NotCacheable(f"a result is a {type(value).__name__}, which no digest describes")


def compilation_key(backend: PartitionCompiler, partition_fn: Callable, options: Options) -> tuple[str, ...]:
    """How a graph is compiled, as parts of its key.

    Raises:
        NotCacheable
    """
    if not IS_SUPPORTED:
        raise NotCacheable("this system does not tell who owns a folder")
    build = repr(torch_compat.torch_build())
    return code_version(), build, repr(settings()), options_key(options), backend_key(backend, partition_fn)


def settings() -> tuple:
    """The global state that tracing and compiling read.

    Raises:
        NotCacheable: a user's mode or kernel changes what operators do.
    """
    if not torch_compat.function_modes_are_defaults():
        raise NotCacheable("a user's mode is on")
    if replaced := torch_compat.replaced_rules():
        raise NotCacheable(f"torch's own operator {replaced[0]} has a kernel in Python")
    return torch_compat.global_settings()


def options_key(options: Options) -> str:
    """The options that change what is compiled.

    Raises:
        NotCacheable: there are user passes.
    """
    chosen = {place: (*getattr(options, f"{place}_passes"), *passes.registered(place)) for place in PLACES}
    if not all(type(each).__module__.startswith("aotgrad.") for each in itertools.chain(*chosen.values())):
        raise NotCacheable("there are user passes")
    values = ((field.name, getattr(options, field.name)) for field in dataclasses.fields(options))
    return repr([*((name, value) for name, value in values if name not in IRRELEVANT_OPTIONS), chosen])


def backend_key(backend: PartitionCompiler, partition_fn: Callable) -> str:
    """The backend with its settings, and the partition function.

    Raises:
        NotCacheable: the backend or the partition function is the user's own.
    """
    key = backend.cache_key()
    if key is None:
        raise NotCacheable(f"the backend {backend.name!r} has no cache key")
    if not is_typed(partition_fn):
        raise NotCacheable("the partition function is the user's own")
    budget = None
    if isinstance(partition_fn, functools.partial):
        partition_fn, budget = partition_fn.func, partition_fn.keywords.get("memory_budget")
    kept = sorted(map(kept_name, backend.keep))
    return repr((backend.name, key, kept, backend.fuses, backend.min_graph_ops, partition_fn.__qualname__, budget))


# --- Inputs ----------------------------------------------------------------------------------------------------------


def traced_inputs(mode: FakeTensorMode, tensors: Sequence[Any], hints: Sequence[InputHint]) -> list[Any]:
    """The inputs as they are traced: fake tensors and symbolic numbers."""
    specs = make_input_specs(mode, tensors, hints)
    return [spec.fake if isinstance(spec, TensorInput) else value for spec, value in zip(specs, tensors, strict=True)]


def input_key(value: Any, traced: Any, hint: InputHint) -> list[Any]:
    """What a trace assumes of an input; `traced` has the sizes of the trace.

    Raises:
        NotSerializable: a size depends on data.
        NotCacheable: the input is not a plain tensor, or only the trace makes its sizes symbolic.
    """
    encoder = Encoder()
    if not isinstance(value, torch.Tensor):
        return ["number", encoder.encode(value)]
    if hint.dynamic_dims or torch_compat.has_symbolic_shape(value):
        raise NotCacheable("sizes are symbolic from now on")
    if type(value) not in TENSORS or value.layout is not torch.strided or value.is_quantized:
        raise NotCacheable(f"an input is a {type(value).__name__} of layout {value.layout}")
    geometry = [*map(encoder.numbers_of, (traced.size(), traced.stride())), encoder.encode(traced.storage_offset())]
    flags = [value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.is_inference()]
    views = [torch_compat.is_differentiable_view(value), torch_compat.is_view_of_leaf(value)]
    views += [torch_compat.is_forbidden_after_a_write(value), torch_compat.is_converted_view(value)]
    return [type(value).__name__, str(value.dtype), str(value.device), geometry, flags, views, hint.static]


def shared_storages(tensors: Sequence[Any]) -> list[list[int]]:
    """The positions of inputs that share a storage, one list per storage."""
    sharers: dict[int, list[int]] = {}
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            continue
        sharers.setdefault(torch_compat.storage_key(tensor), []).append(position)
    return [positions for positions in sharers.values() if len(positions) > 1]


# --- Graphs ----------------------------------------------------------------------------------------------------------


def graph_key(module: fx.GraphModule) -> list[Any]:
    """The nodes of Dynamo's graph as plain data, and which of them share a stack trace.

    Raises:
        NotSerializable: a constant has no plain form.
        NotCacheable: the graph calls the user's own code.
    """
    if not torch_compat.takes_plain_arguments(module.graph):
        raise NotCacheable("the graph unpacks its arguments itself")
    nodes = list(module.graph.nodes)
    encoder = Encoder({node: k for k, node in enumerate(nodes)})
    traces: dict[Hashable, int] = {}
    return [
        [*node_key(module, encoder, node), traces.setdefault(node.meta.get("stack_trace"), len(traces))] for node in nodes
    ]


def node_key(module: fx.GraphModule, encoder: Encoder, node: fx.Node) -> list[Any]:
    if found := [name for name in TRACED_META if node.meta.get(name)]:
        raise NotCacheable(f"a node is marked by {found[0]!r}")
    return [node.op, target_key(module, node), encoder.encode(node.args), encoder.encode(node.kwargs)]


def target_key(module: fx.GraphModule, node: fx.Node) -> Any:
    match node.op:
        case "placeholder" | "output" | "call_method":
            return node.target
        case "get_attr":
            return attribute_key(module, str(node.target))
        case "call_function":
            return function_key(node.target)
    raise NotCacheable(f"a node {node.op}")


def attribute_key(module: fx.GraphModule, name: str) -> Any:
    """The key of an attribute: an inner graph, or the name of a parameter or buffer, which is an input."""
    value = functools.reduce(getattr, name.split("."), module)
    if isinstance(value, fx.GraphModule):
        if "_checkpoint_context_fn" in value.meta:
            raise NotCacheable("a checkpoint has a user policy")
        return graph_key(value)
    if isinstance(value, torch.nn.Parameter) or name in dict(module.named_buffers(remove_duplicate=False)):
        return name
    raise NotCacheable(f"the graph has a {type(value).__name__} as a constant")


def function_key(function: Any) -> str:
    higher_order = torch_compat.higher_order_name(function)
    if higher_order is not None:
        if higher_order not in RUN_THROUGH | HIGHER_ORDER:
            raise NotCacheable(f"the graph calls the higher-order operator {higher_order}")
        return higher_order
    name = torch_compat.function_name(function)
    if name is None or not is_of_torch(name):
        raise NotCacheable(f"the graph calls {getattr(function, '__qualname__', function)}, which is not torch's own")
    return name


def is_of_torch(name: str) -> bool:
    """Whether an operator, or a function found in a module, is torch's own."""
    if name.startswith("torch.ops."):
        return name.split(".")[2] in BUILT_IN_NAMESPACES
    return "::" not in name or name.partition("::")[0] in BUILT_IN_NAMESPACES


def stack_traces(module: fx.GraphModule) -> Iterator[str | None]:
    """The stack traces of the nodes of a graph and of its inner graphs, in order."""
    for node in module.graph.nodes:
        yield node.meta.get("stack_trace")
        if node.op == "get_attr":
            inside = functools.reduce(getattr, str(node.target).split("."), module)
            if isinstance(inside, fx.GraphModule):
                yield from stack_traces(inside)
