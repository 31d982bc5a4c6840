"""Corrections of Inductor's errors, in one table.

    CORRECTIONS["a name"] = Decomposition(op, function, reason)     decompose the op differently
    CORRECTIONS["a name"] = Check(op, function, reason)             check the op's arguments before its decomposition
    CORRECTIONS["a name"] = Rewrite(function, reason)               change joint graphs before Inductor gets them
    CORRECTIONS["a name"] = Amendment(context, reason)              run Inductor in a context that changes its behaviour

Each has a test that shows torch's result without it. When torch fixes the error, the test fails and the correction can go.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Union, cast

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.copies import keep_output_memory
from aotgrad.backends.decompositions import cumsum, multilabel_margin_loss_forward, scatter_in_one_dimension
from aotgrad.backends.layouts import in_order_of, keep_output_layouts
from aotgrad.graph.gradient_masks import narrow_mask


@dataclass(frozen=True)
class Decomposition:
    """While a function is traced, `function` replaces `op`."""

    op: torch._ops.OpOverload
    function: Callable
    reason: str


@dataclass(frozen=True)
class Check:
    """`function` checks the arguments of `op` before Inductor's decomposition.

    It raises if eager does, or returns `NotImplemented` to keep the op undecomposed.
    """

    op: torch._ops.OpOverload
    function: Callable
    reason: str


@dataclass(frozen=True)
class Rewrite:
    """`function` changes a joint graph in place."""

    function: Callable[[fx.Graph], None]
    reason: str


@dataclass(frozen=True)
class Amendment:
    """Inductor compiles inside `context`, which changes its behaviour."""

    context: Callable[[], AbstractContextManager]
    reason: str


Correction = Union[Decomposition, Check, Rewrite, Amendment]


def corrected_decompositions(table: Mapping[Any, Callable]) -> dict[Any, Callable]:
    """A table of decompositions, with our own decompositions, checks and layouts applied."""
    corrected = dict(table)
    for correction in CORRECTIONS.values():
        match correction:
            case Decomposition(op, function):
                corrected[op] = function
            case Check(op, function):
                corrected[op] = with_check(corrected[op], function)
    for op in torch_compat.LAYOUTS.keys() & corrected.keys():
        corrected[op] = with_layout(corrected[op], op)
    return corrected


def with_check(decomposition: Callable, check: Callable) -> Callable:
    """A decomposition that checks its arguments first."""

    @wraps(decomposition)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if check(*args, **kwargs) is NotImplemented:
            return NotImplemented
        return decomposition(*args, **kwargs)

    return checked


def with_layout(decomposition: Callable, op: torch._ops.OpOverload) -> Callable:
    """A decomposition whose results lie in memory as those of the op's kernel."""

    @wraps(decomposition)
    def laid_out(*args: Any, **kwargs: Any) -> Any:
        results = decomposition(*args, **kwargs)
        if results is NotImplemented:
            return NotImplemented
        return torch_compat.in_kernel_layout(op, results, (args, kwargs), in_order_of)

    return laid_out


def rewrite(graph: fx.Graph) -> None:
    """Apply the rewrites to a joint graph."""
    for correction in CORRECTIONS.values():
        if isinstance(correction, Rewrite):
            correction.function(graph)


@contextlib.contextmanager
def amend_inductor() -> Iterator[None]:
    """Inside, all amendments are in force."""
    with contextlib.ExitStack() as stack:
        for correction in CORRECTIONS.values():
            if isinstance(correction, Amendment):
                stack.enter_context(correction.context())
        yield


# --- Checks ----------------------------------------------------------------------------------------------------------


def check_index_add(input: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **_: Any) -> None:
    """Raise unless `source` has the sizes of `input` in all dimensions but `dim`."""
    elsewhere, added = list(input.size()), list(source.size())
    if elsewhere and added:
        del elsewhere[dim], added[dim]
    if elsewhere != added:
        raise RuntimeError(f"sizes {added} are added to sizes {elsewhere}, apart from dimension {dim}")


def check_index_select(input: torch.Tensor, dim: int, index: torch.Tensor) -> None:
    """Raise unless a tensor without dimensions has one index."""
    if not input.dim() and (count := index.numel()) != 1:
        raise IndexError(f"index_select of a tensor without dimensions takes one index, not {count}")


def keep_complex_kernel(*operands: Any, **_: Any) -> Any:
    """`NotImplemented` for complex operands when one of them is empty or not contiguous."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor) and operand.is_complex()]
    return (
        None
        if all(torch_compat.known_contiguous(each) and not has_no_elements(each) for each in tensors)
        else NotImplemented
    )


def has_no_elements(tensor: torch.Tensor) -> bool:
    """Whether a tensor is certainly empty."""
    return any(torch_compat.is_known_empty(tensor, dim) for dim in range(tensor.dim()))


# --- Rewrites --------------------------------------------------------------------------------------------------------


def copy_expanded_targets(graph: fx.Graph) -> None:
    """Copy expanded tensors that `index_put` writes to."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.index_put.default):
        target = node.args[0]
        if torch_compat.is_expanded(target.meta["val"]):
            with graph.inserting_before(node):
                copy = graph.call_function(
                    torch.ops.aten.clone.default, (target,), {"memory_format": torch.contiguous_format}
                )
            copy.meta = {**target.meta, "val": target.meta["val"].contiguous()}
            node.args = (copy, *node.args[1:])


def copy_numbers(graph: fx.Graph) -> None:
    """Copy 0-d constants for ops that need tensors."""
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.pointwise in node.target.tags:
            continue
        for constant in [each for each in node.all_input_nodes if each.op == "get_attr" and is_number(each.meta.get("val"))]:
            with graph.inserting_before(node):
                copy = graph.call_function(torch.ops.aten.lift_fresh_copy.default, (constant,))
            copy.meta = dict(constant.meta)
            node.replace_input_with(constant, copy)


def is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0


def read_every_nth_pixel(graph: fx.Graph) -> None:
    """Compute the gradient of a 1x1 kernel without stride, from a slice with only the pixels that the convolution reads."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        if reads_few_channels_of_some_pixels(node):
            with graph.inserting_before(node):
                pixels = insert_pixels(graph, node.args[1], node.args[4])
                of_weight = graph.call_function(node.target, with_stride_one(node.args, pixels))
            of_weight.meta = {**node.meta, "val": (None, node.meta["val"][1], None)}
            for user in [user for user in node.users if user.args[1] == 1]:
                user.update_arg(0, of_weight)
            narrow_mask(node)


def reads_few_channels_of_some_pixels(node: fx.Node) -> bool:
    """Whether a node computes the gradient of a strided 1x1 kernel with fewer channels than a CPU's vector has elements."""
    weight: torch.Tensor = cast(fx.Node, node.args[2]).meta["val"]
    _, channels, *kernel = weight.shape
    stride, padding, is_transposed, (_, is_wanted, _) = (cast(Any, node.args[k]) for k in (4, 5, 7, 10))
    is_small = weight.is_cpu and kernel == [1, 1] and isinstance(channels, int) and channels < VECTOR
    return is_small and is_wanted and not is_transposed and max(stride) > 1 and max(padding) == 0


VECTOR = 8
"""Single precision elements in a vector of AVX2."""


def insert_pixels(graph: fx.Graph, image: Any, stride: Any) -> fx.Node:
    """`image[:, :, ::stride[0], ::stride[1]]`; a single number is the stride of both."""
    for dim, step in enumerate(stride if len(stride) == 2 else 2 * stride, 2):
        part = graph.call_function(torch.ops.aten.slice.Tensor, (image, dim, 0, sys.maxsize, step))
        with torch_compat.fake_mode_of(graph):
            part.meta = {**image.meta, "val": image.meta["val"][(slice(None),) * dim + (slice(None, None, step),)]}
        image = part
    return image


def with_stride_one(args: Any, image: fx.Node) -> tuple[Any, ...]:
    """The arguments of a `convolution_backward` for the gradient of the weights alone, with stride 1 and this image."""
    gradient, _, weight, *_, groups, _ = args
    return (gradient, image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups, [False, True, False])


SCATTERS = (
    torch.ops.aten.scatter.value,
    torch.ops.aten.scatter.src,
    torch.ops.aten.scatter_add.default,
    torch.ops.aten.scatter_reduce.two,
)

CORRECTIONS: Mapping[str, Correction] = {
    "targets end at the first -1": Decomposition(
        torch.ops.aten.multilabel_margin_loss_forward.default,
        multilabel_margin_loss_forward,
        "a row of targets ends at its first -1; torch's decomposition reads past it",
    ),
    "sums of a number": Decomposition(
        torch.ops.aten.cumsum.default, cumsum, "a cumulative sum of a constant without dimensions is not compiled"
    ),
    **{
        f"numbers in {op}": Decomposition(
            op,
            partial(scatter_in_one_dimension, op),
            "a pass of Inductor fails if an operand has no dimensions, and a result that nothing is written to gets one",
        )
        for op in SCATTERS
    },
    "indices into a number": Check(
        torch.ops.aten.index_select.default,
        check_index_select,
        "the decomposition reads a number at no index, or at several ones, which eager refuses",
    ),
    "operands of cat that are empty": Check(
        torch.ops.aten.cat.default,
        partial(torch_compat.run_shape_function, torch.ops.aten.cat.default),
        "the decomposition drops empty operands without checking their sizes and number of dimensions",
    ),
    "orders of dimensions": Check(
        torch.ops.aten.empty_permuted.default,
        partial(torch_compat.run_shape_function, torch.ops.aten.empty_permuted.default),
        "the decomposition accepts an order with a repeated dimension, or with another length than the sizes",
    ),
    "sizes of what index_add adds": Check(
        torch.ops.aten.index_add.default, check_index_add, "the decomposition broadcasts the source, which eager refuses"
    ),
    "complex sums": Check(
        torch.ops.aten.add.Tensor,
        keep_complex_kernel,
        "the decomposition views the numbers as real ones, which is not possible for some strides of empty tensors",
    ),
    "index_put into an expanded tensor": Rewrite(
        copy_expanded_targets, "Inductor writes into the expanded tensor in place, so each write reaches every row"
    ),
    "constants without dimensions": Rewrite(
        copy_numbers, "Inductor treats a 0-d constant as a number, and fails if an op needs a tensor"
    ),
    "strided convolutions of few channels": Rewrite(
        read_every_nth_pixel,
        "oneDNN writes past the end of its memory (on AVX2, for channels-last tensors, which Inductor prefers)",
    ),
    "conversions of complex numbers": Amendment(
        torch_compat.use_aten_conversions,
        "the result of a conversion requires grad if the operand does, even under no_grad",
    ),
    "factors of sums": Amendment(
        torch_compat.keep_factors_of_sums,
        "torch.add(x, a @ b, alpha=factor) becomes addmm without the factor",
    ),
    "offsets in memory": Amendment(
        torch_compat.use_traced_offsets,
        "Inductor calls the op with its own buffer, whose offset is not the one that as_strided counts from",
    ),
    "numbers on the CPU": Amendment(
        torch_compat.keep_host_numbers,
        "a number that the CPU computes from an element is computed in the kernel of a GPU, which cannot read the element",
    ),
    "offsets of inputs": Amendment(
        torch_compat.count_input_offsets,
        "as_strided of an input that is a slice counts from the slice (torch < 2.13)",
    ),
    "strides of values viewed as another dtype": Amendment(
        torch_compat.view_traced_strides, "a view as complex numbers, or of them, fails if Inductor has chosen other strides"
    ),
    "reads between two writes": Amendment(
        torch_compat.check_reads_of_overwritten_values,
        "a read of what one write left in a buffer is fused with the next write to it, though they access other elements",
    ),
    "folded constants that are expanded": Amendment(
        partial(torch_compat.around_post_grad_passes, keep_output_layouts),
        "a result folded at compile time is returned as an expanded view, with other strides than eager's",
    ),
    "results and writes that share memory": Amendment(
        partial(torch_compat.around_post_grad_passes, keep_output_memory),
        "clones are removed, so two results are the same tensor, or a result or a write reads what a write has left",
    ),
    "writes over what they read": Amendment(
        torch_compat.check_reads_of_targets,
        "an index_put or an op on a list writes in place to what its other arguments view, or are computed from",
    ),
    "index_put into a view as another dtype": Amendment(
        torch_compat.keep_writes_to_converted_views,
        "it writes to the base in place, and converts the numbers to the dtype of the base",
    ),
    "writes of what they move": Amendment(
        torch_compat.buffer_written_values,
        "copy_ of a view of values computed from other elements of the target reads what it has already written",
    ),
    "writes to concatenated values": Amendment(
        torch_compat.copy_into_written_concatenations,
        "an input of cat is computed in the memory of the result, and read there after a write to the result",
    ),
    "strides of indices": Amendment(
        torch_compat.leave_strides_unsimplified,
        "a kernel whose index has a remainder of two sizes is not compiled, since sympy tries sizes that are no integers",
    ),
    "reads after a write": Amendment(
        torch_compat.keep_reads_of_written_values,
        "a read of what a write leaves in a buffer moves before it if its loops are regenerated for a fusion",
    ),
}
"""By name. The names are a part of the key of Inductor's own cache, so that tests can leave one out."""
