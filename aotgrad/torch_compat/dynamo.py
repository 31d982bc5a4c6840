"""Dynamo: its lock and switches, the sizes and sources of a graph's inputs, and graph breaks."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
from torch._dynamo import convert_frame
from torch._dynamo.exc import ShortenTraceback
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx.experimental._backward_state import BackwardState

from aotgrad.torch_compat.fakes import item_of_fake, set_item_of_fake

disable_dynamo = torch._dynamo.disable
"""Marks a callable that Dynamo must not trace into."""


def dynamos_lock() -> Any:
    """The re-entrant lock that Dynamo holds while it compiles; torch's own backwards are compiled under it, too."""
    return convert_frame.compile_lock


def new_dynamos_lock() -> Any:
    """Give Dynamo a new lock, in a child process where nobody can release the old one."""
    convert_frame.compile_lock = threading.RLock()
    return convert_frame.compile_lock


def hide_from_dynamo(function: Callable) -> Callable:
    """Make Dynamo skip a function's frames and all frames below them, at no cost per call.

    Otherwise Dynamo would compile parts of them when `autograd.grad` is called at a graph break of `torch.compile`.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def dynamos_frame_callback() -> Callable[[], object]:
    """The function that returns what Dynamo does with the frames of this thread; it returns `None` if Dynamo sees none."""
    return torch._C._dynamo.eval_frame.get_eval_frame_callback


def dims_marked_dynamic(tensor: torch.Tensor) -> frozenset[int]:
    """The dimensions that `torch._dynamo.mark_dynamic` or `maybe_mark_dynamic` was called for."""
    marked = (getattr(tensor, name, ()) for name in ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"))
    return frozenset(dim for dims in marked for dim in dims)


def keep_symbolic(tensors: Sequence[Any], dims: Mapping[int, frozenset[int]]) -> None:
    """Let Dynamo take `dims`, by the position of a tensor, as symbolic in the next graph that reads it.

    No guard reads the mark. A torch that does not know the name ignores it.
    """
    for position, symbolic in dims.items():
        marked = tensors[position]
        marked._dynamo_propagated_dynamic_indices = {*getattr(marked, "_dynamo_propagated_dynamic_indices", ()), *symbolic}


def tracing_context() -> TracingContext | None:
    """The context that Dynamo opens around a backend call."""
    return TracingContext.try_get()


def dynamo_symbolic_context(context: TracingContext | None, tensor: torch.Tensor) -> Any:
    """How Dynamo made `tensor` fake, to reuse its symbols."""
    return context.tensor_to_context.get(tensor) if context is not None else None


def fake_of_dynamo(tensor: torch.Tensor) -> torch.Tensor | None:
    """The detached fake that Dynamo has made of an input, with its symbols; `None` without Dynamo."""
    context = TracingContext.try_get()
    how = dynamo_symbolic_context(context, tensor)
    if context is None or context.fake_mode is None or how is None:
        return None
    with context.fake_mode:  # some subclasses ask whether a trace runs
        fake = context.fake_mode.from_tensor(tensor, symbolic_context=how, source=how.tensor_source)
        if fake.is_nested:
            int(fake.size(0))  # no part has this size: the offsets have one more
        detached = fake.detach() if fake.requires_grad else fake
    set_item_of_fake(detached, item_of_fake(fake))
    return detached


def float_of_tensor(tensor: Any) -> torch.SymFloat | None:
    """The Python float that Dynamo passes to its graph as `tensor`, or `None`."""
    fake = fake_of_dynamo(tensor)
    number = None if fake is None else item_of_fake(fake)
    return number if isinstance(number, torch.SymFloat) else None


def unwrapped_by_dynamo(error: Exception, frame: Any) -> Exception:
    """`error` in a form that a backend can raise without Dynamo wrapping it in an error of its own.

    It has the same class and the same text. Its traceback starts at `frame`.
    """
    kind = _unwrapped_class(type(error))
    raised = kind.__new__(kind, *error.args)
    ShortenTraceback.__init__(raised, *error.args, first_useful_frame=frame)
    vars(raised).update(vars(error), text=str(error))
    raised.__cause__ = error.__cause__
    return raised.with_traceback(error.__traceback__)


@functools.cache
def _unwrapped_class(kind: type) -> Any:
    members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda self: self.text}
    return type(kind.__name__, (kind, ShortenTraceback), members)


def ddp_awaits_gradients() -> bool:
    """Whether the module runs inside a `DistributedDataParallel` whose graph Dynamo has not split."""
    if not torch.distributed.is_available():
        return False
    from torch.nn.parallel import DistributedDataParallel

    if DistributedDataParallel._get_active_ddp_module() is None:
        return False
    return tracing_context() is None or torch._dynamo.config.optimize_ddp not in (True, "ddp_optimizer")


def breaks_dynamos_graph(error: BaseException | None) -> bool:
    """Whether Dynamo answers this error of a backend with a graph break instead of an error."""
    from torch._dynamo.exc import exceptions_allowed_to_be_fallback

    return isinstance(error, exceptions_allowed_to_be_fallback)


def refuse_lost_histories(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Make Dynamo break the graph where it has lost how gradients of gradients are computed.

    Newer versions record a custom autograd function inside a `torch.func` transform as one op. Its backward is not
    differentiable, neither by an outer transform nor for inputs that require grad.

    Raises:
        UnsupportedOperatorException: Dynamo then breaks the graph.
    """
    enough = 1 if any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs) else 2
    graphs = (each.graph for each in module.modules() if isinstance(each, fx.GraphModule))
    if any(transforms >= enough for graph in graphs for transforms in _transforms_around_custom_functions(graph)):
        raise UnsupportedOperatorException(
            "autograd_function_apply: this version of Dynamo does not differentiate the backward of a custom autograd "
            "function inside of a torch.func transform; eager does, and so does aotgrad.aot_function"
        )


def refuse_hooks_of_later(inputs: Sequence[Any]) -> None:
    """Make Dynamo break the graph where a function registers a hook on an intermediate, under compiled autograd.

    Dynamo then passes an object that gets the hooks only after the call.

    Raises:
        UnsupportedOperatorException: Dynamo then breaks the graph.
    """
    if any(isinstance(each, BackwardState) for each in inputs):
        raise UnsupportedOperatorException(
            "register_hook: under compiled autograd, Dynamo does not show a backend the hook of an intermediate; register "
            "it outside of the compiled function, or compile the function without compiled autograd"
        )


def _transforms_around_custom_functions(graph: fx.Graph) -> Iterator[int]:
    """For each custom autograd function in a graph, the number of transforms around it."""
    count = 0
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        count += name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")
        if node.target is torch.ops.higher_order.autograd_function_apply:
            yield count


def record_backwards_of_custom_functions(module: fx.GraphModule) -> None:
    """Remove the switches with which Dynamo turns gradients off in the backward of a custom autograd function.

    Eager records that backward under `create_graph=True`.
    """
    for graph in (each.graph for each in module.modules() if isinstance(each, fx.GraphModule)):
        for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.autograd_function_apply):
            backward = node.args[1]
            if isinstance(backward, fx.Node) and backward.op == "get_attr":
                _remove_switches(getattr(graph.owning_module, str(backward.target)))


def _remove_switches(body: fx.GraphModule) -> None:
    """Remove the first and the last op if they turn gradients off and on, and no other op does.

    After the user's own switch, Dynamo restores what it assumes was before: gradients off.
    """
    steps = [node for node in body.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    switches = [node for node in steps if node.target is torch._C._set_grad_enabled]
    if [node.args for node in switches] == [(False,), (True,)] and switches == [steps[0], steps[-1]]:
        for switch in switches:
            body.graph.erase_node(switch)
        body.recompile()


class _Tracing:
    """A flag that is true in the thread that created it, until `end()`: torch < 2.14 has one flag for all threads."""

    def __init__(self) -> None:
        self._thread: int | None = threading.get_ident()

    def __bool__(self) -> bool:
        return self._thread == threading.get_ident()

    def end(self) -> None:
        self._thread = None


@contextlib.contextmanager
def inline_compiled_functions() -> Iterator[None]:
    """Inside, functions that `torch.compile` returned run uncompiled, as in a trace of `torch.fx`.

    Dynamo would compile them for traced tensors, and code that it compiled before would run kernels on these. Other threads
    are not affected. For everyone but Dynamo this is no trace of `torch.fx`.
    """
    module = fx._symbolic_trace
    of_thread = getattr(module, "_is_fx_tracing_tls", None)  # torch >= 2.14
    flag = (module, "_is_fx_tracing_flag") if of_thread is None else (of_thread, "flag")
    tracing = _Tracing()
    with (
        mock.patch.object(*flag, tracing, create=True),
        mock.patch.object(module, "is_fx_tracing", lambda: getattr(*flag, False) is True),
        torch._dynamo.config.patch(error_on_nested_fx_trace=False),
    ):
        try:
            yield
        finally:
            tracing.end()


def uncompiled_function(function: Callable) -> Callable:
    """The function or module behind what `torch.compile` returned; any other function itself."""
    while True:
        name = "_orig_mod" if isinstance(function, torch.nn.Module) else "_torchdynamo_orig_callable"
        original = getattr(function, name, None)
        if not callable(original):
            return function
        function = original


@contextlib.contextmanager
def reset_dynamo() -> Iterator[None]:
    """Reset Dynamo before and after: nothing it has compiled is used across the boundary."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


@contextlib.contextmanager
def graph_breaks() -> Iterator[list[tuple[Any, str]]]:
    """Collects Dynamo's graph breaks inside: the user's innermost frame, if there is one, and the reason."""
    from torch._dynamo.utils import graph_break_reasons

    before, found = len(graph_break_reasons), []
    yield found
    found += [
        (reason.user_stack[-1] if reason.user_stack else None, reason.reason) for reason in graph_break_reasons[before:]
    ]


def paths_of_placeholders(graph: torch.nn.Module) -> list[str | None]:
    """The name in its module of each placeholder of Dynamo's graph that is a parameter or buffer."""
    return [path_in_source(dynamo_source(node)) for node in _inputs_of(graph)]


def used_placeholders(graph: torch.nn.Module) -> list[bool]:
    """Whether each placeholder of Dynamo's graph is used for more than its size, as the part of a wrapper may not be."""
    return [any(user.target is not torch.ops.aten.sym_size.int for user in node.users) for node in _inputs_of(graph)]


def _inputs_of(graph: torch.nn.Module) -> Sequence[torch.fx.Node]:
    return list(graph.graph.find_nodes(op="placeholder")) if isinstance(graph, torch.fx.GraphModule) else ()


def path_in_source(source: str | None) -> str | None:
    """The name of a parameter or buffer that Dynamo reads from a module; `None` for anything else.

    >>> path_in_source("L['self']._modules['layers']._modules['0']._parameters['weight']")
    'layers.0.weight'
    """
    names = re.findall(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", source or "")
    return ".".join(names) if re.search(r"\._(?:parameters|buffers)\['[^']+'\]$", source or "") else None


def dynamo_source(node: torch.fx.Node) -> str | None:
    """Where Dynamo reads the value of a placeholder: `L['x']`, `L['self']._parameters['weight']`."""
    argument = node.meta.get("grapharg")
    return None if argument is None else getattr(argument.source, "name", None)
