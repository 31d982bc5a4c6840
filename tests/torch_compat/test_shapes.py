"""Feature tests of `aotgrad/torch_compat/shapes.py`."""

from __future__ import annotations

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from aotgrad import torch_compat as compat
from aotgrad.errors import CaptureError
from tests.torch_compat.tracing import symbolic, symbolic_fake


def test_dynamic_sizes_are_symbolic_except_zero_and_one(fake_mode):
    fake = compat.dynamic_fake(fake_mode, torch.ones(2, 3, 1), dims=[0, 2], index=5)
    assert isinstance(fake.size(0), torch.SymInt)
    assert (type(fake.size(1)), type(fake.size(2))) == (int, int)
    assert compat.has_symbolic_shape(fake)
    assert compat.symbolic_dims(fake) == {0} and not compat.symbolic_dims(torch.ones(2))
    assert compat.symbolic_dims_by_position([3, torch.ones(2), fake]) == {2: {0}}
    assert not compat.has_symbolic_shape(torch.ones(2))


def test_symbolic_values(fake_mode):
    fake = symbolic(fake_mode, 2, 3)
    assert compat.has_symbols(fake)
    assert compat.has_symbols(fake.size(0))
    assert not compat.has_symbols(3)
    assert not compat.has_symbols(torch.ones(2))


def test_questions_about_sizes_add_no_guard(fake_mode):
    fake = symbolic(fake_mode, 4, 6)
    rows, columns = fake.size()
    assert compat.known_equal([rows, 2], [rows, 2])
    assert not compat.known_equal([rows], [columns])
    assert compat.known_contiguous(fake)
    assert not compat.known_contiguous(fake.t())
    assert compat.hints((rows, 7, columns)) == (4, 7, 6)
    assert compat.guard_count(fake) == 0
    assert bool(rows < columns)
    assert compat.guard_count(fake) == 1


def test_equality_in_the_traced_call_is_guarded(fake_mode):
    fake = symbolic(fake_mode, 4, 4, 6)
    rows, columns, others = fake.size()
    assert compat.assumed_equal([rows, 2], [rows, 2]) and not compat.assumed_equal([rows], [others])
    assert not compat.assumed_equal([rows], [rows, rows]) and compat.guard_count(fake) == 0
    assert compat.assumed_equal([rows], [columns]) and compat.guard_count(fake) == 1
    assert compat.known_equal([rows], [columns])


def test_whether_a_size_is_a_multiple_is_guarded(fake_mode):
    fake = symbolic(fake_mode, 4, 6)
    assert compat.is_multiple(fake.size(0), 2) and not compat.is_multiple(fake.size(1), 4)
    assert compat.guard_count(fake) == 2 and compat.is_multiple(6, 3)


def test_a_number_that_depends_on_data_may_equal_any_other():
    mode = compat.new_fake_mode()
    unknown, other = (mode.shape_env.create_unbacked_symint() for _ in range(2))
    assert compat.may_equal([unknown, 2], [other, 2]) and compat.may_equal([3], [unknown])
    assert not compat.may_equal([unknown, 2], [other, 3]) and not compat.may_equal([unknown], [unknown, 1])
    assert compat.any_depends_on_data([2, unknown]) and not compat.any_depends_on_data([2, 3])


def test_a_question_about_a_number_without_a_node_while_a_graph_is_traced():
    """The bytes of a storage have no node: a proxy mode that sees the question raises."""

    def function(x):
        found.append(compat.known_equal([x.untyped_storage().nbytes()], [x.size(0)]))
        return x * 2

    found: list[bool] = []
    graph = make_fx(function, tracing_mode="symbolic")(torch.ones(5)[1:])
    assert found == [False]
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_function", "output"]


def test_holds_of_counts():
    count, other = sympy.symbols("u0 u1", integer=True)
    assert compat.holds_of_counts(count >= 1, {count})
    assert not compat.holds_of_counts(count >= 2, {count})
    assert not compat.holds_of_counts(other >= 1, {count})


def test_an_op_without_a_shape_function():
    x = torch.ones(3)
    with pytest.raises(Exception) as raised:
        make_fx(lambda x: torch.histogram(x, 4), tracing_mode="symbolic")(x)
    wrapped = CaptureError()
    wrapped.__cause__ = raised.value
    assert compat.lacks_shape_function(raised.value) and compat.lacks_shape_function(wrapped)
    assert not compat.lacks_shape_function(CaptureError())


def test_an_op_that_wants_plain_sizes_in_cpp_says_so(fake_mode):
    x = symbolic(fake_mode, 3)
    with pytest.raises(RuntimeError, match=compat.NEED_STATIC_SIZES[0]) as raised, fake_mode:
        torch.cov(torch.ones(2, 3), aweights=x)
    assert compat.lacks_shape_function(raised.value)


def test_a_list_of_sizes_that_must_be_plain_says_so(fake_mode):
    x, weight = symbolic(fake_mode, 2, 3, 6, 6).requires_grad_(), symbolic(fake_mode, 4, 3, 3, 3)
    with pytest.raises(RuntimeError, match=compat.NEED_STATIC_SIZES[3]) as raised, fake_mode:
        result = torch.nn.functional.conv2d(x, weight, padding="same")
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        torch.autograd.grad(gradient.sin().sum(), x)
    assert compat.lacks_shape_function(raised.value)


def test_a_fake_with_symbolic_sizes_in_memory_of_its_own():
    mode, fake = symbolic_fake()
    storage = compat.meta_storage(compat.storage_bytes(fake))
    made = compat.fake_in(mode, storage, torch.float32, torch.device("cpu"), fake.size(), fake.stride(), 0)
    assert (
        compat.known_equal(made.size(), fake.size()) and compat.has_symbolic_shape(made) and compat.guards_of_mode(mode) == 0
    )


def test_a_shape_environment_asks_what_depends_on_values():
    mode, asked = compat.new_fake_mode(), []
    fake = mode.from_tensor(torch.tensor(3))
    with mode:
        number = fake.item()
        with pytest.raises(GuardOnDataDependentSymNode):
            bool(number > 2)
        with compat.answered_by(mode, lambda expression: asked.append(str(expression)) or True):
            assert number > 2
            assert isinstance(mode.shape_env, compat.AskingShapeEnv)
        with pytest.raises(GuardOnDataDependentSymNode):
            bool(number > 2)
    assert asked == ["u0 > 2"]
    assert compat.is_symbol(number, "u0")
    assert compat.first_symbol(number) == "u0"
    assert compat.first_symbol(3) is None


def test_what_torch_assumes_of_values_is_listed():
    mode = compat.new_fake_mode()
    fake = mode.from_tensor(torch.tensor(3))
    with mode:
        number = fake.item()
        torch._check(number < 5)
    assert list(map(str, compat.deferred_checks(mode))) == ["u0 < 5"]
    assert compat.first_symbol(number) == "u0"


def test_sizes_that_depend_on_values():
    with compat.FakeTensorMode(shape_env=compat.ShapeEnv(), allow_non_fake_inputs=True) as mode:
        known = mode.from_tensor(torch.ones(3))
        assert compat.has_unknown_sizes(torch.nonzero(known)) and not compat.has_unknown_sizes(known)


def test_what_cannot_be_computed_of_a_symbolic_float():
    mode, fake = symbolic_fake()
    with mode:
        x, number = torch.ones(2, requires_grad=True), fake.size(0) / 2
        try:
            torch.autograd.grad((number**x).sum(), x)
        except RuntimeError as error:  # before torch 2.15
            assert compat.lacks_symbolic_floats(error)
    assert not compat.lacks_symbolic_floats(RuntimeError("other"))
    assert not compat.lacks_symbolic_floats(None)


@pytest.mark.parametrize("padding", [{}, {"padding_idx": 1}])
def test_whether_no_row_has_a_gradient_does_not_matter(fake_mode, padding):
    """The sparse gradient of a padded table asks whether it is empty, which Dynamo's shape environment does not answer."""
    fake_mode.shape_env = ShapeEnv()
    with compat.answered_by(fake_mode, lambda _: None), fake_mode:
        table = torch.empty(4, 2, requires_grad=True)
        rows = F.embedding(torch.empty(3, dtype=torch.int64), table, sparse=True, **padding)
        (gradient,) = torch.autograd.grad(rows.sum(), table)
        assert gradient.is_sparse
        if padding:
            with pytest.raises(GuardOnDataDependentSymNode):
                bool(torch.nonzero(rows).numel() == 0)


def test_a_view_that_certainly_ends_within_a_tensor(fake_mode):
    fixed, open_ended = fake_mode.from_tensor(torch.ones(2, 3)), symbolic(fake_mode, 2, 3)
    assert compat.ends_within(fixed, (3,), (2,)) and not compat.ends_within(fixed, (4,), (2,))
    assert compat.ends_within(open_ended, open_ended.size(), open_ended.stride())
    assert not compat.ends_within(open_ended, (1,), (1,))


def test_a_view_beyond_the_memory_of_a_tensor(fake_mode):
    value = fake_mode.from_tensor(torch.ones(2, 3))
    compat.check_bounds(value, (3,), (2,), 1)
    compat.check_bounds(value, (0, 9), (1, 1), 100)
    for beyond in [((3,), (2,), 2), ((7,), (1,))]:
        with pytest.raises(RuntimeError, match="are out of bounds for storage of size 6"):
            compat.check_bounds(value, *beyond)
