"""Ops: by name, their use of memory and values, and those without a public name."""

from __future__ import annotations

import builtins
import enum
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

unsafe_view = torch.ops.aten._unsafe_view.default
"""`view` of a tensor that nothing else reads. It shares memory, though its schema does not say so."""

zero_without_memory = torch.ops.aten._efficientzerotensor.default
"""Creates the zeros that stand for an undefined tangent in forward mode."""

cast = torch.ops.aten._to_copy.default
"""`to` in a graph: a copy with another dtype, device or layout."""


class Read(enum.Enum):
    """What an op reveals about the values of its arguments."""

    NUMBER = "a number, which may stay symbolic"
    ANSWER = "a Python value"
    SIZES = "the sizes of its results, for which torch has no shape function"


PARTS_OF_SPARSE = ("values", "_values", "indices", "_indices", "crow_indices", "col_indices", "ccol_indices", "row_indices")

is_coalesced = torch.ops.aten.is_coalesced.default

READS_ENTRIES = {
    torch.ops.aten._nnz.default: Read.ANSWER,
    is_coalesced: Read.ANSWER,
    **{getattr(torch.ops.aten, name).default: Read.SIZES for name in PARTS_OF_SPARSE},
}
"""Ops that reveal the number of entries of a sparse tensor, or duplicate indices. Computed fakes have no entries."""

MAKES_ENTRIES = frozenset(
    {
        torch.ops.aten._sparse_coo_tensor_unsafe.default,
        torch.ops.aten._sparse_coo_tensor_with_dims.default,
        torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default,
    }
)
"""Ops that create a sparse tensor from indices: the fake has the right number of entries."""

COALESCES = frozenset(
    {torch.ops.aten._coalesce.default, torch.ops.aten._to_sparse.default, torch.ops.aten._to_sparse.sparse_dim}
)
"""Ops that return a coalesced tensor, also for fakes."""

KEEPS_ENTRIES: dict[Any, int] = {
    torch.ops.aten.detach.default: 0,
    torch.ops.aten.clone.default: 0,
    torch.ops.aten.neg.default: 0,
    torch.ops.aten._to_copy.default: 0,
    torch.ops.aten.sparse_mask.default: 1,
}
"""Ops whose result has the entries of one of their arguments, and the position of that argument."""

READS_VALUES = {
    torch.ops.aten._local_scalar_dense.default: Read.NUMBER,
    torch.ops.aten.allclose.default: Read.ANSWER,
    torch.ops.aten.equal.default: Read.ANSWER,
    torch.ops.aten.linalg_lstsq.default: Read.SIZES,
    torch.ops.aten._ctc_loss.default: Read.SIZES,
    torch.ops.aten._ctc_loss.Tensor: Read.SIZES,
    **READS_ENTRIES,
}
"""Ops whose result depends on values in a way that a graph does not record."""


FOR_INFERENCE_ONLY = frozenset({torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default})
"""Ops whose second result core ATen's decompositions replace, so that their backward would be wrong.

It becomes the attention weights in place of the logarithms of their sums.
"""


CONJUGATE = torch.ops.aten._conj.default
NEGATE = torch.ops.aten._neg_view.default
"""Views that mark the conjugate or the negative of their base without computing it."""


class OpKind(enum.Enum):
    """Whether all results of an ordinary op, which writes nothing, are new or are views."""

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
    """`None` for an op that is not ordinary: it writes, depends on data, is composite, is a user's own, ..."""
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
    """Whether an op calls others, or belongs to TorchScript only (`aten::size`)."""
    key, name = torch._C.DispatchKey.CompositeImplicitAutograd, op.name()
    if key in op.py_kernels or not torch._C._dispatch_has_kernel(name):
        return True
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def written_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an op writes to, including those in lists."""
    named = arguments_by_name(op, args, kwargs)
    for name in written_names(op):
        yield from (value for value in pytree.tree_leaves(named.get(name)) if isinstance(value, torch.Tensor))


_UPDATES_STATISTICS = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
"""Kernels that change `running_mean` and `running_var`, which their schemas do not tell."""


def changed_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that an op may change, including those that its schema does not name."""
    changed = list(written_arguments(op, args, kwargs))
    if op._schema.name in _UPDATES_STATISTICS:
        named = arguments_by_name(op, args, kwargs)
        statistics = (named.get(name) for name in ("running_mean", "running_var"))
        changed += [value for value in statistics if named["training"] and isinstance(value, torch.Tensor)]
    return changed


def read_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an op does not write to."""
    written = written_names(op)
    return [value for name, value in arguments_by_name(op, args, kwargs).items() if name not in written]


def overloads(*names: str) -> Iterator[torch._ops.OpOverload]:
    """Every overload of these aten ops that writes to an argument."""
    for packet in (getattr(torch.ops.aten, name) for name in names):
        found = (getattr(packet, overload) for overload in packet.overloads())
        yield from (overload for overload in found if overload._schema.is_mutable)


def is_foreach(op: torch._ops.OpOverload) -> bool:
    """Whether an op applies to each tensor of a list."""
    return op._schema.name.startswith("aten::_foreach_")


def has_registered_effect(target: Any) -> bool:
    """Whether an effect is registered for a custom op; not cached, because that may happen at any time."""
    if not isinstance(target, torch._ops.OpOverload) or is_built_in(target):
        return False
    from torch._higher_order_ops.effects import has_effects

    return has_effects(target)


def is_impure(node: fx.Node) -> bool:
    """Whether torch keeps a node whose result is not read; of a built-in op, a fact that does not change."""
    if isinstance(node.target, torch._ops.OpOverload) and is_built_in(node.target):
        return _is_built_in_impure(node.target)
    return node.is_impure()


@functools.cache
def _is_built_in_impure(target: torch._ops.OpOverload) -> bool:
    return fx.Graph().call_function(target).is_impure()


def is_built_in(op: torch._ops.OpOverload) -> bool:
    return op.namespace in _BUILT_IN_NAMESPACES


_BUILT_IN_NAMESPACES = frozenset({"aten", "prims", "prim"})


def is_effect_wrapper(target: Any) -> bool:
    return target is torch.ops.higher_order.with_effects


def decompositions_of(ops: Sequence[Any]) -> dict[Any, Callable]:
    """Torch's decompositions of ops, by overload."""
    from torch._decomp import get_decompositions

    return get_decompositions(ops)


def schema_name(op: torch._ops.OpOverload) -> str:
    """`aten::add.Tensor`; without an overload `aten::relu`."""
    return op.name()


def op_description(op: torch._ops.OpOverload) -> str:
    """The facts about an operator that a graph relies on: its signature, what it writes to, and its tags."""
    return f"{op._schema} {sorted(map(str, op.tags))}"


def higher_order_named(name: str) -> torch._ops.HigherOrderOperator:
    """The higher-order operator with this name.

    Raises:
        AttributeError: there is none.
    """
    return getattr(torch.ops.higher_order, name)


def op_named(name: str) -> torch._ops.OpOverload:
    """The operator with this name.

    Raises:
        AttributeError: there is none.
    """
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if namespace == "prims" and packet.startswith("inductor_"):
        from torch._inductor import inductor_prims  # noqa: F401  # it registers them
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def function_name(function: Any) -> str | None:
    """The qualified name of a function of torch or Python: `torch._C._nn.gelu`; `None` for other functions."""
    if isinstance(function, torch._ops.OpOverload):
        return schema_name(function)
    if getattr(function, "is_custom_function", False):  # compiled autograd's name of a C++ function counts them
        return None
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
    """The function that `function_name` names.

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


def replaced_rules() -> list[str]:
    """The operators of torch whose derivative or definition somebody has replaced in Python."""
    rules = ("Autograd", "Autocast", "Composite", "Functionalize", "ADInplaceOrView", "Python")
    names = (name.split("/") for name in torch.library._impls - _OWN_RULES)
    return sorted(op for library, op, *key in names if library == "aten" and "".join(key).startswith(rules))


read_number = torch.ops.aten._local_scalar_dense.default
"""`item()` in a graph."""

assert_later = torch.ops.aten._assert_async.msg
"""Raises if a tensor is false, perhaps some time later."""


def overload_in_place(op: torch._ops.OpOverload) -> Any:
    """The op with an underscore after its name that takes the same arguments, `None` if there is none."""
    packet = getattr(getattr(torch.ops, op.namespace), f"{op._opname}_", None)
    variant = getattr(packet, op._overloadname, None)
    return variant if variant is not None and argument_names(variant) == argument_names(op) else None


def argument_names(op: torch._ops.OpOverload) -> tuple[str, ...]:
    return tuple(argument.name for argument in op._schema.arguments)


def written_names(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """The names of the arguments that an op writes to."""
    return tuple(each.name for each in op._schema.arguments if each.alias_info is not None and each.alias_info.is_write)


def arguments_by_name(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, without defaults."""
    return {**dict(zip(argument_names(op), args, strict=False)), **kwargs}


def foreach_op(name: str, overload: str) -> Any:
    """An op on lists of tensors: `foreach_op("add", "List")`."""
    return getattr(getattr(torch.ops.aten, f"_foreach_{name}"), overload)


_OWN_RULES = frozenset({"aten/to_dense/PythonTLSSnapshot"})
"""Registrations of newer versions of torch, which are for fake tensors only."""
