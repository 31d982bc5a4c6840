"""Python floats in a graph for Inductor, as tensors of double precision without dimensions.

    s = item(t); y = mul(x, s + 1)        ->        y = mul(x, convert(add(t, 1.0), x.dtype))

Inductor hands a symbolic float to its kernels in single precision, and does not know those that Dynamo passes. A tensor
holds what Python computes with. It is converted to the dtype that an op computes in, as eager does with a number, so that
results are promoted as they are there. Where an op takes no tensor, or a size depends on the float, it becomes a constant
under a guard of the trace.

What Python refuses (a division by zero) is an assertion of the graph.

What is computed of sizes is a tensor, too: `x * (1 / n)` multiplies by one that is made of the size `n`. Where Inductor has
no such op, and where a size is made of it, it stays the number that it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table

aten, prims = torch.ops.aten, torch.ops.prims
OF_ONE_VALUE = ("val", "tensor_meta", "unbacked_bindings")
"""What `meta` says of the value of a node; the rest says where it comes from."""


def floats_as_tensors(graph: fx.Graph) -> None:
    """Rewrite a graph so that no op takes a float that was read from a tensor, or computed of sizes, or of such floats."""
    reads = list(filter(is_float_read, graph.nodes))
    if reads or any(map(is_float_of_sizes, graph.nodes)):
        make_sizes_constant(graph, reads)
        rewriting = Rewriting(graph)
        for node in list(graph.nodes):
            rewriting.visit(node)
        rewriting.remove_numbers()


def is_float_read(node: fx.Node) -> bool:
    return node.target is torch_compat.read_number and isinstance(node.meta["val"], torch.SymFloat)


def is_float_of_sizes(node: fx.Node) -> bool:
    """Whether a number is a fraction of sizes, or is computed of such ones."""
    if node.op != "call_function" or node.target not in NUMBERS or not isinstance(node.meta.get("val"), torch.SymFloat):
        return False
    return all(isinstance(value_of(each), torch.SymInt) or is_float_of_sizes(each) for each in node.all_input_nodes)


def make_sizes_constant(graph: fx.Graph, reads: Sequence[fx.Node]) -> None:
    """Make constants of the floats that a size depends on."""
    values = (value for node in graph.nodes for value in op_table.items_of(node.meta.get("val")))
    sizes = (size for value in values if isinstance(value, torch.Tensor) for size in value.size())
    sizing = {name for size in sizes for name in names_in(size)}
    for read in reads:
        if not sizing.isdisjoint(names_in(read.meta["val"])):
            value_in_trace(read)


def value_in_trace(node: fx.Node) -> Any:
    """The value of a number in this trace, under a guard.

    Raises:
        CaptureError: it depends on the values of tensors.
    """
    try:
        return torch_compat.assumed_value(node.meta["val"])
    except Exception as error:
        lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip(" ^~")]
        raise CaptureError(
            "a number depends on the values of a tensor, and Inductor has to know it, for a size, a condition or an op that "
            f"takes no tensor in its place, at {lines[-1] if lines else node.name}; "
            "compute with the tensor, or use the backend aotgrad_eager"
        ) from error


def names_in(number: Any) -> Sequence[str]:
    """The symbols in a number."""
    return torch_compat.symbolic_text(number)[1] if torch_compat.has_symbols(number) else ()


@dataclass
class Rewriting:
    """`tensors`: what holds the value of a number. `numbers`: those that nothing needs in the end. `of_sizes`: the numbers
    among them that may be needed as they are, since they are computed of sizes.

    `origin` is what new nodes say of where they come from.
    """

    graph: fx.Graph
    tensors: dict[fx.Node, fx.Node] = field(default_factory=dict)
    numbers: list[fx.Node] = field(default_factory=list)
    of_sizes: set[fx.Node] = field(default_factory=set)
    origin: Mapping[str, Any] = field(default_factory=dict)

    def visit(self, node: fx.Node) -> None:
        """Write what depends on a float anew."""
        self.origin = {name: value for name, value in node.meta.items() if name not in OF_ONE_VALUE}
        with self.graph.inserting_before(node):
            if is_float_read(node):
                self.add_number(node, self.cast(self.call(aten.reshape.default, node.args[0], []), torch.float64))
            elif is_float_of_sizes(node):
                self.of_sizes.add(node)
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
        """What Python computes of floats is computed of tensors; what has no such form is a constant."""
        compute = NUMBERS.get(node.target)
        if self.of_sizes.issuperset(self.tensors.keys() & set(node.all_input_nodes)) and node not in self.of_sizes:
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
            if node not in self.of_sizes or not node.users:
                self.graph.erase_node(node)

    # -- arguments

    def may_be_zero(self, divisor: fx.Node) -> bool:
        """Whether a number may be zero in another call; what sizes are is guarded."""
        return any(tensor is divisor and number not in self.of_sizes for number, tensor in self.tensors.items())

    def constant(self, node: fx.Node) -> Any:
        """The value of a float in this trace, under a guard; any other node as it is."""
        return value_in_trace(node) if node in self.tensors.keys() - self.of_sizes else node

    def number(self, node: fx.Node) -> fx.Node:
        """A float read from the tensor that holds it; any other node as it is."""
        if node not in self.tensors or node in self.of_sizes:
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
    """The arguments of a call; what types they have, its op knows."""
    return node.args


# --- What Python computes of floats ----------------------------------------------------------------------------------

Compute = Callable[..., fx.Node]


def of_tensors(op: Any) -> Compute:
    return lambda rewriting, *tensors, **options: rewriting.call(op, *tensors, **options)


def dividing(op: Any, **options: Any) -> Compute:
    """A division, which Python refuses by zero."""

    def compute(rewriting: Rewriting, left: fx.Node, right: fx.Node) -> fx.Node:
        if rewriting.may_be_zero(right):
            check(rewriting, rewriting.call(aten.ne.Scalar, right, 0), "float division by zero")
        return rewriting.call(op, left, right, **options)

    return compute


def of_domain(op: Any, message: str = "math domain error") -> Compute:
    """What Python refuses where the result is no number or infinite, unless it has an argument of that kind."""

    def compute(rewriting: Rewriting, *values: fx.Node) -> fx.Node:
        result = rewriting.call(op, *values)
        for is_of_kind in (aten.isnan.default, aten.isinf.default):
            holds = rewriting.call(aten.logical_not.default, rewriting.call(is_of_kind, result))
            for value in values:
                holds = rewriting.call(aten.logical_or.default, holds, rewriting.call(is_of_kind, value))
            check(rewriting, holds, message)
        return result

    return compute


def chosen(is_better: Any) -> Compute:
    """The second one if it is better, as Python's `max` and `min` choose among zeros and NaNs."""

    def compute(rewriting: Rewriting, first: fx.Node, second: fx.Node) -> fx.Node:
        return rewriting.call(aten.where.self, rewriting.call(is_better, second, first), second, first)

    return compute


def check(rewriting: Rewriting, holds: fx.Node, message: str) -> None:
    rewriting.call(torch_compat.assert_later, holds, message)


NUMBERS: Mapping[Any, Compute] = {
    operator.abs: of_tensors(aten.abs.default),
    operator.add: of_tensors(aten.add.Tensor),
    operator.floordiv: dividing(aten.div.Tensor_mode, rounding_mode="floor"),
    operator.mod: dividing(aten.remainder.Tensor),
    operator.mul: of_tensors(aten.mul.Tensor),
    operator.neg: of_tensors(aten.neg.default),
    operator.pow: of_domain(aten.pow.Tensor_Tensor, "a power of floats is too large or complex"),
    operator.sub: of_tensors(aten.sub.Tensor),
    operator.truediv: dividing(aten.div.Tensor),
    torch.sym_float: lambda _, value: value,
    torch.sym_max: chosen(aten.gt.Tensor),
    torch.sym_min: chosen(aten.lt.Tensor),
    torch_compat.symbolic_function("acos"): of_domain(aten.acos.default),
    torch_compat.symbolic_function("asin"): of_domain(aten.asin.default),
    torch_compat.symbolic_function("atan"): of_tensors(aten.atan.default),
    torch_compat.symbolic_function("cos"): of_domain(aten.cos.default),
    torch_compat.symbolic_function("cosh"): of_domain(aten.cosh.default, "math range error"),
    torch_compat.symbolic_function("log2"): of_domain(aten.log2.default),
    torch_compat.symbolic_function("sin"): of_domain(aten.sin.default),
    torch_compat.symbolic_function("sinh"): of_domain(aten.sinh.default, "math range error"),
    torch_compat.symbolic_function("sqrt"): of_domain(aten.sqrt.default),
    torch_compat.symbolic_function("tan"): of_domain(aten.tan.default),
    torch_compat.symbolic_function("tanh"): of_tensors(aten.tanh.default),
}
"""By the operator or function."""


# --- Ops that take a number where another overload takes a tensor ----------------------------------------------------

Rule = Callable[[Rewriting, fx.Node], fx.Node]

WIDER: Mapping[torch.dtype, torch.dtype] = {
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
    torch.float16: torch.float32,
}
"""What eager computes in where a result is of a narrow dtype."""


def computed_in(dtype: torch.dtype) -> torch.dtype:
    return WIDER.get(dtype, dtype)


def elementwise(compute: Compute) -> Rule:
    """In the dtype that eager computes in: a wider one for what is narrower than `float`."""

    def rule(rewriting: Rewriting, node: fx.Node) -> fx.Node:
        dtype = node.meta["val"].dtype
        return converted(rewriting, node, compute, computed_in(dtype), dtype)

    return rule


def comparison(op: Any) -> Rule:
    """In the dtype of the tensor, to which eager rounds the number; integers are compared as the default dtype."""

    def rule(rewriting: Rewriting, node: fx.Node) -> fx.Node:
        dtype = value_of(arguments(node)[0]).dtype
        inside = dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
        return converted(rewriting, node, of_tensors(op), inside, torch.bool)

    return rule


def converted(rewriting: Rewriting, node: fx.Node, compute: Compute, inside: torch.dtype, dtype: torch.dtype) -> fx.Node:
    """A result of `dtype`, computed of arguments that are converted to the dtype `inside`."""
    args = [argument if argument is None else rewriting.operand(argument, inside) for argument in node.args]
    options = {
        name: value if name == "rounding_mode" else rewriting.operand(value, inside) for name, value in node.kwargs.items()
    }
    return rewriting.cast(compute(rewriting, *args, **options), dtype)


def scaled(op: Any) -> Compute:
    """`op(left, alpha * right)`."""

    def compute(rewriting: Rewriting, left: fx.Node, right: fx.Node, alpha: fx.Node | None = None) -> fx.Node:
        right = right if alpha is None else rewriting.call(aten.mul.Tensor, right, alpha)
        return rewriting.call(op, left, right)

    return compute


def scaled_change(op: Any) -> Compute:
    """`start + op(value * left, right)`."""

    def compute(rewriting: Rewriting, start: fx.Node, left: fx.Node, right: fx.Node, value: fx.Node) -> fx.Node:
        change = rewriting.call(op, rewriting.call(aten.mul.Tensor, left, value), right)
        return rewriting.call(aten.add.Tensor, start, change)

    return compute


def matrix_product(rewriting: Rewriting, node: fx.Node) -> fx.Node:
    """`beta * start + alpha * (left @ right)`, and nothing of `start` if beta is 0."""
    start, left, right = arguments(node)
    dtype = value_of(node).dtype
    inside = computed_in(dtype)
    alpha, beta = (rewriting.operand(node.kwargs.get(name, 1), inside) for name in ("alpha", "beta"))
    product = rewriting.cast(rewriting.call(aten.mm.default, left, right), inside)
    kept = rewriting.call(aten.mul.Tensor, rewriting.cast(start, inside), beta)
    nothing = rewriting.call(aten.full.default, [], 0, dtype=inside)
    kept = rewriting.call(aten.where.self, rewriting.call(aten.eq.Scalar, beta, 0), nothing, kept)
    return rewriting.cast(rewriting.call(aten.add.Tensor, kept, rewriting.call(aten.mul.Tensor, product, alpha)), dtype)


def tensor_of_number(rewriting: Rewriting, node: fx.Node) -> fx.Node:
    return filled(rewriting, node, arguments(node)[0], [])


def full(rewriting: Rewriting, node: fx.Node) -> fx.Node:
    size, number = arguments(node)
    return filled(rewriting, node, number, size)


def filled(rewriting: Rewriting, node: fx.Node, number: Any, size: Any) -> fx.Node:
    """A new tensor like the result of `node` in dtype and device, and of a size, that is full of a number."""
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
    """An op on lists; a number stands for a list of tensors, as numbers do that are given in a list."""

    def rule(rewriting: Rewriting, node: fx.Node) -> fx.Node:
        dtypes = [value.dtype for value in value_of(node)]
        inside = [computed_in(dtype) for dtype in dtypes]

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


def of_lists(name: str) -> ListCompute:
    """`op(left, alpha * right)` for two lists."""
    op = torch_compat.foreach_op(name, "List")

    def compute(rewriting: Rewriting, left: list, right: list, alpha: list | None = None) -> list[fx.Node]:
        return items(rewriting, op, left, right if alpha is None else of_lists("mul")(rewriting, right, alpha))

    return compute


def change_of_lists(name: str) -> ListCompute:
    """`start + op(value * left, right)` for three lists."""

    def compute(rewriting: Rewriting, start: list, left: list, right: list, value: list) -> list[fx.Node]:
        change = of_lists(name)(rewriting, of_lists("mul")(rewriting, left, value), right)
        return of_lists("add")(rewriting, start, change)

    return compute


def items(rewriting: Rewriting, op: Any, *lists: list[fx.Node]) -> list[fx.Node]:
    """The results of an op on lists."""
    results = rewriting.call(op, *lists)
    return [rewriting.call(operator.getitem, results, k) for k in range(len(value_of(results)))]


LIST_OPS = ("add", "clamp_max", "clamp_min", "div", "maximum", "minimum", "mul", "pow", "sub")
"""Ops on two lists, or a list and one or more numbers."""

CHANGES_OF_LISTS = {"addcdiv": "div", "addcmul": "mul"}

OPS: Mapping[Any, Rule] = {
    **{torch_compat.foreach_op(name, "List"): on_lists(of_lists(name)) for name in ("add", "sub")},
    **{torch_compat.foreach_op(name, "Scalar"): on_lists(of_lists(name)) for name in LIST_OPS},
    **{torch_compat.foreach_op(name, "ScalarList"): on_lists(of_lists(name)) for name in LIST_OPS},
    **{torch_compat.foreach_op(name, "Scalar"): on_lists(change_of_lists(op)) for name, op in CHANGES_OF_LISTS.items()},
    aten.add.Tensor: elementwise(scaled(aten.add.Tensor)),
    aten.addcdiv.default: elementwise(scaled_change(aten.div.Tensor)),
    aten.addcmul.default: elementwise(scaled_change(aten.mul.Tensor)),
    aten.addmm.default: matrix_product,
    aten.clamp_max.default: elementwise(of_tensors(aten.clamp_max.Tensor)),
    aten.clamp_min.default: elementwise(of_tensors(aten.clamp_min.Tensor)),
    aten.div.Scalar: elementwise(of_tensors(aten.div.Tensor)),
    aten.div.Scalar_mode: elementwise(of_tensors(aten.div.Tensor_mode)),
    aten.div.Tensor: elementwise(of_tensors(aten.div.Tensor)),
    aten.div.Tensor_mode: elementwise(of_tensors(aten.div.Tensor_mode)),
    aten.eq.Scalar: comparison(aten.eq.Tensor),
    aten.fmod.Scalar: elementwise(of_tensors(aten.fmod.Tensor)),
    aten.full.default: full,
    aten.ge.Scalar: comparison(aten.ge.Tensor),
    aten.gt.Scalar: comparison(aten.gt.Tensor),
    aten.le.Scalar: comparison(aten.le.Tensor),
    aten.lt.Scalar: comparison(aten.lt.Tensor),
    aten.mul.Scalar: elementwise(of_tensors(aten.mul.Tensor)),
    aten.mul.Tensor: elementwise(of_tensors(aten.mul.Tensor)),
    aten.ne.Scalar: comparison(aten.ne.Tensor),
    aten.pow.Scalar: elementwise(of_tensors(aten.pow.Tensor_Tensor)),
    aten.pow.Tensor_Scalar: elementwise(of_tensors(aten.pow.Tensor_Tensor)),
    aten.remainder.Scalar: elementwise(of_tensors(aten.remainder.Tensor)),
    aten.remainder.Scalar_Tensor: elementwise(of_tensors(aten.remainder.Tensor)),
    aten.scalar_tensor.default: tensor_of_number,
    aten.scatter.value: scatter,
    aten.sub.Scalar: elementwise(scaled(aten.sub.Tensor)),
    aten.sub.Tensor: elementwise(scaled(aten.sub.Tensor)),
}
"""Those that Inductor does not take apart while tracing. What else takes a number takes a constant."""
