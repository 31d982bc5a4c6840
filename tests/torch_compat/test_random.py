"""Feature tests of `aotgrad/torch_compat/random.py`."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from aotgrad import torch_compat as compat


def test_random_state_of_repeats_what_was_drawn_and_leaves_the_generator_alone():
    state = compat.random_state(["cpu"])
    first = torch.rand(3)
    with compat.random_state_of(state):
        assert torch.equal(torch.rand(3), first)
    following = torch.rand(3)
    torch.set_rng_state(state["cpu"])
    torch.rand(3)
    assert torch.equal(torch.rand(3), following)


def test_no_generator_moves_while_random_states_are_kept():
    def draw():
        return torch.rand(1).item(), random.random(), np.random.rand()

    with compat.kept_random_states():
        numbers = draw()
    assert draw() == numbers


def test_draws_are_noted():
    with compat.noted_draws() as drawn:
        torch.rand(1, generator=torch.Generator())
    assert drawn == []
    with compat.noted_draws() as drawn:
        torch.rand(1)
    assert drawn == [torch.device("cpu")]


def test_random_state_of_nothing_changes_nothing():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with compat.random_state_of(None):
        assert torch.equal(torch.rand(2), expected)


def test_a_random_op_draws_again_from_its_recorded_state():
    x, op = torch.ones(8), torch.ops.aten.bernoulli.p
    state, drawn = compat.draw_and_record(op, x, 0.5)
    after = torch.get_rng_state()
    for again in (compat.draw_again, compat.draw_again_for_dynamo):
        assert torch.equal(again(state, op, x, 0.5), drawn)
        assert torch.equal(torch.get_rng_state(), after)


def test_dynamo_traces_a_draw_from_a_given_state():
    op = torch.ops.aten.bernoulli.p
    state, drawn = compat.draw_and_record(op, torch.ones(8), 0.5)
    draw = torch.compile(lambda *args: compat.draw_again_for_dynamo(*args) * 1, backend="eager", fullgraph=True)
    assert compat.can_draw_for_dynamo(torch.device("cpu"))
    assert torch.equal(draw(state, op, torch.ones(8), 0.5), drawn)


def test_devices_that_may_draw():
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    assert compat.devices_that_draw() == ("cpu", *(f"cuda:{index}" for index in gpus))


def test_random_ops_that_run_in_advance_leave_the_generator_alone():
    draw = compat.RandomReplay()
    torch.manual_seed(0)
    with draw():
        first = torch.rand(2)
    with draw():
        second = torch.rand(2)
    assert torch.equal(torch.cat([first, second]), torch.rand(4))


def test_a_random_op_draws_on_the_device_that_it_names_or_of_its_first_tensor():
    assert compat.default_generators()[0] is torch.default_generator
    op = torch.ops.aten.rand.default
    state, drawn = compat.draw_and_record(op, [3], device="cpu")
    assert torch.equal(compat.draw_again(state, op, [3], device="cpu"), drawn)


def test_functions_of_torch_find_a_stand_in_for_the_default_generator():
    before = torch.random.default_generator
    stand_in = compat.StandInGenerator(torch.default_generator)
    with compat.replaced_generators([stand_in]):
        assert torch.random.default_generator is stand_in
        assert compat.is_default_generator(stand_in)
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.default_generator.manual_seed(3)
        assert torch.equal(torch.rand(2), expected), "the stand-in passes calls on"
    assert torch.random.default_generator is before


def test_an_op_notes_in_a_clone_where_it_drew():
    clone = compat.clone_generator(torch.device("cpu"))
    torch.rand(3)
    state = compat.state_before_draws(torch.device("cpu"))
    assert not torch.equal(clone.get_state(), state)
    drawn = compat.draw_and_note(torch.ops.aten.bernoulli.p, torch.ones(8), 0.5, rng_state=clone)
    assert torch.equal(clone.get_state(), state)
    torch.set_rng_state(state)
    assert torch.equal(torch.bernoulli(torch.ones(8), 0.5), drawn)


def test_ops_on_a_gpu_have_shape_functions():
    op, clone = torch.ops.aten.bernoulli.p, compat.clone_generator(torch.device("cpu"))
    with torch._subclasses.FakeTensorMode():
        x, number = torch.ones(8, device="cuda"), torch.tensor(0)
        drawn, after = compat.philox_draw(number, number, op, x, 0.5)
        assert (drawn.device, drawn.shape, after.device, after.dtype) == (x.device, x.shape, number.device, torch.int64)
        assert compat.draw_from_clone(op, x, 0.5, rng_state=clone).device == x.device


@dataclass
class Philox:
    """A generator as a GPU has it."""

    seed: int
    offset: int

    def get_state(self) -> torch.Tensor:
        return torch.tensor([self.seed, self.offset]).view(torch.uint8)

    def set_offset(self, offset: int) -> None:
        self.offset = offset

    def graphsafe_get_state(self) -> Philox:
        return Philox(self.seed, self.offset)

    def graphsafe_set_state(self, other: Philox) -> None:
        self.seed, self.offset = other.seed, other.offset


@pytest.fixture
def generator(monkeypatch) -> Philox:
    """The default generator of a GPU."""
    found = Philox(5, 8)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "default_generators", (found,))
    return found


def test_seed_and_offset_of_a_gpus_generator(generator):
    seed, offset = compat.philox_state("cuda:0")
    assert (int(seed), int(offset), offset.dtype) == (5, 8, torch.int64)
    compat.advance_philox("cuda:0", offset + 4)
    assert generator == Philox(5, 12)


def test_generators_have_their_own_state_again_after_an_error(generator):
    with pytest.raises(ValueError), compat.kept_generators([torch.device("cuda:0")]):
        generator.graphsafe_set_state(Philox(1, 0))
        raise ValueError
    assert generator == Philox(5, 8)


def test_during_a_capture_the_state_is_not_read(generator, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="the backward draws random numbers of the forward again"):
        compat.state_before_draws(torch.device("cuda:0"))
    with pytest.raises(RuntimeError, match="with functionalize_rng each call reads a generator"):
        compat.philox_state("cuda:0")
    clone = torch.Generator()
    before = clone.get_state()
    compat.draw_and_note(torch.ops.aten.bernoulli.p, torch.ones(8), 0.5, rng_state=clone)
    assert torch.equal(clone.get_state(), before)


def test_the_generators_of_python_and_numpy_are_restored():
    before = compat.PythonGenerators.now()
    drawn = random.random(), float(np.random.rand())
    assert compat.PythonGenerators.now() != before
    before.restore()
    assert compat.PythonGenerators.now() == before
    assert drawn == (random.random(), float(np.random.rand()))
