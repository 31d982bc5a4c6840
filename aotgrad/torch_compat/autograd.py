"""The autograd engine: nodes, edges and hooks, what nodes save, and which gradients a running backward wants."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.autograd.function import FunctionCtx

from aotgrad.torch_compat.compiled_autograd import recorded_node
from aotgrad.torch_compat.memory import has_storage


def sequence_nr() -> int:
    """The number that the next autograd node will get."""
    return torch.autograd._get_sequence_nr()


def node_sequence_nr(grad_fn: Any) -> int:
    """The number of an autograd node: `sequence_nr()` just before its creation."""
    return grad_fn._sequence_nr()


def gradient_edge(tensor: torch.Tensor) -> tuple[Any, int]:
    """Where the gradient of a tensor that requires grad arrives: an autograd node and the position of its input."""
    if tensor.grad_fn is not None:  # torch would make a view of what a node in Python has computed
        return tensor.grad_fn, tensor.output_nr
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def gradient_edge_if_any(tensor: torch.Tensor) -> tuple[Any, int] | None:
    """`gradient_edge`, if there is one: a view of a leaf that was made under `no_grad` requires grad and has no node."""
    with contextlib.suppress(AssertionError):
        return gradient_edge(tensor) if tensor.requires_grad else None
    return None


def pop_hooks(tensor: torch.Tensor) -> list[Callable]:
    """Remove and return the gradient hooks of a tensor."""
    return _emptied(tensor._backward_hooks)


def is_hooked(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a hook on its gradient, or retains it."""
    return bool(tensor._backward_hooks) or tensor.retains_grad


def was_hooked(tensor: torch.Tensor) -> bool:
    """Whether a new gradient hook joins an earlier one, also if the tensor's history has changed in between."""
    if _HOOKS_STAY_BEHIND and tensor._backward_hooks is not None:
        with contextlib.suppress(RuntimeError):
            _ = tensor.grad_fn  # registering a hook reads it, too; some views cannot have a new one
    return tensor._backward_hooks is not None


def _hooks_stay_behind() -> bool:
    """Whether new hooks of a view go to its new history; older versions of torch keep all hooks at the first one's."""
    with torch.inference_mode(False), torch.enable_grad():
        base = torch.ones(2, device="cpu", requires_grad=True) * 1
        view = base[:]
        view.register_hook(id)
        first = view._backward_hooks
        base.mul_(2)
        view.register_hook(id)
        return view._backward_hooks is not first


_HOOKS_STAY_BEHIND = _hooks_stay_behind()


def pop_post_accumulate_hooks(tensor: torch.Tensor) -> list[Callable]:
    """Remove and return the hooks that run after a leaf accumulates its gradient."""
    return _emptied(tensor._post_accumulate_grad_hooks)


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a parameter, also in a trace, where it has another class."""
    return isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_is_param", False)


def hooks_of_leaf(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The tables of the hooks of a tensor: of its gradient, and after accumulation. `None` where there never was a hook."""
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks if tensor.is_leaf else None


def install_hooks_of_leaf(tensor: torch.Tensor) -> None:
    """Tell autograd of the hooks in the tables of a tensor, whose contents were exchanged."""
    before, after = hooks_of_leaf(tensor)
    if before is not None:
        tensor._backward_hooks = before
    if after is not None:
        tensor._post_accumulate_grad_hooks = after


def is_awaited(tensor: torch.Tensor) -> bool:
    """Whether Python hooks run as soon as a leaf's gradient is accumulated.

    C++ hooks, such as those of `DistributedDataParallel`, cannot be seen. A view created under `no_grad` and an inference
    tensor have no node for accumulation.
    """
    if (
        not tensor.requires_grad
        or not tensor.is_leaf
        or tensor._is_view()
        or tensor.is_inference()
        or not has_storage(tensor)
    ):
        return False
    return bool(tensor._post_accumulate_grad_hooks) or _is_hooked(_accumulating_node(tensor))


@torch.inference_mode(False)
@torch.enable_grad()
def _accumulating_node(leaf: torch.Tensor) -> Any:
    return torch.autograd.graph.get_gradient_edge(leaf).node


def _is_hooked(node: Any) -> bool:
    """Whether Python hooks run after an autograd node."""
    return bool(_hooks_behind(node.register_hook(lambda gradients, _: None)))


def _hooks_behind(probe: Any) -> dict[int, Callable]:
    """The Python hooks of an autograd node: only the handle of a new one, `probe`, reveals the others."""
    hooks = probe.hooks_dict_ref()
    probe.remove()
    return hooks


def wrap_node_hooks(node: Any, wrap: Callable[[Callable], Callable]) -> bool:
    """Wrap the Python hooks of an autograd node, those before and those after it; returns whether there are any."""
    before = _hooks_behind(node.register_prehook(lambda _: None))
    after = _hooks_behind(node.register_hook(lambda gradients, _: None))
    for hooks in (before, after):
        hooks.update({key: wrap(hook) for key, hook in hooks.items()})
    return bool(before or after)


GRAD_FN = torch.Tensor.grad_fn.__get__  # pyright: ignore[reportFunctionMemberAccess]
"""The function that a function mode sees when somebody reads a tensor's `grad_fn`."""


def _emptied(hooks: dict[int, Callable] | None) -> list[Callable]:
    found = list((hooks or {}).values())
    (hooks or {}).clear()
    return found


def next_nodes(node: Any) -> tuple[Any, ...]:
    """The autograd nodes that a node passes gradients to; `None` where no gradient is needed."""
    return tuple(function for function, _ in node.next_functions)


def running_node() -> Any:
    """The autograd node that runs in this thread, or `None`."""
    return torch._C._current_autograd_node()


def edges_of_running_node() -> tuple[Any, ...]:
    """`next_nodes` of the node that runs in this thread."""
    return next_nodes(running_node())


def sequence_nr_of_running_node() -> int | None:
    """The sequence number of the node that runs in this thread, if one does."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


@contextlib.contextmanager
def report_backwards(around: Callable[[Any, Any], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """In this thread, run `backward()` and `autograd.grad` within `around(outputs, gradients)`: what they start from.

    They free nothing, even if told to: a result may depend on what they would free, and its gradient is traced later.
    """
    from unittest import mock

    thread, run = threading.get_ident(), torch.autograd._engine_run_backward

    def reported(outputs: Any, gradients: Any, retains: Any, *others: Any, **settings: Any) -> Any:
        if threading.get_ident() != thread:
            return run(outputs, gradients, retains, *others, **settings)
        with around(outputs, gradients):
            return run(outputs, gradients, True, *others, **settings)

    with mock.patch.object(torch.autograd, "_engine_run_backward", reported):
        yield


def plain_apply(function: type[torch.autograd.Function]) -> Callable:
    """`function.apply` for calls outside of `torch.func` transforms: skips the check for open ones."""
    return super(torch.autograd.Function, function).apply


def node_class(function: type[torch.autograd.Function]) -> Any:
    """The class of the autograd nodes of a function: each `ctx` is an instance."""
    return function._backward_cls


def makes_node(function: type[torch.autograd.Function]) -> bool:
    """Whether an instance of `node_class` is a node by itself. Older versions of torch make the node when it is applied."""
    try:
        return node_class(function)().next_functions == ()
    except RuntimeError:
        return False


def set_defaults(function: type[torch.autograd.Function], **attributes: Any) -> None:
    """Give every `ctx` of a function default attributes: setting them on each `ctx` takes noticeable time."""
    for name, value in attributes.items():
        setattr(node_class(function), name, value)


def graph_is_retained() -> bool:
    """Whether the running backward retains the graph."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def is_wanted(node: Any) -> bool:
    """Whether the running backward passes a gradient to `node`."""
    if node is None:
        return False
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # raised for a leaf whose gradient `autograd.grad` captures
        return True


def is_only_accumulated(node: Any) -> bool:
    """Whether a gradient for `node` goes to the `.grad` of a leaf alone, and not to a hook or to `autograd.grad`."""
    leaf = getattr(node, "variable", None)
    if leaf is None or any(hooks_of_leaf(leaf)) or _is_hooked(node):
        return False
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # see `is_wanted`
        return False


def engine_executes_all_edges() -> bool | None:
    """Whether the running node passes a gradient along each of its edges.

    `None` if one ends at a leaf that `autograd.grad` wants: then torch raises, which takes longer than all other edges.
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
"""How many leaves `leaves_wanted` probes in the time of one exception of `is_wanted`."""


def are_wanted(nodes: Sequence[Any]) -> tuple[bool, ...]:
    """`is_wanted` for each node. Its exceptions are slow: `leaves_wanted` answers for few leaves, or after two of them."""
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
    """`is_wanted` for the nodes of leaves: the node of a view returns a gradient only if the engine wants it.

    `squeeze` is the view that differentiates fastest. Inside some transforms it has no node.
    """
    leaves = [node.variable for node in nodes]
    with torch.enable_grad():
        views = [leaf.squeeze(0).grad_fn for leaf in leaves]
    triples = zip(views, leaves, nodes, strict=True)
    return [is_wanted(node) if view is None else view(leaf) is not None for view, leaf, node in triples]


def edge_of(tensor: torch.Tensor) -> Any:
    """Where the gradient of a tensor enters its graph; the edge keeps the graph alive, but not the tensor."""
    return torch.autograd.graph.get_gradient_edge(tensor) if tensor.requires_grad else None


def is_custom_node(node: Any) -> bool:
    """Whether an autograd node belongs to an `autograd.Function`."""
    return getattr(node, "_forward_cls", None) is not None


def is_node_of(node: Any, function: type) -> bool:
    """Whether an autograd node belongs to this `autograd.Function`, or to a subclass of it."""
    return issubclass(getattr(node, "_forward_cls", object), function)


def is_users_node(node: Any) -> bool:
    """Whether an autograd node belongs to an `autograd.Function` of the user's: ours have an attribute `is_of_trace`."""
    return is_custom_node(node) and not getattr(node._forward_cls, "is_of_trace", False)


def gets_zeros(node: Any) -> bool:
    """Whether a node belongs to an `autograd.Function` that may get zeros for undefined gradients beside defined ones.

    A function says otherwise by an attribute `arrives_whole`: either all its gradients are defined, or none.
    """
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    return not getattr(node._forward_cls, "arrives_whole", False)


@contextlib.contextmanager
def noted_materialization() -> Iterator[None]:
    """Inside, note which calls of custom functions choose `None` for undefined gradients; see `keeps_undefined`."""
    given = FunctionCtx.set_materialize_grads

    def set_materialize_grads(ctx: Any, value: bool) -> None:
        given(ctx, value)
        ctx.aotgrad_keeps_undefined = not value

    FunctionCtx.set_materialize_grads = set_materialize_grads
    try:
        yield
    finally:
        FunctionCtx.set_materialize_grads = given


def keeps_undefined(node: Any) -> bool:
    """Whether the node of a custom function gets `None` for an undefined gradient, not zeros."""
    return getattr(node, "aotgrad_keeps_undefined", False)


def is_refused_by_transforms(node: Any) -> bool:
    """Whether an autograd node belongs to an `autograd.Function` whose forward takes `ctx`."""
    function = getattr(node, "_forward_cls", None)
    return function is not None and function.setup_context is torch.autograd.Function.setup_context


def hides_saved_tensors(node: Any) -> bool:
    """Whether a node that `saved_tensors` finds nothing in may have saved something."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return len(node._raw_saved_tensors) > 0
    return type(node).__name__ in ("CopySlices", "CppFunction")


def saves_a_value(node: Any, saved: Sequence[torch.Tensor] = ()) -> bool:
    """Whether a built-in node saved a tensor, so that it runs only once unless the graph is retained.

    `saved` are the tensors already known. A custom function raises in a second backward only if it reads what it saved.
    """
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    return bool(saved) or any(map(functools.partial(_holds_a_tensor, node), _saved_attributes(type(node))))


def saves_a_tensor(node: Any) -> bool:
    """Whether saved-tensor hooks see something that a node, custom or not, saved. They do not see a number.

    A node that does not show what it saved counts as one that saved a tensor.
    """
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return len(node._raw_saved_tensors) > 0
    hides = type(node).__name__ == "CopySlices" or saves_packed_values(node)  # to read a packed one would unpack it
    return hides or any(_holds_a_tensor(node, name, _is_number) for name in _saved_attributes(type(node)))


def _is_number(value: Any) -> bool:
    """Whether a value is what `x * 2` saves of the 2, in a trace."""
    return type(value) is torch.Tensor and value.dim() == 0


@functools.lru_cache(maxsize=4096)
def _saved_attributes(kind: type) -> tuple[str, ...]:
    """The attributes in which nodes of one kind expose what they saved, looked up once per kind."""
    return tuple(name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_"))


def saves_packed_values(node: Any) -> bool:
    """Whether saved-tensor hooks, such as a checkpoint's, have packed what a node saved, or the node does not show it."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        raw = list(node._raw_saved_tensors)
    else:
        raw = pytree.tree_leaves([getattr(node, f"_raw{name}") for name in _saved_attributes(type(node))])
    return type(node).__name__ == "CppFunction" or any(getattr(saved, "unpack_hook", None) is not None for saved in raw)


def _holds_a_tensor(node: Any, name: str, is_number: Callable[[Any], bool] = lambda _: False) -> bool:
    try:
        value = getattr(node, name)
    except RuntimeError:  # changed in place, or freed
        return True
    values = value if isinstance(value, (list, tuple)) else (value,)
    return not all(each is None or is_number(each) for each in values)


def saved_tensors(node: Any) -> list[torch.Tensor]:
    """The strided tensors that a built-in node saved, except those that were changed in place since."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return []
    found = []
    for name in _saved_attributes(type(node)):
        with contextlib.suppress(RuntimeError):
            found += [each for each in pytree.tree_leaves(getattr(node, name)) if has_storage(each)]
    return found


def error_of_saved(node: Any) -> str | None:
    """The message that a built-in node's backward raises if one of its saved tensors was changed in place, or `None`."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    for name in _saved_attributes(type(node)):
        try:
            getattr(node, name)
        except RuntimeError as error:
            return str(error)
    return None


def disable_node(node: Any) -> None:
    """Disable a node: it no longer checks what it saved, and all its gradients are undefined."""
    for name in _saved_attributes(type(node)):
        for saved in pytree.tree_leaves(getattr(node, f"_raw{name}")):
            if isinstance(saved, torch._C._autograd.SavedTensor):
                _look_away(saved)
    node.register_prehook(lambda gradients: (None,) * len(gradients))
    node.register_hook(lambda gradients, _: (None,) * len(gradients))


def _look_away(saved: Any) -> None:
    """Stop checking a saved tensor for changes. If it holds no tensor, there is nothing to do."""
    try:
        saved.register_hooks(_unchanged, _unchanged)
    except RuntimeError as error:
        if "with value None" not in str(error):
            raise


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def raise_second_backward() -> None:
    """Raise autograd's error for a second backward through a graph that is not retained."""
    with torch.enable_grad():
        y = torch.ones(1, requires_grad=True).exp()
    torch.autograd.grad(y, y.grad_fn.next_functions[0][0].variable)
    y.grad_fn._saved_result  # noqa: B018


def some_saved_tensors(ctx: Any, positions: Sequence[int]) -> list[torch.Tensor]:
    """Some of the tensors that a custom node saved.

    Older versions of torch can only unpack all of them (`ctx.saved_tensors`). An output of the node is not unpacked alone.

    Raises:
        RuntimeError: eager's, if one of them was changed in place or freed.
    """
    if not positions:
        return []
    if not UNPACKS_ONE or recorded_node(ctx) is not None:
        saved = ctx.saved_tensors
        return [saved[position] for position in positions]
    raw = ctx._raw_saved_tensors
    try:
        return [raw[position].unpack() for position in positions]
    except RuntimeError as error:
        if "detached in-place" not in str(error):
            raise
    saved = ctx.saved_tensors
    return [saved[position] for position in positions]


UNPACKS_ONE = hasattr(torch._C._autograd.SavedTensor, "unpack")
"""Whether one saved tensor can be unpacked without the others."""


def saved_by_function(node: Any) -> list[Any]:
    """What a custom function has saved, except its own outputs and what a saved-tensor hook has packed."""
    if (closure := _closure_of_dynamo(node)) is not None:
        return [closure["saved_values"][k] for k in closure.get("saved_for_backward_idx", ())]
    found: list[torch.Tensor] = []
    for saved in node._raw_saved_tensors:
        with contextlib.suppress(RuntimeError):
            if saved.unpack_hook is None:
                found.append(saved.unpack() if UNPACKS_ONE else saved.data)
    return found


def saved_by_node(node: Any) -> list[torch.Tensor]:
    """The strided tensors that a node, custom or not, has saved, its own outputs included."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return saved_tensors(node)
    return [value for value in node.saved_tensors if value is not None and has_storage(value)]


def kept_by_function(node: Any) -> list[Any]:
    """The values that a custom function keeps as attributes of `ctx`."""
    if (closure := _closure_of_dynamo(node)) is not None:
        saved = closure.get("saved_for_backward_idx", ())
        return [value for k, value in enumerate(closure["saved_values"]) if k not in saved]
    return pytree.tree_leaves(vars(node))


def _closure_of_dynamo(node: Any) -> dict[str, Any] | None:
    """The closure variables of a custom function that Dynamo generated for another one; `None` for others."""
    function = node._forward_cls
    if function.__name__ != "ApplyTemplate" or not hasattr(function.forward, "__closure__"):
        return None
    pairs = zip(function.forward.__code__.co_freevars, function.forward.__closure__ or (), strict=True)
    found = {name: cell.cell_contents for name, cell in pairs}
    return found if found.get("saved_values") is not None else None


def unpack_hooks(ctx: Any, positions: Sequence[int]) -> list[Callable[[], torch.Tensor] | None]:
    """The functions that unpack saved tensors; `None` for those that no saved-tensor hook has packed."""
    raw = ctx._raw_saved_tensors
    found = [raw[position] for position in positions]
    return [None if each.unpack_hook is None else functools.partial(each.unpack_hook, each.data) for each in found]


def saved_tensors_without_hooks(ctx: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors that a custom node saved; `None` if one was changed in place or freed, or if a hook has packed one."""
    if recorded_node(ctx) is not None:
        return None
    try:
        is_packed = any(each.unpack_hook is not None for each in ctx._raw_saved_tensors)
        return None if is_packed else ctx.saved_tensors
    except RuntimeError:
        return None


def release_saved_tensors(ctx: Any) -> None:
    """Free a node's saved tensors now rather than after its backward, unless the graph is retained."""
    if hasattr(ctx, "maybe_clear_saved_tensors"):
        ctx.maybe_clear_saved_tensors()


def has_saved_tensor_hooks() -> bool:
    """Whether saved-tensor hooks are on, as they are while a checkpointed region is recomputed."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


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


def global_module_hooks() -> list[dict]:
    """The tables of hooks that every module calls."""
    module = torch.nn.modules.module
    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return [getattr(module, f"_global_{name}") for name in names]
