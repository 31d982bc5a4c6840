"""Values of a compilation <-> plain data: lists, numbers and strings, as JSON has them.

In: the values in plans, signatures and graphs. Out: equal values. `NotSerializable` is raised for functions, numbers that
depend on data, and large tensors. Decoding runs no code from the file: it creates only the types below and looks up, but
never calls, operators.

Plain data rather than pickles, for three reasons. Keys need a form that does not depend on which values are one object; a
pickle has that only in its deprecated `fast` mode. Unpickling would let a file call any operator. And it is not faster:
creating nodes and fake tensors takes most of the time.

    >>> from aotgrad.slots import Primal
    >>> Encoder().encode((1, Primal(2)))
    ['tuple', 1, ['Primal', 2, '']]
    >>> Decoder(None).decode(['tuple', 1, ['Primal', 2, '']])
    (1, Primal(index=2, part=''))
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
from aotgrad.eager_calls.ops import is_eager_call
from aotgrad.graph import collectives
from aotgrad.graph.kept_calls import CallArgument
from aotgrad.runtime import schedule, steps

MOST_CONSTANT_BYTES = 1 << 20
"""The size limit of a tensor whose values are stored."""

BUILT_IN_NAMESPACES = frozenset({"aotgrad", "aten", "prim", "prims", "rngprims"})
"""The namespaces of operators that change only with the version of torch, or of this package."""

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "lshift", "rshift")
LOGIC = ("and_", "or_", "xor", "not_", "eq", "ne", "lt", "le", "gt", "ge")
OF_NUMBERS = (torch.sym_float, torch.sym_int, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sum)

FUNCTIONS: Mapping[str, Callable] = {
    "getitem": operator.getitem,
    **{name: getattr(operator, name) for name in (*ARITHMETIC, *LOGIC)},
    **{function.__name__: function for function in OF_NUMBERS},
    **{function.__name__: function for function in (math.ceil, math.floor, math.trunc)},
}
"""Functions on lists and sizes that a graph calls besides operators."""

HIGHER_ORDER = frozenset(
    {"associative_scan", "cond", "invoke_subgraph", "map_impl", "scan", "while_loop"}
    | {"auto_functionalized", "auto_functionalized_v2", "draw_and_record", "draw_again", "philox_draw"}
)
"""Torch's higher-order operators that take operators, tensors, numbers and graphs, but no objects of a process."""

LIKE_NUMBERS = (type(None), bool, int, float, str)
PLAIN_RESULTS = (*LIKE_NUMBERS, complex, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of results that are no tensors, and that are the same in each process."""


class NotSerializable(Exception):
    """A value without a plain form; the message says which."""


class DamagedEntry(Exception):
    """Plain data that no `Encoder` wrote."""


def types_of(*modules: Any) -> dict[str, type]:
    """The dataclasses and enumerations of some modules, by name."""
    defined = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {kind.__name__: kind for kind in defined if dataclasses.is_dataclass(kind) or issubclass(kind, Enum)}


TYPES = types_of(ir, slots, collectives, steps, schedule, sharing, entry) | {"CallArgument": CallArgument}
FIELDS = {name: [f.name for f in dataclasses.fields(kind)] for name, kind in TYPES.items() if not issubclass(kind, Enum)}
NAMES = {kind: name for name, kind in TYPES.items()}


# --- Writing ---------------------------------------------------------------------------------------------------------


class Encoder:
    """Encodes related values, which may refer to the `nodes` of a graph. `custom_ops`: whether to encode custom operators.

    `unbacked`: whether to encode numbers that depend on data, for which a decoder makes symbols of its own. Sparse tensors
    have such a number of entries.
    `storages` lists the storages of the tensors so far, as [bytes, device]; decoded tensors share them in the same way.
    """

    def __init__(self, nodes: Mapping[fx.Node, int] | None = None, custom_ops: bool = False, unbacked: bool = False) -> None:
        self.nodes = nodes or {}
        self.custom_ops, self.unbacked = custom_ops, unbacked
        self.storages: list[list[Any]] = []
        self.numbers: dict[Any, int] = {}
        self.is_symbolic = False

    def encode(self, value: Any) -> Any:
        """The plain form of a value.

        Raises:
            NotSerializable: the value has none.
        """
        if type(value) in LIKE_NUMBERS:
            return value
        write = ENCODERS.get(type(value))
        if write is not None:
            return write(self, value)
        if type(value) in NAMES:
            return self.object(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch._ops.OpOverload):  # one that takes objects, as the profiler's
            return self.operator(value)
        if (name := torch_compat.higher_order_name(value)) in HIGHER_ORDER:
            return ["higher order", name]
        raise NotSerializable(f"a {type(value).__module__}.{type(value).__qualname__}")

    def items(self, name: str, values: Any) -> list[Any]:
        return [name, *map(self.encode, values)]

    def mapping(self, value: Mapping[Any, Any]) -> list[Any]:
        return ["dict", *([self.encode(key), self.encode(item)] for key, item in value.items())]

    def frozenset(self, value: frozenset) -> list[Any]:
        return ["frozenset", *sorted(map(self.encode, value), key=repr)]

    def complex(self, value: complex) -> list[Any]:
        return ["complex", value.real, value.imag]

    def slice(self, value: slice) -> list[Any]:
        return self.items("slice", (value.start, value.stop, value.step))

    def node(self, value: fx.Node) -> list[Any]:
        if value not in self.nodes:
            raise NotSerializable(f"node {value.name} of another graph")
        return ["node", self.nodes[value]]

    def operator(self, value: Any) -> list[Any]:
        name = torch_compat.schema_name(value)
        if is_eager_call(value):
            raise NotSerializable("the call of a function that is not traced")
        if name.partition("::")[0] in BUILT_IN_NAMESPACES:
            return ["op", name]
        if not self.custom_ops:
            raise NotSerializable(f"the custom operator {name}")
        return ["custom op", name, torch_compat.op_description(value)]

    def object(self, value: Any) -> list[Any]:
        """A dataclass as its fields, an enumeration as its value."""
        name = NAMES[type(value)]
        if isinstance(value, Enum):
            return [name, value.value]
        return [name, *(self.encode(getattr(value, field)) for field in FIELDS[name])]

    def tensor(self, value: torch.Tensor) -> list[Any]:
        """A fake as its storage, geometry, the number that its `item()` is, and lazy bits; a real tensor as its values."""
        if type(value) is not torch_compat.FakeTensor:
            return self.constant(value)
        if value.layout is not torch.strided:
            return self.sparse(value)
        geometry = [*map(self.numbers_of, (value.size(), value.stride())), self.encode(value.storage_offset())]
        facts, bits = [self.encode(torch_compat.item_of_fake(value))], torch_compat.LazyBits.of(value)
        return ["fake", str(value.dtype)[6:], *geometry, self.storage(value), *facts, *(bits if any(bits) else ())]

    def sparse(self, value: torch.Tensor) -> list[Any]:
        """A fake sparse tensor as its structure; how many entries it has depends on data."""
        if not self.unbacked:
            raise NotSerializable("a tensor that is not strided")
        form = torch_compat.SparseForm.of(value)
        return ["sparse", *map(self.encode, (value.dtype, value.size(), value.device, tuple(form)))]

    def numbers_of(self, values: Sequence[Any]) -> list[Any]:
        """Sizes or strides."""
        return list(map(self.encode, values))

    def symbolic(self, kind: str, value: Any) -> list[Any]:
        """A symbolic number as its expression."""
        expression = torch_compat.expression_of(value) if self.unbacked else torch_compat.backed_expression(value)
        if expression is None:
            raise NotSerializable("a number that depends on data")
        self.is_symbolic = True
        return ["symbolic", kind, encode_expression(expression)]

    def storage(self, value: torch.Tensor) -> int:
        key = torch_compat.storage_key(value)
        if key not in self.numbers:
            self.numbers[key] = len(self.storages)
            self.storages.append([self.encode(torch_compat.storage_bytes(value)), str(value.device)])
        return self.numbers[key]

    def constant(self, value: torch.Tensor) -> list[Any]:
        """A real tensor, which the trace made of numbers."""
        if type(value) is not torch.Tensor or value.device.type not in ("cpu", "cuda") or value.layout is not torch.strided:
            raise NotSerializable("a constant that is not a plain tensor on the CPU or a GPU")
        if value.requires_grad or value.is_conj() or value.is_neg() or value.nbytes > MOST_CONSTANT_BYTES:
            raise NotSerializable("a constant that is large or requires grad")
        if not torch_compat.is_dense(value):
            raise NotSerializable("a constant that is not dense")
        data = base64.b64encode(torch_compat.bytes_of(value)).decode()
        return ["constant", str(value.dtype)[6:], list(value.size()), list(value.stride()), str(value.device), data]


ENCODERS: Mapping[type, Callable[[Encoder, Any], Any]] = {
    tuple: lambda encoder, value: encoder.items("tuple", value),
    list: lambda encoder, value: encoder.items("list", value),
    immutable_list: lambda encoder, value: encoder.items("list", value),
    torch.Size: lambda encoder, value: encoder.items("size", value),
    dict: Encoder.mapping,
    immutable_dict: Encoder.mapping,
    frozenset: Encoder.frozenset,
    complex: Encoder.complex,
    slice: Encoder.slice,
    type(Ellipsis): lambda encoder, value: ["ellipsis"],
    torch.dtype: lambda encoder, value: ["torch", str(value)[6:]],
    torch.layout: lambda encoder, value: ["torch", str(value)[6:]],
    torch.memory_format: lambda encoder, value: ["torch", str(value)[6:]],
    torch.device: lambda encoder, value: ["device", str(value)],
    torch._ops.OpOverload: Encoder.operator,
    types.BuiltinFunctionType: lambda encoder, value: ["function", graph_function_name(value)],
    types.FunctionType: lambda encoder, value: ["function", graph_function_name(value)],
    fx.Node: Encoder.node,
    torch.SymInt: lambda encoder, value: encoder.symbolic("int", value),
    torch.SymFloat: lambda encoder, value: encoder.symbolic("float", value),
    torch.SymBool: lambda encoder, value: encoder.symbolic("bool", value),
}
"""By exact type, since a subclass may mean something else."""


def graph_function_name(function: Callable) -> str:
    name = next((name for name, known in FUNCTIONS.items() if known is function), None)
    if name is None:
        raise NotSerializable(f"the function {getattr(function, '__qualname__', function)}")
    return name


def encode_expression(expression: sympy.Basic) -> Any:
    """A symbolic expression as numbers, names of symbols, and lists of an operation and its arguments."""
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
        raise NotSerializable(f"the symbolic expression {expression}")
    return [name, *map(encode_expression, expression.args)]


# --- Reading ---------------------------------------------------------------------------------------------------------


class Decoder:
    """Decodes the values of an `Encoder`. `mode` makes the fakes; `storages` is the encoder's, `nodes` the decoded nodes."""

    def __init__(self, mode: Any, storages: list[list[Any]] | None = None, nodes: list[fx.Node] | None = None) -> None:
        self.mode = mode
        self.unbacked: dict[str, sympy.Symbol] = {}
        self.nodes = nodes if nodes is not None else []
        self.storages = [torch_compat.meta_storage(self.decode(nbytes)) for nbytes, _ in storages or ()]
        self.devices = [torch.device(device) for _, device in storages or ()]

    def decode(self, data: Any) -> Any:
        """The value of a plain form.

        Raises:
            DamagedEntry: the data is not the form of a value.
        """
        if type(data) is not list:
            return data
        name, *items = data
        read = DECODERS.get(name)
        if read is not None:
            return read(self, items)
        if name not in TYPES:
            raise DamagedEntry(f"a value of the unknown kind {name!r}")
        if name not in FIELDS:
            return TYPES[name](*items)
        return TYPES[name](**dict(zip(FIELDS[name], map(self.decode, items), strict=True)))

    def mapping(self, items: list) -> dict:
        return {self.decode(key): self.decode(value) for key, value in items}

    def operator(self, items: list) -> Any:
        if items[0].partition("::")[0] not in BUILT_IN_NAMESPACES:
            raise DamagedEntry(f"the operator {items[0]}")
        return torch_compat.op_named(items[0])

    def custom_operator(self, items: list) -> Any:
        name, description = items
        found = torch_compat.op_named(name)
        if torch_compat.op_description(found) != description:
            raise DamagedEntry(f"the operator {name} has another signature")
        return found

    def higher_order(self, items: list) -> Any:
        if items[0] not in HIGHER_ORDER:
            raise DamagedEntry(f"the operator {items[0]}")
        return torch_compat.higher_order_named(items[0])

    def fake(self, items: list) -> torch.Tensor:
        dtype, size, stride, offset, storage, item, *bits = items
        size, stride, offset = list(map(self.decode, size)), list(map(self.decode, stride)), self.decode(offset)
        memory, device = self.storages[storage], self.devices[storage]
        lazy = torch_compat.LazyBits(*bits)
        fake = torch_compat.fake_in(self.mode, memory, dtype_named(dtype), device, size, stride, offset, lazy)
        torch_compat.set_item_of_fake(fake, self.decode(item))
        return fake

    def sparse(self, items: list) -> torch.Tensor:
        dtype, size, device, form = map(self.decode, items)
        return torch_compat.SparseForm(*form).fake_in(self.mode, size, dtype, device)

    def symbolic(self, items: list) -> Any:
        kind, expression = items
        return torch_compat.symbolic_number(self.mode, kind, self.expression(expression))

    @functools.cached_property
    def symbols(self) -> dict[str, sympy.Symbol]:
        """The symbols of the inputs' sizes, by name."""
        return {symbol.name: symbol for symbol in torch_compat.backed_symbols(self.mode.shape_env)}

    def expression(self, data: Any) -> sympy.Basic:
        if isinstance(data, str):
            return self.symbols.get(data) or self.unbacked_symbol(data)
        if not isinstance(data, list):
            return sympy.sympify(plain_number(data))
        name, *items = data
        if name in ("Rational", "Float"):
            return getattr(sympy, name)(*map(plain_number, items))
        return torch_compat.expression_types()[name](*map(self.expression, items))

    def unbacked_symbol(self, name: str) -> sympy.Symbol:
        if name not in self.unbacked and not torch_compat.is_unbacked_name(name):
            raise DamagedEntry(f"the symbol {name}")
        if name not in self.unbacked:
            self.unbacked[name] = torch_compat.unbacked_symbol(self.mode, name)
        return self.unbacked[name]

    def constant(self, items: list) -> torch.Tensor:
        dtype, size, stride, device, data = items
        return torch_compat.tensor_of_bytes(base64.b64decode(data), dtype_named(dtype), size, stride).to(device)

    def of_torch(self, items: list) -> Any:
        """A dtype, layout or memory format."""
        found = getattr(torch, items[0], None)
        if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            raise DamagedEntry(f"torch.{items[0]} is no dtype, layout or memory format")
        return found


def plain_number(data: Any) -> int | float:
    """Raise DamagedEntry for other data: sympy evaluates texts, also inside of containers."""
    if not isinstance(data, (int, float)):
        raise DamagedEntry(f"{data!r} is no number")
    return data


def dtype_named(name: str) -> torch.dtype:
    """Raises DamagedEntry."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise DamagedEntry(f"torch.{name} is no dtype")
    return found


DECODERS: Mapping[str, Callable[[Decoder, list], Any]] = {
    "tuple": lambda decoder, items: tuple(map(decoder.decode, items)),
    "list": lambda decoder, items: list(map(decoder.decode, items)),
    "size": lambda decoder, items: torch.Size(items),
    "dict": Decoder.mapping,
    "frozenset": lambda decoder, items: frozenset(map(decoder.decode, items)),
    "complex": lambda decoder, items: complex(*items),
    "slice": lambda decoder, items: slice(*map(decoder.decode, items)),
    "ellipsis": lambda decoder, items: ...,
    "torch": Decoder.of_torch,
    "device": lambda decoder, items: torch.device(items[0]),
    "op": Decoder.operator,
    "custom op": Decoder.custom_operator,
    "higher order": Decoder.higher_order,
    "function": lambda decoder, items: FUNCTIONS[items[0]],
    "node": lambda decoder, items: decoder.nodes[items[0]],
    "fake": Decoder.fake,
    "sparse": Decoder.sparse,
    "symbolic": Decoder.symbolic,
    "constant": Decoder.constant,
}
