"""`functionalize_rng`: halves are functions of a seed and an offset, and draw what eager draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad import printing
from aotgrad.errors import PartitionError
from aotgrad.slots import NextOffset, RandomOffset, RandomSeed
from tests.emulated_cuda.device import capturing
from tests.emulated_cuda.test_random import BACKENDS, DEVICES, assert_like_eager, chain, leaf, outcome, seed_apart
from tests.golden.test_segments import page

FUNCTIONAL = {"functionalize_rng": True}


def halves(function, *arguments, **options):
    """The executable of a function with pure halves."""
    compiled = aotgrad.aot_function(function, aotgrad.nop, options={**FUNCTIONAL, **options})
    compiled(*arguments)
    (plan,) = compiled.plans()
    return plan.executable


@pytest.mark.parametrize("budget", [None, 0.1, 0.0])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("device", DEVICES)
def test_behind_dynamo_a_call_draws_what_eager_draws(device, backend, budget):
    torch.cuda.set_device(0)
    torch._dynamo.reset()
    compiled = torch.compile(chain, backend=backend, options={**FUNCTIONAL, "memory_budget": budget})
    with torch._inductor.config.patch(fallback_random=True):
        assert_like_eager(chain, compiled, leaf(32, 32, device=device), leaf(32, 32, device=device))


DRAWS = {
    "rand": lambda x: torch.rand(4, 4, device=x.device),
    "rand_like": torch.rand_like,
    "double": lambda x: torch.rand_like(x, dtype=torch.float64),
    "randn": lambda x: torch.randn(4, 4, device=x.device),
    "randint": lambda x: torch.randint(0, 9, (4, 4), device=x.device),
    "randperm": lambda x: torch.randperm(4, device=x.device),
    "bernoulli": lambda x: x.sigmoid().bernoulli(),
    "dropout": lambda x: F.dropout(x, 0.4),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 4),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", DRAWS)
def test_each_random_op_draws_what_eager_draws(name, backend):
    draw = DRAWS[name]

    def function(x):
        return (x * draw(x)).sin() + draw(x)

    compiled = aotgrad.aot_function(function, backend, options=FUNCTIONAL)
    with torch._inductor.config.patch(fallback_random=True):
        assert_like_eager(function, compiled, leaf(4, 4, device="cuda"))


def test_inductors_own_random_numbers_come_from_its_seeds():
    """Without `fallback_random`, Inductor draws seeds, and its numbers are not eager's."""
    compiled = aotgrad.aot_function(lambda x: F.dropout(x, 0.5), "inductor", options=FUNCTIONAL)
    x = leaf(64, device="cuda")
    first, gradient, *states = outcome(compiled, [x])
    again, same, *states_again = outcome(compiled, [x])
    for one, other in zip([first, gradient, *states], [again, same, *states_again], strict=True):
        assert torch.equal(one, other)
    assert torch.equal(gradient.bool(), first.bool()), "the backward has the mask of the forward"
    assert not torch.equal(first, compiled(x)), "the generator has moved"


def test_a_half_is_a_function_of_its_inputs():
    x, w = leaf(8, 8, device="cuda"), leaf(8, 8, device="cuda")
    executable = halves(chain, x, w, memory_budget=0.0)
    signature = executable.partition.forward.signature
    assert signature.inputs[2:] == (RandomSeed("cuda:0"), RandomOffset("cuda:0"))
    assert signature.outputs[-1] == NextOffset("cuda:0")
    seed, offset = torch.tensor(3, device="cpu"), torch.tensor(8, device="cpu")
    before = torch.cuda.get_rng_state()
    first, again, other = (
        executable.compiled.forward([x.detach(), w.detach(), seed, start]) for start in (offset, offset, offset + 4)
    )
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert (int(first[-1]), int(other[-1])) == (12, 16), "the emulated device takes 4 for each op"
    gradients = executable.partition.backward.module
    saved = dict(zip(signature.outputs, first, strict=True))
    inputs = [saved.get(slot, torch.ones_like(x)) for slot in executable.partition.backward.signature.inputs]
    assert all(map(torch.equal, gradients(*inputs), gradients(*inputs)))
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_the_text_of_the_halves(golden):
    executable = halves(chain, leaf(4, 4, device="cuda"), leaf(4, 4, device="cuda"), memory_budget=0.1)
    partition = executable.partition
    pairs = {"forward": partition.forward, "backward": partition.backward}
    texts = [f"--- {name} ---\n\n{printing.graph_text(name, half.module, half.signature)}" for name, half in pairs.items()]
    texts.append(f"--- the function around them ---\n\n{executable.source}")
    golden("partition/functional_random", page("Seed and offset of a GPU's generator as inputs.", chain, *texts))


def test_each_backward_draws_as_its_forward():
    """Forwards that wait for their backwards, in any order, and a second backward."""

    def run(function):
        x, w = (leaf(8, 8, device="cuda").detach().fill_(0.5).requires_grad_() for _ in range(2))
        seed_apart()
        results = [function(x, w) for _ in range(3)]
        for k in (2, 0, 0, 1):
            results[k].sum().backward(retain_graph=True)
            torch.rand(2, device="cuda")
        return [*results, x.grad, w.grad, torch.cuda.get_rng_state()]

    compiled = aotgrad.aot_function(chain, "eager", options={**FUNCTIONAL, "memory_budget": 0.0})
    assert all(map(torch.equal, run(compiled), run(chain)))


def test_two_devices_have_seeds_of_their_own():
    def both(x, w):
        return chain(x, w).to("cuda:1") + chain(x.to("cuda:1"), w.to("cuda:1"))

    compiled = aotgrad.aot_function(both, aotgrad.nop, options={**FUNCTIONAL, "memory_budget": 0.1})
    assert_like_eager(both, compiled, leaf(8, 8, device="cuda:0"), leaf(8, 8, device="cuda:0"))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_repeats_the_draws_of_its_region(reentrant):
    def function(x, w):
        return checkpoint(chain, x, w, use_reentrant=reentrant) + F.dropout(x, 0.5)

    compiled = aotgrad.aot_function(function, aotgrad.nop, options=FUNCTIONAL)
    assert_like_eager(function, compiled, leaf(8, 8, device="cuda"), leaf(8, 8, device="cuda"))


def test_a_gradient_of_a_gradient_draws_the_same_numbers():
    def second(function, x):
        seed_apart()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return [torch.autograd.grad(first.sum(), x)[0], torch.cuda.get_rng_state()]

    def function(x):
        return (F.dropout(x, 0.5) * x).sin()

    x = leaf(8, 8, device="cuda")
    compiled = aotgrad.aot_function(function, aotgrad.nop, options=FUNCTIONAL)
    assert all(map(torch.equal, second(compiled, x), second(function, x)))


def test_without_gradients_and_with_symbolic_sizes():
    compiled = aotgrad.aot_function(chain, aotgrad.nop, options={**FUNCTIONAL, "dynamic": True, "memory_budget": 0.0})
    for size in (4, 6):
        assert_like_eager(chain, compiled, leaf(size, size, device="cuda"), leaf(size, size, device="cuda"))
    x = torch.randn(4, 4)
    seed_apart()
    expected = chain(x, x)
    seed_apart()
    assert torch.equal(compiled(x, x), expected)


def test_a_function_that_draws_nothing_stays_as_it_is():
    executable = halves(lambda x: x.sin(), leaf(3, device="cuda"))
    assert not any(isinstance(slot, (RandomSeed, RandomOffset)) for slot in executable.partition.forward.signature.inputs)


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand_like(gradient)


def draws_in_a_loop(x):
    start = torch.zeros((), dtype=torch.int64, device="cuda"), x.detach()
    return torch.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, x * torch.rand_like(x)), start)[1]


REFUSED = {
    "on a CPU": (lambda x: x * torch.rand(3, device="cpu").cuda(), r"aten\.rand\.default \(.*\) draws on the CPU"),
    "in a backward": (DrawsInBackward.apply, r"aten\.rand_like\.default .*draws in the backward"),
    "in a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x * torch.rand_like(x), torch.sin, (x,)),
        r"aten\.rand_like\.default .*draws in the subgraph of a higher-order op",
    ),
    "in a loop": (draws_in_a_loop, r"aten\.rand_like\.default .*draws in the subgraph of a higher-order op"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_draw_without_a_functional_form_is_refused(name):
    function, message = REFUSED[name]
    with pytest.raises(PartitionError, match=message):
        aotgrad.aot_function(function, aotgrad.nop, options=FUNCTIONAL)(leaf(3, device="cuda"))


@pytest.mark.parametrize("name", ["in a branch", "in a loop"])
def test_a_draw_in_a_subgraph_is_eagers_without_the_option(name):
    function, _ = REFUSED[name]
    found = []
    for each in (function, aotgrad.aot_function(function, "eager")):
        seed_apart()
        found.append([each(leaf(3, device="cuda").detach()), torch.cuda.get_rng_state()])
    assert all(map(torch.equal, *found))


def test_a_call_under_a_capture_raises():
    compiled, x = aotgrad.aot_function(lambda x: F.dropout(x, 0.5), aotgrad.nop, options=FUNCTIONAL), leaf(4, device="cuda")
    compiled(x)
    with capturing(), pytest.raises(RuntimeError, match="with functionalize_rng each call reads a generator"):
        compiled(x)
