"""A joint graph, its segments, and variants of their graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import aotgrad
from aotgrad import printing
from aotgrad.backends.eager import compile_eager
from tests.executables import executable_of


def two_losses(x, w, u, v):
    h = torch.tanh(x @ w)
    return h @ u, h @ v


SPECS = ["f32[2, 3] requires_grad", "f32[3, 3] requires_grad", "f32[3, 1] requires_grad", "f32[3, 1] requires_grad"]


def page(title: str, source: Callable, *texts: str) -> str:
    return "\n\n".join([f"# {title}", inspect.getsource(source).rstrip("\n"), *texts]) + "\n"


def test_a_joint_graph_and_its_segments(golden):
    executable = executable_of(two_losses, *SPECS)
    segments = "--- segments ---\n\n" + printing.segments_text(executable.schedule.segments)
    title = "Two heads on a trunk: the joint graph, and what each of the three autograd nodes runs."
    golden("runtime/segments", page(title, two_losses, "--- joint ---", printing.text(executable.joint), segments))


def statistics_of_a_product(x, w):
    """The two results come from one autograd node, so the backward is one segment with two tangents."""
    return torch.var_mean(x @ w)


def variants_after(run: Callable[[Sequence[Tensor], Sequence[Tensor]], object]) -> list[str]:
    """The variants that a use of the outputs compiled."""
    function = aotgrad.aot_function(statistics_of_a_product, compile_eager)
    inputs = [torch.ones(2, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True)]
    run(function(*inputs), inputs)
    (plan,) = function.plans()
    cache = plan.executable.call.__globals__["backward"].variants
    return [printing.variant_text(cache.full, variant.half) for variant in cache.variants.values()]


def both(outputs: Sequence[Tensor]) -> Tensor:
    return outputs[0] + outputs[1]


USES: dict[str, Callable[[Sequence[Tensor], Sequence[Tensor]], object]] = {
    "(variance + mean).backward()": lambda outputs, _: both(outputs).backward(),
    "variance.backward()": lambda outputs, _: outputs[0].backward(),
    "mean.backward()": lambda outputs, _: outputs[1].backward(),
    "torch.autograd.grad(mean, x)": lambda outputs, inputs: torch.autograd.grad(outputs[1], inputs[0]),
    "(variance + mean).backward(inputs=[w])": lambda outputs, inputs: both(outputs).backward(inputs=[inputs[1]]),
}


def test_variants(golden):
    texts = []
    for use, run in USES.items():
        (variant,) = variants_after(run)
        texts.append(f"--- {use} ---\n\n{variant}")
    title = "What is left of one backward graph, by what is asked of it: undefined tangents, unwanted gradients."
    golden("runtime/variants", page(title, statistics_of_a_product, *texts))
