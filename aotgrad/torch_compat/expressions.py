"""Symbolic numbers as expressions: as Python source, as nodes of a graph, and in a form that other processes understand."""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy
import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.singleton_int import SingletonInt
from torch.utils._sympy.symbol import SymT, symbol_is_type


def symbolic_text(value: Any) -> tuple[str, list[str]]:
    """A symbolic number as Python source, and the names of the symbols in it."""
    return expression_text(value.node.expr)


def expression_text(expression: Any) -> tuple[str, list[str]]:
    """An expression in symbols as Python source, and the names of the symbols in it."""
    from torch.utils._sympy.printers import PythonPrinter

    return PythonPrinter().doprint(expression), sorted(str(symbol) for symbol in expression.free_symbols)


def value_of_symbolic(value: Any, numbers: Mapping[str, Any]) -> Any:
    """The value of a symbolic number, given those of the symbols in it by name."""
    return eval(compiled_text(symbolic_text(value)[0]), {**text_namespace(), **numbers})


@functools.lru_cache(maxsize=4096)
def compiled_text(text: str) -> types.CodeType:
    """Python source of an expression, compiled."""
    return compile(text, "<condition>", "eval")


@functools.cache
def text_namespace() -> dict[str, Any]:
    """The functions that the source of an expression may call."""
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    return {**SYMPY_INTERP, "math": math}


def write_expression(graph: fx.Graph, value: torch.SymInt, node_of: Callable[[Any], fx.Node]) -> Any:
    """Append the nodes that compute a symbolic number; `node_of` maps its symbols to nodes."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = fx.proxy.GraphAppendingTracer(graph)
    symbols = {symbol: fx.Proxy(node_of(symbol), tracer) for symbol in value.node.expr.free_symbols}
    result = sympy_interp(PythonReferenceAnalysis, symbols, value.node.expr)
    return result.node if isinstance(result, fx.Proxy) else int(result)


def is_symbol(value: Any, name: str) -> bool:
    """Whether a symbolic number is exactly the symbol `name`."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and str(value.node.expr) == name


def first_symbol(value: Any) -> str | None:
    """The symbol as which a number was created, if it was one; torch represents a bool as `symbol == 1`."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return None
    expr = value.node._expr
    if isinstance(value, torch.SymBool):
        expr = expr.lhs if isinstance(expr, sympy.Eq) and expr.rhs == 1 else None
    return expr.name if isinstance(expr, sympy.Symbol) else None


def expression_of(number: Any) -> Any:
    """The expression of a symbolic number, equal for equal numbers; a plain number itself. Adds no guard."""
    return number.node.expr if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) else number


def backed_symbols(shape_env: ShapeEnv) -> Mapping[sympy.Symbol, Any]:
    """The symbols that have a value while tracing, and these values."""
    values = getattr(shape_env, "backed_var_to_val", None)
    return shape_env.var_to_val if values is None else values


def symbolic_state(mode: FakeTensorMode) -> tuple | None:
    """What is known about the symbols of a trace, in a form that other processes understand; `None` if there are none.

    Their names, sources, values, ranges and equalities, and every condition so far.
    """
    env = mode.shape_env
    if env is None or not (symbols := backed_symbols(env)):
        return None
    ragged: dict[int, int] = {}
    values = {s: _symbol_value_text(symbols[s], ragged) for s in sorted(symbols, key=str)}
    known = [(str(s), sources_of(env, s), value, str(env.var_to_range.get(s))) for s, value in values.items()]
    return known, sorted((str(s), str(e)) for s, e in env.replacements.items()), [str(g.expr) for g in env.guards]


def _symbol_value_text(value: Any, ragged: dict[int, int]) -> str:
    """The value of a symbol as text. Sizes of nested tensors, which a process counts, get new numbers in `ragged`."""
    if not isinstance(value, SingletonInt):
        return str(value)
    return f"ragged {ragged.setdefault(value._val, len(ragged))} * {value._coeff}"


def sources_of(shape_env: ShapeEnv, symbol: sympy.Symbol) -> list[str]:
    """The sources of a symbol, as code."""
    names = [source.name for source in shape_env.var_to_sources.get(symbol, ())]
    return [name if isinstance(name, str) else name() for name in names]


def backed_expression(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic | None:
    """The expression of a symbolic number; `None` if it depends on data."""
    expression = number.node.expr
    is_backed = expression.free_symbols <= backed_symbols(number.node.shape_env).keys()
    return expression if is_backed else None


def is_unbacked_name(name: str) -> bool:
    """Whether a symbol of this name has no value while tracing."""
    return symbol_is_type(sympy.Symbol(name), (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))


def unbacked_symbol(mode: FakeTensorMode, name: str) -> sympy.Symbol:
    """A new symbol without a value, for a whole number or a float as the name tells that it had in another trace."""
    env = mode.shape_env
    assert env is not None, "the mode makes symbols"
    is_float = symbol_is_type(sympy.Symbol(name), SymT.UNBACKED_FLOAT)
    with env.ignore_fresh_unbacked_symbols():  # no op of a trace returns it
        made = env.create_unbacked_symfloat() if is_float else env.create_unbacked_symint()
    return made.node.expr


@contextlib.contextmanager
def ignored_unbacked_symbols(mode: FakeTensorMode) -> Iterator[None]:
    """Inside, an op may make symbols without a value; torch does not look for them in its results."""
    with contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


def symbolic_number(mode: FakeTensorMode, kind: str, expression: sympy.Basic) -> Any:
    """The symbolic `"int"`, `"float"` or `"bool"` of an expression in the symbols of a trace."""
    env = mode.shape_env
    assert env is not None, "the trace has symbols"
    if kind == "bool":
        return env.create_symboolnode(expression)
    value = expression.xreplace(dict(backed_symbols(env)))
    if value.free_symbols:
        return (
            env.create_symintnode(expression, hint=None) if kind == "int" else env.create_symfloatnode(expression, hint=None)
        )
    if kind == "int" and isinstance(value, SingletonInt):
        return env.create_symintnode(expression, hint=torch._C._get_nested_int(value._val, value._coeff))
    if kind == "int":
        return env.create_symintnode(expression, hint=int(value))
    return env.create_symfloatnode(expression, hint=float(value))


def conditions_since(mode: FakeTensorMode, count: int) -> tuple[torch.SymBool, ...]:
    """The conditions on symbols that a trace assumes, after the first `count`."""
    env = mode.shape_env
    return () if env is None else tuple(env.create_symboolnode(guard.expr) for guard in env.guards[count:])


@functools.cache
def expression_types() -> dict[str, type[sympy.Basic]]:
    """The classes, by name, that conditions and sizes consist of besides symbols and numbers."""
    from torch.utils._sympy import functions

    own = [kind for kind in vars(functions).values() if getattr(kind, "__module__", None) == functions.__name__]
    own = [kind for kind in own if isinstance(kind, type) and issubclass(kind, sympy.Basic)]
    plain = [sympy.Add, sympy.Mul, sympy.Pow, sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge]
    logic = [sympy.And, sympy.Or, sympy.Not]
    return {kind.__name__: kind for kind in (*own, *plain, *logic)}


def assumed_value(number: Any) -> Any:
    """The value of a symbolic number while tracing, which adds a guard; a plain number itself.

    Raises:
        Exception: the number depends on data.
    """
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(number)


def symbolic_function(name: str) -> Callable[[Any], Any]:
    """The function that a graph calls for a function of `math` on a symbolic float."""
    return getattr(torch, f"_sym_{name}")


def meta_of_read(tensor: torch.Tensor) -> dict[str, Any]:
    """The metadata of a node that reads a float from a traced tensor: the value is a new symbol."""
    env = tensor.fake_mode.shape_env
    with env.ignore_fresh_unbacked_symbols():
        number = env.create_unbacked_symfloat()
    return {"val": number, "unbacked_bindings": {number.node.expr: ()}}
