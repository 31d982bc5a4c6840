"""Random ops as functions of the state of a generator."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat as compat

aten = torch.ops.aten


def twin(op, args, kwargs, generator, state):
    """Runs the twin of an op; returns its results, and the recorded states."""
    states = compat.GeneratorStates([generator], [state])
    with compat.trace_states(states):
        results = compat.draw_from(generator, op, args, kwargs, lambda op, args, kwargs: op(*args, **kwargs))
    assert states.drawn == {compat.generator_key(generator)}
    return results, *states.now()


CALLS = {
    "creation": (aten.rand.generator, ([3],), {}),
    "of a tensor": (aten.bernoulli.default, (torch.full((5,), 0.5),), {}),
    "in place": (aten.normal_.default, (torch.zeros(4, 3).t(),), {}),
    "out": (aten.rand.generator_out, ([3],), {"out": torch.empty(3)}),
    "by position": (aten.rrelu_with_noise_functional.default, (-torch.ones(4), torch.ones(4), 0.1, 0.4, True), {}),
}


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS.values(), ids=CALLS)
def test_a_twin_draws_what_the_op_draws(op, args, kwargs):
    generator, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    before = generator.get_state()
    results, state = twin(op, args, {**kwargs, "generator": generator}, generator, before)
    assert torch.equal(generator.get_state(), before), "nothing moves it"
    expected = op(*args, **kwargs, generator=other)
    assert torch.equal(results[0], expected[0] if isinstance(expected, tuple) else expected)
    assert results[0].stride() == (expected[0] if isinstance(expected, tuple) else expected).stride()
    assert torch.equal(state, other.get_state())


def test_a_twin_has_a_shape_function(fake_mode):
    generator = torch.Generator()
    state = fake_mode.from_tensor(generator.get_state())
    with fake_mode:
        results, after = twin(aten.randn.generator, ([2, 3],), {"generator": generator}, generator, state)
    assert results[0].shape == (2, 3) and after.shape == state.shape


def test_two_objects_of_one_generator_have_one_key():
    found = []

    class Noting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found.append(compat.generator_of(func, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    generator = torch.Generator()
    with Noting():
        torch.rand(2, generator=generator)
    assert compat.generator_key(found[0]) == compat.generator_key(generator) != compat.generator_key(torch.Generator())


def test_the_default_generator_is_known():
    assert compat.is_default_generator(torch.default_generator)
    assert not compat.is_default_generator(torch.Generator())


def test_another_generator_takes_the_place_of_one():
    generator = torch.Generator()
    assert compat.generator_of(aten.rand.generator, ([3],), {"generator": generator}) is generator
    assert compat.generator_of(aten.sin.default, (torch.ones(1),), {}) is None
    assert compat.with_generator(aten.rand.generator, ([3],), {}, generator) == ([[3]], {"generator": generator})
    op, args = aten.rrelu_with_noise.default, [1, 2, 0.1, 0.2, True, generator]
    assert compat.with_generator(op, args, {}, None) == ([1, 2, 0.1, 0.2, True, None], {})


def test_an_unknown_generator_is_refused():
    generator = torch.Generator()
    with pytest.raises(compat.OwnGenerator) as caught:
        compat.draw_from(generator, aten.rand.generator, ([3],), {"generator": generator}, None)
    assert caught.value.generator is generator and caught.value.drawn == frozenset()


def test_a_generator_may_have_a_subclass():
    """A trace gets an object of the subclass in place of the generator."""

    class Special(torch.Generator):
        pass

    special = Special(torch.device("cpu"))
    special.manual_seed(3)
    assert torch.equal(torch.rand(2, generator=special), torch.rand(2, generator=torch.Generator().manual_seed(3)))
