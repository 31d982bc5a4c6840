"""Feature tests of `aotgrad/torch_compat/functionalization.py`."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import Tracing

aten = torch.ops.aten


def test_ops_on_lists():
    assert compat.is_foreach(aten._foreach_add_.Scalar) and not compat.is_foreach(aten.add_.Scalar)
    x = torch.ones(2)
    assert compat.is_list_of_tensors([x, x]) and not compat.is_list_of_tensors([x, 1]) and not compat.is_list_of_tensors(x)
    torch._foreach_add_([x, x], 1)
    assert x.tolist() == [3, 3] and x._version == 2
    assert "share memory" in compat.ENTANGLED_LIST


def test_a_functional_mode_asks_first_what_an_op_gives(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))

    def record(op, args, kwargs, check):
        check()
        (inner,) = compat.inner_values(args)
        return compat.new_fake(fake_mode, compat.metadata_of(inner)) if op is torch.ops.aten.sin.default else NotImplemented

    trace.functional_mode = compat.functional_mode(lambda: torch.empty(0), None, trace.proxy_mode, record)
    with trace.active() as x:
        assert isinstance(x.sin(), compat.FunctionalTensor)
        view = x.cos().view(2, 1)
        view.add_(1)
        assert compat.proxy_node(compat.from_functional(view), trace.tracer).args[0].args[0].name == "add"
    assert trace.recorded()[:3] == ["aten.cos.default", "aten.view.default", "aten.add.Tensor"]


def test_an_in_place_op_is_recorded_functionally(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    assert isinstance(trace.functional_mode, compat.FunctionalTensorMode)
    with trace.active() as x:
        assert isinstance(x, compat.FunctionalTensor)
        assert isinstance(x, compat.FunctionalTensor)
        x.mul_(2)
        current = compat.from_functional(x)
    assert trace.recorded() == ["aten.mul.Tensor"]
    assert compat.proxy_node(current, trace.tracer).name == "mul"
    assert compat.ops_are_observed([torch.ones(1), x])
    assert not compat.ops_are_observed([torch.ones(1)])


def test_a_write_through_an_expanded_view_of_the_same_size_is_recorded_as_such(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x:
        assert compat.expands_nothing(x, (1, -1)) and not compat.expands_nothing(x, (3, 2))
        assert compat.sizes_of_view(x, (1, -1)) == [1, 2]
        x.expand(1, 2).mul_(2)
        compat.from_functional(x)
    assert set(trace.recorded()) == {"aten.view.default", "aten.mul.Tensor"}


def test_a_write_to_a_real_tensor_is_refused(fake_mode):
    trace, real = Tracing(fake_mode, torch.ones(2)), torch.ones(2)
    assert trace.functional_mode.__torch_dispatch__.__func__ is compat.guarded_dispatch
    with trace.active() as x, pytest.raises(RuntimeError, match="mutating a non-functional tensor"):
        real.add_(x)
    assert torch.equal(real, torch.ones(2))


def test_a_view_of_a_normal_tensor_is_a_normal_one_in_inference_mode(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x, torch.inference_mode():
        assert not x.view(1, 2).is_inference()
        assert (x + 1).is_inference()


def test_ops_without_a_functional_form():
    """Functionalization refuses them; remove one from the table that it accepts."""
    x = torch.rand(3)
    for op, functional in compat.WITHOUT_FUNCTIONAL_FORM.items():
        assert op in compat.VALUES_TO_WRITE
        with pytest.raises(RuntimeError, match="Found a custom"):
            torch.func.functionalize(op)(x.clone(), 1)
        assert torch.equal(functional(1, x), op(x.clone(), 1))


def test_effect_tokens_are_made_when_they_are_needed():
    made = []
    tokens = compat.EffectTokens(lambda: made.append(1) or torch.empty(0))
    assert "any effect" in tokens
    assert made == []
    assert tokens["any effect"] is tokens["any effect"]
    assert made == [1]


def test_writes_are_counted(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x:
        before = len(compat.writes_of(trace.functional_mode))
        y = x.sin()
        assert len(compat.writes_of(trace.functional_mode)) == before
        y.add_(1)
        assert len(compat.writes_of(trace.functional_mode)) == before + 1
        write: compat.InPlaceWrite = compat.writes_of(trace.functional_mode)[-1]
        assert write.storages == {compat.storage_id(y)} and write.is_differentiated == torch.is_grad_enabled()


def test_what_answers_reads_of_values_is_asked_by_the_functional_mode(fake_mode):
    class Answers(compat.ReadsValues):
        def wants(self, op, args):
            return op is aten.equal.default

        def result(self, op, args, kwargs):
            return True

    fake = fake_mode.from_tensor(torch.ones(2))
    with fake_mode, compat.functional_mode(lambda: torch.empty(0), Answers()):
        x = compat.to_functional(fake)
        assert aten.equal.default(x, x) is True


def test_what_values_decide_the_size_of_is_computed_before_it_is_written(fake_mode):
    tracing = Tracing(fake_mode, torch.ones(3))

    def with_three_elements(question):
        return bool(question.subs(dict.fromkeys(question.free_symbols, 3)))

    with tracing.active() as x, compat.answered_by(fake_mode, with_three_elements):
        out = torch.zeros(3, 1, dtype=torch.int64)
        written = torch.nonzero(x, out=out)  # dispatched to `compat.compute_and_write`
    assert written is out
    assert compat.COMPUTED_BEFORE_WRITTEN[aten.nonzero.out] is aten.nonzero.default
    assert compat.REWRITES[aten.nonzero.out] is compat.compute_and_write
    assert "aten.nonzero.default" in tracing.recorded()
