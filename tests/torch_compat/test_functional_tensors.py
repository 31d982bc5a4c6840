"""Feature tests of `aotgrad/torch_compat/functional_tensors.py`."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import Tracing


def test_same_functional_is_one_value_with_two_histories(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x:
        same = compat.same_functional(x)
        assert compat.traced_memory_id(same) == compat.traced_memory_id(x) != compat.traced_memory_id(x * 2)
        x.add_(1)
        assert compat.proxy_node(compat.from_functional(same), trace.tracer).name == "add"
    assert (x._version, same._version) == (1, 0)


def test_recorded_views_are_applied_to_another_base(fake_mode):
    with Tracing(fake_mode, torch.ones(3, 4)).active() as x, torch.no_grad():
        view = x[1:].t()
        assert len(compat.recorded_views(view)) == 2
        with compat.disable_functional_mode():
            again = compat.with_recorded_views(view, torch.ones(20).as_strided((3, 4), (5, 1), 2))
    assert (again.shape, again.stride(), again.storage_offset()) == ((4, 2), (1, 5), 7)


def test_what_is_computed_from_closed_over_tensors_is_functional(fake_mode):
    trace, real = Tracing(fake_mode, torch.ones(2)), torch.ones(2)
    with trace.active():
        assert compat.any_functional([real * 2])
        parameter = torch.nn.Parameter(real * 2)
        torch._dynamo.mark_dynamic(parameter, 0)
        assert compat.assigned_attributes(parameter) == set()
        parameter.scale = 2
        assert compat.assigned_attributes(parameter) == {"scale"}
        assert not compat.any_functional([real[1:]])
        wrapped = compat.wrapped_result(trace.functional_mode, trace.fake)
        assert compat.any_functional([wrapped]) and compat.from_functional(wrapped) is trace.fake
        one, other, nothing = compat.wrapped_results(trace.functional_mode, (trace.fake, trace.fake, None))
        assert one is other and compat.from_functional(one) is trace.fake and nothing is None


def test_any_functional_tells_traced_tensors(fake_mode):
    assert not compat.any_functional([torch.ones(2), 3])
    with fake_mode, compat.functional_mode(lambda: torch.ones(0)):
        assert compat.any_functional([3, compat.to_functional(torch.ones(2))])


def test_memory_holds_another_value(fake_mode):
    with Tracing(fake_mode, torch.ones(3)).active() as x, torch.no_grad():
        view, alias, other = x[1:], compat.detached_functional(x), x * 2
        compat.replace_value(x, compat.from_functional(other))
        assert compat.from_functional(x) is compat.from_functional(alias) is compat.from_functional(other)
        assert compat.storage_id(view) == compat.storage_id(alias) == compat.storage_id(x)
        assert compat.view_root(view) is x is compat.view_root(x)
        assert compat.is_functional(x) and not compat.is_functional(compat.from_functional(x))


def test_tensors_of_functionalize_are_told_apart():
    seen = []
    torch.func.functionalize(lambda x: (seen.append(compat.is_functionalized(x)), x + 1)[1])(torch.ones(2))
    assert seen == [True] and not compat.is_functionalized(torch.ones(2))


def test_used_outside(fake_mode):
    with Tracing(fake_mode, torch.ones(2)).active() as x:
        pass
    with pytest.raises(RuntimeError, match=compat.USED_OUTSIDE), torch.no_grad():
        torch.ones(2) * x
