"""Replaces Python floats in a graph by 0-d tensors of double precision.

    s = item(t); y = mul(x, s + 1)        ->        y = mul(x, convert(add(t, 1.0), x.dtype))

Inductor passes a symbolic float to its kernels in single precision, and does not know those that Dynamo passes. Compiled
autograd records no floats. A tensor has Python's precision. It is converted to the dtype that an op computes in, as eager
converts a number, so that type promotion is eager's. If an op takes no tensor, or a size depends on the float, the float
becomes a constant under a guard.

Python's errors, such as a division by zero, become assertions in the graph.

Floats computed from sizes become tensors, too: `x * (1 / n)` multiplies by a tensor computed from the size `n`. Such a float
stays a number where Inductor has no such op, and where a size is computed from it.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table

aten, prims = torch.ops.aten, torch.ops.prims
VALUE_META = ("val", "tensor_meta", "unbacked_bindings")
"""The keys of `meta` that describe the value of a node; others describe its origin."""


def replace_floats(graph: fx.Graph) -> None:
    """Rewrite a graph so that no op takes a float that depends on one read from a tensor, or on a fraction of sizes."""
    reads = list(filter(is_float_read, graph.nodes))
    if reads or any(map(is_float_of_sizes, graph.nodes)):
        make_sizes_constant(graph, reads)
        rewriting = Rewriting(graph)
        for node in list(graph.nodes):
            rewriting.visit(node)
        rewriting.remove_numbers()


def halves_of_float(number: float) -> tuple[int, int]:
    """The bits of a float as two ints of at least two each: torch takes zero and one as constants.

    >>> [hex(half - 2) for half in halves_of_float(-1.5)]
    ['0xbff80000', '0x0']
    """
    (bits,) = struct.unpack("<Q", struct.pack("<d", number))
    return (bits >> 32) + 2, (bits & 0xFFFFFFFF) + 2


def float_of_halves(high: int, low: int) -> torch.Tensor:
    """In a graph: the float as a 0-d tensor."""
    high_bits, low_bits = (torch.full((), half - 2, dtype=torch.int64) for half in (high, low))
    return (high_bits * 2**32 + low_bits).view(torch.float64)


def is_float_read(node: fx.Node) -> bool:
    """Whether a node reads a float from a tensor."""
    return node.target is torch_compat.read_number and isinstance(node.meta["val"], torch.SymFloat)


def is_float_of_sizes(node: fx.Node) -> bool:
    """Whether a float is computed from sizes only."""
    if node.op != "call_function" or node.target not in NUMBERS or not isinstance(node.meta.get("val"), torch.SymFloat):
        return False
    return all(isinstance(value_of(each), torch.SymInt) or is_float_of_sizes(each) for each in node.all_input_nodes)


def make_sizes_constant(graph: fx.Graph, reads: Sequence[fx.Node]) -> None:
    """Specialize on the floats that a size depends on."""
    values = (value for node in graph.nodes for value in op_table.items_of(node.meta.get("val")))
    sizes = (size for value in values if isinstance(value, torch.Tensor) for size in value.size())
    sizing = {name for size in sizes for name in symbol_names(size)}
    for read in reads:
        if not sizing.isdisjoint(symbol_names(read.meta["val"])):
            value_in_trace(read)


def value_in_trace(node: fx.Node) -> Any:
    """The value of a number in this trace, which adds a guard.

    Raises:
        CaptureError: the number depends on the values of tensors.
    """
    try:
        return torch_compat.assumed_value(node.meta["val"])
    except Exception as error:
        lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip(" ^~")]
        raise CaptureError(
            "Inductor needs a number that depends on the values of a tensor, for a size, a condition or an op that "
            f"takes no tensor, at {lines[-1] if lines else node.name}; "
            "compute with the tensor, or use the backend aotgrad_eager"
        ) from error


def symbol_names(number: Any) -> Sequence[str]:
    """The symbols in a number."""
    return torch_compat.symbolic_text(number)[1] if torch_compat.has_symbols(number) else ()


@dataclass
class Rewriting:
    """The state of `replace_floats`.

    Attributes:
        tensors: the tensor that holds the value of each number.
        numbers: number nodes to erase in the end.
        size_numbers: those computed from sizes, which stay if something needs them.
        origin: the metadata of new nodes that describes their origin.
    """

    graph: fx.Graph
    tensors: dict[fx.Node, fx.Node] = field(default_factory=dict)
    numbers: list[fx.Node] = field(default_factory=list)
    size_numbers: set[fx.Node] = field(default_factory=set)
    origin: Mapping[str, Any] = field(default_factory=dict)

    def visit(self, node: fx.Node) -> None:
        """Rewrite a node that depends on a float."""
        self.origin = {name: value for name, value in node.meta.items() if name not in VALUE_META}
        with self.graph.inserting_before(node):
            if is_float_read(node):
                self.add_number(node, self.cast(self.call(aten.reshape.default, node.args[0], []), torch.float64))
            elif is_float_of_sizes(node):
                self.size_numbers.add(node)
                self.visit_number(node)
            elif self.tensors.keys().isdisjoint(node.all_input_nodes):
                return
            elif node.op == "output":
                node.args = fx.map_arg(node.args, self.number)
            elif op_table.is_symbolic_value(node):
                self.visit_number(node)
            else:
                self.visit_op(node)

    def visit_number(self, node: fx.Node) -> None:
        """Compute Python's arithmetic on floats with tensors; without a tensor form, the number becomes a constant."""
        compute = NUMBERS.get(node.target)
        if self.size_numbers.issuperset(self.tensors.keys() & set(node.all_input_nodes)) and node not in self.size_numbers:
            return
        if compute is not None:
            self.add_number(node, compute(self, *map(self.double, node.args)))
            return
        value = value_in_trace(node)
        for user in list(node.users):
            user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), lambda arg: value if arg is node else arg)
        self.numbers.append(node)

    def visit_op(self, node: fx.Node) -> None:
        rule = OPS.get(node.target)
        if rule is None:
            node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), self.constant)
        else:
            node.replace_all_uses_with(rule(self, node))
            self.graph.erase_node(node)

    def add_number(self, node: fx.Node, tensor: fx.Node) -> None:
        self.tensors[node] = tensor
        self.numbers.append(node)

    def remove_numbers(self) -> None:
        for node in reversed(self.numbers):
            if node not in self.size_numbers or not node.users:
                self.graph.erase_node(node)

    # -- arguments

    def may_be_zero(self, divisor: fx.Node) -> bool:
        """Whether a number may be zero in another call; sizes are guarded."""
        return any(tensor is divisor and number not in self.size_numbers for number, tensor in self.tensors.items())

    def constant(self, node: fx.Node) -> Any:
        """The value of a float in this trace, which adds a guard; any other node itself."""
        return value_in_trace(node) if node in self.tensors.keys() - self.size_numbers else node

    def number(self, node: fx.Node) -> fx.Node:
        """A float read from the tensor that holds it; any other node itself."""
        if node not in self.tensors or node in self.size_numbers:
            return node
        read = self.graph.call_function(torch_compat.read_number, (self.tensors[node],))
        read.meta = {**self.origin, **torch_compat.meta_of_read(value_of(self.tensors[node]))}
        return read

    def double(self, number: Any) -> fx.Node:
        """A number as a tensor."""
        if number in self.tensors:
            return self.tensors[number]
        number = number if isinstance(number, fx.Node) else float(number)
        return self.call(aten.scalar_tensor.default, number, dtype=torch.float64)

    def operand(self, value: Any, dtype: torch.dtype) -> fx.Node:
        """A tensor or a number as a tensor of a dtype."""
        is_tensor = isinstance(value, fx.Node) and not op_table.is_symbolic_value(value)
        return self.cast(value if is_tensor else self.double(value), dtype)

    # -- new nodes

    def cast(self, tensor: fx.Node, dtype: torch.dtype) -> fx.Node:
        is_of_dtype = tensor.meta["val"].dtype == dtype
        return tensor if is_of_dtype else self.call(prims.convert_element_type.default, tensor, dtype)

    def call(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(op, args, kwargs)
        args, kwargs = fx.map_arg((args, kwargs), value_of)
        with torch_compat.bare_evaluation(), torch_compat.fake_mode_of(self.graph):
            node.meta = {**self.origin, "val": op(*args, **kwargs)}
        return node


def value_of(node: fx.Node) -> Any:
    return node.meta["val"]


def arguments(node: fx.Node) -> Any:
    """The arguments of a call, whose types depend on its op."""
    return node.args


# --- Python's arithmetic on floats -----------------------------------------------------------------------------------

Compute = Callable[..., fx.Node]


def tensor_op(op: Any) -> Compute:
    return lambda rewriting, *tensors, **options: rewriting.call(op, *tensors, **options)


def division(op: Any, **options: Any) -> Compute:
    """A division, with Python's error for a zero divisor."""

    def compute(rewriting: Rewriting, left: fx.Node, right: fx.Node) -> fx.Node:
        if rewriting.may_be_zero(right):
            check(rewriting, rewriting.call(aten.ne.Scalar, right, 0), "float division by zero")
        return rewriting.call(op, left, right, **options)

    return compute


def with_domain(op: Any, message: str = "math domain error") -> Compute:
    """An op, with Python's error if its result is nan (or inf) while no argument is nan (or inf)."""

    def compute(rewriting: Rewriting, *values: fx.Node) -> fx.Node:
        result = rewriting.call(op, *values)
        for is_of_kind in (aten.isnan.default, aten.isinf.default):
            holds = rewriting.call(aten.logical_not.default, rewriting.call(is_of_kind, result))
            for value in values:
                holds = rewriting.call(aten.logical_or.default, holds, rewriting.call(is_of_kind, value))
            check(rewriting, holds, message)
        return result

    return compute


def choice(is_better: Any) -> Compute:
    """The second argument if it is better, as Python's `max` and `min` choose among zeros and nans."""

    def compute(rewriting: Rewriting, first: fx.Node, second: fx.Node) -> fx.Node:
        return rewriting.call(aten.where.self, rewriting.call(is_better, second, first), second, first)

    return compute


def check(rewriting: Rewriting, holds: fx.Node, message: str) -> None:
    rewriting.call(torch_compat.assert_later, holds, message)


NUMBERS: Mapping[Any, Compute] = {
    max: choice(aten.gt.Tensor),
    min: choice(aten.lt.Tensor),
    operator.abs: tensor_op(aten.abs.default),
    operator.add: tensor_op(aten.add.Tensor),
    operator.floordiv: division(aten.div.Tensor_mode, rounding_mode="floor"),
    operator.mod: division(aten.remainder.Tensor),
    operator.mul: tensor_op(aten.mul.Tensor),
    operator.neg: tensor_op(aten.neg.default),
    operator.pow: with_domain(aten.pow.Tensor_Tensor, "a power of floats is too large or complex"),
    operator.sub: tensor_op(aten.sub.Tensor),
    operator.truediv: division(aten.div.Tensor),
    torch.sym_float: lambda _, value: value,
    torch.sym_max: choice(aten.gt.Tensor),
    torch.sym_min: choice(aten.lt.Tensor),
    torch_compat.symbolic_function("acos"): with_domain(aten.acos.default),
    torch_compat.symbolic_function("asin"): with_domain(aten.asin.default),
    torch_compat.symbolic_function("atan"): tensor_op(aten.atan.default),
    torch_compat.symbolic_function("cos"): with_domain(aten.cos.default),
    torch_compat.symbolic_function("cosh"): with_domain(aten.cosh.default, "math range error"),
    torch_compat.symbolic_function("log2"): with_domain(aten.log2.default),
    torch_compat.symbolic_function("sin"): with_domain(aten.sin.default),
    torch_compat.symbolic_function("sinh"): with_domain(aten.sinh.default, "math range error"),
    torch_compat.symbolic_function("sqrt"): with_domain(aten.sqrt.default),
    torch_compat.symbolic_function("tan"): with_domain(aten.tan.default),
    torch_compat.symbolic_function("tanh"): tensor_op(aten.tanh.default),
}
"""The tensor form of Python's operators and functions."""


# --- Ops that take a number where another overload takes a tensor ----------------------------------------------------

Rule = Callable[[Rewriting, fx.Node], fx.Node]

WIDER: Mapping[torch.dtype, torch.dtype] = {
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
    torch.float16: torch.float32,
}
"""The dtypes in which eager computes results of narrow dtypes."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return WIDER.get(dtype, dtype)


def elementwise(compute: Compute) -> Rule:
    """Computes in eager's dtype: a wider one for dtypes narrower than `float`."""

    def rule(rewriting: Rewriting, node: fx.Node) -> fx.Node:
        dtype = node.meta["val"].dtype
        return compute_in(rewriting, node, compute, compute_dtype(dtype), dtype)

    return rule


def comparison(op: Any) -> Rule:
    """Compares in the dtype of the tensor, to which eager rounds the number; integers in the default dtype."""

    def rule(rewriting: Rewriting, node: fx.Node) -> fx.Node:
        dtype = value_of(arguments(node)[0]).dtype
        inside = dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
        return compute_in(rewriting, node, tensor_op(op), inside, torch.bool)

    return rule


def compute_in(rewriting: Rewriting, node: fx.Node, compute: Compute, inside: torch.dtype, dtype: torch.dtype) -> fx.Node:
    """Compute a result with arguments converted to the dtype `inside`, and convert it to `dtype`."""
    args = [argument if argument is None else rewriting.operand(argument, inside) for argument in node.args]
    options = {
        name: value if name == "rounding_mode" else rewriting.operand(value, inside) for name, value in node.kwargs.items()
    }
    return rewriting.cast(compute(rewriting, *args, **options), dtype)


def scaled_op(op: Any) -> Compute:
    """`op(left, alpha * right)`."""

    def compute(rewriting: Rewriting, left: fx.Node, right: fx.Node, alpha: fx.Node | None = None) -> fx.Node:
        right = right if alpha is None else rewriting.call(aten.mul.Tensor, right, alpha)
        return rewriting.call(op, left, right)

    return compute


def scaled_sum(op: Any) -> Compute:
    """`start + op(value * left, right)`."""

    def compute(rewriting: Rewriting, start: fx.Node, left: fx.Node, right: fx.Node, value: fx.Node) -> fx.Node:
        change = rewriting.call(op, rewriting.call(aten.mul.Tensor, left, value), right)
        return rewriting.call(aten.add.Tensor, start, change)

    return compute


def matrix_product(rewriting: Rewriting, node: fx.Node) -> fx.Node:
    """`beta * start + alpha * (left @ right)`, without `start` (which may be nan) if beta is 0."""
    start, left, right = arguments(node)
    dtype = value_of(node).dtype
    inside = compute_dtype(dtype)
    alpha, beta = (rewriting.operand(node.kwargs.get(name, 1), inside) for name in ("alpha", "beta"))
    product = rewriting.cast(rewriting.call(aten.mm.default, left, right), inside)
    kept = rewriting.call(aten.mul.Tensor, rewriting.cast(start, inside), beta)
    nothing = rewriting.call(aten.full.default, [], 0, dtype=inside)
    kept = rewriting.call(aten.where.self, rewriting.call(aten.eq.Scalar, beta, 0), nothing, kept)
    return rewriting.cast(rewriting.call(aten.add.Tensor, kept, rewriting.call(aten.mul.Tensor, product, alpha)), dtype)


def tensor_of_number(rewriting: Rewriting, node: fx.Node) -> fx.Node:
    return full_tensor(rewriting, node, arguments(node)[0], [])


def full(rewriting: Rewriting, node: fx.Node) -> fx.Node:
    size, number = arguments(node)
    return full_tensor(rewriting, node, number, size)


def full_tensor(rewriting: Rewriting, node: fx.Node, number: Any, size: Any) -> fx.Node:
    """A new tensor full of a number, with the dtype and device of the result of `node`."""
    value = rewriting.operand(number, value_of(node).dtype)
    if value_of(node).device != value_of(value).device:
        value = rewriting.call(prims.device_put.default, value, value_of(node).device)
    expanded = rewriting.call(aten.expand.default, value, size)
    return rewriting.call(aten.clone.default, expanded, memory_format=torch.contiguous_format)


def scatter(rewriting: Rewriting, node: fx.Node) -> fx.Node:
    target, dim, index, number = arguments(node)
    value, everywhere = rewriting.operand(number, value_of(node).dtype), rewriting.call(aten.eq.Tensor, index, index)
    values = rewriting.call(aten.where.self, everywhere, value, value)
    return rewriting.call(aten.scatter.src, target, dim, index, values)


ListCompute = Callable[..., list[fx.Node]]


def on_lists(compute: ListCompute) -> Rule:
    """An op on lists; a number, or numbers in a list, stand for a list of tensors."""

    def rule(rewriting: Rewriting, node: fx.Node) -> fx.Node:
        dtypes = [value.dtype for value in value_of(node)]
        inside = [compute_dtype(dtype) for dtype in dtypes]

        def operands(argument: Any) -> list[fx.Node]:
            each = argument if isinstance(argument, (list, tuple)) else [argument] * len(inside)
            return list(map(rewriting.operand, each, inside))

        options = {name: operands(value) for name, value in node.kwargs.items()}
        results = compute(rewriting, *map(operands, node.args), **options)
        results = list(map(rewriting.cast, results, dtypes))
        for item in list(node.users):
            item.replace_all_uses_with(results[arguments(item)[1]])
            rewriting.graph.erase_node(item)
        return results[0]

    return rule


def list_op(name: str) -> ListCompute:
    """`op(left, alpha * right)` for two lists."""
    op = torch_compat.foreach_op(name, "List")

    def compute(rewriting: Rewriting, left: list, right: list, alpha: list | None = None) -> list[fx.Node]:
        return items(rewriting, op, left, right if alpha is None else list_op("mul")(rewriting, right, alpha))

    return compute


def list_sum(name: str) -> ListCompute:
    """`start + op(value * left, right)` for three lists."""

    def compute(rewriting: Rewriting, start: list, left: list, right: list, value: list) -> list[fx.Node]:
        change = list_op(name)(rewriting, list_op("mul")(rewriting, left, value), right)
        return list_op("add")(rewriting, start, change)

    return compute


def list_lerp(rewriting: Rewriting, start: list, end: list, weight: list) -> list[fx.Node]:
    """`start + weight * (end - start)` for lists."""
    return items(rewriting, torch_compat.foreach_op("lerp", "List"), start, end, weight)


def items(rewriting: Rewriting, op: Any, *lists: list[fx.Node]) -> list[fx.Node]:
    """The results of an op on lists."""
    results = rewriting.call(op, *lists)
    return [rewriting.call(operator.getitem, results, k) for k in range(len(value_of(results)))]


LIST_OPS = ("add", "clamp_max", "clamp_min", "div", "maximum", "minimum", "mul", "pow", "sub")
"""Ops on two lists, or on a list and one or more numbers."""

LIST_SUMS = {"addcdiv": "div", "addcmul": "mul"}

OPS: Mapping[Any, Rule] = {
    **{torch_compat.foreach_op(name, "List"): on_lists(list_op(name)) for name in ("add", "sub")},
    **{torch_compat.foreach_op(name, "Scalar"): on_lists(list_op(name)) for name in LIST_OPS},
    **{torch_compat.foreach_op(name, "ScalarList"): on_lists(list_op(name)) for name in LIST_OPS},
    **{torch_compat.foreach_op(name, "Scalar"): on_lists(list_sum(op)) for name, op in LIST_SUMS.items()},
    **{torch_compat.foreach_op(name, "ScalarList"): on_lists(list_sum(op)) for name, op in LIST_SUMS.items()},
    torch_compat.foreach_op("lerp", "Scalar"): on_lists(list_lerp),
    aten.add.Tensor: elementwise(scaled_op(aten.add.Tensor)),
    aten.addcdiv.default: elementwise(scaled_sum(aten.div.Tensor)),
    aten.addcmul.default: elementwise(scaled_sum(aten.mul.Tensor)),
    aten.addmm.default: matrix_product,
    aten.clamp_max.default: elementwise(tensor_op(aten.clamp_max.Tensor)),
    aten.clamp_min.default: elementwise(tensor_op(aten.clamp_min.Tensor)),
    aten.div.Scalar: elementwise(tensor_op(aten.div.Tensor)),
    aten.div.Scalar_mode: elementwise(tensor_op(aten.div.Tensor_mode)),
    aten.div.Tensor: elementwise(tensor_op(aten.div.Tensor)),
    aten.div.Tensor_mode: elementwise(tensor_op(aten.div.Tensor_mode)),
    aten.eq.Scalar: comparison(aten.eq.Tensor),
    aten.fmod.Scalar: elementwise(tensor_op(aten.fmod.Tensor)),
    aten.full.default: full,
    aten.ge.Scalar: comparison(aten.ge.Tensor),
    aten.gt.Scalar: comparison(aten.gt.Tensor),
    aten.le.Scalar: comparison(aten.le.Tensor),
    aten.lt.Scalar: comparison(aten.lt.Tensor),
    aten.mul.Scalar: elementwise(tensor_op(aten.mul.Tensor)),
    aten.mul.Tensor: elementwise(tensor_op(aten.mul.Tensor)),
    aten.ne.Scalar: comparison(aten.ne.Tensor),
    aten.pow.Scalar: elementwise(tensor_op(aten.pow.Tensor_Tensor)),
    aten.pow.Tensor_Scalar: elementwise(tensor_op(aten.pow.Tensor_Tensor)),
    aten.remainder.Scalar: elementwise(tensor_op(aten.remainder.Tensor)),
    aten.remainder.Scalar_Tensor: elementwise(tensor_op(aten.remainder.Tensor)),
    aten.scalar_tensor.default: tensor_of_number,
    aten.scatter.value: scatter,
    aten.sub.Scalar: elementwise(scaled_op(aten.sub.Tensor)),
    aten.sub.Tensor: elementwise(scaled_op(aten.sub.Tensor)),
}
"""The rules for ops that Inductor does not decompose while tracing. For other ops, the float becomes a constant."""
