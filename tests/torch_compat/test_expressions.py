"""Feature tests of `aotgrad/torch_compat/expressions.py`."""

from __future__ import annotations

import math

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, GuardOnDataDependentSymNode, StatelessSymbolicContext

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import symbolic, symbolic_fake


def test_symbolic_numbers_as_source(fake_mode):
    size = symbolic(fake_mode, 4).size(0)
    text, (symbol,) = compat.symbolic_text(size * 2 // 3)
    assert compat.value_of_symbolic(size * 2 // 3, {symbol: 5}) == 3
    assert eval(text, {symbol: 4}) == 2
    assert compat.is_symbol(size, symbol)
    assert not compat.is_symbol(size * 2, symbol)
    assert not compat.is_symbol(4, symbol)


def test_equal_symbolic_numbers_have_one_expression(fake_mode):
    value = symbolic(fake_mode, 3, 3)
    first, second = value.size()
    assert compat.expression_of(first * 2) == compat.expression_of(2 * first) != compat.expression_of(second * 2)
    assert compat.expression_of(5) == 5
    assert compat.guard_count(value) == 0


def test_write_expression():
    mode, graph = compat.new_fake_mode(), torch.fx.Graph()
    rows, columns = compat.symbolic_inputs(mode, [6, 4])
    nodes = {str(size.node.expr): graph.placeholder(str(size.node.expr)) for size in (rows, columns)}
    written = compat.write_expression(graph, rows * 2 + columns // 3, lambda symbol: nodes[str(symbol)])
    graph.output(written)
    assert torch.fx.GraphModule({}, graph)(10, 9) == 23


def test_a_symbolic_number_is_written_and_made_again():
    mode, fake = symbolic_fake()
    (rows, columns) = compat.backed_symbols(mode.shape_env)
    expression = compat.backed_expression(fake.size(0) * 2 + 1)
    assert expression == 2 * rows + 1 and type(expression).__name__ in compat.expression_types()
    made = compat.symbolic_number(mode, "int", expression)
    assert isinstance(made, torch.SymInt) and compat.hints([made]) == (13,)
    assert isinstance(compat.symbolic_number(mode, "float", columns / 2), torch.SymFloat)
    assert compat.guards_of_mode(mode) == 0
    assert bool(compat.symbolic_number(mode, "bool", rows > 5)) and compat.guards_of_mode(mode) == 1
    assert [str(each) for each in compat.conditions_since(mode, 0)] == [f"{rows} > 5"] and not compat.conditions_since(
        mode, 1
    )


def test_what_is_known_of_symbols():
    assert compat.symbolic_state(compat.new_fake_mode()) is None
    mode, fake = symbolic_fake()
    (rows, _) = compat.backed_symbols(mode.shape_env)
    symbols, equalities, conditions = compat.symbolic_state(mode)
    assert len(symbols) == 2 and not equalities and not conditions
    names = {name: (sources, value) for name, sources, value, _ in symbols}
    assert names[str(rows)] == (compat.sources_of(mode.shape_env, rows), "6")
    assert fake.size(0) < 100 and compat.symbolic_state(mode) != (symbols, equalities, conditions)


def test_the_size_of_a_nested_tensor_is_known_by_its_order():
    states = []
    for _ in range(2):
        rows = torch.nested.nested_tensor_from_jagged(torch.ones(3, 2), torch.tensor([0, 1, 3]))
        mode = compat.new_fake_mode()
        dims = StatelessSymbolicContext([DimDynamic.STATIC, DimDynamic.DYNAMIC, DimDynamic.STATIC])
        size = mode.shape_env.create_symbolic_sizes_strides_storage_offset(rows, ConstantSource("x"), symbolic_context=dims)[
            0
        ]
        states.append(compat.symbolic_state(mode))
        ragged = next(number for number in size if isinstance(number, torch.SymInt))
        made = compat.symbolic_number(mode, "int", compat.backed_expression(ragged))
        assert str(made.node.hint) == str(ragged.node.hint)
    assert states[0] == states[1] and "ragged 0 * 1" in str(states)


def test_a_number_that_depends_on_data_has_no_expression():
    mode, _ = symbolic_fake()
    assert compat.backed_expression(mode.shape_env.create_unbacked_symint()) is None


def test_a_bool_that_is_read_is_a_comparison_of_a_symbol():
    mode = compat.new_fake_mode()
    fake = mode.from_tensor(torch.tensor(True))
    with mode:
        assert compat.first_symbol(fake.item()) == "u0"


def test_the_text_of_an_expression_is_evaluated():
    mode = compat.new_fake_mode()
    fake = mode.from_tensor(torch.tensor(3))
    with mode:
        text, names = compat.expression_text((fake.item() // 2 + 1).node.expr)
    assert names == ["u0"]
    assert eval(compat.compiled_text(text), compat.text_namespace(), {"u0": 7}) == 4


def test_a_number_becomes_what_it_is_while_tracing(fake_mode):
    size = symbolic(fake_mode, 4).size(0)
    assert compat.assumed_value(size * 2) == 8 and compat.guards_of_mode(fake_mode) == 1
    assert compat.assumed_value(0.5) == 0.5
    fake = fake_mode.from_tensor(torch.tensor(0.5))  # a tensor made inside the mode may be a constant
    with fake_mode, pytest.raises(GuardOnDataDependentSymNode):
        compat.assumed_value(fake.item())


@pytest.mark.parametrize("name", ["atan", "cos", "sin", "sqrt", "tan", "tanh"])
def test_functions_of_symbolic_floats(name):
    assert compat.symbolic_function(name)(0.5) == getattr(math, name)(0.5)


def test_a_read_of_a_float_is_a_symbol_of_its_own(fake_mode):
    fake = fake_mode.from_tensor(torch.tensor(0.5))
    first, second = (compat.meta_of_read(fake) for _ in range(2))
    assert isinstance(first["val"], torch.SymFloat)
    assert list(first["unbacked_bindings"]) == [compat.expression_of(first["val"])] != list(second["unbacked_bindings"])
    assert not fake_mode.shape_env.pending_fresh_unbacked_symbols


def test_symbols_that_no_result_has():
    mode, _ = symbolic_fake()
    fake = mode.from_tensor(torch.tensor([3]))
    with mode, compat.ignored_unbacked_symbols(mode):
        assert isinstance(fake.item(), torch.SymInt)
    assert not mode.shape_env.pending_fresh_unbacked_symbols
    with compat.ignored_unbacked_symbols(FakeTensorMode()):  # a mode without symbols
        pass


def test_a_symbol_without_a_value():
    mode, _ = symbolic_fake()
    for name, kind, made in (("u3", "int", torch.SymInt), ("zuf0", "float", torch.SymFloat)):
        symbol = compat.unbacked_symbol(mode, name)
        assert compat.is_unbacked_name(name) and compat.is_unbacked_name(symbol.name)
        assert isinstance(compat.symbolic_number(mode, kind, symbol * 2), made)
    assert not compat.is_unbacked_name("s0") and compat.guards_of_mode(mode) == 0
