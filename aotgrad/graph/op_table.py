"""Facts about operators, for every stage: which are views, random, effectful, cheap or expensive to recompute.

In: an operator (an `fx.Node.target`) or a node. Out: yes or no. Most answers come from the operator's schema and tags, which
covers new and custom ops. The tables list what schemas and tags do not say, one op per line, sorted, with a reason where
the entry is surprising.

    >>> is_view(torch.ops.aten.t.default), is_random(torch.ops.aten.native_dropout.default)
    (True, True)

Limits: an op with side effects that neither mutates an argument nor returns nothing must be listed in `EFFECTS`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.graph.functionalized_call import FunctionalizedCall

VIEWS_WITHOUT_ALIAS_IN_SCHEMA = frozenset(
    {
        "aten._unsafe_view",  # shares memory; its schema hides that from functionalization
    }
)

NOT_VIEWS_DESPITE_SCHEMA = frozenset(
    {
        "aten.contiguous",  # copies unless the layout is already right
        "aten.positive",  # a pointwise op that returns its argument
        "aten.reshape",  # copies if no view is possible
        "aten.to",  # copies if dtype or device differ
    }
)

CHECK_OPS = frozenset(
    {
        "aten._assert_async",
        "aten._assert_scalar",
        "aten._functional_assert_async",
        "aten._functional_assert_scalar",
        "aten.sym_constrain_range",
        "aten.sym_constrain_range_for_size",
    }
)

EFFECTS = CHECK_OPS | frozenset(
    {
        "aotgrad.eager_call",  # nobody knows what its function does
        "higher_order.print",
        "higher_order.with_effects",
        "profiler._record_function_enter",
        "profiler._record_function_enter_new",
        "profiler._record_function_exit",
    }
)

EFFECTFUL_NAMESPACES = frozenset(
    {
        "_c10d_functional",  # every rank must issue the same collectives in the same order
        "_c10d_functional_autograd",
        "c10d",  # write to tensors in lists; their schemas do not say so
        "c10d_functional",
    }
)

UNINITIALIZED = frozenset(
    {
        "aten.empty",
        "aten.empty_like",
        "aten.empty_permuted",
        "aten.empty_strided",
        "aten.new_empty",
        "aten.new_empty_strided",
    }
)

CREATION = UNINITIALIZED | frozenset(
    {
        "aten.arange",
        "aten.eye",
        "aten.full",
        "aten.full_like",
        "aten.linspace",
        "aten.new_full",
        "aten.new_ones",
        "aten.new_zeros",
        "aten.ones",
        "aten.ones_like",
        "aten.scalar_tensor",
        "aten.zeros",
        "aten.zeros_like",
        "prims.iota",
    }
)

CHEAP_WITHOUT_POINTWISE_TAG = frozenset(
    {
        "aten._to_copy",  # a cast
        "aten.constant_pad_nd",
        "aten.copy",
        "aten.expand_copy",
        "aten.flip",
        "aten.lift_fresh_copy",
        "aten.repeat",
        "aten.roll",
        "aten.tril",
        "aten.triu",
        "aten.view_copy",
        "prims.broadcast_in_dim",
        "prims.inductor_lookup_seed",
        "prims.inductor_randint",  # the seed is an argument: the same numbers each time
        "prims.inductor_random",
    }
)

DRAWN_FROM_SEED = frozenset({"prims.inductor_randint", "prims.inductor_random"})

EXPENSIVE_DESPITE_POINTWISE_TAG: frozenset[str] = frozenset(
    {
        "aten.special_zeta",  # an iteration to convergence in each element
    }
)

OVERWRITING = frozenset(
    {
        "aten.add.Tensor",
        "aten.cos.default",
        "aten.div.Tensor",
        "aten.elu_backward.default",
        "aten.exp.default",
        "aten.gelu.default",
        "aten.gelu_backward.default",
        "aten.leaky_relu_backward.default",
        "aten.mul.Tensor",
        "aten.neg.default",
        "aten.pow.Tensor_Scalar",
        "aten.reciprocal.default",
        "aten.relu.default",
        "aten.rsqrt.default",
        "aten.sigmoid.default",
        "aten.sigmoid_backward.default",
        "aten.silu.default",
        "aten.silu_backward.default",
        "aten.sin.default",
        "aten.sqrt.default",
        "aten.sub.Tensor",
        "aten.tanh.default",
        "aten.tanh_backward.default",
        "aten.threshold_backward.default",
    }
)
"""Pointwise overloads that write each element after reading it, so that the result may overwrite an argument."""

FRESH = OVERWRITING | {
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.clone.default",
    "aten.convolution.default",
    "aten.embedding.default",
    "aten.full.default",
    "aten.mean.dim",
    "aten.mm.default",
    "aten.sum.dim_IntList",
    "aten.zeros_like.default",
}
"""Overloads that return memory of their own. The result of any other op may lie in the memory of its arguments."""

INDIRECT_READS = frozenset(
    {
        "aten.embedding",
        "aten.gather",
        "aten.index",
        "aten.index_select",
    }
)

REDUCTIONS = frozenset(
    {
        "aten.amax",
        "aten.amin",
        "aten.any",
        "aten.argmax",
        "aten.argmin",
        "aten.max",
        "aten.mean",
        "aten.min",
        "aten.prod",
        "aten.std",
        "aten.sum",
        "aten.var",
        "aten.var_mean",
        "prims.sum",
        "prims.var",
        "prims.xor_sum",
    }
)

VIEW_METHODS = {
    "aten.as_strided.default": "as_strided",
    "aten.detach.default": "detach",
    "aten.diagonal.default": "diagonal",
    "aten.expand.default": "expand",
    "aten.permute.default": "permute",
    "aten.select.int": "select",
    "aten.squeeze.default": "squeeze",
    "aten.squeeze.dim": "squeeze",
    "aten.t.default": "t",
    "aten.transpose.int": "transpose",
    "aten.unsqueeze.default": "unsqueeze",
    "aten.view.default": "view",
}
"""Methods of tensors with the positional arguments of a view op, which run in half of its time."""

ABSOLUTE_VIEWS = frozenset({"aten.as_strided", "aten.as_strided_copy", "aten.as_strided_scatter"})
"""Ops whose offset counts from the start of the storage, not of the argument."""

SYMBOLIC_READS = frozenset(
    {
        "aten.sym_is_contiguous",
        "aten.sym_numel",
        "aten.sym_size",
        "aten.sym_storage_offset",
        "aten.sym_stride",
    }
)


class Statistics(NamedTuple):
    """The positions of an op's running statistics among its arguments and results, and of its argument `training`.

    The backward of a training step takes them too, but does not read them. `alone`: the name of the op that takes and
    returns all but these.
    """

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    training: int | None
    alone: str | None = None


STATISTICS = {
    "aten._batch_norm_with_update_functional": Statistics((3, 4), (4, 5), None),
    "aten._native_batch_norm_legit_functional": Statistics((3, 4), (3, 4), 5, "aten::_native_batch_norm_legit.no_stats"),
    "aten.batch_norm_backward": Statistics((3, 4), (), 7),
    "aten.cudnn_batch_norm_backward": Statistics((3, 4), (), None),
    "aten.native_batch_norm_backward": Statistics((3, 4), (), 7),
}


@functools.cache
def op_name(target: Any) -> str:
    """The name without its overload: `aten.add` for `aten.add.Tensor`, `higher_order.cond` for `cond`."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return getattr(target, "__name__", str(target))


def short_name(target: Any) -> str:
    """The name without namespace and overload, for messages: `mm` for `aten.mm.default`."""
    return op_name(target).rpartition(".")[2]


@functools.cache
def is_view(target: Any) -> bool:
    """Whether the result shares the memory of the first argument (also for ops that return several views)."""
    if op_name(target) in VIEWS_WITHOUT_ALIAS_IN_SCHEMA:
        return True
    return op_name(target) not in NOT_VIEWS_DESPITE_SCHEMA and torch_compat.is_view_by_schema(target)


@functools.cache
def is_random(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


DRAWN_BY_SIZE = frozenset({"aten.bernoulli", "aten.rand_like", "aten.randint_like", "aten.randn_like"})


@functools.cache
def draws_by_size(target: Any) -> bool:
    """Whether a random op does not read the values of its arguments."""
    if op_name(target) == "aten.bernoulli":
        return target is torch.ops.aten.bernoulli.p
    return op_name(target) in DRAWN_BY_SIZE


DRAWN_TOGETHER = frozenset({"aten.multinomial", "aten.randperm", "aten._sample_dirichlet"})


@functools.cache
def draws_each(target: Any) -> bool:
    """Whether a random op draws each element by itself, so that it fuses. Attention and recurrent layers do more."""
    if not is_random(target) or op_name(target) in DRAWN_TOGETHER:
        return False
    return not any(argument.name in ("dropout", "dropout_p") for argument in target._schema.arguments)


def draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers, also through `draw_and_record`. Attention without dropout draws none."""
    if node.op != "call_function":
        return False
    recorded = node.target is torch_compat.draw_and_record
    op: Any = node.args[0] if recorded else node.target
    return is_random(op) and _dropout_of(op, node.args[1:] if recorded else node.args, node.kwargs) != 0


def _dropout_of(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The argument `dropout_p` of a call; `None` if the op has none."""
    for position, argument in enumerate(op._schema.arguments):
        if argument.name == "dropout_p":
            passed = args[position] if position < len(args) else argument.default_value
            return kwargs.get("dropout_p", passed)
    return None


def uses_random_state(node: fx.Node) -> bool:
    """Whether a node reads or sets the state of a generator on the host."""
    return node.target in (torch_compat.draw_and_record, torch_compat.draw_again, torch_compat.philox_draw)


def drawing_device(node: fx.Node) -> torch.device:
    """The device whose default generator a random op draws from: the CPU for all devices that are not GPUs."""
    value = node.meta.get("val")
    value = value[1:] if isinstance(value, tuple) and node.target is torch_compat.draw_and_record else value
    found = (each.device for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor))
    device = next(found, torch.device("cpu"))
    return device if device.type == "cuda" else torch.device("cpu")


def has_effect(target: Any) -> bool:
    """Whether the op does more than compute its result, so that it must run exactly once, in its place."""
    return _has_known_effect(target) or torch_compat.has_registered_effect(target)


@functools.cache
def _has_known_effect(target: Any) -> bool:
    if not callable(target) or is_getitem(target):
        return False
    if op_name(target) in EFFECTS:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target.namespace in EFFECTFUL_NAMESPACES or target._schema.is_mutable or not target._schema.returns


@functools.cache
def position_of_mask(target: Any) -> int | None:
    """The position of the mask argument of a built-in op that computes several gradients; `None` for other ops.

    The mask is a list of flags, one for each result, under any name.
    """
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    results = len(target._schema.returns)
    arguments: Any = enumerate(target._schema.arguments)
    return next((k for k, each in arguments if (str(each.type), each.N) == ("List[bool]", results)), None)


def is_pure_effect(target: Any) -> bool:
    """Whether the op has an effect, but writes to no tensor and has no result: it prints or checks."""
    if not isinstance(target, torch._ops.OpOverload):
        return op_name(target) == "higher_order.print"
    return has_effect(target) and not target._schema.is_mutable and not target._schema.returns


def runs_once(target: Any) -> bool:
    """Whether running the op twice, or in the other half, would change what the program does."""
    return has_effect(target) or is_random(target) or is_opaque(target)


def is_kept_when_dead(target: Any) -> bool:
    """Whether the op runs even if its result is unused; a random op advances the generator for later ones."""
    return has_effect(target) or is_random(target)


def writes(target: Any) -> bool:
    """Whether the op writes to its arguments."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


@functools.cache
def writes_first_argument(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.arguments:
        return False
    alias = target._schema.arguments[0].alias_info
    return alias is not None and alias.is_write


@functools.cache
def is_cheap(target: Any) -> bool:
    """Whether a fusing backend can recompute the op at about the cost of reading its inputs."""
    if not isinstance(target, torch._ops.OpOverload) or is_random(target) or has_effect(target):
        return False
    if op_name(target) in EXPENSIVE_DESPITE_POINTWISE_TAG:
        return False
    return torch.Tag.pointwise in target.tags or op_name(target) in CREATION | CHEAP_WITHOUT_POINTWISE_TAG


@functools.cache
def is_creation(target: Any) -> bool:
    """Whether the result's values do not depend on the values of any tensor argument."""
    return op_name(target) in CREATION


@functools.cache
def is_uninitialized(target: Any) -> bool:
    """Whether the result is uninitialized memory."""
    return op_name(target) in UNINITIALIZED


@functools.cache
def computes_sizes(target: Any) -> bool:
    """Whether the op reads sizes of a tensor or computes with them, and does not read a tensor's data."""
    if isinstance(target, torch._ops.OpOverload):
        return op_name(target) in SYMBOLIC_READS
    return not is_opaque(target) and not is_getitem(target)


@functools.cache
def is_reduction(target: Any) -> bool:
    return op_name(target) in REDUCTIONS


@functools.cache
def reads_indirectly(target: Any) -> bool:
    """Whether the op picks elements of a tensor by the values of another one, which fuses into a kernel."""
    return op_name(target) in INDIRECT_READS


@functools.cache
def is_fusible(target: Any) -> bool:
    """Whether a fusing backend runs the op in one kernel with the ops around it, without a round trip to memory."""
    return is_view(target) or is_cheap(target) or is_reduction(target) or is_getitem(target)


@functools.cache
def may_overwrite(target: Any) -> bool:
    """Whether a backend that runs ops one by one may write the result into a dead argument."""
    return str(target) in OVERWRITING


LISTWISE = ("aten._foreach_", "aten._fused_")
"""Prefixes of ops that compute each tensor of their lists by itself."""


@functools.cache
def is_listwise(target: Any) -> bool:
    """Whether the op computes each tensor of its lists by itself, and writes to none."""
    return op_name(target).startswith(LISTWISE) and in_place_variant(target) is not None


@functools.cache
def in_place_variant(target: Any) -> Any:
    """The op that writes the result of a pointwise op, or of one on lists, into arguments; `None` if there is none."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return None
    if torch.Tag.pointwise not in target.tags and not op_name(target).startswith(LISTWISE):
        return None
    return torch_compat.overload_in_place(target)


@functools.cache
def makes_new_list(target: Any) -> bool:
    """Whether the op computes a list of tensors, each in memory of its own."""
    return op_name(target).startswith("aten._foreach_") and in_place_variant(target) is not None


@functools.cache
def written_in_place(target: Any) -> tuple[str, ...]:
    """The names of the arguments that the variant in place of an op writes to, in the order of its results."""
    variant = in_place_variant(target)
    return () if variant is None else torch_compat.written_names(variant)


@functools.cache
def is_fresh(target: Any) -> bool:
    """Whether the result is known to lie in memory of its own."""
    return str(target) in FRESH


def reads_size(target: Any) -> bool:
    """Whether the op reads a size, stride or offset of a tensor."""
    return op_name(target) in SYMBOLIC_READS


def is_absolute(target: Any) -> bool:
    """Whether the op counts from the start of an argument's storage."""
    return op_name(target) in ABSOLUTE_VIEWS


def reads_value(node: fx.Node, argument: fx.Node) -> bool:
    """Whether the used results of a node depend on the value of an argument, and not only on its size."""
    if reads_size(node.target):
        return False
    if op_name(node.target) == "aten.clone":
        return is_read(node)
    return not is_running_statistic(node, argument) or any(is_new_statistic(user) and is_read(user) for user in node.users)


def is_read(node: fx.Node) -> bool:
    """Whether a used result of the graph depends on the value of a node."""
    return any(reads_value(user, node) for user in node.users)


def statistics_in_training(node: fx.Node) -> Statistics | None:
    """The statistics of a batch norm in training, or of its backward."""
    statistics = STATISTICS.get(op_name(node.target))
    is_trained = statistics is not None and (statistics.training is None or node.args[statistics.training])
    return statistics if is_trained else None


def arguments_read(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a call, with `None` for those that it does not read."""
    statistics = statistics_in_training(node)
    unread = () if statistics is None or statistics.results else statistics.arguments
    return tuple(None if k in unread else value for k, value in enumerate(node.args)) if unread else node.args


def call_without_statistics(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """The op and the arguments of a call, for its results besides new running statistics, which come last."""
    statistics = statistics_in_training(node)
    if statistics is None or statistics.alone is None:
        return node.target, arguments_read(node)
    args = (value for k, value in enumerate(node.args) if k not in statistics.arguments)
    return torch_compat.op_named(statistics.alone), tuple(args)


def is_running_statistic(node: fx.Node, argument: fx.Node) -> bool:
    """Whether a node is a batch norm in training, or its backward, and takes the argument only as a running statistic.

    So is a kept call that returns a new value of the argument, on whose old value other results do not depend.
    """
    if isinstance(node.target, FunctionalizedCall):
        return not node.target.reads_changed and argument in node.target.old_values(node)
    statistics = statistics_in_training(node)
    if statistics is None:
        return False
    return [k for k, value in enumerate(node.args) if value is argument] in [[k] for k in statistics.arguments]


def is_new_statistic(node: fx.Node) -> bool:
    """Whether a node is an updated statistic of a batch norm, or the new value of an argument of a kept call."""
    source: Any = node.args[0] if is_getitem(node.target) else None
    if source is not None and isinstance(source.target, FunctionalizedCall):
        return source.target.is_new_value(cast(int, node.args[1]), source.meta["val"])
    statistics = None if source is None else STATISTICS.get(op_name(source.target))
    return statistics is not None and node.args[1] in statistics.results


def is_opaque(target: Any) -> bool:
    """Whether the op runs its own graph, about which nothing is known here."""
    return isinstance(target, torch._ops.HigherOrderOperator)


def is_drawn_from_seed(target: Any) -> bool:
    """Whether the op draws random numbers from a seed argument; Inductor always writes its result to memory."""
    return op_name(target) in DRAWN_FROM_SEED


WORKSPACE_POSITIONS = {"aten.mkldnn_rnn_layer": 3}
"""Ops that return a workspace for their backward, and its place among their results. They do in the gradient mode only."""


def position_of_workspace(target: Any) -> int | None:
    """The place of an op's workspace among its results; `None` if it has none."""
    return WORKSPACE_POSITIONS.get(op_name(target))


def is_getitem(target: Any) -> bool:
    return target is operator.getitem


def is_check(target: Any) -> bool:
    """Whether the op raises if a condition does not hold, and does nothing else."""
    return op_name(target) in CHECK_OPS


def is_wait(target: Any) -> bool:
    """Whether the op waits for a message: the result of a collective, or a copy to or from the host."""
    return (_is_of_collectives(target) and short_name(target) == "wait_tensor") or op_name(target) == "aotgrad.wait"


def is_collective(target: Any) -> bool:
    """Whether the op starts a collective."""
    return _is_of_collectives(target) and not is_wait(target)


def is_host_copy(target: Any) -> bool:
    """Whether the op starts a copy to or from the host, see `host_copies`."""
    return op_name(target) in ("aotgrad.offload", "aotgrad.reload")


def starts_message(target: Any) -> bool:
    """Whether the op starts something that runs beside computations until a wait."""
    return is_collective(target) or is_host_copy(target)


COALESCED = {
    "_c10d_functional.all_gather_into_tensor": "all_gather_into_tensor_coalesced",
    "_c10d_functional.all_reduce": "all_reduce_coalesced",
    "_c10d_functional.reduce_scatter_tensor": "reduce_scatter_tensor_coalesced",
}
"""Collectives, and the ops that run several of one kind at once."""


def coalesced(target: Any) -> Any:
    """The op that runs several such collectives at once; `None` if there is none."""
    name = COALESCED.get(op_name(target))
    return None if name is None else getattr(getattr(torch.ops, target.namespace), name).default


def communicates(target: Any) -> bool:
    """Whether the op starts a collective or waits for one."""
    return _is_of_collectives(target)


def _is_of_collectives(target: Any) -> bool:
    return getattr(target, "namespace", None) in EFFECTFUL_NAMESPACES


def is_symbolic_value(node: fx.Node) -> bool:
    """Whether the node is a number: a symbolic size, float or bool, or a plain one."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))


def is_object(node: fx.Node) -> bool:
    """Whether the node creates an object that is an argument of another op, such as the settings of a wrapped region."""
    return node.op == "call_function" and isinstance(node.target, type)


def is_tuple_value(node: fx.Node) -> bool:
    """Whether the op returns several values, read as items; a wrapped Triton kernel returns them by name."""
    return isinstance(node.meta.get("val"), (tuple, list, dict))


def items_of(value: Any) -> list[Any]:
    """The values that an op returns, in a list."""
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (tuple, list)) else [value]
