"""What Inductor gets wrong, as one table, and what keeps it from that: what a graph computes is computed.

    CORRECTIONS["a name"] = Decomposition(op, function, reason)     the op is taken apart in another way
    CORRECTIONS["a name"] = Check(op, function, reason)             the op's arguments are looked at before it is taken apart
    CORRECTIONS["a name"] = Rewrite(function, reason)               joint graphs are changed before Inductor sees them
    CORRECTIONS["a name"] = Amendment(context, reason)              Inductor runs in a context that changes what it does

For each there is a test that shows what torch does without it, and fails when torch does it right: then the correction goes.
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
from aotgrad.backends.copies import output_memory_kept
from aotgrad.backends.layouts import output_layouts_kept
from aotgrad.graph.gradient_masks import narrow_mask


@dataclass(frozen=True)
class Decomposition:
    """`op` is `function` of its arguments while a function is traced."""

    op: torch._ops.OpOverload
    function: Callable
    reason: str


@dataclass(frozen=True)
class Check:
    """`function` of the arguments of `op` raises where eager raises, and Inductor's decomposition would not.

    Or it returns `NotImplemented`: the op is not taken apart.
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
    """Inductor compiles inside of `context`, in which it does something else."""

    context: Callable[[], AbstractContextManager]
    reason: str


Correction = Union[Decomposition, Check, Rewrite, Amendment]


def corrected_decompositions(table: Mapping[Any, Callable]) -> dict[Any, Callable]:
    """A table of decompositions with ours in the place of wrong ones, and what is to be checked checked."""
    corrected = dict(table)
    for correction in CORRECTIONS.values():
        match correction:
            case Decomposition(op, function):
                corrected[op] = function
            case Check(op, function):
                corrected[op] = preceded(table[op], function)
    return corrected


def preceded(decomposition: Callable, check: Callable) -> Callable:
    """A decomposition whose arguments are checked first."""

    @wraps(decomposition)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if check(*args, **kwargs) is NotImplemented:
            return NotImplemented
        return decomposition(*args, **kwargs)

    return checked


def rewrite(graph: fx.Graph) -> None:
    """Change what Inductor would compile wrongly."""
    for correction in CORRECTIONS.values():
        if isinstance(correction, Rewrite):
            correction.function(graph)


@contextlib.contextmanager
def amended() -> Iterator[None]:
    """Inside, Inductor is amended."""
    with contextlib.ExitStack() as stack:
        for correction in CORRECTIONS.values():
            if isinstance(correction, Amendment):
                stack.enter_context(correction.context())
        yield


# --- Decompositions --------------------------------------------------------------------------------------------------

MEAN, SUM = 1, 2
"""The reductions of a loss, as ATen numbers them."""


def multilabel_margin_loss_forward(
    input: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and which classes are targets."""
    scores, goals = torch.atleast_2d(input), torch.atleast_2d(target)
    if scores.size(1) == 0:
        raise RuntimeError("a row has no classes")
    is_before_end = (goals == -1).cumsum(1) == 0
    goals = torch.where(is_before_end, goals, 0)
    is_target = torch.zeros_like(scores).scatter_reduce(1, goals, is_before_end.to(scores.dtype), "amax")
    margins = 1 - scores.gather(1, goals)[:, :, None] + scores[:, None, :]
    is_counted = is_before_end[:, :, None] & (is_target == 0)[:, None, :] & (margins > 0)
    losses = torch.where(is_counted, margins, 0).sum((1, 2)) / scores.size(1)
    return reduced(losses, reduction, input.dim() < 2), is_target.view(target.size())


def reduced(losses: torch.Tensor, reduction: int, is_one: bool) -> torch.Tensor:
    """`is_one`: there is one loss, so nothing is left to choose."""
    if reduction == MEAN:
        return losses.mean()
    return losses.sum() if reduction == SUM or is_one else losses


# --- Checks ----------------------------------------------------------------------------------------------------------


def check_index_add(input: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **_: Any) -> None:
    """What is added has the sizes of what it is added to, but for `dim`."""
    elsewhere, added = list(input.size()), list(source.size())
    if elsewhere and added:
        del elsewhere[dim], added[dim]
    if elsewhere != added:
        raise RuntimeError(f"sizes {added} are added to sizes {elsewhere}, apart from dimension {dim}")


def keep_complex_sum(*operands: Any, **_: Any) -> Any:
    """A sum of complex tensors is not taken apart unless they are contiguous, and have elements."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor) and operand.is_complex()]
    return None if all(torch_compat.known_contiguous(each) and not is_empty(each) for each in tensors) else NotImplemented


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no elements, whatever symbols are."""
    return any(torch_compat.is_known_empty(tensor, dim) for dim in range(tensor.dim()))


# --- Rewrites --------------------------------------------------------------------------------------------------------


def copy_expanded_targets(graph: fx.Graph) -> None:
    """Give each `index_put` memory of its own to write to."""
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
    """Give ops that need tensors copies of constants without dimensions."""
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
    """Compute the gradient of a small kernel without a stride, from the pixels that the convolution reads."""
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
    """Whether the gradient of a 1x1 kernel is wanted, with a stride and fewer channels than a CPU's vector has numbers."""
    weight: torch.Tensor = cast(fx.Node, node.args[2]).meta["val"]
    _, channels, *kernel = weight.shape
    stride, padding, is_transposed, (_, is_wanted, _) = (cast(Any, node.args[k]) for k in (4, 5, 7, 10))
    is_small = weight.is_cpu and kernel == [1, 1] and isinstance(channels, int) and channels < VECTOR
    return is_small and is_wanted and not is_transposed and max(stride) > 1 and max(padding) == 0


VECTOR = 8
"""Single precision numbers in a vector of AVX2."""


def insert_pixels(graph: fx.Graph, image: Any, stride: Any) -> fx.Node:
    """`image[:, :, ::stride[0], ::stride[1]]`; one number is the stride of both."""
    for dim, step in enumerate(stride if len(stride) == 2 else 2 * stride, 2):
        part = graph.call_function(torch.ops.aten.slice.Tensor, (image, dim, 0, sys.maxsize, step))
        with torch_compat.fake_mode_of(graph):
            part.meta = {**image.meta, "val": image.meta["val"][(slice(None),) * dim + (slice(None, None, step),)]}
        image = part
    return image


def with_stride_one(args: Any, image: fx.Node) -> tuple[Any, ...]:
    """The arguments of a `convolution_backward` that computes the gradient of the weights alone, of this image."""
    gradient, _, weight, *_, groups, _ = args
    return (gradient, image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups, [False, True, False])


CORRECTIONS: Mapping[str, Correction] = {
    "targets end at the first -1": Decomposition(
        torch.ops.aten.multilabel_margin_loss_forward.default,
        multilabel_margin_loss_forward,
        "a row of targets ends at its first -1; torch's decomposition reads on behind it",
    ),
    "operands of cat that are empty": Check(
        torch.ops.aten.cat.default,
        partial(torch_compat.check_shapes, torch.ops.aten.cat.default),
        "empty operands are left out, whatever their other sizes and their number of dimensions",
    ),
    "orders of dimensions": Check(
        torch.ops.aten.empty_permuted.default,
        partial(torch_compat.check_shapes, torch.ops.aten.empty_permuted.default),
        "the order may name a dimension twice, or have another length than the sizes",
    ),
    "sizes of what index_add adds": Check(
        torch.ops.aten.index_add.default, check_index_add, "what is added is broadcast, which eager refuses"
    ),
    "complex sums": Check(
        torch.ops.aten.add.Tensor,
        keep_complex_sum,
        "the parts are added as one real tensor, which some strides, or no elements, do not let view as complex again",
    ),
    "index_put into an expanded tensor": Rewrite(
        copy_expanded_targets, "Inductor writes into the expanded tensor in place, so that each row is written to each time"
    ),
    "constants without dimensions": Rewrite(
        copy_numbers, "Inductor takes a constant without dimensions for a number, and fails where an op needs a tensor"
    ),
    "strided convolutions of few channels": Rewrite(
        read_every_nth_pixel,
        "oneDNN writes behind the end of its memory (on AVX2, for channels that are last in memory, as Inductor lays them)",
    ),
    "conversions of complex numbers": Amendment(
        torch_compat.conversions_called_by_aten,
        "the result of a conversion requires grad where the operand does, under no_grad, too",
    ),
    "offsets in memory": Amendment(
        torch_compat.traced_storage_offsets,
        "Inductor calls the op with a buffer of its own, whose offset is another one than as_strided counts from",
    ),
    "offsets of inputs": Amendment(
        torch_compat.input_offsets_counted,
        "as_strided of an input that is a slice counts from the slice (torch < 2.13)",
    ),
    "reads between two writes": Amendment(
        torch_compat.reads_of_overwritten_values_checked,
        "a read of what one write left in a buffer is fused with the next write to it, though they are of other elements",
    ),
    "constants that are expanded": Amendment(
        partial(torch_compat.around_post_grad_passes, output_layouts_kept),
        "a result that is computed while compiling is returned as a view of few elements, with other strides than eager's",
    ),
    "results that share memory": Amendment(
        partial(torch_compat.around_post_grad_passes, output_memory_kept),
        "clones are taken out, so that two results are one tensor, or a result is an argument that is written in place",
    ),
    "writes over what they read": Amendment(
        torch_compat.reads_of_targets_checked,
        "an index_put or an op on a list writes in place to what its other arguments are views of, or computed from",
    ),
    "index_put into a view as another dtype": Amendment(
        torch_compat.writes_to_converted_views_kept,
        "it writes in place into the memory of the view, and converts the numbers to the dtype of that",
    ),
    "writes of what they move": Amendment(
        torch_compat.values_that_are_written_kept_apart,
        "copy_ of a view of what is computed from the target at other places reads elements that it has written",
    ),
    "reads after a write": Amendment(
        torch_compat.reads_of_written_values_kept,
        "a read of what a write leaves in a buffer comes before it, if its loops were made anew to be fused with others",
    ),
}
"""By name. Inductor's own cache keeps apart what was compiled with other names: one that changes gets another name."""
