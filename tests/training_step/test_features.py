"""Ways of training: accumulation, hooks, averages, several models, checkpoints, autocast."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.errors import CaptureError
from aotgrad.ir import ConstantOutput
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, build

mse = nn.functional.mse_loss


def model_and_optimizer() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def gradients_set_to_zero() -> Training:
    model, optimizer = model_and_optimizer()

    def step(x, y):
        optimizer.zero_grad(set_to_none=False)
        mse(model(x), y).backward()
        optimizer.step()

    return Training(step, [model, optimizer])


def several_backwards() -> Training:
    model, optimizer = model_and_optimizer()

    def step(x, y):
        optimizer.zero_grad()
        for rows in range(0, len(x), 4):
            mse(model(x[rows : rows + 4]), y[rows : rows + 4]).backward()
        optimizer.step()

    return Training(step, [model, optimizer])


def accumulation_over_calls() -> Training:
    model, optimizer = model_and_optimizer()
    count = 0

    def step(x, y, update):
        (mse(model(x), y) / 2).backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()

    def called(step):
        def call(x, y):
            nonlocal count
            count += 1
            return step(x, y, count % 2 == 0)

        return call

    return Training(step, [model, optimizer], called=called)


def hooks() -> Training:
    model, optimizer = model_and_optimizer()
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    model[2].weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", weight.grad * 0.5))
    model[1].register_forward_hook(lambda module, args, result: result + 1)
    optimizer.register_step_post_hook(lambda *_: model[0].bias.data.clamp_(-0.5, 0.5))

    def step(x, y):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()

    return Training(step, [model, optimizer])


def optimizers_in_hooks() -> Training:
    model, _ = model_and_optimizer()
    optimizers = {each: torch.optim.AdamW([each], lr=0.1) for each in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def step(x, y):
        loss = mse(model(x), y)
        loss.backward()
        return loss

    return Training(step, [model, *optimizers.values()])


def averaged_model() -> Training:
    model, optimizer = model_and_optimizer()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def step(x, y):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
        average.update_parameters(model)

    return Training(step, [model, optimizer, average])


def two_models() -> Training:
    (generator, first), (critic, second) = model_and_optimizer(), model_and_optimizer()

    def step(x, y):
        second.zero_grad()
        (critic(x).mean() - critic(generator(x).repeat(1, 2).detach()).mean()).backward()
        second.step()
        first.zero_grad()
        critic(generator(x).repeat(1, 2)).mean().backward()
        first.step()

    return Training(step, [generator, critic, first, second])


def gradient_penalty() -> Training:
    model, optimizer = model_and_optimizer()

    def step(x, y):
        optimizer.zero_grad()
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (mse(model(x), y) + gradient.pow(2).sum()).backward()
        optimizer.step()

    return Training(step, [model, optimizer])


def checkpointed() -> Training:
    model, optimizer = model_and_optimizer()

    def step(x, y):
        optimizer.zero_grad()
        mse(checkpoint(model, x, use_reentrant=False), y).backward()
        optimizer.step()

    return Training(step, [model, optimizer])


def autocast() -> Training:
    model, optimizer = model_and_optimizer()

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    return Training(step, [model, optimizer])


def a_branch_on_the_loss() -> Training:
    model, optimizer = model_and_optimizer()

    def step(x, y):
        optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        if loss > 1.5:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)
        optimizer.step()
        return loss.item()

    return Training(step, [model, optimizer])


def closure() -> Training:
    model, optimizer = model_and_optimizer()

    def step(x, y):
        def loss():
            optimizer.zero_grad()
            found = mse(model(x), y)
            found.backward()
            return found

        return optimizer.step(loss)

    return Training(step, [model, optimizer])


PROGRAMS = {
    gradients_set_to_zero: 2,
    several_backwards: 2,
    accumulation_over_calls: 4,
    hooks: 2,
    optimizers_in_hooks: 2,
    averaged_model: 2,
    two_models: 2,
    gradient_penalty: 2,
    checkpointed: 2,
    autocast: 2,
    a_branch_on_the_loss: 3,
    closure: 2,
}
"""Programs, and how many plans six steps have."""


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_way_of_training(make):
    assert_trains_like_eager(make, batches(6), plans=PROGRAMS[make])


@pytest.mark.parametrize("make", [several_backwards, averaged_model, hooks], ids=lambda make: make.__name__)
def test_a_way_of_training_with_inductor(make):
    assert_trains_like_eager(make, batches(4), "inductor")


COMPILED = {
    "torch.compile": lambda model: torch.compile(model, backend="aot_eager"),
    "torch.compile with aotgrad": lambda model: torch.compile(model, backend="aotgrad_eager"),
    "aot_module": lambda model: aotgrad.aot_module(model, "eager"),
}


@pytest.mark.parametrize("kind", COMPILED)
def test_a_model_that_is_compiled_already(kind):
    def make() -> Training:
        model, optimizer = model_and_optimizer()
        compiled = COMPILED[kind](model)

        def step(x, y):
            optimizer.zero_grad()
            mse(compiled(x), y).backward()
            optimizer.step()

        return Training(step, [model, optimizer])

    torch._dynamo.reset()
    assert_trains_like_eager(make, batches(4), plans=2)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_clipping_that_refuses_infinite_gradients(backend):
    def make() -> Training:
        model, optimizer = model_and_optimizer()

        def step(x, y):
            optimizer.zero_grad()
            mse(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()

        return Training(step, [model, optimizer])

    training = build(make)
    step = aotgrad.train_step(training.step, training.state, backend=backend)
    (x, y), *others = batches(3)
    step(x, y)
    before = [parameter.detach().clone() for parameter in training.state[0].parameters()]
    with pytest.raises(RuntimeError, match="is non-finite"):
        step(torch.full_like(x, float("inf")), y)
    for parameter, value in zip(training.state[0].parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    for batch in others:  # the next steps find their plan
        step(*batch)
    assert step.plan_cache.fallbacks == {"the function raises while it is traced": 1} and len(step.plans()) == 2
    assert_trains_like_eager(make, others, backend)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_that_are_not_kept(backend):
    wanted, compiled = build(several_backwards), build(several_backwards)
    step = aotgrad.train_step(compiled.step, compiled.state, keep_gradients=False, backend=backend)
    for batch in batches(3):
        wanted.step(*batch), step(*batch)
    for one, other in zip(wanted.state[0].parameters(), compiled.state[0].parameters(), strict=True):
        torch.testing.assert_close(other, one)
        assert other.grad is None
    for plan in step.plans():
        optimizer_state = [each for each in plan.executable.meta.outputs if not isinstance(each, ConstantOutput)]
        assert len(optimizer_state) == (0 if plan.hits else 4)


def test_aot_function_captures_a_backward_into_its_state():
    model, other = (nn.Linear(3, 2) for _ in range(2))
    other.load_state_dict(model.state_dict())
    compiled = aotgrad.aot_function(lambda x: model(x).square().sum().backward(), aotgrad.nop, state=[model])
    x = torch.randn(4, 3)
    for _ in range(3):
        assert compiled(x) is None
        other(x).square().sum().backward()
    assert torch.equal(model.weight.grad, other.weight.grad) and torch.equal(model.bias.grad, other.bias.grad)
    assert len(compiled.plans()) == 2  # without gradients, and with them


@pytest.mark.parametrize(("asked", "shares"), [(None, True), (False, False), (True, True)])
def test_a_step_shares_layers_unless_it_is_told_not_to(asked, shares):
    with aotgrad.config.patch(share_layers=asked):
        step = aotgrad.train_step(lambda x: x, [torch.zeros(1)])
    assert step.plan_cache.compiler.backend.share_layers is shares


def test_a_module_has_no_state_of_a_step():
    with pytest.raises(TypeError, match="train_step"):
        aotgrad.aot_module(nn.Linear(3, 2), aotgrad.nop, state=[])


def test_the_plans_of_a_step_are_freed():
    model = nn.Linear(3, 2)
    compiled = aotgrad.aot_function(lambda x: model(x).sum().backward(), aotgrad.nop, state=[model])
    compiled(torch.ones(1, 3))
    aotgrad.clear_cache(compiled)
    assert len(compiled.plans()) == 0
    compiled(torch.ones(1, 3))
    torch.testing.assert_close(model.bias.grad, torch.full((2,), 2.0))


def test_what_aot_function_is_not_told_of_is_refused():
    model = nn.Linear(3, 2)
    compiled = aotgrad.aot_function(lambda x: model(x).sum().backward(), aotgrad.nop, state=[torch.zeros(1)])
    with pytest.raises(CaptureError, match=r"'model\.weight' a gradient"):
        compiled(torch.randn(4, 3))
    assert model.weight.grad is None
