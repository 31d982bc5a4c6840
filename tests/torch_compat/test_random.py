"""Feature tests of `aotgrad/torch_compat/random.py`."""

from __future__ import annotations

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
    assert torch.equal(compat.draw_again(state, op, x, 0.5), drawn)
    assert torch.equal(torch.get_rng_state(), after)


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
