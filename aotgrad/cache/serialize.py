"""Values of a compilation <-> plain data: lists, numbers and strings, as JSON has them.

In: what plans, signatures and graphs consist of. Out: the same values, or `NotPlain` for what has no such form: functions,
numbers that depend on data, tensors with values of any size. Reading runs no code of the file's: only the types below are
made, and only operators are looked up.

    >>> from aotgrad.slots import Primal
    >>> Writer().write((1, Primal(2)))
    ['tuple', 1, ['Primal', 2]]
    >>> Reader(None).read(['tuple', 1, ['Primal', 2]])
    (1, Primal(index=2))
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import sympy
import torch
import torch.fx as fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from aotgrad import ir, slots, torch_compat
from aotgrad.cache import entry
from aotgrad.convention import sharing
from aotgrad.runtime import schedule, steps

MOST_CONSTANT_BYTES = 1 << 20
"""Of one tensor whose values are stored."""

BUILT_IN_NAMESPACES = frozenset({"aten", "prim", "prims", "rngprims"})
"""Of operators that only another version of torch changes."""

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "lshift", "rshift")
LOGIC = ("and_", "or_", "xor", "not_", "eq", "ne", "lt", "le", "gt", "ge")
OF_NUMBERS = (torch.sym_float, torch.sym_int, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sum)

FUNCTIONS: Mapping[str, Callable] = {
    "getitem": operator.getitem,
    **{name: getattr(operator, name) for name in (*ARITHMETIC, *LOGIC)},
    **{function.__name__: function for function in OF_NUMBERS},
    **{function.__name__: function for function in (math.ceil, math.floor, math.trunc)},
}
"""Functions that a graph calls besides operators: of lists, and of sizes."""

HIGHER_ORDER = frozenset(
    {"associative_scan", "cond", "invoke_subgraph", "map_impl", "scan", "while_loop"}
    | {"auto_functionalized", "auto_functionalized_v2", "run_and_save_rng_state", "run_with_rng_state"}
)
"""Higher-order operators of torch's own that are given operators, tensors, numbers and graphs, and nothing of a process."""

LIKE_NUMBERS = (type(None), bool, int, float, str)


class NotPlain(Exception):
    """A value without a plain form; the message says which."""


class Damaged(Exception):
    """Plain data that no writer has made."""


def types_of(*modules: Any) -> dict[str, type]:
    """The dataclasses and enumerations that some modules define, by name."""
    defined = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {kind.__name__: kind for kind in defined if dataclasses.is_dataclass(kind) or issubclass(kind, Enum)}


TYPES = types_of(ir, slots, steps, schedule, sharing, entry)
FIELDS = {name: [f.name for f in dataclasses.fields(kind)] for name, kind in TYPES.items() if not issubclass(kind, Enum)}
NAMES = {kind: name for name, kind in TYPES.items()}


# --- Writing ---------------------------------------------------------------------------------------------------------


class Writer:
    """Writes values that belong together: `nodes` are the nodes of a graph that they may refer to.

    `storages` are the memory of the tensors so far, [bytes, device]: fakes that share it share it again. `of_users`: whether
    operators of the user's own have a form.
    """

    def __init__(self, nodes: Mapping[fx.Node, int] | None = None, of_users: bool = False) -> None:
        self.nodes = nodes or {}
        self.of_users = of_users
        self.storages: list[list[Any]] = []
        self.numbers: dict[Any, int] = {}
        self.is_symbolic = False

    def write(self, value: Any) -> Any:
        """The plain form of a value.

        Raises:
            NotPlain: it has none.
        """
        if type(value) in LIKE_NUMBERS:
            return value
        write = WRITERS.get(type(value))
        if write is not None:
            return write(self, value)
        if type(value) in NAMES:
            return self.object(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if (name := torch_compat.higher_order_name(value)) in HIGHER_ORDER:
            return ["higher order", name]
        raise NotPlain(f"a {type(value).__module__}.{type(value).__qualname__}")

    def items(self, name: str, values: Any) -> list[Any]:
        return [name, *map(self.write, values)]

    def mapping(self, value: Mapping[Any, Any]) -> list[Any]:
        return ["dict", *([self.write(key), self.write(item)] for key, item in value.items())]

    def frozenset(self, value: frozenset) -> list[Any]:
        return ["frozenset", *sorted(map(self.write, value), key=repr)]

    def complex(self, value: complex) -> list[Any]:
        return ["complex", value.real, value.imag]

    def slice(self, value: slice) -> list[Any]:
        return self.items("slice", (value.start, value.stop, value.step))

    def node(self, value: fx.Node) -> list[Any]:
        if value not in self.nodes:
            raise NotPlain(f"node {value.name} of another graph")
        return ["node", self.nodes[value]]

    def operator(self, value: Any) -> list[Any]:
        name = torch_compat.schema_name(value)
        if name.partition("::")[0] in BUILT_IN_NAMESPACES:
            return ["op", name]
        if not self.of_users:
            raise NotPlain(f"the custom operator {name}")
        return ["op of a user", name, torch_compat.op_description(value)]

    def object(self, value: Any) -> list[Any]:
        """A dataclass by its fields, an enumeration by its value."""
        name = NAMES[type(value)]
        if isinstance(value, Enum):
            return [name, value.value]
        return [name, *(self.write(getattr(value, field)) for field in FIELDS[name])]

    def tensor(self, value: torch.Tensor) -> list[Any]:
        """A fake by how it lies in which memory and which number its `item()` is, a real tensor with its values."""
        if type(value) is not torch_compat.FakeTensor:
            return self.constant(value)
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise NotPlain("a tensor that is not strided, or one that is conjugated or negated when it is read")
        geometry = [*map(self.numbers_of, (value.size(), value.stride())), self.write(value.storage_offset())]
        return ["fake", str(value.dtype)[6:], *geometry, self.storage(value), self.write(torch_compat.item_of_fake(value))]

    def numbers_of(self, values: Sequence[Any]) -> list[Any]:
        """Sizes or strides."""
        return list(map(self.write, values))

    def symbolic(self, kind: str, value: Any) -> list[Any]:
        """A symbolic number as the expression that it is."""
        expression = torch_compat.backed_expression(value)
        if expression is None:
            raise NotPlain("a number that depends on data")
        self.is_symbolic = True
        return ["symbolic", kind, write_expression(expression)]

    def storage(self, value: torch.Tensor) -> int:
        key = torch_compat.storage_key(value)
        if key not in self.numbers:
            self.numbers[key] = len(self.storages)
            self.storages.append([self.write(torch_compat.storage_bytes(value)), str(value.device)])
        return self.numbers[key]

    def constant(self, value: torch.Tensor) -> list[Any]:
        """A tensor that the trace made of numbers."""
        if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            raise NotPlain("a constant that is no plain tensor on the CPU")
        if value.requires_grad or value.is_conj() or value.is_neg() or value.nbytes > MOST_CONSTANT_BYTES:
            raise NotPlain("a constant that is large or requires grad")
        if not torch_compat.is_dense(value):
            raise NotPlain("a constant with gaps")
        data = base64.b64encode(torch_compat.bytes_of(value)).decode()
        return ["constant", str(value.dtype)[6:], list(value.size()), list(value.stride()), data]


WRITERS: Mapping[type, Callable[[Writer, Any], Any]] = {
    tuple: lambda writer, value: writer.items("tuple", value),
    list: lambda writer, value: writer.items("list", value),
    immutable_list: lambda writer, value: writer.items("list", value),
    torch.Size: lambda writer, value: writer.items("size", value),
    dict: Writer.mapping,
    immutable_dict: Writer.mapping,
    frozenset: Writer.frozenset,
    complex: Writer.complex,
    slice: Writer.slice,
    type(Ellipsis): lambda writer, value: ["ellipsis"],
    torch.dtype: lambda writer, value: ["torch", str(value)[6:]],
    torch.layout: lambda writer, value: ["torch", str(value)[6:]],
    torch.memory_format: lambda writer, value: ["torch", str(value)[6:]],
    torch.device: lambda writer, value: ["device", str(value)],
    torch._ops.OpOverload: Writer.operator,
    types.BuiltinFunctionType: lambda writer, value: ["function", function_name(value)],
    types.FunctionType: lambda writer, value: ["function", function_name(value)],
    fx.Node: Writer.node,
    torch.SymInt: lambda writer, value: writer.symbolic("int", value),
    torch.SymFloat: lambda writer, value: writer.symbolic("float", value),
    torch.SymBool: lambda writer, value: writer.symbolic("bool", value),
}
"""By exact type: subclasses may mean something else."""


def function_name(function: Callable) -> str:
    name = next((name for name, known in FUNCTIONS.items() if known is function), None)
    if name is None:
        raise NotPlain(f"the function {getattr(function, '__qualname__', function)}")
    return name


def write_expression(expression: sympy.Basic) -> Any:
    """A symbolic expression: numbers, names of symbols, and what is made of them."""
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    if isinstance(expression, sympy.Symbol):
        return expression.name
    if isinstance(expression, sympy.Rational):
        return ["Rational", int(expression.p), int(expression.q)]
    if isinstance(expression, sympy.Float):
        return ["Float", float(expression)]
    name = type(expression).__name__
    if torch_compat.expression_types().get(name) is not type(expression):
        raise NotPlain(f"the symbolic expression {expression}")
    return [name, *map(write_expression, expression.args)]


# --- Reading ---------------------------------------------------------------------------------------------------------


class Reader:
    """Reads what a `Writer` wrote. `mode` makes the fakes, `storages` and `nodes` are the writer's, made again."""

    def __init__(self, mode: Any, storages: list[list[Any]] | None = None, nodes: list[fx.Node] | None = None) -> None:
        self.mode = mode
        self.nodes = nodes if nodes is not None else []
        self.storages = [torch_compat.meta_storage(self.read(nbytes)) for nbytes, _ in storages or ()]
        self.devices = [torch.device(device) for _, device in storages or ()]

    def read(self, data: Any) -> Any:
        """The value.

        Raises:
            Damaged: the data stands for none.
        """
        if type(data) is not list:
            return data
        name, *items = data
        read = READERS.get(name)
        if read is not None:
            return read(self, items)
        if name not in TYPES:
            raise Damaged(f"a value of the unknown kind {name!r}")
        if name not in FIELDS:
            return TYPES[name](*items)
        return TYPES[name](**dict(zip(FIELDS[name], map(self.read, items), strict=True)))

    def mapping(self, items: list) -> dict:
        return {self.read(key): self.read(value) for key, value in items}

    def operator(self, items: list) -> Any:
        if items[0].partition("::")[0] not in BUILT_IN_NAMESPACES:
            raise Damaged(f"the operator {items[0]}")
        return torch_compat.op_named(items[0])

    def operator_of_user(self, items: list) -> Any:
        name, description = items
        found = torch_compat.op_named(name)
        if torch_compat.op_description(found) != description:
            raise Damaged(f"the operator {name} has another signature")
        return found

    def higher_order(self, items: list) -> Any:
        if items[0] not in HIGHER_ORDER:
            raise Damaged(f"the operator {items[0]}")
        return torch_compat.higher_order_named(items[0])

    def fake(self, items: list) -> torch.Tensor:
        dtype, size, stride, offset, storage, item = items
        size, stride, offset = list(map(self.read, size)), list(map(self.read, stride)), self.read(offset)
        memory, device = self.storages[storage], self.devices[storage]
        fake = torch_compat.fake_in(self.mode, memory, getattr(torch, dtype), device, size, stride, offset)
        torch_compat.set_item_of_fake(fake, self.read(item))
        return fake

    def symbolic(self, items: list) -> Any:
        kind, expression = items
        return torch_compat.symbolic_number(self.mode, kind, self.expression(expression))

    @functools.cached_property
    def symbols(self) -> dict[str, sympy.Symbol]:
        """Those that the inputs' sizes brought, by name."""
        return {symbol.name: symbol for symbol in torch_compat.backed_symbols(self.mode.shape_env)}

    def expression(self, data: Any) -> sympy.Basic:
        if isinstance(data, str):
            return self.symbols[data]
        if not isinstance(data, list):
            return sympy.sympify(data)
        name, *items = data
        if name in ("Rational", "Float"):
            return getattr(sympy, name)(*items)
        return torch_compat.expression_types()[name](*map(self.expression, items))

    def constant(self, items: list) -> torch.Tensor:
        dtype, size, stride, data = items
        return torch_compat.tensor_of_bytes(base64.b64decode(data), getattr(torch, dtype), size, stride)


READERS: Mapping[str, Callable[[Reader, list], Any]] = {
    "tuple": lambda reader, items: tuple(map(reader.read, items)),
    "list": lambda reader, items: list(map(reader.read, items)),
    "size": lambda reader, items: torch.Size(items),
    "dict": Reader.mapping,
    "frozenset": lambda reader, items: frozenset(map(reader.read, items)),
    "complex": lambda reader, items: complex(*items),
    "slice": lambda reader, items: slice(*map(reader.read, items)),
    "ellipsis": lambda reader, items: ...,
    "torch": lambda reader, items: getattr(torch, items[0]),
    "device": lambda reader, items: torch.device(items[0]),
    "op": Reader.operator,
    "op of a user": Reader.operator_of_user,
    "higher order": Reader.higher_order,
    "function": lambda reader, items: FUNCTIONS[items[0]],
    "node": lambda reader, items: reader.nodes[items[0]],
    "fake": Reader.fake,
    "symbolic": Reader.symbolic,
    "constant": Reader.constant,
}
