"""Every private or unstable name of torch that aotgrad uses, behind a name of our own.

This is the only module that may import such names, so a new torch release is a change to one file. Each entry has a
feature test in `tests/test_torch_compat.py` that fails if the meaning of the name changes. torch 2.11 to 2.15.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import copy
import enum
import functools
import inspect
import logging
import math
import operator
import pickle
import platform
import re
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch
import torch._prims.rng_prims
import torch.fx as fx
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import eager_transforms, pyfunctorch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode, disable_functional_mode
from torch.autograd import forward_ad
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    _MakefxTracer,
    _ProxyTensor,
    _set_make_fx_tracer,
    decompose,
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.fx.proxy import _COPY_META_FIELDS
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _detect_infra_mode

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensor",
    "FunctionalTensorMode",
    "ProxyTorchDispatchMode",
    "PythonKeyTracer",
    "ShapeEnv",
    "TorchDispatchMode",
    "TracingContext",
    "below_autograd",
    "decompose",
    "disable_functional_mode",
    "disable_proxy_modes_tracing",
    "enable_python_dispatcher",
    "fx_traceback",
    "hidden_tracing_modes",
    "tracing",
    "track_tensor_tree",
]

below_autograd = torch._C._AutoDispatchBelowADInplaceOrView
"""Context in which ops skip autograd, view and version tracking: what a compiled graph runs under."""

_free_guards: list[Any] = []


def run_below_autograd(function: Callable[[Any], Any], values: Any) -> Any:
    """`function(values)` in `below_autograd()`: in one that nobody uses now, since it takes long to make one."""
    try:
        guard = _free_guards.pop()
    except IndexError:
        guard = below_autograd()
    with guard:
        result = function(values)
    _free_guards.append(guard)
    return result


disable_autocast = torch._C._DisableAutocast
"""Context in which autocast is off for every device at once."""

unsafe_view = torch.ops.aten._unsafe_view.default
"""`view` of a tensor that nobody else reads: in its memory, though its schema does not say so."""

zero_without_memory = torch.ops.aten._efficientzerotensor.default
"""Makes the zeros that forward mode has for an undefined tangent."""

cast = torch.ops.aten._to_copy.default
"""What `to` is in a graph: a copy with another dtype, device or layout."""

unobserved = torch._C.DisableTorchFunction
"""Context in which no `__torch_function__` runs, of subclasses or modes."""

HISTORY_GETTERS: dict[Callable, str] = {
    torch.Tensor._version.__get__: "._version",
    torch.Tensor._base.__get__: "._base",
    torch.Tensor._is_view: "._is_view()",
}
"""How a function asks a tensor where it comes from, and what it wrote to do so."""

INHERITED_GETTERS = (torch.Tensor.storage_offset, torch.Tensor._version.__get__, torch.Tensor._base.__get__)
"""Those that a view answers from what it is a view of."""

_inference_mode_is_on = torch._C.is_inference_mode_enabled
_flash_attention_is_on = torch._C._get_flash_sdp_enabled
_memory_efficient_attention_is_on = torch._C._get_mem_efficient_sdp_enabled
_math_attention_is_on = torch._C._get_math_sdp_enabled
_cudnn_attention_is_on = torch._C._get_cudnn_sdp_enabled
_function_mode_count = torch._C._len_torch_function_stack
_innermost_transform = torch._C._functorch.peek_interpreter_stack
_key_is_included = torch._C._dispatch_tls_is_dispatch_key_included
"""Global state that is asked for at every call."""

disable_dynamo = torch._dynamo.disable
"""Marks a callable that Dynamo must not trace into."""


run_and_save_rng_state = torch._prims.rng_prims.run_and_save_rng_state
"""`(op, *args) -> (state of the generator before, op(*args))`, an op of graphs; Inductor calls it as it is."""

run_with_rng_state = torch._prims.rng_prims.run_with_rng_state
"""`(state, op, *args) -> op(*args)` with the generator in that state; leaves the generator as it was."""


def new_fake_mode() -> FakeTensorMode:
    """A fake tensor mode with a fresh shape environment; real tensors met inside the function become constants."""
    return FakeTensorMode(shape_env=AskingShapeEnv(), allow_non_fake_inputs=True, static_shapes=True)


class AskingShapeEnv(ShapeEnv):
    """A shape environment that asks somebody else where an answer depends on values.

    `answer` takes an expression in symbols and returns its value, or `None`: then the question is an error.
    """

    answer: Callable[[Any], Any] | None = None

    def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().evaluate_expr(orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            value = None if self.answer is None else self.answer(orig_expr)
            if value is None:
                raise
            return value


@contextlib.contextmanager
def answered_by(mode: FakeTensorMode, answer: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, `answer` is asked what depends on values; not if the shape environment is Dynamo's, which guards it itself."""
    env = mode.shape_env
    if not isinstance(env, AskingShapeEnv):
        yield
        return
    env.answer = answer
    try:
        yield
    finally:
        env.answer = None


def deferred_checks(mode: FakeTensorMode) -> list[Any]:
    """What torch has assumed of values, in `torch._check` and in ops: expressions in symbols, each of them to be true."""
    if not isinstance(mode.shape_env, AskingShapeEnv):
        return []
    return [check.expr for checks in mode.shape_env.deferred_runtime_asserts.values() for check in checks]


def pass_counts(graphs: Iterable[fx.Graph]) -> set[Any]:
    """The symbols of how many results of its passes a loop keeps: one at least, its argument if it makes no pass."""
    loop = torch.ops.higher_order.while_loop_stack_output
    nodes = (node for graph in graphs for node in graph.nodes if node.target is operator.getitem)
    return {node.meta["val"].size(0).node.expr for node in nodes if node.args[0].target is loop}


def holds_of_counts(expression: Any, counts: Iterable[Any]) -> bool:
    """Whether an expression in symbols is true if each of `counts` is one at least."""
    import sympy

    rest = {count: sympy.Symbol(f"rest_of_{count}", integer=True, nonnegative=True) for count in counts}
    return expression.xreplace({count: 1 + symbol for count, symbol in rest.items()}) == sympy.true


def insert_deferred_checks(module: fx.GraphModule) -> None:
    """Let a traced graph check what torch has assumed of values: ops that raise where it does not hold."""
    mode = fake_mode_of(module.graph)
    if mode is not None and deferred_checks(mode):
        insert_deferred_runtime_asserts(module, mode.shape_env, "checks")


class Read(enum.Enum):
    """What an op tells of the values of its arguments."""

    NUMBER = "a number, which may stay symbolic"
    ANSWER = "a Python value"
    SIZES = "the sizes of its results, for which torch has no shape function"


READS_VALUES = {
    torch.ops.aten._local_scalar_dense.default: Read.NUMBER,
    torch.ops.aten.allclose.default: Read.ANSWER,
    torch.ops.aten.equal.default: Read.ANSWER,
    torch.ops.aten.linalg_lstsq.default: Read.SIZES,
    torch.ops.aten._ctc_loss.default: Read.SIZES,
    torch.ops.aten._ctc_loss.Tensor: Read.SIZES,
}
"""Ops whose result depends on values in a way that a graph does not record."""

no_python_dispatcher = torch._C._DisablePythonDispatcher
"""Composite ops use their C++ kernels, inside `symbolic_kernels` too."""


@contextlib.contextmanager
def symbolic_kernels() -> Iterator[None]:
    """Composite ops use their Python kernels, which keep symbolic sizes symbolic and draw random numbers as eager does.

    Two of them return an alias where eager returns none, or the other way round: replaced inside. So are kernels that do not
    write to `out` under a dispatch mode.
    """
    with (
        replaced_kernels(torch.ops.aten.dropout.default, eager_dropout),
        replaced_kernels(torch.ops.aten.matmul.default, eager_matmul),
        replaced_kernels(torch.ops.aten.istft.default, eager_istft),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(given_kernel(torch.ops.aten.ctc_loss.IntList, ctc_loss_of_lists))
        for op, functional in OUT_IS_LOST:
            stack.enter_context(given_kernel(op, functools.partial(written_result, functional)))
        stack.enter_context(enable_python_dispatcher())
        yield


_rank = torch.ops.aten.linalg_matrix_rank

OUT_IS_LOST = (
    (_rank.atol_rtol_float_out, _rank.atol_rtol_float),
    (_rank.atol_rtol_tensor_out, _rank.atol_rtol_tensor),
    (_rank.out, _rank.default),
    (_rank.out_tol_tensor, _rank.tol_tensor),
)
"""Composite ops whose kernels forget `out` under a dispatch mode, and the ops that compute what is to be written there."""


def written_result(functional: Callable, *args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """`out`, which gets the size and the value of what `functional` returns."""
    result = functional(*args, **kwargs)
    if out.size() != result.size():
        out.resize_(result.size())
    return out.copy_(result)


@contextlib.contextmanager
def given_kernel(op: torch._ops.OpOverload, kernel: Callable) -> Iterator[None]:
    """Inside, a composite op that has no Python kernel has `kernel`."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    op.py_kernels[key] = kernel
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        del op.py_kernels[key]
        op._dispatch_cache.clear()


@contextlib.contextmanager
def replaced_kernels(op: torch._ops.OpOverload, kernel: Callable) -> Iterator[None]:
    """Inside, the Python kernels of a composite op are `kernel`, which gets the one that it replaces first."""
    kernels = dict(op.py_kernels)
    replaced = functools.partial(kernel, kernels[torch._C.DispatchKey.CompositeImplicitAutograd])
    op.py_kernels.update(dict.fromkeys(kernels, replaced))
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels.update(kernels)
        op._dispatch_cache.clear()


def ctc_loss_of_lists(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The loss with lengths that are numbers. Torch's own kernel writes them to a tensor that has no memory in a trace."""
    op, key = torch.ops.aten.ctc_loss.IntList, torch._C.DispatchKey.CompositeImplicitAutograd
    kernel = functools.partial(op._op_dk, key, log_probs, targets, input_lengths, target_lengths, blank)
    if reduction != 1 or log_probs.device.type != "cpu":
        return kernel(reduction, zero_infinity)
    losses = kernel(0, zero_infinity)
    return (losses / torch.tensor(target_lengths, dtype=losses.dtype).clamp_min(1)).mean()


def eager_dropout(python_kernel: Callable, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """The input itself if nothing is dropped; the Python kernel gives a clone."""
    return python_kernel(input, p, train) if train and p != 0 else input


def eager_matmul(python_kernel: Callable, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Eager's kernel where sizes are known: the Python kernel gives a view of the product, which is none in eager.

    Of a vector and a matrix eager squeezes the product in place.
    """
    if is_symbolic(one) or is_symbolic(other):
        product = python_kernel(one, other)
        result = torch.ops.aten._unsafe_view(product, product.size()) if product._is_view() else product
        if one.dim() == 1 and other.dim() == 2:
            torch.autograd.graph.increment_version(result)
        return result
    return torch.ops.aten.matmul.default._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, one, other)


def eager_istft(python_kernel: Callable, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Eager's kernel where sizes are known: the gradient through the Python kernel lies otherwise in memory."""
    if is_symbolic(input):
        return python_kernel(input, *args, **kwargs)
    return torch.ops.aten.istft.default._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, input, *args, **kwargs)


FOR_INFERENCE_ONLY = frozenset({torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default})
"""Ops that core ATen's decompositions give another second result, of which their backward would compute nonsense.

The attention weights in place of the logarithms of their sums.
"""


def sequence_nr() -> int:
    """The number that the next autograd node will get."""
    return torch.autograd._get_sequence_nr()


def node_sequence_nr(grad_fn: Any) -> int:
    """The number of an autograd node, equal to `sequence_nr()` just before it was made."""
    return grad_fn._sequence_nr()


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for two live tensors exactly if they share storage."""
    return tensor.untyped_storage()._cdata


def gradient_edge(tensor: torch.Tensor) -> tuple[Any, int]:
    """Where the gradient of a tensor that requires grad arrives: an autograd node and the position of its input."""
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def pop_hooks(tensor: torch.Tensor) -> list[Callable]:
    """The gradient hooks of a tensor, which it has no longer."""
    return _emptied(tensor._backward_hooks)


def was_hooked(tensor: torch.Tensor) -> bool:
    """Whether a further gradient hook goes where a first one is, though the history of the tensor may have changed since."""
    return tensor._backward_hooks is not None


def pop_post_accumulate_hooks(tensor: torch.Tensor) -> list[Callable]:
    """The hooks that run after a leaf got its gradient, which it has no longer."""
    return _emptied(tensor._post_accumulate_grad_hooks)


def _emptied(hooks: dict[int, Callable] | None) -> list[Callable]:
    found = list((hooks or {}).values())
    (hooks or {}).clear()
    return found


def edges_of_running_node() -> tuple[Any, ...]:
    """The autograd nodes that the node whose backward is running passes gradients to; `None` where none is needed."""
    return tuple(function for function, _ in torch._C._current_autograd_node().next_functions)


def hidden_from_dynamo(function: Callable) -> Callable:
    """A function whose frames, and all that are below them, Dynamo leaves alone: it never compiles a part of them.

    It would if somebody calls `autograd.grad` where `torch.compile` has broken a graph. To say so costs a call nothing.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def applied(function: type[torch.autograd.Function]) -> Callable:
    """`function.apply` for calls outside of `torch.func` transforms: it does not look whether one is open."""
    return super(torch.autograd.Function, function).apply


def set_defaults(function: type[torch.autograd.Function], **attributes: Any) -> None:
    """What each `ctx` of a function has that was not set on it: setting an attribute takes as long as a small op's part."""
    for name, value in attributes.items():
        setattr(function._backward_cls, name, value)


def graph_is_retained() -> bool:
    """Inside a backward: whether the graph is kept for another one."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def is_wanted(node: Any) -> bool:
    """Whether the running backward passes a gradient on to `node`."""
    if node is None:
        return False
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # raised for a leaf whose gradient `autograd.grad` captures
        return True


def engine_executes_all_edges() -> bool | None:
    """Whether the running node passes a gradient on along each of its edges; `None` if one ends at a leaf that
    `autograd.grad` wants. To find that out takes an exception, longer than all other questions together.
    """
    executes = torch._C._will_engine_execute_node
    try:
        for node, _ in torch._C._current_autograd_node().next_functions:
            if node is None or not executes(node):
                return False
    except RuntimeError:  # see `is_wanted`
        return None
    return True


PROBES_PER_EXCEPTION = 10
"""So many leaves `leaves_wanted` asks in the time that `is_wanted` takes for one that `autograd.grad` wants."""


def are_wanted(nodes: Sequence[Any]) -> tuple[bool, ...]:
    """`is_wanted` for each node. Its exception is slow: few leaves, and many after two exceptions, are asked otherwise."""
    leaves = [node for node in nodes if hasattr(node, "variable") and has_storage(node.variable)]
    answers: dict[Any, bool] = {}
    if len(leaves) > PROBES_PER_EXCEPTION:
        remaining = iter(leaves)
        exceptions = 0
        while exceptions < 2 and (node := next(remaining, None)) is not None:
            answers[node] = is_wanted(node)
            exceptions += answers[node]
        leaves = list(remaining)
    answers.update(zip(leaves, leaves_wanted(leaves), strict=True))
    return tuple(answers[node] if node in answers else is_wanted(node) for node in nodes)


def leaves_wanted(nodes: Sequence[Any]) -> list[bool]:
    """`is_wanted` for the nodes of leaves: the node of a view passes a gradient on only if the engine wants it.

    The view is the one that is the fastest to differentiate.
    """
    leaves = [node.variable for node in nodes]
    with torch.enable_grad():
        views = [leaf.squeeze(0).grad_fn for leaf in leaves]
    return [view(leaf) is not None for view, leaf in zip(views, leaves, strict=True)]


def random_state(device_types: Sequence[str]) -> Any:
    """The state of the random generators, to run the same random ops again."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if "cuda" in device_types:
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


@contextlib.contextmanager
def random_state_of(state: Any) -> Iterator[None]:
    """Inside, the random generators start from `state`; afterwards they are as before. `None` changes nothing."""
    if state is None:
        yield
        return
    with torch.random.fork_rng(devices=range(len(state.get("cuda", ())))):
        torch.set_rng_state(state["cpu"])
        if "cuda" in state:
            torch.cuda.set_rng_state_all(state["cuda"])
        yield


def device_types_that_draw() -> tuple[str, ...]:
    """Of which devices there may be generators that were used."""
    return ("cuda",) if torch.cuda.is_initialized() else ()


class RandomReplay:
    """Random ops that run in advance: each part starts where the last one ended, and the generators stay as they were."""

    def __init__(self) -> None:
        self.states: list[torch.Tensor] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        generators = (torch.default_generator, *torch.cuda.default_generators)
        before = [generator.get_state() for generator in generators]
        for generator, state in zip(generators, self.states or before, strict=True):
            generator.set_state(state)
        try:
            yield
        finally:
            self.states = [generator.get_state() for generator in generators]
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)


# --- torch.func and forward mode -------------------------------------------------------------------------------------


VMAP_MODE = torch._C._dispatch_key_parse("VmapMode")
"""Set inside the `vmap` that `is_grads_batched=True` makes: an older one than that of `torch.func`."""


def transform_is_open() -> bool:
    """Whether this thread is inside a `torch.func` transform or a batched backward."""
    return _innermost_transform() is not None or _key_is_included(VMAP_MODE)


def older_vmaps() -> int:
    """How many batched backwards are open, one inside the other."""
    nesting = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return nesting


def is_transformed(values: Sequence[Any]) -> bool:
    """Whether a `torch.func` transform is open in this thread, or one of `values` is a dual number."""
    if transform_is_open():
        return True
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in values)


def open_transforms() -> tuple[str, ...]:
    """The transforms that are open: `"older vmap"`, then those of `torch.func`: `"vmap"`, `"grad"`, `"jvp"`, ..."""
    interpreters = torch._C._functorch.get_interpreter_stack() or ()
    return (*["older vmap"] * older_vmaps(), *(interpreter.key().name.lower() for interpreter in interpreters))


def only_forward_mode() -> bool:
    """Whether tangents are propagated and no transform but one `jvp` is open, nor a trace of `make_fx`."""
    in_reach = open_transforms() in ((), ("jvp",)) and get_proxy_mode() is None
    return in_reach and torch._C._is_fwd_grad_enabled()


def jvp_is_open() -> bool:
    """Whether a `jvp` transform is among those that are open."""
    return "jvp" in open_transforms()


def open_vmaps() -> int:
    """How many `vmap`s of `torch.func` are open."""
    return open_transforms().count("vmap")


def forward_mode_is_open() -> bool:
    """Whether this thread is inside a forward-mode level, or a `jvp`, which opens one."""
    return forward_ad._current_level >= 0


def forward_mode_level() -> contextlib.AbstractContextManager:
    """A forward-mode level: the open one, as torch has no second one, or else a new one."""
    return contextlib.nullcontext() if forward_ad._current_level >= 0 else forward_ad.dual_level()


@dataclass(frozen=True)
class Dual:
    """A value and its tangent, `None` if it has none."""

    primal: Any
    tangent: torch.Tensor | None


def unpack_dual(value: Any) -> Dual:
    """A dual number taken apart, below an open `jvp` transform if there is one."""
    if not isinstance(value, torch.Tensor):
        return Dual(value, None)
    primal, tangent = forward_ad.unpack_dual(value)
    if tangent is None:
        return Dual(below_jvp(value), None)
    return Dual(below_jvp(primal), below_jvp(tangent))


def below_jvp(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a `jvp` transform wraps; symbolic zeros become real ones."""
    if torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return torch.zeros_like(tensor, memory_format=torch.preserve_format) if tensor._is_zerotensor() else tensor


def pack_dual(dual: Dual, level: int | None) -> Any:
    """A dual number for the `jvp` transform `level`, or for the open forward-mode level if that is `None`."""
    values = [dual.primal, dual.tangent]
    if level is not None:
        values = [torch._C._functorch._wrap_for_grad(v, level) if isinstance(v, torch.Tensor) else v for v in values]
    primal, tangent = values
    return primal if tangent is None else forward_ad.make_dual(primal, tangent)


@dataclass(frozen=True)
class Vmap:
    """An open `vmap`; `is_older`: that of a batched backward."""

    level: int
    is_older: bool

    def unwrap(self, tensor: torch.Tensor) -> torch.Tensor:
        """A wrapped tensor as it is outside, with the batch as its first dimension."""
        if self.is_older:
            return torch._remove_batch_dim(tensor, self.level, 0, 0)
        return torch._C._functorch.get_unwrapped(tensor).movedim(torch._C._functorch.maybe_get_bdim(tensor), 0)

    def wrap(self, tensor: torch.Tensor) -> torch.Tensor:
        """The inverse."""
        add = torch._add_batch_dim if self.is_older else torch._C._functorch._add_batch_dim
        return add(tensor, 0, self.level)


def is_batched(value: Any) -> bool:
    """Whether a `vmap` has wrapped a tensor."""
    functorch = torch._C._functorch
    return isinstance(value, torch.Tensor) and (
        functorch.is_batchedtensor(value) or functorch.is_legacy_batchedtensor(value)
    )


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for zeros without holding them, as an undefined tangent of forward mode does."""
    return tensor._is_zerotensor()


def is_wrapped(value: Any) -> bool:
    """Whether a transform has wrapped a tensor."""
    return is_batched(value) or (isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value))


def only_transforms(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether `vmap`, `grad` and `jvp` of `torch.func` are all that looks at the ops of a call with these arguments."""
    kinds = open_transforms()
    return bool(
        kinds
        and {"vmap", "grad", "jvp"}.issuperset(kinds)
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._get_tracing_state() is None
        and (not torch._C._len_torch_function_stack() or all(map(only_places_tensors, function_modes())))
        and {FunctionalTensor, FakeTensor}.isdisjoint(type(innermost(tensor)) for tensor in tensors)
    )


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that transforms have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_tracked(tensor: torch.Tensor) -> bool:
    """Whether a tensor requires grad, in itself or at the level of a `grad` that has wrapped it."""
    while not tensor.requires_grad and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def below_gradient(tensors: Sequence[torch.Tensor], wanted: Sequence[int]) -> list[torch.Tensor]:
    """The tensors of a backward as they are outside of the transform that it is the backward of; `wanted` are its ends."""
    functorch = torch._C._functorch
    ends = [functorch.maybe_get_level(tensors[k]) for k in wanted if functorch.is_gradtrackingtensor(tensors[k])]

    def is_inside(tensor: torch.Tensor) -> bool:
        return functorch.is_gradtrackingtensor(tensor) and functorch.maybe_get_level(tensor) in ends

    return [functorch.get_unwrapped(tensor) if is_inside(tensor) else tensor for tensor in tensors]


def edge_of(tensor: torch.Tensor) -> Any:
    """Where the gradient of a tensor enters its graph, which keeps the graph alive and not the tensor."""
    return torch.autograd.graph.get_gradient_edge(tensor) if tensor.requires_grad else None


def is_differentiated(value: Any) -> bool:
    """Whether a value is a tensor that a transform has wrapped, or a dual one."""
    if not isinstance(value, torch.Tensor) or is_wrapped(value):
        return isinstance(value, torch.Tensor)
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None


def gradients_inside(
    function: Callable[..., Sequence[torch.Tensor]], primals: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """What `torch.func.vjp` gives, but `None` where it makes zeros for a gradient that there is not."""
    functorch = torch._C._functorch
    with eager_transforms.grad_increment_nesting() as level, torch.enable_grad():
        wrapped = [functorch._wrap_for_grad(primal, level) for primal in primals]
        eager_transforms._create_differentiable(wrapped, level)
        results = zip(function(*wrapped), cotangents, strict=True)
        pairs = [(result, cotangent) for result, cotangent in results if result.requires_grad]
        if not pairs:
            return [None] * len(primals)
        outputs, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, wrapped, given, allow_unused=True, create_graph=True)
        return [None if g is None else functorch._unwrap_for_grad(g, level) for g in found]


def is_custom_node(node: Any) -> bool:
    """Whether an autograd node is that of an `autograd.Function`."""
    return getattr(node, "_forward_cls", None) is not None


def is_refused_by_transforms(node: Any) -> bool:
    """Whether an autograd node is that of an `autograd.Function` whose forward takes `ctx`."""
    function = getattr(node, "_forward_cls", None)
    return function is not None and function.setup_context is torch.autograd.Function.setup_context


def only_vmap(values: Sequence[Any]) -> Vmap | None:
    """The open `vmap`, if it is the only transform and no other one has wrapped one of `values`; else `None`."""
    if not all(is_batched(value) or not is_wrapped(value) for value in values):
        return None
    match open_transforms():
        case ("vmap",):
            return Vmap(torch._C._functorch.maybe_current_level(), is_older=False)
        case ("older vmap",):
            return Vmap(1, is_older=True)
        case _:
            return None


@contextlib.contextmanager
def outside_transforms() -> Iterator[int | None]:
    """Leave every transform for a moment; gives the level of the innermost one of `torch.func`, if there is any."""
    innermost, nesting = torch._C._functorch.maybe_current_level(), older_vmaps()
    with pyfunctorch.temporarily_clear_interpreter_stack():
        for _ in range(nesting):
            torch._C._vmapmode_decrement_nesting()
        try:
            yield innermost
        finally:
            for _ in range(nesting):
                torch._C._vmapmode_increment_nesting()


def sharing_version(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`tensor` with the version counter of `other`, if the two are the same memory: a write to one is seen at the other."""
    if tensor is other or tensor.dtype != other.dtype or storage_key(tensor) != storage_key(other):
        return tensor
    alias = strided_alias(other, tensor.size(), tensor.stride(), tensor.storage_offset())
    alias = torch._conj(alias) if alias.is_conj() != tensor.is_conj() else alias
    return torch._neg_view(alias) if alias.is_neg() != tensor.is_neg() else alias


def strided_alias(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """Other elements of the storage of a tensor, detached, with the same version counter."""
    version = version_of(tensor)
    alias = tensor.detach().as_strided_(size, stride, offset)
    raise_version(tensor, version, 0)
    return alias


def version_of(tensor: torch.Tensor) -> int | None:
    """The version counter, or `None` for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The version counters of tensors that have one."""
    return list(map(_version_getter, tensors))


_version_getter = torch.Tensor._version.__get__


def raise_version(tensor: torch.Tensor, version: int | None, bumps: int) -> None:
    """Make the version counter `version + bumps`, as if that many in-place ops had run since."""
    if version is not None:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version + bumps,))


CONJUGATE = torch.ops.aten._conj.default
NEGATE = torch.ops.aten._neg_view.default
"""Views that say "the conjugate" or "the negative" of their base, without computing it."""


def share_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one version counter: raises it for a moment."""
    version, before = one._version, other._version
    raise_version(one, version, 1)
    shared = other._version != before
    raise_version(one, version, 0)
    return shared


def flat_alias(tensor: torch.Tensor, start: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """`nbytes` of the storage of a tensor, from its byte `start`, as a flat tensor that autograd knows nothing of."""
    storage = tensor.untyped_storage()[start : start + nbytes]
    with torch.no_grad(), normal_mode():
        return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage)


def saves_a_value(node: Any, saved: Sequence[torch.Tensor] = ()) -> bool:
    """Whether a node of torch's own saved a tensor, so that it runs only once unless the graph is retained.

    `saved` are those of its tensors that are known. A custom function raises in a second backward only if it asks for what
    it saved.
    """
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    return bool(saved) or any(map(functools.partial(_holds_a_tensor, node), _saved_attributes(type(node))))


@functools.lru_cache(maxsize=4096)
def _saved_attributes(kind: type) -> tuple[str, ...]:
    """The attributes under which nodes of one kind show what they saved: asked for once, not for every node."""
    return tuple(name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_"))


def _holds_a_tensor(node: Any, name: str) -> bool:
    try:
        value = getattr(node, name)
    except RuntimeError:  # it was changed in place, or freed
        return True
    return any(each is not None for each in (value if isinstance(value, (list, tuple)) else (value,)))


def saved_tensors(node: Any) -> list[torch.Tensor]:
    """The strided tensors that a node of torch's own saved, without those that were changed in place since."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return []
    found = []
    for name in _saved_attributes(type(node)):
        with contextlib.suppress(RuntimeError):
            found += [each for each in pytree.tree_leaves(getattr(node, name)) if has_storage(each)]
    return found


def has_storage(value: Any) -> bool:
    """Whether a value is a strided tensor."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def raise_second_backward() -> None:
    """Raise what autograd raises in a second backward through a graph that is not retained."""
    with torch.enable_grad():
        y = torch.ones(1, requires_grad=True).exp()
    torch.autograd.grad(y, y.grad_fn.next_functions[0][0].variable)
    y.grad_fn._saved_result  # noqa: B018


def some_saved_tensors(ctx: Any, positions: Sequence[int]) -> list[torch.Tensor]:
    """Some of the tensors that a custom node saved, none of which is its own output. `ctx.saved_tensors` unpacks all.

    Raises:
        RuntimeError: eager's, if one of them was changed in place since, or freed.
    """
    saved = ctx._raw_saved_tensors if positions else ()
    return [saved[position].unpack() for position in positions]


def unpack_hook(ctx: Any, position: int) -> Callable[[], torch.Tensor] | None:
    """What makes a saved tensor that a saved-tensor hook has packed, or `None` if none has."""
    saved = ctx._raw_saved_tensors[position]
    return None if saved.unpack_hook is None else functools.partial(saved.unpack_hook, saved.data)


def release_saved_tensors(ctx: Any) -> None:
    """Let go of a node's saved tensors now rather than after its backward, unless the graph is retained."""
    if hasattr(ctx, "maybe_clear_saved_tensors"):
        ctx.maybe_clear_saved_tensors()


@contextlib.contextmanager
def hidden_saved_tensor_hooks() -> Iterator[None]:
    """Inside, the caller's saved-tensor hooks do not see what is saved."""
    hidden = []
    while (hooks := torch._C._autograd._top_saved_tensors_default_hooks(False)) is not None:
        hidden.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hidden):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


class EffectTokens(dict):
    """The tokens that effectful ops thread through a graph to keep their order; each is made when it is first needed."""

    def __init__(self, make_token: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self._make_token = make_token

    def __contains__(self, effect: object) -> bool:
        return True

    def __missing__(self, effect: Any) -> torch.Tensor:
        self[effect] = self._make_token()
        return self[effect]


WRITES_TO_EXPANDED = frozenset(
    {
        *(torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default),
        *(torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default, torch.ops.aten.fill_diagonal_.default),
        *(torch.ops.aten.index_fill_.int_Scalar, torch.ops.aten.index_fill_.int_Tensor),
        *(torch.ops.aten.masked_fill_.Scalar, torch.ops.aten.masked_fill_.Tensor),
        *(torch.ops.aten.tril_.default, torch.ops.aten.triu_.default),
    }
)
"""The ops that may change an expanded tensor in eager; the others raise."""

SEVERAL_IN_ONE_PLACE = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
"""Eager's message."""


def refuse_unrecordable_write(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise for a write to a tensor that is not traced, or to one of which several elements are the same memory.

    And for `normal_()` of a tensor with gaps: its out-of-place form fills a dense one, in another order (torch, on CPUs).
    """
    for value in written_arguments(op, args, kwargs):
        if not isinstance(value, FunctionalTensor):
            raise RuntimeError("mutating a non-functional tensor")
        if value.layout is not torch.strided:
            raise RuntimeError("mutating a sparse tensor")
        if is_expanded(value):
            raise RuntimeError("writing through an expanded tensor" if op in WRITES_TO_EXPANDED else SEVERAL_IN_ONE_PLACE)
        if op is torch.ops.aten.normal_.default and value.is_cpu and not is_symbolic(value) and not is_dense(value):
            raise RuntimeError("normal_ of a tensor with gaps")
        refuse_overlapping_operands(op, value, args)


def refuse_overlapping_operands(op: torch._ops.OpOverload, written: torch.Tensor, args: Sequence[Any]) -> None:
    """Raise eager's error for an operand that shares memory with the tensor written to."""
    if torch.Tag.pointwise in op.tags or op is torch.ops.aten.copy_.default:
        collides = partly_overlap
    elif op in NEVER_FROM_ITSELF:
        collides = share_elements
    else:
        return
    operands = [
        other for other in pytree.tree_leaves(args[1:]) if isinstance(other, torch.Tensor) and not is_symbolic(other)
    ]
    if not is_symbolic(written) and any(collides(written, other) for other in operands):
        raise RuntimeError(OVERLAPPING)


NEVER_FROM_ITSELF = frozenset(
    overload
    for name in (
        *("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "index_reduce_"),
        *("scatter_", "scatter_add_", "scatter_reduce_", "put_", "addr_"),
    )
    for packet in [getattr(torch.ops.aten, name)]
    for overload in map(packet.__getattr__, packet.overloads())
)
"""In-place ops that refuse an operand with any of the memory that they write to; pointwise ones take the same tensor."""


PROMOTING = frozenset(
    overload
    for name in ("add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_")
    for packet in [getattr(torch.ops.aten, name)]
    for overload in map(packet.__getattr__, packet.overloads())
)
"""In-place ops whose out-of-place form may have a dtype that eager does not cast back."""

SMALLEST_OF_KIND = {bool: torch.bool, int: torch.uint8, float: torch.float16, complex: torch.complex32}
"""Which dtype a number promotes to at least."""


def refuse_lossy_cast(op: torch._ops.OpOverload, args: Sequence[Any]) -> None:
    """Raise eager's error for an in-place op whose result has a dtype of a higher kind than the tensor written to."""
    if op not in PROMOTING:
        return
    dtypes = [arg.dtype if isinstance(arg, torch.Tensor) else SMALLEST_OF_KIND.get(type(arg), torch.bool) for arg in args]
    result = functools.reduce(torch.promote_types, dtypes)
    if not torch.can_cast(result, args[0].dtype):
        raise RuntimeError(f"result type {result} can't be cast to the desired output type {args[0].dtype}")


PRODUCTS = frozenset(
    {
        *(torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.mv.default, torch.ops.aten.dot.default),
        *(torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default, torch.ops.aten.addmv.default),
    }
)


def refuse_mixed_products(op: torch._ops.OpOverload, args: Sequence[Any]) -> None:
    """Raise eager's error for a product of different dtypes, which is found by its kernel only."""
    if op in PRODUCTS and args[-1].dtype != args[-2].dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {args[-2].dtype} != {args[-1].dtype}")


def refuse_empty_dimension(op: torch._ops.OpOverload, args: Sequence[Any]) -> None:
    """Raise eager's error for a maximum over no elements, or an index into none: its kernels find that, if they run."""
    if op in EXTREMA and is_known_empty(args[0], args[1]):
        raise IndexError(f"{op.overloadpacket.__name__}(): Expected reduction dim {args[1]} to have non-zero size.")
    if op is torch.ops.aten.index_select.default and is_known_empty(args[0], args[1]) and args[2].numel():
        raise RuntimeError("index_select(): self indexing axis dim should be positive")
    if op is torch.ops.aten.index.Tensor and any(map(functools.partial(misses, args[0], args[1]), range(len(args[1])))):
        raise IndexError("index is out of bounds for dimension with size 0")


def misses(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], dim: int) -> bool:
    """Whether there is nothing at what the numbers `indices[dim]` stand for; a mask may stand for several dimensions."""
    if any(index is not None and not index.dtype.is_signed for index in indices):
        return False
    return indices[dim] is not None and is_known_empty(tensor, dim) and indices[dim].numel() > 0


EXTREMA = frozenset({torch.ops.aten.max.dim, torch.ops.aten.min.dim})


def is_known_empty(tensor: torch.Tensor, dim: int) -> bool:
    """Whether a size of a tensor is 0 for certain."""
    return tensor.dim() > 0 and known_equal([tensor.size(dim)], [0])


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several elements are the same memory, by a stride of 0; an empty tensor has none."""
    steps, sizes = strides(tensor), tensor.size()
    return 0 in steps and 0 not in sizes and any(step == 0 and size > 1 for size, step in zip(sizes, steps, strict=True))


OVERLAPPING = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
"""Eager's message."""


def partly_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors share memory, but not element by element: what eager refuses in a pointwise write."""
    return share_elements(one, other) and (byte_range(one) != byte_range(other) or one.stride() != other.stride())


def memory_key(tensor: torch.Tensor) -> int:
    """`storage_key` of a tensor, or of the value of a functional one: an alias of an argument may be another wrapper."""
    return storage_key(from_functional(tensor) if isinstance(tensor, FunctionalTensor) else tensor)


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors have elements in common."""
    if 0 in (one.numel(), other.numel()) or memory_key(one) != memory_key(other):
        return False
    if not (is_dense(one) and is_dense(other)):
        return False
    (start, end), (other_start, other_end) = byte_range(one), byte_range(other)
    return start < other_end and other_start < end


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie next to each other, in any order of the dimensions."""
    return tensor.layout is torch.strided and is_dense_layout(tensor.size(), tensor.stride())


def is_dense_layout(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def byte_range(dense: torch.Tensor) -> tuple[int, int]:
    start = dense.storage_offset() * dense.element_size()
    return start, start + dense.numel() * dense.element_size()


def refuse_stale_views(args: Sequence[Any]) -> None:
    """Raise if a view is used with grad mode on that autograd would give a wrong history."""
    if torch.is_grad_enabled():
        for value in pytree.tree_leaves(args):
            if isinstance(value, FunctionalTensor) and is_stale_view(value):
                raise RuntimeError("use of a view of a tensor whose metadata was changed")


def made_under_no_grad(view: torch.Tensor) -> bool:
    """Whether autograd notes of a view that it was made with grad mode off."""
    return torch._C._autograd._get_creation_meta(view) == torch._C._autograd.CreationMeta.NO_GRAD_MODE


def is_forbidden_after_a_write(tensor: torch.Tensor) -> bool:
    """Whether autograd lets nobody use a view once its base is changed: one made under `no_grad`, or with other views."""
    meta = torch._C._autograd.CreationMeta
    if not is_differentiable_view(tensor):
        return False
    return torch._C._autograd._get_creation_meta(tensor) in (meta.NO_GRAD_MODE, meta.MULTI_OUTPUT_NODE)


def has_usable_history(tensor: torch.Tensor) -> bool:
    """Whether autograd tells the history of a tensor: not of a view made under `no_grad`, or with others, once changed."""
    if not is_forbidden_after_a_write(tensor):
        return True
    try:
        _ = tensor.grad_fn
    except RuntimeError:
        return False
    return True


def is_differentiable_view(tensor: torch.Tensor) -> bool:
    """Whether a tensor that requires grad is a view."""
    return tensor.requires_grad and tensor._base is not None


def is_hooked_view(tensor: torch.Tensor) -> bool:
    """Whether a view that requires grad has, or had, a hook: one that a write to it leaves at the old history."""
    return is_differentiable_view(tensor) and was_hooked(tensor)


def is_view_of_leaf(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses in-place ops on a tensor because it is a view of a leaf that requires grad."""
    return is_differentiable_view(tensor) and tensor._base.requires_grad and tensor._base.is_leaf


def is_stale_view(tensor: torch.Tensor) -> bool:
    """Whether a view is older than the last change of its base's size or stride (`t_`, `unsqueeze_`, ...).

    Autograd then replays it on the new geometry, and in eager on the old one.
    """
    if not is_differentiable_view(tensor):
        return False
    changes, own = recorded_views(tensor._base), recorded_views(tensor)
    return len(own) < len(changes) or any(change is not view for change, view in zip(changes, own, strict=False))


@functools.lru_cache(maxsize=4096)
def is_view_op(target: Any) -> bool:
    """Whether an op returns an alias of its first argument and writes nothing."""
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.arguments:
        return False
    first = target._schema.arguments[0].alias_info
    returned = [result.alias_info for result in target._schema.returns]
    return first is not None and not first.is_write and any(info is not None for info in returned)


def storage_node(node: Any) -> Any:
    """The node whose result a view lies in."""
    while getattr(node, "op", None) == "call_function":
        parent = node.args[0] if node.target is operator.getitem else node
        if not is_view_op(parent.target):
            break
        node = parent.args[0]
    return node


_PROXY_KEY = torch._C._TorchDispatchModeKey.PROXY


class OpKind(enum.Enum):
    """What an ordinary op, which writes nothing, does with memory: all of its results are new, or are views."""

    PURE = enum.auto()
    VIEW = enum.auto()


_aten = torch.ops.aten

ORDINARY_VIEWS = frozenset(
    {
        *(_aten.alias.default, _aten.as_strided.default, _aten.detach.default, _aten.diagonal.default, _aten.expand.default),
        *(_aten.permute.default, _aten.select.int, _aten.slice.Tensor, _aten.split.Tensor, _aten.split_with_sizes.default),
        *(_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.t.default, _aten.transpose.int),
        *(_aten.unbind.int, _aten.unfold.default, _aten.unsqueeze.default, _aten.view.default, unsafe_view),
    }
)

_KEEPS_GEOMETRY = frozenset({_aten.as_strided.default})
"""Views that the functional mode looks at."""

_UNUSUAL_TAGS = (
    *(torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view),
    torch.Tag.needs_exact_strides,
)

_UNUSUAL = frozenset(
    {
        *(_aten.lift.default, _aten.lift_fresh.default, _aten.lift_fresh_copy.default, zero_without_memory),
        *READS_VALUES,
    }
)


@functools.lru_cache(maxsize=8192)
def kind_of_op(op: Any) -> OpKind | None:
    """`None` for an op that is no ordinary one: it writes, depends on data, is composite, is a user's own, ..."""
    if op in ORDINARY_VIEWS:
        return OpKind.VIEW
    if type(op) is not torch._ops.OpOverload or op.namespace not in ("aten", "prims") or op in _UNUSUAL:
        return None
    schema = op._schema
    aliases = any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))
    if schema.is_mutable or aliases or _is_composite(op) or any(tag in op.tags for tag in _UNUSUAL_TAGS):
        return None
    returned = [str(each.type) for each in schema.returns]
    return OpKind.PURE if returned and set(returned) <= {"Tensor", "Tensor[]", "List[Tensor]"} else None


def _is_composite(op: torch._ops.OpOverload) -> bool:
    """Whether an op is made of others, or (`aten::size`) one of TorchScript only."""
    key, name = torch._C.DispatchKey.CompositeImplicitAutograd, op.name()
    if key in op.py_kernels or not torch._C._dispatch_has_kernel(name):
        return True
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


class Metadata:
    """What a fake without symbols is, memory aside. Equal ones are mostly the same object; none is equal to another one."""

    __slots__ = ("described", "device", "dtype", "size", "stride")

    def __init__(self, fake: FakeTensor) -> None:
        self.size, self.stride, self.dtype = fake.size(), fake.stride(), fake.dtype
        self.device = fake.fake_device
        self.described = _extract_tensor_metadata(fake)


_MOST_METADATA = 50_000
_metadata: dict[tuple, Metadata] = {}


def metadata_of(value: Any) -> Metadata | None:
    """The metadata of a fake, `None` if there is something unusual about it."""
    if type(value) is not FakeTensor or value.layout is not torch.strided or value._has_symbolic_sizes_strides:
        return None
    if value.is_conj() or value.is_neg() or value._is_zerotensor() or value.is_quantized or value.requires_grad:
        return None
    if value.constant is not None or value.is_inference() or value.real_tensor is not None:
        return None
    key = (value.dtype, value.fake_device, value.size(), value.stride(), value.storage_offset())
    found = _metadata.get(key)
    if found is None:
        if len(_metadata) >= _MOST_METADATA:
            _metadata.clear()
        found = _metadata[key] = Metadata(value)
    return found


def metadata_of_new(value: Any) -> Metadata | None:
    """The metadata of a fake that has exactly the memory which `new_fake` gives it, or else `None`."""
    metadata = metadata_of(value)
    if metadata is None or value.storage_offset() != 0:
        return None
    return metadata if value.untyped_storage().nbytes() == _bytes_spanned(value) else None


def new_fake(mode: FakeTensorMode, metadata: Metadata) -> FakeTensor:
    """A fake with memory of its own."""
    return _new_fake(mode, metadata.size, metadata.stride, metadata.dtype, metadata.device)


def _new_fake(mode: FakeTensorMode, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> FakeTensor:
    with torch._C._DisableTorchDispatch(), torch._C._DisablePythonDispatcher():
        return FakeTensor(mode, torch.empty_strided(size, stride, dtype=dtype, device="meta"), device)


def is_whole_storage(value: Any) -> bool:
    """Whether a value is an ordinary real tensor that is no view and has all of its storage."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or not has_storage(value) or value.device.type == "meta":
        return False
    if value._base is not None or value.is_conj() or value.is_neg() or value._is_zerotensor() or value.is_inference():
        return False
    if value.is_nested or value.is_quantized or value.is_mkldnn or is_wrapped(value) or torch._is_functional_tensor(value):
        return False
    return value.storage_offset() == 0 and value.untyped_storage().nbytes() == _bytes_spanned(value)


def _bytes_spanned(tensor: torch.Tensor) -> int:
    """How much memory `empty_strided` allocates for the geometry of a tensor."""
    if 0 in tensor.size():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def fake_of_whole(mode: FakeTensorMode, tensor: torch.Tensor) -> FakeTensor:
    """A detached fake of a tensor that `is_whole_storage`."""
    return _new_fake(mode, tensor.size(), tensor.stride(), tensor.dtype, tensor.device)


def view_of_fake(mode: FakeTensorMode, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What one of `ORDINARY_VIEWS` gives for a fake of `mode`."""
    with torch._C._DisablePythonDispatcher(), in_kernel_invocation_manager(mode):
        views = op(*args, **kwargs)
    device = args[0].fake_device
    if isinstance(views, torch.Tensor):
        return FakeTensor(mode, views, device)
    return type(views)(FakeTensor(mode, view, device) for view in views)


class TrackedTensor:
    """A fake and the node that computes it; `slot` is what torch's recorder keeps of it, made when that asks for it."""

    __slots__ = ("_metadata", "node", "slot", "value")

    def __init__(self, value: torch.Tensor, node: fx.Node, slot: Any = None) -> None:
        self.value, self.node, self.slot = value, node, slot
        self._metadata: Any = NotImplemented

    @property
    def constant(self) -> torch.Tensor | None:
        return None if self.slot is None else self.slot.constant

    @property
    def metadata(self) -> Metadata | None:
        found = self._metadata
        if found is NotImplemented:
            found = self._metadata = metadata_of(self.value)
        return found


class TensorTracker:
    """Which node computes which fake. Torch's recorder uses it as a mapping of tensors to proxies."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._tracked: dict[int, TrackedTensor] = {}  # by identity; an entry keeps its tensor

    def entry(self, value: torch.Tensor) -> TrackedTensor | None:
        return self._tracked.get(id(value))

    def add(self, value: torch.Tensor, node: fx.Node) -> TrackedTensor:
        tracked = self._tracked[id(value)] = TrackedTensor(value, node)
        return tracked

    def settled_value(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake behind a functional tensor, after writes to its memory."""
        _settle_with(self, tensor)
        return torch._from_functional_tensor(tensor.elem)

    def get(self, tensor: torch.Tensor, default: Any = None) -> Any:
        tracked = self._tracked.get(id(tensor))
        if tracked is None:
            return default
        if tracked.slot is None:
            tracked.slot = _ProxyTensor(fx.Proxy(tracked.node, self._tracer), None)
        return tracked.slot

    def __getitem__(self, tensor: torch.Tensor) -> Any:
        if id(tensor) not in self._tracked:
            raise KeyError(tensor)
        return self.get(tensor)

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._tracked

    def __setitem__(self, tensor: torch.Tensor, proxy: Any) -> None:
        self._tracked[id(tensor)] = TrackedTensor(tensor, proxy.proxy.node, proxy)


def _settle(mode: FunctionalTensorMode, tensor: torch.Tensor) -> None:
    """Make a view again whose base was written to; its nodes say what those of the first view say."""
    _settle_with(mode._below.tracer.tensor_tracker, tensor)


def _settle_with(tracker: TensorTracker, tensor: torch.Tensor) -> None:
    if not torch._functionalize_has_data_mutation(tensor.elem):
        return
    tracked = tracker.entry(torch._from_functional_tensor(tensor.elem))
    with contextlib.nullcontext() if tracked is None else _made_again(tracked.node):
        torch._sync(tensor)


_device_of = torch.ops.prim.device.default
"""What asks a wrapped tensor for its device, which happens each time that a functional one is made."""


def _is_outside_of_kernels(value: Any) -> bool:
    """Whether a value is a fake that says which device it stands for; while its kernels run, it is on the meta device."""
    return type(value) is FakeTensor and not value.fake_mode.in_kernel_invocation


_made_again = getattr(fx_traceback, "set_current_replay_node", contextlib.nullcontext)
_node_made_again = getattr(fx_traceback, "get_current_replay_node", lambda: None)


def copy_current_meta(meta: dict[str, Any], op: Any) -> None:
    """Give a new node for `op` what every node gets that is made now: what the interpreter of a graph says, say."""
    current = fx_traceback.current_meta
    for field in _COPY_META_FIELDS if current else ():
        if field in current:
            meta[field] = copy.copy(current[field])
    if current.get("stack_trace"):
        meta["stack_trace"] = current["stack_trace"]
    if (first := _node_made_again()) is not None:
        meta["is_functional_regenerated"] = True
        meta.update({field: first.meta[field] for field in ("custom", "stack_trace") if field in first.meta})
    meta["original_aten"] = _op_taken_apart() or op


def _op_taken_apart() -> Any:
    """The op whose decomposition is being recorded, the outermost one."""
    found = proxy_tensor.ORIGINAL_ATEN
    return found.get() if isinstance(found, contextvars.ContextVar) else found


def proxy_mode(tracer: PythonKeyTracer, record: Callable[..., Any]) -> ProxyTorchDispatchMode:
    """The mode that records ops on fakes; asks `record(op, args, kwargs)` first, which may give `NotImplemented`."""
    mode = ProxyTorchDispatchMode(tracer, "symbolic")

    def dispatch(mode: Any, op: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is _device_of and _is_outside_of_kernels(args[0]):
            return args[0].fake_device
        if not mode.emulate_precision_casts:
            with torch._C.DisableTorchFunction():
                result = record(op, args, kwargs or {})
            if result is not NotImplemented:
                return result
        return ProxyTorchDispatchMode.__torch_dispatch__(mode, op, classes, args, kwargs)

    mode.__torch_dispatch__ = types.MethodType(dispatch, mode)  # on the instance, as below
    return mode


def name_of_node(graph: fx.Graph, op: Any) -> str:
    """What the node of an op is called, before a number makes it unique."""
    return graph._target_to_str(op.overloadpacket.__name__)


def inner_values(values: Any) -> Any:
    """Arguments with the fakes behind functional tensors, which no pending write reaches."""
    return pytree.tree_map_only(FunctionalTensor, lambda tensor: torch._from_functional_tensor(tensor.elem), values)


def functional_mode(
    make_token: Callable[[], torch.Tensor],
    reads: ReadsValues | None = None,
    below: ProxyTorchDispatchMode | None = None,
    record: Callable[..., Any] | None = None,
) -> FunctionalTensorMode:
    """The mode that records functionally.

    `make_token` gives a tracked tensor for effectful ops, `reads` answers those that ask for values. `record(op, args,
    kwargs, check)` gives the fake results of others, or `NotImplemented` for one that has to go through the mode `below`; it
    is asked while that mode is on. By default, all have to.
    """
    mode = FunctionalTensorMode()
    mode._reads = reads
    mode._tokens = EffectTokens(make_token)
    mode._geometry, mode._pieces = AbsoluteGeometry(), UnsafePieces()
    mode._below, mode._record, mode._has_reshaped = below, record, False
    # On the instance: higher-order ops look their rules up by the exact type of the mode.
    mode.__torch_dispatch__ = types.MethodType(guarded_dispatch, mode)
    return mode


class ReadsValues(Protocol):
    """Knows what ops that read values return."""

    def wants(self, op: Any, args: tuple) -> bool:
        """Whether `result` says what an op returns."""
        ...

    def result(self, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any: ...


class AbsoluteGeometry:
    """Which storages of a trace `as_strided` was used on, and which were written to. Not both, unless it does not matter.

    After a write, the graph has a new contiguous value in place of the old one, which may have had gaps or an offset.
    """

    STRIDED = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_.default)
    ALIGNED = (torch.ops.aten.view_as_complex.default, torch.ops.aten.view.dtype)

    def __init__(self) -> None:
        self.asked_for_offsets = self.makes_arguments = False
        self.strided: dict[int, torch.UntypedStorage] = {}
        self.written: dict[int, torch.UntypedStorage] = {}

    def check(self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise where an op would use geometry that the graph does not keep; note one that asks for storage offsets."""
        says_where = op in self.STRIDED and len(args) > 3 and args[3] is not None  # it may have asked the tensor
        self.asked_for_offsets |= op in self.ALIGNED or (says_where and not self.makes_arguments)
        if op is torch.ops.aten.view_as_complex.default and args[0].storage_offset() % 2:  # where it lies in eager
            raise RuntimeError("Tensor must have a storage_offset divisible by 2")
        if op in self.STRIDED and isinstance(args[0], FunctionalTensor):
            if not is_plain(args[0]):
                self.note(args[0], self.strided, self.written)
        elif op._schema.is_mutable and torch.Tag.inplace_view not in op.tags:
            for value in written_arguments(op, args, kwargs):
                if isinstance(value, FunctionalTensor):
                    self.note(value, self.written, self.strided)

    def note(self, value: torch.Tensor, own: dict, other: dict) -> None:
        storage = value.untyped_storage()
        if storage._cdata in other:
            raise RuntimeError("as_strided and a write to the same memory")
        own[storage._cdata] = storage


class UnsafePieces:
    """Storages of a trace that are the same memory in eager: what `unsafe_split` takes apart, and the pieces.

    For functionalization the pieces are copies. So after a write to one of the two, the other may not be used.
    """

    SPLITS = (torch.ops.aten.unsafe_split.Tensor, torch.ops.aten.unsafe_split_with_sizes.default)

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.whole_of: dict[int, int] = {}
        self.stale: set[int] = set()

    def add(self, whole: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
        for piece in pieces:
            self.whole_of[storage_id(piece)] = storage_id(whole)
            self.storages.update((storage_id(tensor), tensor.untyped_storage()) for tensor in (whole, piece))

    def write(self, tensor: torch.Tensor) -> None:
        """The wholes that a written tensor is a piece of do not know of it, nor do its own pieces."""
        key = storage_id(tensor)
        self.stale.update(self.wholes(key))
        self.stale.update(piece for piece in self.whole_of if key in self.wholes(piece))

    def wholes(self, key: int) -> Iterator[int]:
        while (key := self.whole_of.get(key)) is not None:
            yield key

    def check(self, values: Sequence[Any]) -> None:
        """Raise for a tensor that would be used without the write that reached its memory in eager."""
        if self.stale and any(isinstance(v, FunctionalTensor) and storage_key(v) in self.stale for v in values):
            raise RuntimeError("unsafe_split and a write to the same memory")

    def note(self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An op has run."""
        if op in self.SPLITS:
            self.add(args[0], result)
        elif self.storages and op._schema.is_mutable:
            for tensor in written_arguments(op, args, kwargs):
                if tensor.layout is torch.strided:
                    self.write(tensor)


def check_pieces(mode: FunctionalTensorMode, values: Sequence[Any]) -> None:
    """Raise for a tensor whose memory was changed through a piece that `unsafe_split` made, or the other way round."""
    mode._pieces.check(values)


def asked_for_offsets(mode: FunctionalTensorMode) -> bool:
    """Whether an op ran in a `functional_mode` that depends on where in its storage a tensor starts."""
    return mode._geometry.asked_for_offsets


@contextlib.contextmanager
def making_arguments(mode: FunctionalTensorMode) -> Iterator[None]:
    """Views that are made inside lie where the calling convention says, whatever the offsets of a call are."""
    mode._geometry.makes_arguments = True
    try:
        yield
    finally:
        mode._geometry.makes_arguments = False


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a functional tensor is contiguous from the first element of its storage on, and no view."""
    return known_contiguous(tensor) and not recorded_views(tensor) and known_equal([tensor.storage_offset()], [0])


def written_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an op writes to, in lists too."""
    named = {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)} | dict(kwargs)
    for argument in op._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            values = pytree.tree_leaves(named.get(argument.name))
            yield from (value for value in values if isinstance(value, torch.Tensor))


ANOTHER_STORAGE = "a tensor is given another storage"

REPLACES_STORAGE = {
    torch.ops.aten.set_.default: ANOTHER_STORAGE,
    torch.ops.aten.set_.source_Storage: ANOTHER_STORAGE,
    torch.ops.aten.set_.source_Storage_storage_offset: ANOTHER_STORAGE,
    torch.ops.aten.set_.source_Tensor: ANOTHER_STORAGE,
    torch.ops.aten.set_.source_Tensor_storage_offset: ANOTHER_STORAGE,
}
"""Ops that functionalization cannot record, and what to say of them."""


WITHOUT_FUNCTIONAL_FORM = {torch.ops.aten.polygamma_.default: torch.ops.aten.polygamma.default}
"""In-place ops `(x, n)` that functionalization takes for custom ones, and what computes `(n, x)` out of place."""


class RefusedAssignments(TorchFunctionMode):
    """Refuses `x.data = y`: a traced tensor would not be what it was given."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function == torch.Tensor.data.__set__:
            raise RuntimeError(ANOTHER_STORAGE)
        return function(*args, **(kwargs or {}))


OUT_OF_PLACE = {
    torch.Tensor.squeeze_: torch.Tensor.squeeze,
    torch.Tensor.swapaxes_: torch.Tensor.swapaxes,
    torch.Tensor.swapdims_: torch.Tensor.swapdims,
    torch.Tensor.t_: torch.Tensor.t,
    torch.Tensor.transpose_: torch.Tensor.transpose,
    torch.Tensor.unsqueeze_: torch.Tensor.unsqueeze,
}
"""Changes of a size or stride in place, and the views that show the same."""

RESHAPES = {*OUT_OF_PLACE, torch.Tensor.as_strided_, torch.as_strided_}


VIEW_OF_LEAF = "a view of a leaf Variable that requires grad is being used in an in-place operation."
"""Eager's message."""


class ReshapedViews(TorchFunctionMode):
    """A view whose size or stride is changed in place becomes the view that shows the same, also for autograd.

    Autograd makes the history of such a view anew. In eager it does so from where the view lies by then; of a traced tensor
    it knows only how the view was made. `arguments` are left as they are; `of_leaves` are views of leaves outside.
    """

    def __init__(self, arguments: Sequence[Any], of_leaves: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.arguments = {id(argument) for argument in arguments}
        self.of_leaves = {id(argument) for argument in of_leaves}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in RESHAPES and id(args[0]._base) in self.of_leaves and torch.is_grad_enabled():
            raise RuntimeError(VIEW_OF_LEAF)
        if function in OUT_OF_PLACE and id(args[0]) not in self.arguments and may_be_swapped(args[0]):
            with torch.enable_grad():
                swap_tensors(args[0], OUT_OF_PLACE[function](*args, **(kwargs or {})))
            torch.autograd.graph.increment_version(args[0])
            return args[0]
        return function(*args, **(kwargs or {}))


def may_be_swapped(tensor: Any) -> bool:
    """Whether a tensor is a traced view that autograd lets be changed in place."""
    if not isinstance(tensor, FunctionalTensor) or tensor.is_inference() or tensor._base is None:
        return False
    is_refused = torch.is_grad_enabled() and is_view_of_leaf(tensor)
    return not (is_refused or is_forbidden_after_a_write(tensor) or tensor._backward_hooks)


def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange what two tensor objects are. What autograd has saved of them stays what it was."""
    torch._C._swap_tensor_impl(one, other)
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__


COMPUTED_BEFORE_WRITTEN = {
    torch.ops.aten._native_batch_norm_legit.out: torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten.linalg_lstsq.out: torch.ops.aten.linalg_lstsq.default,
    torch.ops.aten.nonzero.out: torch.ops.aten.nonzero.default,
}
"""Ops that write to `out` as many elements as values say, or to a wrong one, and the ops that compute those."""


def computed_and_written(mode: FunctionalTensorMode, op: Any, classes: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What an op of `COMPUTED_BEFORE_WRITTEN` returns: `out`, with the sizes and values of what another op computes."""
    names = [argument.name for argument in op._schema.arguments if argument.is_out]
    others = {name: value for name, value in kwargs.items() if name not in names}
    results = guarded_dispatch(mode, COMPUTED_BEFORE_WRITTEN[op], classes, args, others)
    outs = [kwargs[name] for name in names]
    for out, result in zip(outs, results if isinstance(results, (tuple, list)) else [results], strict=True):
        if any(have != wanted for have, wanted in zip(out.size(), result.size(), strict=False)) or out.dim() != result.dim():
            guarded_dispatch(mode, torch.ops.aten.resize_.default, classes, (out, result.size()))
        guarded_dispatch(mode, torch.ops.aten.copy_.default, classes, (out, result))
    return outs[0] if len(outs) == 1 else tuple(outs)


def guarded_dispatch(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Functionalization, with several things of eager's that it lacks.

    A write to a tensor that the function closed over, or to a view of one, is refused: it would happen once, while tracing.
    What is computed from such tensors alone is functional too. A write does not change how a tensor is laid out. A view of a
    normal tensor is a normal tensor, in inference mode too. A view keeps the geometry of its base that it was made from, or
    is refused. So is what depends on the geometry of a value that the graph lays out anew: `as_strided`, and a write to the
    same memory. And another storage for a tensor. An `expand` to the same size is a plain view: through an `expand`, a write
    is recorded as a sum of the old value and the difference, which rounds.
    """
    if isinstance(op, torch._ops.OpOverload):
        if op is _device_of and _is_outside_of_kernels(args[0]):
            return args[0].fake_device
        if op is torch.ops.aten.expand.default and expands_nothing(*args):
            op, args = torch.ops.aten.view.default, (args[0], sizes_of_view(*args))
        if (result := _recorded_at_once(mode, op, args, kwargs or {})) is not NotImplemented:
            return result
        if op in REPLACES_STORAGE:
            raise RuntimeError(REPLACES_STORAGE[op])
        if op in COMPUTED_BEFORE_WRITTEN:
            return computed_and_written(mode, op, classes, args, kwargs or {})
        if op is torch.ops.aten.resize_as_.default:
            op, args = torch.ops.aten.resize_.default, (args[0], args[1].size())
        mode._has_reshaped |= torch.Tag.inplace_view in op.tags
        with torch._C.DisableTorchFunction():  # what is asked here is not what the user's function asks
            refuse_stale_views(args)
            refuse_mixed_products(op, args)
            refuse_empty_dimension(op, args)
            mode._pieces.check(args)
            mode._geometry.check(op, args, kwargs or {})
            if mode._reads is not None and op in READS_VALUES:
                # of what the function closed over, too: another call reads it again
                args = pytree.tree_map_only(torch.Tensor, functools.partial(_traced, mode), args)
                if mode._reads.wants(op, args):
                    wrap = functools.partial(wrapped_result, mode)
                    return pytree.tree_map_only(FakeTensor, wrap, mode._reads.result(op, args, kwargs or {}))
        if op._schema.is_mutable and torch.Tag.inplace_view not in op.tags:
            refuse_unrecordable_write(op, args, kwargs or {})
            refuse_lossy_cast(op, args)
            with kept_layouts(written_arguments(op, args, kwargs or {})):
                if op in WITHOUT_FUNCTIONAL_FORM:
                    value = _functional_result(mode, WITHOUT_FUNCTIONAL_FORM[op], classes, (args[1], args[0]), kwargs)
                    op, args, kwargs = torch.ops.aten.copy_.default, (args[0], value), {}
                if op is torch.ops.aten.uniform_.default and not is_symbolic(args[0]) and not is_dense(args[0]):
                    value = _drawn_densely(mode, classes, args, kwargs)
                    op, args, kwargs = torch.ops.aten.copy_.default, (args[0], value), {}
                if is_foreach(op):
                    return _foreach_in_place(mode, op, classes, args, kwargs or {})
                return _functional_result(mode, op, classes, args, kwargs)
        elif torch.is_inference_mode_enabled() and is_view_op(op):
            with normal_mode():
                return FunctionalTensorMode.__torch_dispatch__(mode, op, classes, args, kwargs)
    return _functional_result(mode, op, classes, args, kwargs)


def _drawn_densely(mode: FunctionalTensorMode, classes: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """What `uniform_` writes to a tensor with gaps. Of such a one, torch's shape function gives the strides that its kernel
    does not give."""
    dense = _functional_result(mode, torch.ops.aten.clone.default, classes, (args[0],), {})
    return _functional_result(mode, torch.ops.aten.uniform.default, classes, (dense, *args[1:]), kwargs)


def is_foreach(op: torch._ops.OpOverload) -> bool:
    """Whether an op does the same to each tensor of a list."""
    return op._schema.name.startswith("aten::_foreach_")


ENTANGLED_LIST = "a list of tensors that share memory is changed in place"


def _foreach_in_place(
    mode: FunctionalTensorMode, op: torch._ops.OpOverload, classes: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """A write to each tensor of a list, in order: later ones see writes to memory that they share with earlier ones.

    The kernels raise the versions, as nothing above them does. Where autograd records, such memory is refused: of one node
    for the whole list, eager's gradients know nothing of the order.
    """
    apart = _are_apart(args)
    if not apart and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in args[0]):
        raise RuntimeError(ENTANGLED_LIST)
    calls = [args] if apart else [_at(args, k) for k in range(len(args[0]))]
    for call in calls:
        _functional_result(mode, op, classes, call, kwargs)
        torch.autograd.graph.increment_version(call[0])


def _are_apart(lists: Sequence[Any]) -> bool:
    """Whether no tensor of the first list shares memory with one elsewhere in it, or at another place in another list."""
    memory = [list(map(memory_key, values)) for values in lists if is_list_of_tensors(values)]
    places: dict[int, set[int]] = {}
    for row in memory:
        for place, key in enumerate(row):
            places.setdefault(key, set()).add(place)
    return all(len(places[key]) == 1 for key in memory[0])


def _at(args: Sequence[Any], place: int) -> list[Any]:
    """The arguments of a foreach op for one place of the lists, and of a tensor of numbers that stands for a list."""
    several = (list, tuple)
    numbers = [isinstance(arg, torch.Tensor) and arg.dim() == 1 for arg in args]
    return [
        arg[place : place + 1] if is_packed or isinstance(arg, several) else arg
        for arg, is_packed in zip(args, numbers, strict=True)
    ]


def is_list_of_tensors(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, torch.Tensor) for value in values)


def expands_nothing(tensor: torch.Tensor, size: Sequence[Any], *, implicit: bool = False) -> bool:
    """Whether `expand` repeats no element: the sizes are the same, but for new dimensions of size 1.

    Symbolic sizes are compared with a guard, as `expand` does by itself.
    """
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    pairs = zip(sizes_of_view(tensor, size), _with_ones(tensor, len(size)), strict=True)
    return isinstance(tensor, FunctionalTensor) and all(guard_or_false(new == old) for new, old in pairs)


def sizes_of_view(tensor: torch.Tensor, size: Sequence[Any]) -> list[Any]:
    """What `expand` to `size` makes, with the sizes that it leaves in place of -1."""
    pairs = zip(size, _with_ones(tensor, len(size)), strict=True)
    return [old if isinstance(new, int) and new == -1 else new for new, old in pairs]


def _with_ones(tensor: torch.Tensor, dims: int) -> list[Any]:
    return [*(1,) * (dims - tensor.dim()), *tensor.size()]


def _functional_result(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Any) -> Any:
    """What functionalization makes of an op; what it computes of constants alone is wrapped, too."""
    result = FunctionalTensorMode.__torch_dispatch__(mode, op, classes, args, kwargs)
    if isinstance(op, torch._ops.OpOverload):
        with torch._C.DisableTorchFunction():
            mode._pieces.note(op, args, kwargs or {}, result)
            refuse_differentiable_rows(args, result)
    return result if is_view_op(op) else pytree.tree_map_only(FakeTensor, functools.partial(wrapped_result, mode), result)


def _traced(mode: FunctionalTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is in the graph: the tensor itself, or a copy of a real one."""
    if isinstance(tensor, FunctionalTensor):
        return tensor
    return _functional_result(mode, torch.ops.aten.clone.default, (), (tensor,), {})


def _recorded_at_once(mode: FunctionalTensorMode, op: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What `guarded_dispatch` gives, for most ops that neither write nor are refused; `NotImplemented` for others.

    Results are wrapped as by functionalization, which does nothing else with an op that neither writes nor views.
    """
    kind = kind_of_op(op)
    if kind is None or mode._below is None or mode._has_reshaped or _inference_mode_is_on():
        return NotImplemented
    if torch._C._get_dispatch_mode(_PROXY_KEY) is not mode._below:  # the body of a higher-order op is traced elsewhere
        return NotImplemented

    def check() -> None:
        refuse_mixed_products(op, args)
        refuse_empty_dimension(op, args)

    with torch._C.DisableTorchFunction():
        mode._pieces.check(args)
        if kind is OpKind.VIEW:
            return NotImplemented if op in _KEEPS_GEOMETRY else _functional_view(mode, op, args, kwargs)
        result = mode._record(op, args, kwargs, check)
        if isinstance(result, FakeTensor):
            refuse_differentiable_rows(args, result)
            return wrapped_result(mode, result)
        if result is NotImplemented:
            return result
        parts = type(result)(wrapped_result(mode, part) if isinstance(part, FakeTensor) else part for part in result)
        mode._pieces.note(op, args, kwargs, parts)
        return parts


def _functional_view(mode: FunctionalTensorMode, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A view of a functional tensor, or several; records how to make it again."""
    source = args[0]
    if type(source) is not FunctionalTensor:
        return NotImplemented
    if op is torch.ops.aten.view.default:
        refuse_view_across_gaps(source, args[1])
    _settle(mode, source)
    functionalize = torch._C.DispatchKey.Functionalize
    included = torch._C._dispatch_tls_local_include_set() | torch._C.DispatchKeySet(functionalize)
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(functionalize) - FunctionalTensor._extra_dispatch_keys
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        before = torch._functionalize_enable_reapply_views(True)
        try:
            views = op._op_dk(functionalize, source.elem, *args[1:], **kwargs)
        finally:
            torch._disable_functionalization()
            torch._functionalize_enable_reapply_views(before)
    if isinstance(views, torch.Tensor):
        return _with_storage_of(source, FunctionalTensor(views, mode), op)
    return type(views)(_with_storage_of(source, FunctionalTensor(view, mode), op) for view in views)


def refuse_view_across_gaps(tensor: torch.Tensor, size: Sequence[Any]) -> None:
    """Raise eager's error for a tensor that cannot be viewed so, also where a write has laid its value out without gaps."""
    from torch.utils._python_dispatch import _disable_current_modes

    if is_symbolic(tensor) or tensor.is_contiguous() or any(isinstance(number, torch.SymInt) for number in size):
        return
    with _disable_current_modes():
        torch.empty_strided(tensor.size(), tensor.stride(), device="meta").view(size)


def _with_storage_of(source: torch.Tensor, view: torch.Tensor, op: Any) -> torch.Tensor:
    if op is not unsafe_view:
        torch._functionalize_unsafe_set(view, source)
    return view


COMPRESSED_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def refuse_differentiable_rows(args: Sequence[Any], result: Any) -> None:
    """Raise if autograd is about to give a history to the functional wrapper of such a layout: it aborts the process."""
    if not isinstance(result, torch.Tensor) or result.layout not in COMPRESSED_LAYOUTS or not torch.is_grad_enabled():
        return
    if any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        raise RuntimeError("layout_impl is only implemented for other layouts of what requires grad")


def wrapped_result(mode: FunctionalTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """A functional wrapper around a new value, below autograd."""
    return FunctionalTensor(torch._to_functional_tensor(fake), mode)


@contextlib.contextmanager
def kept_layouts(written: Iterable[torch.Tensor]) -> Iterator[None]:
    """Lay transposed tensors out as they were, after a write inside: the out-of-place form of many ops is contiguous."""
    functional = (tensor for tensor in written if isinstance(tensor, FunctionalTensor))
    before = [(tensor, tensor.stride()) for tensor in functional if is_in_another_order(tensor)]
    yield
    for tensor, stride in before:
        value = from_functional(tensor)
        if not known_equal(value.stride(), stride) and is_dense_layout(hints(tensor.size()), hints(stride)):
            with disable_functional_mode():
                torch._functionalize_replace(tensor.elem, contiguous_in_order(value, stride))
                torch._functionalize_commit_update(tensor.elem)
                torch._functionalize_sync(tensor.elem)


def is_in_another_order(tensor: torch.Tensor) -> bool:
    """Whether a traced tensor is not contiguous; one of which a size depends on data counts as contiguous."""
    if not is_symbolic(tensor):
        return not tensor.is_contiguous()
    numbers = (*tensor.size(), *tensor.stride())
    have_hints = all(number.node.has_hint() for number in numbers if isinstance(number, torch.SymInt))
    return have_hints and not known_contiguous(tensor)


PHASE = "in the complex case are specified up to multiplication by e^{i phi}. The specified loss function depends on this"
CHECKED = {"LinalgSvdBackward0": f"svd_backward: The singular vectors {PHASE} phase term, making it ill-defined."}
"""Autograd nodes that compare values with `allclose` and raise where they differ, and what."""

CHECKED_EIGENVECTORS = {
    "LinalgEigBackward0": f"linalg_eig_backward: The eigenvectors {PHASE} quantity, so it is ill-defined.",
    "LinalgEighBackward0": f"linalg_eigh_backward: The eigenvectors {PHASE} quantity, so it is ill-defined.",
}
"""Those that do not compare while they are traced."""


def check_of_running_node(op: Any) -> str | None:
    """What eager raises if an op that compares is false in the backward that runs; `None` if it does not check there."""
    if op is not torch.ops.aten.allclose.default or torch.is_grad_enabled():
        return None
    node = torch._C._current_autograd_node()
    return None if node is None else CHECKED.get(node.name())


def assert_close(message: str, one: torch.Tensor, other: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Raise where `torch.allclose` is false, when the graph runs that this is traced into. (`isclose` writes in place.)"""
    close = (one == other) | ((one - other).abs() <= atol + rtol * other.abs())
    torch.ops.aten._assert_async.msg(close.all(), message)


def check_eigenvectors(node: Any, gradient: torch.Tensor) -> None:
    """What an autograd node of `CHECKED_EIGENVECTORS` checks of the gradient of its eigenvectors."""
    vectors = node._saved_eigenvectors
    phase = (vectors.conj() * gradient).sum(-2).imag
    assert_close(CHECKED_EIGENVECTORS[node.name()], phase, torch.zeros_like(phase), 1e-2, 1e-2)


def keep_check(node: Any) -> Any:
    """Let an autograd node check as in eager while it is traced; the handle of the hook, `None` where none is needed."""
    if node.name() not in CHECKED_EIGENVECTORS:
        return None

    def hook(gradients: tuple) -> None:
        if gradients[1] is not None and gradients[1].is_complex():
            with torch.no_grad():
                check_eigenvectors(node, gradients[1])

    return node.register_prehook(hook)


LAID_OUT_AS = {"OrmqrBackward0": "_saved_self"}
"""Autograd nodes whose first gradient lies in memory as a saved tensor does, though not if it is computed functionally."""


def keep_gradient_layout(node: Any) -> Any:
    """Lay the first gradient of an autograd node out as eager does; the handle of the hook, `None` where none is needed."""
    if node.name() not in LAID_OUT_AS:
        return None
    stride = getattr(node, LAID_OUT_AS[node.name()]).stride()

    def hook(gradients: tuple, _: tuple) -> tuple:
        first = gradients[0]
        return (first if first is None else contiguous_in_order(first, stride), *gradients[1:])

    return node.register_hook(hook)


def contiguous_in_order(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy with the dense strides `stride`."""
    order = sorted(range(tensor.dim()), key=lambda dim: -hints(stride)[dim])
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


@contextlib.contextmanager
def normal_mode() -> Iterator[None]:
    """Inside, an inference mode is only a `no_grad`: tensors that are made have version counters."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor that is the same memory."""
    with torch.inference_mode():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor)


def has_registered_effect(target: Any) -> bool:
    """Whether somebody has registered an effect of a custom op, which may happen at any time."""
    from torch._higher_order_ops.effects import has_effects

    return isinstance(target, torch._ops.OpOverload) and target.namespace not in _BUILT_IN_NAMESPACES and has_effects(target)


_BUILT_IN_NAMESPACES = frozenset({"aten", "prims", "prim"})


def is_effect_wrapper(target: Any) -> bool:
    return target is torch.ops.higher_order.with_effects


def to_functional(fake: torch.Tensor) -> torch.Tensor:
    """A functional wrapper around a tracked fake tensor; needs the functional mode to be active."""
    return FunctionalTensor.to_functional(fake)


def same_functional(tensor: torch.Tensor) -> torch.Tensor:
    """Another functional wrapper of the same value: a write to one is a write to both; to autograd they are unrelated."""
    mode = _detect_infra_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)
    return FunctionalTensor(tensor.elem, mode)


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The fake tensor that holds the current value of a functional one, after pending mutations."""
    torch._sync(tensor)
    return tensor.from_functional()


def with_recorded_views(tensor: torch.Tensor, base: torch.Tensor, skipped: int = 0) -> torch.Tensor:
    """`base`, viewed as the functional tensor `tensor` views the base of its storage, but for the first `skipped` views."""
    from torch._C import _functionalization

    return _functionalization.apply_view_meta_sequence(base, recorded_views(tensor)[skipped:])


def recorded_views(tensor: torch.Tensor) -> list[Any]:
    """The views that lead from the base of a functional tensor's storage to it; each is the same object in all of them."""
    from torch._C import _functionalization

    return _functionalization.get_view_meta_sequence(tensor.elem)


def proxy_node(value: Any, tracer: Any) -> fx.Node | None:
    """The graph node of a tracked fake tensor or symbolic number, or `None` if the tracer never saw it."""
    slot = get_proxy_slot(value, tracer, None)
    if slot is None:
        return None
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        slot = slot.force() if hasattr(slot, "force") else slot
        return slot.node
    return slot.proxy.node


def is_constant(value: Any, tracer: Any) -> bool:
    """Whether a traced tensor has a value while tracing, as one of a few elements has that no input leads to."""
    slot = get_proxy_slot(value, tracer, None)
    return value.constant is not None or (slot is not None and slot.constant is not None)


def forget_constant(value: Any, tracer: Any) -> None:
    """Let a fake tensor have no value: what it is computed from may have another one later."""
    value.constant = None
    slot = get_proxy_slot(value, tracer, None)
    if slot is not None:
        slot.constant = None


def erase_with_name(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a node so that a later one may have its name."""
    graph.erase_node(node)
    graph._graph_namespace._used_names.discard(node.name)


@contextlib.contextmanager
def hidden_tracing_modes() -> Iterator[None]:
    """Leave the proxy and functional modes for a moment: what runs inside is not recorded."""
    with disable_functional_mode(), disable_proxy_modes_tracing():
        yield


def dynamic_fake(mode: FakeTensorMode, tensor: torch.Tensor, dims: Collection[int], index: int) -> FakeTensor:
    """A fake of `tensor` whose sizes at `dims` are symbolic, except 0 and 1, which stay specialised."""
    kinds = [DimDynamic.DYNAMIC if dim in dims else DimDynamic.STATIC for dim in range(tensor.dim())]
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    return mode.from_tensor(tensor, static_shapes=False, symbolic_context=context, source=argument_source(index))


def symbolic_inputs(mode: FakeTensorMode, values: Sequence[Any]) -> list[Any]:
    """Fakes whose sizes are symbolic, and symbols for integers. Equal numbers are one symbol; 0 and 1 are none."""
    return [_symbolic_input(mode, index, value) for index, value in enumerate(values)]


def _symbolic_input(mode: FakeTensorMode, index: int, value: Any) -> Any:
    """See `symbolic_inputs`."""
    source = argument_source(index)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * value.dim())
        return mode.from_tensor(value, static_shapes=False, symbolic_context=context, source=source)
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value, static_shapes=True)
    if type(value) is not int:
        return value
    symbol = mode.shape_env.create_symbol(value, source, DimDynamic.DUCK)
    return mode.shape_env.create_symintnode(symbol, hint=value, source=source)


def dims_marked_dynamic(tensor: torch.Tensor) -> frozenset[int]:
    """The sizes that `torch._dynamo.mark_dynamic` (or `maybe_mark_dynamic`) was called for."""
    marked = (getattr(tensor, name, ()) for name in ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"))
    return frozenset(dim for dims in marked for dim in dims)


def detached_fake(fake: FakeTensor) -> FakeTensor:
    """`fake.detach()` that still knows which symbolic number its `item()` is."""
    if type(fake) is FakeTensor and fake.layout is torch.strided and getattr(fake, "item_memo", None) is None:
        return view_of_fake(fake.fake_mode, torch.ops.aten.detach.default, (fake,), {})
    detached = fake.detach()
    if getattr(fake, "item_memo", None) is not None:
        detached.item_memo = fake.item_memo
    return detached


def known_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of (symbolic) numbers are equal for certain; asks without adding a guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return len(left) == len(right) and all(statically_known_true(a == b) for a, b in zip(left, right, strict=True))


def known_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a traced tensor is contiguous for certain; asks without adding a guard."""
    expected: list[Any] = [1]
    for size in reversed(tensor.size()[1:]):
        expected.append(expected[-1] * size)
    return known_equal(tensor.stride(), expected[::-1][: tensor.dim()])


def hints(numbers: Sequence[Any]) -> tuple[int, ...]:
    """The values that symbolic numbers had while tracing; asks without adding a guard."""
    return tuple(number.node.hint if isinstance(number, torch.SymInt) else int(number) for number in numbers)


def guard_count(value: torch.Tensor) -> int:
    """How many symbolic guards the trace that `value` belongs to has gathered."""
    return guards_of_mode(value.fake_mode)


def guards_of_mode(mode: FakeTensorMode) -> int:
    """How many symbolic guards the traces of a mode have gathered."""
    return 0 if mode.shape_env is None else len(mode.shape_env.guards)


def argument_source(index: int) -> Any:
    """The name under which the shape environment knows argument `index`."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(f"argument_{index}")


def tracing_context() -> TracingContext | None:
    """The context that Dynamo opened around a backend call."""
    return TracingContext.try_get()


def dynamo_symbolic_context(context: TracingContext | None, tensor: torch.Tensor) -> Any:
    """How Dynamo made `tensor` fake, so that the same symbols are used again."""
    return context.tensor_to_context.get(tensor) if context is not None else None


class ShapeGuards:
    """The symbolic guards of a trace, evaluated on real tensors. `text` is their source: `t0` is tensor 0."""

    def __init__(self, conditions: Sequence[str], count: int) -> None:
        from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

        self.conditions = [re.sub(r"L\['(t\d+)'\]", r"\1", condition) for condition in conditions]
        self.text = " and ".join(f"({condition})" for condition in self.conditions)  # one may be an `or` of two
        self.holds = eval(f"lambda {', '.join(f't{k}' for k in range(count))}: {self.text}", dict(SYMPY_INTERP))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        return self.holds(*tensors)


def shape_guards(fakes: Sequence[FakeTensor]) -> ShapeGuards | None:
    """The symbolic guards of the trace of `fakes`, or `None` if it has none."""
    from torch._dynamo.source import LocalSource

    sources = [LocalSource(f"t{k}") for k in range(len(fakes))]
    guards = fakes[0].fake_mode.shape_env.produce_guards(fakes, sources, ignore_static=False)
    return ShapeGuards(guards, len(fakes)) if guards else None


class TensorGuard:
    """Dtype, device, layout, sizes, strides, requires_grad, dispatch keys and number of tensors, in one C++ call.

    The keys are those that an op would see: inside a dispatch mode, a `torch.func` transform, `torch.jit.trace` or inference
    mode they are others. Symbolic sizes and strides of the fakes are not compared. Tensors without strides (sparse) are
    compared in Python; without any, `is_one_call`. `fastest` is `check`, or what `make_check` makes of tensors, sizes and
    strides, which takes a sequence; `argument` is how the tensors are given to it.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], fakes: Sequence[FakeTensor], make_check: Callable[..., Any] | None = None
    ) -> None:
        from torch._C._dynamo.guards import TensorGuards

        self.count, self.fakes = len(tensors), fakes
        self.flags = [_flags(tensor) for tensor in tensors]
        self.sparse = tuple((k, _sparse_key(t)) for k, t in enumerate(tensors) if t.layout is not torch.strided)
        self.strided = tuple(k for k, t in enumerate(tensors) if t.layout is torch.strided)
        sizes = [[_static(size) for size in fakes[k].size()] for k in self.strided]
        steps = [[_static(step) for step in fakes[k].stride()] for k in self.strided]
        chosen = [tensors[k] for k in self.strided]
        self.guards = TensorGuards(*chosen, dynamic_dims_sizes=sizes, dynamic_dims_strides=steps) if chosen else None
        self.is_one_call = self.guards is not None and not self.sparse
        self.check = self.guards.check if self.guards and self.is_one_call else self.check_mixed
        ours = make_check(chosen, sizes, steps) if make_check and self.is_one_call else None
        self.fastest, self.argument = (ours, "tensors") if ours else (self.check, "*tensors")

    def check_mixed(self, *tensors: torch.Tensor) -> bool:
        if any(_sparse_key(tensors[k]) != key for k, key in self.sparse) or len(set(map(id, tensors))) != len(tensors):
            return False
        return self.guards is None or self.guards.check(*(tensors[k] for k in self.strided))

    def __call__(self, *tensors: torch.Tensor) -> bool:
        return len(tensors) == self.count and self.check(*tensors)

    def failure(self, tensors: Sequence[torch.Tensor]) -> str:
        """Which tensor differs, and in what; empty if none does."""
        if len(tensors) != self.count:
            return f"{len(tensors)} distinct tensors in place of {self.count}"
        if self(*tensors):
            return ""
        if self.guards is None or self.check_strided(tensors):
            return "a sparse tensor differs"
        names = [f"tensor argument {k}" for k in self.strided]
        return str(self.guards.check_verbose(*(tensors[k] for k in self.strided), tensor_check_names=names))

    def lines(self) -> Iterator[str]:
        """What is checked of each tensor."""
        for k, (fake, flags) in enumerate(zip(self.fakes, self.flags, strict=True)):
            layout = f"strides {tuple(fake.stride())}" if fake.layout is torch.strided else str(fake.layout)
            yield " ".join([f"tensor {k}: {fake.dtype} {tuple(fake.shape)} {layout} {fake.device}", *flags])

    def check_strided(self, tensors: Sequence[torch.Tensor]) -> bool:
        return self.guards is None or self.guards.check(*(tensors[k] for k in self.strided))


def _flags(tensor: torch.Tensor) -> list[str]:
    """What is special about a tensor, in words."""
    special = {
        type(tensor).__name__: type(tensor) is not torch.Tensor,
        "requires_grad": tensor.requires_grad,
        "conjugate": tensor.is_conj(),
        "negative": tensor.is_neg(),
    }
    return [name for name, holds in special.items() if holds]


def _static(size: Any) -> int | None:
    """The number itself, also of a symbol that the trace has fixed; `None` if it is still symbolic."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


def _sparse_key(tensor: torch.Tensor) -> tuple:
    flags = (tensor.requires_grad, tensor.dtype, tensor.device, tensor.layout)
    return (type(tensor), tuple(tensor.shape), *flags, tensor.layout is torch.sparse_coo and tensor.is_coalesced())


class DictVersions:
    """Whether none of some dictionaries was changed since this was made, in one C++ call."""

    def __init__(self, tables: Sequence[dict]) -> None:
        from torch._C._dynamo.guards import RootGuardManager
        from torch._dynamo.guards import GuardManagerType

        self.tables, self.native = list(tables), RootGuardManager()
        for k, table in enumerate(self.tables):
            name = f"tables[{k}]"
            manager = self.native.list_getitem_manager(k, name, table, GuardManagerType.GUARD_MANAGER)
            _add_dict_version_guard(manager, table, [name])

    def hold(self) -> bool:
        return self.native.check(self.tables)


def _add_dict_version_guard(manager: Any, table: dict, text: list[str]) -> None:
    """Newer versions of torch take the place in the user's code too."""
    try:
        manager.add_dict_version_guard(table, text, None)
    except TypeError:
        manager.add_dict_version_guard(table, text)


class GlobalState:
    """The global state that a trace depends on, as it is now; `check()` says whether it is that again.

    Grad mode, inference mode, autocast of every device, default dtype and device, determinism, attention kernels, ...
    """

    def __init__(self) -> None:
        from torch._C._dynamo.guards import GlobalStateGuard

        self.native = GlobalStateGuard()
        self.flags = self.read_flags()
        self.text = self.describe()

    def check(self) -> bool:
        return self.native.check() and self.read_flags() == self.flags

    def conditions(self, global_flags: Callable[[], int] | None) -> tuple[dict[str, Any], list[str]]:
        """`check` as conditions, and the names in them; `global_flags` asks for all flags in one call, see `read_flags`.

        It gives a bit for each, and one more if there is a function mode.
        """
        *flags, devices = self.flags
        if global_flags is None or devices:
            return {"state_holds": self.check}, ["state_holds()"]
        bits = sum(flag << k for k, flag in enumerate(flags))
        return {"native_state": self.native.check, "flags": global_flags}, ["native_state()", f"flags() == {bits}"]

    def in_plain_calls(self, global_flags: Callable[[], int] | None) -> tuple[dict[str, Any], list[str]]:
        """The same, false also where forward-mode gradients or a function mode watch the call.

        With the keys that `TensorGuard` compares, that is all that `ops_are_observed` looks at.
        """
        names, conditions = self.conditions(global_flags)
        if self.flags[-1]:
            return names, ["False"]
        return {**names, "forward_mode": forward_ad}, [*conditions, "forward_mode._current_level < 0"]

    @staticmethod
    def read_flags() -> tuple:
        """What the native guard leaves out."""
        return (
            _inference_mode_is_on(),
            _flash_attention_is_on(),
            _memory_efficient_attention_is_on(),
            _math_attention_is_on(),
            _cudnn_attention_is_on(),
            _function_mode_count() and default_devices(),
        )

    @staticmethod
    def describe() -> str:
        """The current state in words, as far as people change it."""
        modes = ["grad" if torch.is_grad_enabled() else "no grad"]
        modes += ["inference"] if torch.is_inference_mode_enabled() else []
        modes += ["autocast"] if any_autocast_enabled() else []
        modes += ["deterministic"] if torch.are_deterministic_algorithms_enabled() else []
        return ", ".join([*modes, f"default dtype {torch.get_default_dtype()}", *default_devices()])

    def reason(self) -> str:
        """What differs; empty if nothing does."""
        native = [] if self.native.check() else [str(self.native.reason()).strip()]
        names = ("inference mode", *(f"{kernel} attention" for kernel in ("flash", "memory-efficient", "math", "cudnn")))
        flags = zip((*names, "default device"), self.flags, self.read_flags(), strict=True)
        return ", ".join([*native, *(name for name, before, now in flags if before != now)])


def default_devices() -> tuple[str, ...]:
    """The devices of `torch.set_default_device` and of `with torch.device(...)` blocks that are open, outermost first."""
    return tuple(str(mode.device) for mode in function_modes() if isinstance(mode, DeviceContext))


def function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack())]


def only_places_tensors(mode: Any) -> bool:
    """Whether a function mode is a default device that a trace can use; on the meta device, constants cannot be traced."""
    return isinstance(mode, DeviceContext) and mode.device.type != "meta"


def ops_are_observed(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether every op of this call matters to someone: a trace, a mode of the user, `vmap` or `grad`, forward-mode AD."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or transform_is_open()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or (torch._C._len_torch_function_stack() and not all(map(only_places_tensors, function_modes())))
        or not {FunctionalTensor, FakeTensor}.isdisjoint(map(type, tensors))
    )


def has_own_function_rules(kind: type[torch.Tensor]) -> bool:
    """Whether a class of tensors defines what functions of torch do with it."""
    rules = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return rules not in (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)


def mark_parameters(traced: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    """Make a traced tensor count as `nn.Parameter` for `isinstance` where the real one does."""
    for value, tensor in zip(traced, tensors, strict=True):
        if isinstance(tensor, torch.nn.Parameter):
            value._is_param = True


def is_traced(value: Any) -> bool:
    """Whether a value belongs to a trace."""
    return isinstance(value, (FunctionalTensor, FakeTensor))


def storage_key(tensor: torch.Tensor) -> int:
    """`storage_id`, or the identity of a tensor that has no single storage."""
    return storage_id(tensor) if tensor.layout is torch.strided else -id(tensor)


def any_functional(tensors: Sequence[Any]) -> bool:
    """Whether a trace of ours is running and these are its tensors."""
    return FunctionalTensor in map(type, tensors)


_AUTOCAST_DEVICES = ("cpu", "cuda")
AutocastState = tuple[tuple[str, bool, torch.dtype], ...]
"""Device type, whether autocast is on for it, and its dtype."""


def autocast_state() -> AutocastState:
    """What autocast does now: nothing for devices that are not named."""
    if not any_autocast_enabled():
        return ()
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES)


@contextlib.contextmanager
def autocast_as(state: AutocastState) -> Iterator[None]:
    """Autocast as in `state` inside, and nowhere else."""
    if state == autocast_state():
        yield
        return
    wanted = {device: (enabled, dtype) for device, enabled, dtype in state}
    with contextlib.ExitStack() as stack:
        for device in _AUTOCAST_DEVICES:
            enabled, dtype = wanted.get(device, (False, torch.get_autocast_dtype(device)))
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        yield


def autocast_keeps(tensor: torch.Tensor) -> bool:
    """Whether autocast casts a tensor once, and adds up the gradients of all that use it before they are cast back."""
    return tensor.requires_grad and tensor.is_leaf and not tensor._is_view()


def any_autocast_enabled() -> bool:
    """Whether autocast is on for any device type that is there."""
    return torch._C._is_any_autocast_enabled()


def strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The strides of a strided tensor; none for other layouts."""
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def is_symbolic(tensor: torch.Tensor) -> bool:
    """Whether a size, stride or offset of a traced tensor is symbolic."""
    return bool(tensor._has_symbolic_sizes_strides)


def is_symbolic_value(value: Any) -> bool:
    """Whether a traced value is a symbolic number or a tensor with a symbolic size."""
    if isinstance(value, torch.Tensor):
        return is_symbolic(value)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


NEED_STATIC_SIZES = (
    "with symbolic sizes/strides",
    "tried to directly modify sizes for customized tensor",
    "Expected IntList but got GenericList",
)
"""Parts of what torch raises where C++ asks for a size as a plain number, or sets one."""


def lacks_shape_function(error: BaseException | None) -> bool:
    """Whether an error, or what it comes from, says that an op cannot run on fake tensors of symbolic sizes."""
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    if error is None:
        return False
    found = isinstance(error, UnsupportedOperatorException) or any(part in str(error) for part in NEED_STATIC_SIZES)
    return found or lacks_shape_function(error.__cause__)


def symbolic_text(value: Any) -> tuple[str, list[str]]:
    """A symbolic number as Python source, and the names of the symbols in it."""
    return expression_text(value.node.expr)


def expression_text(expression: Any) -> tuple[str, list[str]]:
    """An expression in symbols as Python source, and the names of the symbols in it."""
    from torch.utils._sympy.printers import PythonPrinter

    return PythonPrinter().doprint(expression), sorted(str(symbol) for symbol in expression.free_symbols)


@functools.lru_cache(maxsize=4096)
def compiled_text(text: str) -> types.CodeType:
    """Python source of an expression, compiled."""
    return compile(text, "<condition>", "eval")


@functools.cache
def text_namespace() -> dict[str, Any]:
    """What the source of an expression may call."""
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    return {**SYMPY_INTERP, "math": math}


def write_expression(graph: fx.Graph, value: torch.SymInt, node_of: Callable[[Any], fx.Node]) -> Any:
    """Append the nodes that compute a symbolic number; `node_of` gives the node of each symbol in it."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = fx.proxy.GraphAppendingTracer(graph)
    symbols = {symbol: fx.Proxy(node_of(symbol), tracer) for symbol in value.node.expr.free_symbols}
    result = sympy_interp(PythonReferenceAnalysis, symbols, value.node.expr)
    return result.node if isinstance(result, fx.Proxy) else int(result)


def is_symbol(value: Any, name: str) -> bool:
    """Whether a symbolic number is exactly the symbol `name`."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and str(value.node.expr) == name


def was_symbol(value: Any, name: str) -> bool:
    """Whether a number was the symbol `name` when it was made, or a bool, for which torch takes the number `name == 1`."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    return str(value.node._expr) == (f"Eq({name}, 1)" if isinstance(value, torch.SymBool) else name)


def expression_of(number: Any) -> Any:
    """A symbolic number as an expression that equal ones have in common, a plain one as it is; adds no guard."""
    return number.node.expr if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) else number


def breaks_dynamos_graph(error: BaseException | None) -> bool:
    """Whether Dynamo answers this error of a backend with a break of the graph, and not with an error of its own."""
    from torch._dynamo.exc import exceptions_allowed_to_be_fallback

    return isinstance(error, exceptions_allowed_to_be_fallback)


class SubgraphTracer(_MakefxTracer):
    """Traces subgraphs in the fake mode that is active: some ops call Dynamo, which has one of its own."""

    _given_mode: FakeTensorMode | None = None

    @property
    def fake_tensor_mode(self) -> FakeTensorMode | None:
        return torch._guards.active_fake_mode() or self._given_mode

    @fake_tensor_mode.setter
    def fake_tensor_mode(self, mode: FakeTensorMode | None) -> None:
        self._given_mode = mode


@contextlib.contextmanager
def subgraphs_are_traced(fake_mode: FakeTensorMode, decompositions: Mapping[Any, Callable]) -> Iterator[None]:
    """Higher-order ops trace the functions that they are given (branches, bodies of loops) into graphs of their own."""
    tracer = SubgraphTracer(
        decompositions,
        "real",
        _allow_non_fake_inputs=True,
        pre_dispatch=False,
        record_module_stack=False,
        _allow_fake_constant=False,
        _error_on_data_dependent_ops=True,
    )
    tracer.fake_tensor_mode, tracer.fx_tracer = fake_mode, PythonKeyTracer()
    with _set_make_fx_tracer(tracer):
        yield


@contextlib.contextmanager
def bare_evaluation() -> Iterator[None]:
    """Ops run for real and as they are written, whatever modes, autocast or grad mode surround the compilation."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), normal_mode(), torch.no_grad(), disable_autocast():
        yield


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The fake mode of the tensors in a graph; a new one if there are none."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return new_fake_mode()


def global_module_hooks() -> list[dict]:
    """The tables of hooks that every module calls."""
    module = torch.nn.modules.module
    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return [getattr(module, f"_global_{name}") for name in names]


def returns_pytree(graph: fx.Graph, names: Sequence[str], in_spec: pytree.TreeSpec, out_spec: pytree.TreeSpec) -> None:
    """Let the generated function take and return nested values: `names` are its parameters."""
    from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo

    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(list(names), in_spec, out_spec)))


def without_dynamo(function: Callable) -> Callable:
    """The function or module that `torch.compile` was given, if this is what it returned; else `function` itself."""
    while True:
        name = "_orig_mod" if isinstance(function, torch.nn.Module) else "_torchdynamo_orig_callable"
        original = getattr(function, name, None)
        if not callable(original):
            return function
        function = original


def compile_without_workers() -> None:
    """Inductor compiles in this process only: in a fork, the processes that help the parent are out of reach."""
    import torch._inductor.config as config

    config.compile_threads = 1


@contextlib.contextmanager
def dynamo_forgets() -> Iterator[None]:
    """Nothing that Dynamo has compiled before is used inside, nor what it compiles inside afterwards."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


@contextlib.contextmanager
def graph_breaks() -> Iterator[list[tuple[Any, str]]]:
    """Collects where Dynamo breaks graphs inside, and why: the user's innermost frame, if there is one, and the reason."""
    from torch._dynamo.utils import graph_break_reasons

    before, found = len(graph_break_reasons), []
    yield found
    found += [
        (reason.user_stack[-1] if reason.user_stack else None, reason.reason) for reason in graph_break_reasons[before:]
    ]


def dynamo_source(node: torch.fx.Node) -> str | None:
    """From where Dynamo reads what it passes for a placeholder: `L['x']`, `L['self']._parameters['weight']`."""
    argument = node.meta.get("grapharg")
    return None if argument is None else getattr(argument.source, "name", None)


# --- torch's own logs ------------------------------------------------------------------------------------------------


@functools.cache
def artifact_logger(name: str) -> logging.Logger:
    """The logger of an artifact of `TORCH_LOGS`, below torch's own, whose handlers print it."""
    return torch._logging.getArtifactLogger("torch.aotgrad", name)


def artifact_is_on(name: str) -> bool:
    """Whether `TORCH_LOGS` or `torch._logging.set_logs` asks for an artifact."""
    return torch._logging._internal.log_state.is_artifact_enabled(name)


def structured_trace_is_on() -> bool:
    """Whether `TORCH_TRACE` records what is compiled."""
    return bool(torch._logging._internal.trace_log.handlers)


def trace_structured(name: str, text: str) -> None:
    """Record a text for tlparse, beside what Dynamo records of the same compilation."""
    torch._logging.trace_structured(name, payload_fn=lambda: text, expect_trace_id=False)


# --- TorchScript and decompositions ----------------------------------------------------------------------------------


def decompositions_of(ops: Sequence[Any]) -> dict[Any, Callable]:
    """torch's decompositions of some ops, by overload."""
    from torch._decomp import get_decompositions

    return get_decompositions(ops)


@contextlib.contextmanager
def no_jit_autocast() -> Iterator[None]:
    """TorchScript without autocast of its own: what is scripted has its casts already."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        yield
    finally:
        torch._C._jit_set_autocast_mode(before)


# --- Plain data ------------------------------------------------------------------------------------------------------


def op_name(op: torch._ops.OpOverload) -> str:
    """`aten::add.Tensor`; without an overload `aten::relu`."""
    return op.name()


def op_description(op: torch._ops.OpOverload) -> str:
    """What a graph relies on of an operator, besides what it computes: its signature, what it changes, and its tags."""
    return f"{op._schema} {sorted(map(str, op.tags))}"


def higher_order_named(name: str) -> torch._ops.HigherOrderOperator:
    """The higher-order operator with this name. Raises AttributeError if there is none."""
    return getattr(torch.ops.higher_order, name)


def op_named(name: str) -> torch._ops.OpOverload:
    """The operator with this name.

    Raises:
        AttributeError: there is none.
    """
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def function_name(function: Any) -> str | None:
    """`torch._C._nn.gelu`: where a function of torch's or of Python's own is found; `None` for other functions."""
    if isinstance(function, torch._ops.OpOverload):
        return op_name(function)
    try:
        name = torch.fx.node._get_qualified_name(function)
    except (AttributeError, RuntimeError):
        return None
    module, *rest = name.split(".")
    if not rest:
        return name if getattr(builtins, name, None) is function else None
    found = sys.modules.get(module) if module in ("torch", "_operator", "math") else None
    for part in rest:
        found = getattr(found, part, None)
    return name if found is function else None


def function_named(name: str) -> Callable:
    """The function that `function_name` gave this name.

    Raises:
        AttributeError: there is none.
    """
    if "::" in name:
        return op_named(name)
    module, *rest = name.split(".")
    return functools.reduce(getattr, rest, sys.modules[module]) if rest else getattr(builtins, name)


def higher_order_name(target: Any) -> str | None:
    """The name of a higher-order operator."""
    return target.name() if isinstance(target, torch._ops.HigherOrderOperator) else None


def storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def meta_storage(nbytes: Any) -> torch.UntypedStorage:
    """Memory that is none, for fakes; its size may be symbolic."""
    if type(nbytes) is int:
        return torch.UntypedStorage(nbytes, device="meta")
    with nbytes.node.shape_env.suppress_guards():
        return torch.empty((nbytes,), dtype=torch.uint8, device="meta").untyped_storage()


def fake_in(
    mode: FakeTensorMode,
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    device: torch.device,
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any,
) -> FakeTensor:
    """A fake that lies in `storage`, so that it shares memory with others there. Symbolic sizes add no guards."""
    with contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards():
        meta = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, size, stride)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return FakeTensor(mode, meta, device)


# --- Symbolic numbers, written down ----------------------------------------------------------------------------------


def backed_symbols(shape_env: ShapeEnv) -> Mapping[sympy.Symbol, Any]:
    """The symbols that have a value while tracing, with it."""
    values = getattr(shape_env, "backed_var_to_val", None)
    return shape_env.var_to_val if values is None else values


def symbolic_state(mode: FakeTensorMode) -> tuple | None:
    """What is known of the symbols of a trace, as values that mean the same in another process; `None` if it has none.

    Names, where each comes from, values and ranges, equalities, and every condition so far.
    """
    env = mode.shape_env
    if env is None or not (symbols := backed_symbols(env)):
        return None
    known = sorted((str(s), sources_of(env, s), str(value), str(env.var_to_range.get(s))) for s, value in symbols.items())
    return known, sorted((str(s), str(e)) for s, e in env.replacements.items()), [str(g.expr) for g in env.guards]


def sources_of(shape_env: ShapeEnv, symbol: sympy.Symbol) -> list[str]:
    """Where a symbol comes from, as code."""
    names = [source.name for source in shape_env.var_to_sources.get(symbol, ())]
    return [name if isinstance(name, str) else name() for name in names]


def backed_expression(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic | None:
    """The expression that a symbolic number is; `None` if it depends on data."""
    expression = number.node.expr
    is_backed = expression.free_symbols <= backed_symbols(number.node.shape_env).keys()
    return expression if is_backed else None


def symbolic_number(mode: FakeTensorMode, kind: str, expression: sympy.Basic) -> Any:
    """The symbolic `"int"`, `"float"` or `"bool"` that an expression in the symbols of a trace is."""
    env = mode.shape_env
    assert env is not None, "its symbols are known"
    if kind == "bool":
        return env.create_symboolnode(expression)
    value = expression.xreplace(dict(backed_symbols(env)))
    if kind == "int":
        return env.create_symintnode(expression, hint=int(value))
    return env.create_symfloatnode(expression, hint=float(value))


def conditions_since(mode: FakeTensorMode, count: int) -> tuple[torch.SymBool, ...]:
    """The conditions on symbols that a trace assumes, after the first `count`."""
    env = mode.shape_env
    return () if env is None else tuple(env.create_symboolnode(guard.expr) for guard in env.guards[count:])


@functools.cache
def expression_types() -> dict[str, type[sympy.Basic]]:
    """What conditions and sizes are made of, besides symbols and numbers: classes by name."""
    from torch.utils._sympy import functions

    own = [kind for kind in vars(functions).values() if getattr(kind, "__module__", None) == functions.__name__]
    own = [kind for kind in own if isinstance(kind, type) and issubclass(kind, sympy.Basic)]
    plain = [sympy.Add, sympy.Mul, sympy.Pow, sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge]
    logic = [sympy.And, sympy.Or, sympy.Not]
    return {kind.__name__: kind for kind in (*own, *plain, *logic)}


def bytes_of(dense: torch.Tensor) -> bytes:
    """The memory of a dense tensor on the CPU."""
    flat = dense.as_strided((dense.numel(),), (1,))
    return bytes(flat.view(torch.uint8).tolist()) if dense.numel() else b""


def tensor_of_bytes(data: bytes, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A tensor with this memory."""
    if not data:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(size, stride)


def replaced_rules() -> list[str]:
    """The operators of torch whose derivative or definition was replaced by a function in Python."""
    rules = ("Autograd", "Autocast", "Composite", "Functionalize", "ADInplaceOrView", "Python")
    names = (name.split("/") for name in torch.library._impls)
    return sorted(op for library, op, *key in names if library == "aten" and "".join(key).startswith(rules))


def takes_plain_arguments(graph: fx.Graph) -> bool:
    """Whether the code of a graph takes its placeholders as they are, and returns its output as it is."""
    return type(graph._codegen) is fx.graph.CodeGen


def global_settings() -> tuple:
    """The global state that traces and compiled code depend on, as values that mean the same in another process."""
    backends = torch.backends
    return (
        (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), str(torch.get_default_dtype()), default_devices()),
        tuple((device, on, str(dtype)) for device, on, dtype in autocast_state()),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        (torch.utils.deterministic.fill_uninitialized_memory, torch.get_float32_matmul_precision()),
        GlobalState.read_flags()[1:5],
        (backends.mkldnn.is_available() and backends.mkldnn.enabled, torch.get_num_threads()),
        (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic, backends.cudnn.allow_tf32),
        (backends.cuda.matmul.allow_tf32, backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        (backends.cuda.matmul.allow_bf16_reduced_precision_reduction, torch.is_autocast_cache_enabled()),
    )


@functools.cache
def torch_build() -> tuple[str, ...]:
    """Which torch this is, and on what machine."""
    gpus = [str(torch.cuda.get_device_properties(k)) for k in range(torch.cuda.device_count())]
    build = (str(torch.__version__), str(torch.version.git_version), torch.backends.cpu.get_cpu_capability())
    return (*build, platform.machine(), platform.python_version(), *gpus, *_processor())


def _processor() -> list[str]:
    """What the processor can do, where the system says so."""
    try:
        with open("/proc/cpuinfo") as file:
            return sorted({line.strip() for line in file if line.startswith(("flags", "Features", "model name"))})
    except OSError:
        return [platform.processor()]


def function_modes_are_defaults() -> bool:
    """Whether no function mode is on but default devices, and no dispatch mode."""
    return not torch._C._len_torch_dispatch_stack() and all(map(only_places_tensors, function_modes()))


# --- Inductor --------------------------------------------------------------------------------------------------------


def inductor_decompositions() -> Mapping[Any, Callable]:
    """The ops that Inductor wants taken apart before it sees the graph."""
    is_first = DECOMPOSITIONS not in sys.modules
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table()
    if is_first:
        _own_decompositions.update(table)
    return table


DECOMPOSITIONS = "torch._inductor.decomposition"
_own_decompositions: dict[Any, Callable] = {}
"""Inductor's table as nobody has changed it, if it was imported here."""


def names_of_inductor_decompositions() -> list[tuple[str, str]] | None:
    """Nothing for Inductor's own table, which the version of torch stands for; otherwise as `names_of_decompositions`."""
    if DECOMPOSITIONS not in sys.modules:
        return []
    table = inductor_decompositions()
    return [] if table == _own_decompositions else names_of_decompositions(table)


def names_of_decompositions(table: Mapping[Any, Callable]) -> list[tuple[str, str]] | None:
    """Operators and what they decompose to, by name; `None` if that is a function of the user's."""
    names = [(str(op), _decomposition_name(function)) for op, function in table.items()]
    return None if any(name is None for _, name in names) else sorted(names)


def _decomposition_name(function: Any) -> str | None:
    if isinstance(function, functools.partial):
        name = _decomposition_name(function.func)
        return name and f"{name} {function.args} {function.keywords}"
    if isinstance(function, torch._ops.OpOverload):
        return str(function)
    module = getattr(function, "__module__", None) or ""
    return f"{module}.{function.__qualname__}" if module.partition(".")[0] in ("torch", "aotgrad") else None


def inductor_joint_passes(module: fx.GraphModule) -> fx.GraphModule:
    """What Inductor runs on a joint graph before it is partitioned."""
    from torch._inductor.compile_fx import _recursive_joint_graph_passes

    return _recursive_joint_graph_passes(module)


def inductor_compile(module: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Callable:
    """Compile one functional graph; the result takes a list, which it clears."""
    from torch._inductor.compile_fx import compile_fx_inner

    return compile_fx_inner(module, inputs, **settings)


@contextlib.contextmanager
def inductor_context(fake_mode: FakeTensorMode, mode: str, **settings: Any) -> Iterator[None]:
    """What Inductor reads from its surroundings: the fake mode, a tracing context, and its configuration.

    Its fallbacks run ops on fake tensors, and constants of the graph are real ones.
    """
    from unittest import mock

    from torch._inductor import config, list_mode_options
    from torch._inductor.virtualized import V

    patches = {} if mode == "default" else list_mode_options(mode)
    context = TracingContext.try_get() or TracingContext(fake_mode)
    real_constants = mock.patch.object(fake_mode, "allow_non_fake_inputs", True)
    with tracing(context), V.set_fake_mode(fake_mode), config.patch({**patches, **settings}), real_constants:
        yield


@contextlib.contextmanager
def inductor_configured(mode: str, **settings: Any) -> Iterator[None]:
    """Inductor's configuration for a mode."""
    from torch._inductor import config, list_mode_options

    with config.patch({**({} if mode == "default" else list_mode_options(mode)), **settings}):
        yield


def apart_in_inductors_cache(text: str) -> dict[str, Any]:
    """Settings under which Inductor's cache keeps a graph apart from an equal one with another `text`."""
    from torch._inductor import config

    return {"unsafe_marked_cacheable_functions": {**config.unsafe_marked_cacheable_functions, "aotgrad": text}}


INDUCTOR_PASSES = ("joint_custom", "pre_grad", "post_grad", "_fuse", "_pre_fusion", "_post_fusion", "cudagraph_policy")
"""The names of settings which may be functions, and which Inductor leaves out where it stores its configuration."""


def inductor_key() -> str | None:
    """What Inductor's code depends on besides the graph, as it is configured now; `None` if that has no stable form."""
    from torch._inductor import config

    if inductor_has_users_lowerings():
        return None
    values = config.save_config_portable(ignore_private_configs=False)
    values |= {name: getattr(config, name) for name in config._save_config_ignore if name.startswith(INDUCTOR_PASSES)}
    if not all(map(is_stable, values.values())):
        return None
    return repr(sorted((name, stable_text(value)) for name, value in values.items()))


def inductor_has_users_lowerings() -> bool:
    """Whether somebody else than torch has told Inductor how to compile an operator."""
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None:  # nobody has told it anything
        return False
    plain = (inspect.unwrap(function) for function in lowering.lowerings.values())
    modules = {getattr(function, "func", function).__module__ for function in plain}
    return bool(getattr(lowering, "user_lowerings", ())) or not all(name.startswith("torch.") for name in modules)


def is_stable(value: Any) -> bool:
    """Whether the text of a value is the same in every process."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_stable, value))
    if isinstance(value, dict):
        return all(is_stable(key) and is_stable(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device, enum.Enum))


def stable_text(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, (set, frozenset)) else repr(value)


def inductor_dump(compiled: Any) -> bytes | None:
    """What Inductor made of a graph, as bytes; `None` for what it does not serialise."""
    from torch._inductor.output_code import CompiledFxGraph

    if type(compiled) is not CompiledFxGraph:
        return None
    stored = copy.copy(compiled)
    stored.prepare_for_serialization()
    return pickle.dumps(stored)


def inductor_module(compiled: Any) -> types.ModuleType | None:
    """The module that Inductor's wrapper code became in this process; `None` if it needs more than its text."""
    from torch._inductor.codecache import PyCodeCache

    bundle = getattr(compiled, "_triton_bundle", None)
    if bundle is not None and any(vars(bundle).values()):
        return None
    modules = (
        module
        for module in reversed(PyCodeCache.modules)
        if getattr(module, "key", None) == getattr(compiled, "cache_key", "")
    )
    return next(modules, None)


def library_of(kernel: Any) -> tuple[str, str, str] | None:
    """The module name and the path of the library that a C++ kernel of Inductor's is in, and its own name in there."""
    module = getattr(kernel, "__self__", None)
    path = getattr(module, "__file__", None)
    is_found = isinstance(module, types.ModuleType) and path is not None
    return (module.__name__, path, kernel.__name__) if is_found else None


def kernel_in(module: str, path: str, name: str) -> Callable:
    """The C++ kernel in a library."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    key = module.rpartition(".")[0]
    return getattr(CppPythonBindingsCodeCache._load_library_inner(path, key), name)


@contextlib.contextmanager
def cpp_kernels_through(compile_all: Callable[[list[Any]], list[Callable]], kernel: Callable[..., Any]) -> Iterator[None]:
    """The C++ kernels of each graph that Inductor makes ready here, in this thread, are compiled by `compile_all`.

    Args:
        compile_all: from the kernels of a graph, as `kernel` made them, to functions.
        kernel: from types of arguments and a source to an object that stands for the function until it is there.
    """
    from unittest import mock

    from torch._inductor.async_compile import AsyncCompile, kernel_code_log

    thread, one_by_one, wait = threading.get_ident(), AsyncCompile.cpp_pybinding, AsyncCompile.wait
    pending: list[Any] = []

    def collect(self: AsyncCompile, argument_types: list[str], source: str) -> Any:
        if threading.get_ident() != thread:
            return one_by_one(self, argument_types, source)
        kernel_code_log.info("CPP+Bindings Kernel:\n%s", source)
        pending.append(kernel(tuple(argument_types), source))
        return pending[-1]

    def compile_pending(self: AsyncCompile, scope: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            made = dict(zip(map(id, pending), compile_all(pending), strict=True))
            scope.update({name: made[id(value)] for name, value in scope.items() if id(value) in made})
            pending.clear()
        wait(self, scope)

    with mock.patch.multiple(AsyncCompile, cpp_pybinding=collect, wait=compile_pending):
        yield


def cpp_compilers() -> int:
    """How many C++ compilers Inductor runs at once."""
    from torch._inductor.async_compile import get_compile_threads

    return max(1, get_compile_threads())


def submit_cpp() -> Callable | None:
    """Hands work to another process; `None` where Inductor has none: whoever wants the result does the work."""
    from torch._inductor.async_compile import AsyncCompile

    return AsyncCompile.submit if cpp_compilers() > 1 else None


def start_cpp_kernel(argument_types: Sequence[str], source: str) -> Callable[[], Callable]:
    """Let Inductor compile one C++ kernel; what is returned waits for it."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_pybinding_async(list(argument_types), source, submit_fn=submit_cpp())


def start_cpp_library(source: str) -> Callable[[], types.ModuleType]:
    """Let Inductor compile a Python module, whose function `PyInit_kernel` makes it; what is returned waits for it."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_async(source, submit_fn=submit_cpp())


def inductor_load_module(content: bytes, module: types.ModuleType, is_backward: bool) -> Callable:
    """What `inductor_dump` has written, with its wrapper code as a module already.

    Calling the graph itself would need the parts of Inductor that debug it.
    """
    from torch._inductor.output_code import CompiledFxGraphConstants
    from torch._inductor.utils import BoxedBool

    constants, compiled = CompiledFxGraphConstants(), pickle.loads(content)
    vars(module).update(constants.unwrap(compiled) or {})
    compiled.current_callable = module.call
    compiled.recursively_apply_fns = getattr(module, "recursively_apply_fns", None)
    compiled.compiled_fn_runner = getattr(module, "runner", None)
    compiled.post_compile([], constants, {"cudagraphs": BoxedBool(False), "is_backward": is_backward})

    def run(inputs: list) -> Any:
        return compiled.current_callable(inputs)

    run._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return run


def inductor_load(content: bytes, is_backward: bool) -> Callable:
    """What `inductor_dump` has written, ready to be called, without CUDA graphs.

    Raises:
        Exception: of any kind, if it cannot be loaded.
    """
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraphConstants
    from torch._inductor.utils import BoxedBool

    constants = CompiledFxGraphConstants()
    compiled, _ = FxGraphCache.cache_hit_post_compile(pickle.loads(content), {}, constants)
    if compiled is None:
        raise FileNotFoundError("the code of a compiled graph")
    compiled.post_compile([], constants, {"cudagraphs": BoxedBool(False), "is_backward": is_backward})
    return compiled


def inductor_uses_cudagraphs() -> bool:
    from torch._inductor import config

    return bool(config.triton.cudagraphs)


def inductor_graph_settings(cudagraphs: bool) -> dict[str, Any]:
    """What the forward and the backward of one region share, so that CUDA graphs pair them."""
    from torch._inductor.compile_fx import _graph_counter
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.utils import BoxedBool

    return {
        "graph_id": next(_graph_counter),
        "boxed_forward_device_index": BoxedDeviceIndex(None),
        "cudagraphs": BoxedBool(cudagraphs),
    }


@contextlib.contextmanager
def reported_output_strides() -> Iterator[list[Any]]:
    """Collects the strides that Inductor gives the outputs of the graphs compiled inside; `None` where unknown."""
    with TracingContext.report_output_strides() as strides:
        yield strides


def as_symints(fake_mode: FakeTensorMode, strides: Sequence[Any]) -> tuple[Any, ...]:
    """Reported strides, which are ints or sympy expressions, as numbers of a trace."""
    return tuple(_as_symint(fake_mode.shape_env, stride) for stride in strides)


def _as_symint(shape_env: ShapeEnv, stride: Any) -> Any:
    if isinstance(stride, (int, torch.SymInt)):
        return stride
    if stride.is_number:
        return int(stride)
    return shape_env.create_symintnode(stride, hint=int(shape_env.size_hint(stride)))
