"""CUDA graphs with draws that the backward repeats: clones of generators are inputs of both halves.

A captured half that reads or sets the state of a generator raises here, as on a GPU: see `cuda_graphs.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import aotgrad
from aotgrad import printing
from aotgrad.backends import generator_inputs
from aotgrad.errors import BackendError
from aotgrad.slots import GeneratorClone
from tests.emulated_cuda.device import capturing
from tests.emulated_cuda.test_random import DEVICES, assert_like_eager, chain, leaf, seed_apart
from tests.golden.test_segments import page
from tests.numerics.conftest import TORCH_WARNS

pytest.importorskip("triton", reason="Inductor compiles Triton kernels for this device, and triton is not installed")
pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNS]

OPTIONS = {"memory_budget": 0.1, "mode": "reduce-overhead", "inductor": {"fallback_random": True}}
"""The numbers are eager's. (A patch of Inductor's configuration would not reach the engine's thread for the device.)"""


@pytest.fixture
def repeated(monkeypatch) -> list[int]:
    """How many draws each call of a backward has repeated from clones."""
    counts: list[int] = []
    run = generator_inputs.BackwardWithClones.__call__

    def counted(self, inputs):
        counts.append(len(self.clones))
        return run(self, inputs)

    monkeypatch.setattr(generator_inputs.BackwardWithClones, "__call__", counted)
    return counts


def draws_thrice(x, w):
    """The draws in between are not repeated: nothing is computed from them, or they are saved."""
    y = chain(x, w) + torch.rand_like(x).mean()
    return chain(y * F.dropout(x, 0.3).detach() / 32, w)


@pytest.mark.parametrize("function", [chain, draws_thrice])
@pytest.mark.parametrize("device", DEVICES)
def test_each_step_draws_what_eager_draws(recordings, repeated, device, function):
    torch.cuda.set_device(0)
    compiled = torch.compile(function, backend="aotgrad", options=OPTIONS)
    for _ in range(4):
        assert_like_eager(function, compiled, leaf(32, 32, device=device), leaf(32, 32, device=device))
    assert recordings == {"forward": 1, "backward": 1}
    assert len(repeated) == 4 and repeated[0] > 0


def test_the_generator_moves_on_from_step_to_step(recordings):
    """Without a seed in between, each step draws other numbers, and so does eager."""

    def steps(function: Callable) -> list[torch.Tensor]:
        x, w = (torch.full((32, 32), 0.5, device="cuda").requires_grad_() for _ in range(2))
        seed_apart()
        results = []
        for _ in range(4):
            results.append(function(x, w))
            results[-1].sum().backward()
        return [*results, x.grad, w.grad, *torch.cuda.get_rng_state_all()]

    compiled = aotgrad.aot_function(chain, "inductor", options=OPTIONS)
    for found, expected in zip(steps(compiled), steps(chain), strict=True):
        torch.testing.assert_close(found, expected)


def test_each_backward_draws_as_its_forward(recordings, repeated):
    """Forwards that wait for their backwards, in any order, a retained graph and a second backward."""

    def run(function: Callable) -> list[torch.Tensor]:
        x, w = (torch.full((32, 32), 0.5, device="cuda").requires_grad_() for _ in range(2))
        seed_apart()
        results = [function(x, w) for _ in range(3)]
        gradients = []
        for k in (2, 0, 0, 1, 2):
            gradients += torch.autograd.grad(results[k].sum(), (x, w), retain_graph=True)
            torch.rand(2, device="cuda")
        return [*results, *gradients, torch.cuda.get_rng_state()]

    compiled = aotgrad.aot_function(chain, "inductor", options=OPTIONS)
    for _ in range(2):
        for found, expected in zip(run(compiled), run(chain), strict=True):
            torch.testing.assert_close(found, expected)
    assert repeated == [1] * 10


def test_a_gradient_of_a_gradient(recordings):
    def second(function: Callable, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        seed_apart()
        (first,) = torch.autograd.grad(function(x, w).mean(), x, create_graph=True)
        return [*torch.autograd.grad(first.square().sum(), (x, w)), torch.cuda.get_rng_state()]

    x, w = leaf(8, 8, device="cuda"), leaf(8, 8, device="cuda")
    compiled = aotgrad.aot_function(chain, "inductor", options=OPTIONS)
    for _ in range(2):
        for found, expected in zip(second(compiled, x, w), second(chain, x, w), strict=True):
            torch.testing.assert_close(found, expected)


def test_the_text_of_the_halves(golden):
    """The halves as Inductor gets them."""
    compiled = aotgrad.aot_function(chain, aotgrad.nop, options={"memory_budget": 0.1})
    compiled(leaf(4, 4, device="cuda"), leaf(4, 4, device="cuda"))
    (plan,) = compiled.plans()
    partition = plan.executable.partition
    forward, clones = generator_inputs.forward_with_clones(partition.forward)
    backward, clones_of_backward = generator_inputs.backward_with_clones(partition.backward)
    assert [str(clone.device) for clone in (*clones.values(), *clones_of_backward.values())] == ["cuda:0"] * 2
    state = GeneratorClone("native_dropout_state")
    assert forward.signature.inputs[-1] == backward.signature.inputs[-1] == state
    halves = {"forward": forward, "backward": backward}
    texts = [f"--- {name} ---\n\n{printing.graph_text(name, half.module, half.signature)}" for name, half in halves.items()]
    golden("runtime/generator_inputs", page("Clones of a GPU's generator as inputs, for CUDA graphs.", chain, *texts))


def test_a_first_call_that_is_captured_raises(recordings):
    """It is unknown then how much of the offset the draws before a repeated one take."""
    compiled = aotgrad.aot_function(chain, "inductor", options=OPTIONS)
    arguments = leaf(8, 8, device="cuda"), leaf(8, 8, device="cuda")
    run = generator_inputs.ForwardWithClones.__call__

    def captured(self, inputs):
        inner = self.run

        def run_captured(values):
            with capturing():
                return inner(values)

        self.run = run_captured
        return run(self, inputs)

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(BackendError, match="without Inductor's triton"),
    ):
        patch.setattr(generator_inputs.ForwardWithClones, "__call__", captured)
        compiled(*arguments)


def test_a_call_under_a_capture_of_the_user_raises(recordings):
    compiled = aotgrad.aot_function(chain, "inductor", options=OPTIONS)
    arguments = leaf(8, 8, device="cuda"), leaf(8, 8, device="cuda")
    compiled(*arguments)
    with capturing(), pytest.raises(RuntimeError, match="a CUDA graph is being captured, and the backward draws"):
        compiled(*arguments)


def test_an_error_in_a_repeated_draw_leaves_the_generator_alone():
    """Torch's op would leave the default generator with the state of the clone."""

    def failing(inputs):
        torch.cuda.default_generators[0].graphsafe_set_state(clone)
        raise torch.OutOfMemoryError

    clone = torch.cuda.default_generators[0].clone_state()
    backward = generator_inputs.BackwardWithClones(failing, {0: clone})
    state = torch.cuda.get_rng_state()
    with pytest.raises(torch.OutOfMemoryError):
        backward([state])
    torch.rand(2, device="cuda")
    assert torch.equal(clone.get_state(), state), "the default generator has a state of its own"
