"""Source in a file of plans is read before it runs: it may do what the source of plans does, and nothing else.

check_plan("def call(args): ...")           raises ShippingError if it is not the source of a plan
check_condition("u0 > 3", ["u0"])           the same for an expression in numbers
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection

import torch

from aotgrad import torch_compat
from aotgrad.errors import ShippingError
from aotgrad.graph.op_table import VIEW_METHODS

EXPRESSIONS = (
    *(ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Starred, ast.Subscript, ast.Call, ast.Attribute, ast.keyword),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.expr_context, ast.operator, ast.unaryop),
    *(ast.boolop, ast.cmpop),
)
STATEMENTS = (
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.Expr, ast.Delete, ast.With, ast.withitem),
    ast.Return,
)
METHODS = frozenset(
    {*VIEW_METHODS.values(), "_base", "_version", "as_strided_", "clear", "clone", "copy_", "data", "real", "requires_grad_"}
    | {"results", "size", "storage_offset", "stride"}
)
"""What the source of a plan reads of tensors, and of its lists."""

FORBIDDEN = frozenset(vars(builtins)) - {"abs", "bool", "float", "int", "max", "min", "round"}
"""Python's own functions that the text of a number does not call: `eval`, `open`, ..."""


def check_plan(source: str) -> None:
    """Raises ShippingError."""
    tree = parsed(source, "exec")
    functions = [node for node in ast.iter_child_nodes(tree) if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1 or len(list(ast.iter_child_nodes(tree))) != 1:
        raise refused(source)
    if ast.unparse(functions[0]).splitlines()[0] != "def call(args):":
        raise refused(source)
    for node in ast.walk(tree):
        if not isinstance(node, (*STATEMENTS, *EXPRESSIONS)):
            raise refused(ast.unparse(node))
        if isinstance(node, ast.Attribute) and not is_known_attribute(node):
            raise refused(ast.unparse(node))
        if isinstance(node, ast.Name) and (node.id in FORBIDDEN or node.id.startswith("__")):
            raise refused(node.id)


def is_known_attribute(node: ast.Attribute) -> bool:
    """Whether a plan may read an attribute: a method of a tensor, an op, a function on numbers, a dtype."""
    names = ast.unparse(node).split(".")
    match names:
        case ["torch", "ops", *_] | ["aten", *_]:
            own = {*dir(type(torch.ops)), "loaded_libraries"}  # `torch.ops.load_library`
            return not any(name.startswith("__") or name in own for name in names)
        case ["torch", name]:
            return isinstance(getattr(torch, name, None), torch.dtype)
        case ["math", name]:
            return not name.startswith("_")
    return node.attr in METHODS


def check_condition(text: str, names: Collection[str]) -> None:
    """Raise ShippingError unless `text` is an expression in numbers with these names and torch's functions on numbers."""
    known = {*names, *torch_compat.text_namespace(), "is_same"}
    for node in ast.walk(parsed(text, "eval")):
        is_expression = isinstance(node, (ast.Expression, *EXPRESSIONS))
        is_foreign = isinstance(node, ast.Name) and node.id not in known
        is_attribute = isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id == "math" and not node.attr.startswith("_")
        )
        if not is_expression or is_foreign or is_attribute:
            raise refused(text)


def parsed(source: str, mode: str) -> ast.AST:
    try:
        return ast.parse(source, mode=mode)
    except (SyntaxError, ValueError):
        raise refused(source) from None


def refused(source: str) -> ShippingError:
    return ShippingError(f"the file is not one that aotgrad has written: it contains {source[:80]!r} as source")
