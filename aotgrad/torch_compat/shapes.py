"""Symbolic sizes: guards on them, and questions about them while a function is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv, free_unbacked_symbols


class AskingShapeEnv(ShapeEnv):
    """A shape environment that delegates data-dependent questions.

    `answer` takes an expression in symbols and returns its value, or `None` for an error.
    """

    answer: Callable[[Any], Any] | None = None

    def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().evaluate_expr(orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            value = False if _does_not_matter(orig_expr) else None if self.answer is None else self.answer(orig_expr)
            if value is None:
                raise
            return value


_ASK_WHETHER_EMPTY = frozenset({"EmbeddingBackward0", "EmbeddingBagBackward0"})
"""Autograd nodes that ask whether a tensor is empty, and compute the same in both cases."""


def _does_not_matter(expression: Any) -> bool:
    """Whether the running autograd node computes the same whether or not an expression is true."""
    node = torch._C._current_autograd_node()
    asks = node is not None and node.name() in _ASK_WHETHER_EMPTY
    return asks and isinstance(expression, sympy.Eq) and sympy.S.Zero in expression.args


@contextlib.contextmanager
def answered_by(mode: FakeTensorMode, answer: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, `answer` decides data-dependent questions, except in Dynamo's shape environment, which has its own guards."""
    env = mode.shape_env
    if not isinstance(env, AskingShapeEnv):
        with _answered_where_it_does_not_matter(env):
            yield
        return
    env.answer = answer
    try:
        yield
    finally:
        env.answer = None


@contextlib.contextmanager
def _answered_where_it_does_not_matter(env: ShapeEnv | None) -> Iterator[None]:
    if env is None:
        yield
        return
    evaluate = env.evaluate_expr

    def evaluate_expr(orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            if _does_not_matter(orig_expr):
                return False
            raise

    with mock.patch.object(env, "evaluate_expr", evaluate_expr):
        yield


def deferred_checks(mode: FakeTensorMode) -> list[Any]:
    """Torch's assumptions about values, from `torch._check` and from ops: expressions in symbols that must be true."""
    if not isinstance(mode.shape_env, AskingShapeEnv):
        return []
    return [check.expr for checks in mode.shape_env.deferred_runtime_asserts.values() for check in checks]


def holds_of_counts(expression: Any, counts: Iterable[Any]) -> bool:
    """Whether an expression in symbols is true if each of `counts` is at least one."""
    rest = {count: sympy.Symbol(f"rest_of_{count}", integer=True, nonnegative=True) for count in counts}
    return expression.xreplace({count: 1 + symbol for count, symbol in rest.items()}) == sympy.true


def known_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of (symbolic) numbers are certainly equal; adds no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return len(left) == len(right) and all(map(statically_known_true, _equalities(left, right)))


def _equalities(left: Sequence[Any], right: Sequence[Any]) -> Iterator[Any]:
    """Whether each two numbers are equal, perhaps symbolic. No graph notes the question: not all of them have a node."""
    for one, other in zip(left, right, strict=True):
        is_symbolic = isinstance(one, torch.SymInt) or isinstance(other, torch.SymInt)
        with disable_proxy_modes_tracing() if is_symbolic else contextlib.nullcontext():
            equal = one == other
        yield equal


def assumed_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of (symbolic) numbers are equal in the traced call; guards that they are in other calls, too."""
    if known_equal(left, right):
        return True
    if len(left) != len(right) or any_depends_on_data([*left, *right]) or hints(left) != hints(right):
        return False
    return all(map(bool, _equalities(left, right)))


def may_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether numbers are equal in the traced call, which adds guards. One that depends on data may equal any other."""
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(any_depends_on_data(pair) or bool(pair[0] == pair[1]) for pair in pairs)


def is_multiple(number: Any, divisor: int) -> bool:
    """Whether a number is a multiple of another one in the traced call, which adds a guard."""
    with disable_proxy_modes_tracing() if isinstance(number, torch.SymInt) else contextlib.nullcontext():
        return bool(number % divisor == 0)


def any_depends_on_data(numbers: Sequence[Any]) -> bool:
    """Whether a number depends on data."""
    return any(isinstance(number, torch.SymInt) and not number.node.has_hint() for number in numbers)


def known_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a traced tensor is certainly contiguous; adds no guard."""
    expected: list[Any] = [1]
    for size in reversed(tensor.size()[1:]):
        expected.append(expected[-1] * size)
    return known_equal(tensor.stride(), expected[::-1][: tensor.dim()])


def hints(numbers: Sequence[Any]) -> tuple[int, ...]:
    """The values of symbolic numbers while tracing; adds no guard."""
    return tuple(number.node.hint if isinstance(number, torch.SymInt) else int(number) for number in numbers)


def check_bounds(value: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> None:
    """Check that a view ends within a traced tensor; torch >= 2.15 would accept the memory of the base behind it.

    Raises:
        RuntimeError: the view ends later.
    """
    start = value.storage_offset()
    needed = _last_element(size, stride, start if offset is None else offset)
    there = _last_element(value.size(), value.stride(), start)
    if needed > there:
        where = f"sizes {list(hints(size))} and strides {list(hints(stride))}, which end at element {needed},"
        raise RuntimeError(f"{where} are out of bounds for storage of size {there}")


def ends_within(value: torch.Tensor, size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether a view that starts where a traced tensor does certainly ends within it; adds no guard."""
    if known_equal(size, value.size()) and known_equal(stride, value.stride()):
        return True
    numbers = [*size, *stride, *value.size(), *value.stride()]
    is_fixed = not any(isinstance(number, torch.SymInt) for number in numbers)
    return is_fixed and _last_element(size, stride, 0) <= _last_element(value.size(), value.stride(), 0)


def _last_element(size: Sequence[Any], stride: Sequence[Any], offset: Any) -> int:
    """One more than the last position in memory, by hints; 0 for no elements."""
    sizes, strides, (start,) = hints(size), hints(stride), hints([offset])
    return 0 if 0 in sizes else start + 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))


def guard_count(value: torch.Tensor) -> int:
    """How many symbolic guards the trace of `value` has."""
    return guards_of_mode(value.fake_mode)


def guards_of_mode(mode: FakeTensorMode) -> int:
    """How many symbolic guards the traces of a mode have."""
    return 0 if mode.shape_env is None else len(mode.shape_env.guards)


def has_symbolic_shape(tensor: torch.Tensor) -> bool:
    """Whether a size, stride or offset of a traced tensor is symbolic."""
    return bool(tensor._has_symbolic_sizes_strides)


def symbolic_dims(tensor: torch.Tensor) -> frozenset[int]:
    """The dimensions of a traced tensor with symbolic sizes."""
    return frozenset(dim for dim, size in enumerate(tensor.size()) if not isinstance(size, int))


def symbolic_dims_by_position(values: Iterable[Any]) -> dict[int, frozenset[int]]:
    """The symbolic dimensions of those traced tensors among `values` that have any."""
    found = {k: symbolic_dims(value) for k, value in enumerate(values) if isinstance(value, torch.Tensor)}
    return {k: dims for k, dims in found.items() if dims}


def has_unknown_sizes(tensor: torch.Tensor) -> bool:
    """Whether a size, stride or offset of a traced tensor depends on data."""
    return has_symbolic_shape(tensor) and bool(free_unbacked_symbols(tensor))


def has_symbols(value: Any) -> bool:
    """Whether a traced value is a symbolic number or a tensor with a symbolic size."""
    if isinstance(value, torch.Tensor):
        return has_symbolic_shape(value)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


NEED_STATIC_SIZES = (
    "with symbolic sizes/strides",
    "tried to directly modify sizes for customized tensor",
    "Expected IntList but got GenericList",
    "SymIntArrayRef expected to contain only concrete integers",
)
"""Parts of torch's messages where C++ reads or sets a size as a plain number."""


def lacks_shape_function(error: BaseException | None) -> bool:
    """Whether an error or its cause says that an op cannot run on fake tensors with symbolic sizes."""
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    if error is None:
        return False
    found = isinstance(error, UnsupportedOperatorException) or any(part in str(error) for part in NEED_STATIC_SIZES)
    return found or lacks_shape_function(error.__cause__)


def lacks_symbolic_floats(error: BaseException | None) -> bool:
    """Whether an error says that C++ cannot compute with a symbolic float."""
    return error is not None and "symbolic float" in str(error)
