"""Second backwards through a graph that is not retained: they raise where eager raises, and run where eager runs them.

One rule differs, and is tested here: what one segment saves is freed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import aotgrad
from aotgrad.backends.eager import compile_eager


@dataclass(frozen=True)
class Run:
    """A backward from the sums of some outputs, to all inputs or some."""

    outputs: tuple[int, ...]
    inputs: tuple[int, ...] | None = None
    retain_graph: bool = False
    create_graph: bool = False

    def __call__(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        chosen = None if self.inputs is None else [inputs[k] for k in self.inputs]
        roots = [outputs[k].sum() for k in self.outputs]
        torch.autograd.backward(roots, inputs=chosen, retain_graph=self.retain_graph, create_graph=self.create_graph)


def outcome(function: Callable, runs: Sequence[Run]) -> list:
    """What each backward raised, and the gradients that came together."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand(3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    outputs = function(*inputs)
    found: list = []
    for run in runs:
        try:
            run(outputs, inputs)
            found.append("fine")
        except RuntimeError as error:
            found.append(str(error).partition("(")[0])
    return [*found, *(None if leaf.grad is None else leaf.grad.tolist() for leaf in inputs)]


AGAIN = "Trying to backward through the graph a second time "
TWICE = (Run((0,)), Run((0,)))
LAST_TO_ONE = (Run((0,), inputs=(1,)), Run((0,), inputs=(1,)), Run((0,), inputs=(0,)))

PROGRAMS: dict[str, tuple[Callable, tuple[Run, ...]]] = {
    # What saves nothing runs again, and what saves a number does not, though no graph of ours saves anything.
    "a_sum": (lambda x, w: (x + w,), TWICE),
    "a_mean": (lambda x, w: (x.mean(),), TWICE),
    "a_clamp": (lambda x, w: (x.clamp(0.2, 0.5),), TWICE),
    "times_a_number": (lambda x, w: (x * 2,), TWICE),
    "times_one": (lambda x, w: (x * 1.0,), TWICE),
    "times_a_constant": (lambda x, w: (x * torch.tensor([1.0, 2.0, 3.0]),), TWICE),
    "an_index": (lambda x, w: (x[torch.tensor([0, 0])],), TWICE),
    "a_sum_times_a_number": (lambda x, w: ((x + w) * 2,), (*LAST_TO_ONE, *TWICE)),
    "a_number_times_one_term": (lambda x, w: (x * 2 + w,), (Run((0,), inputs=(1,)), Run((0,)))),
    "retained_first": (lambda x, w: (x * 2,), (Run((0,), retain_graph=True), *TWICE)),
    # Several results.
    "one_of_them_saves_nothing": (lambda x, w: ((x * x).tanh(), x.cumsum(0)), (Run((1, 0)), Run((1,)), Run((0,)))),
    "both_are_products": (lambda x, w: (x * w + x, x * 2), (Run((0,)), Run((1,)), Run((1,)), Run((0,)))),
    "a_trunk_that_saves": (lambda x, w: ((h := x * w).exp(), h * 2), (Run((1,)), Run((0,)))),
    "a_trunk_that_saves_nothing": (lambda x, w: ((h := x + w).exp(), h * 2), (Run((1,)), Run((0,)), Run((1,)))),
    # Some inputs only.
    "a_product": (lambda x, w: (x * w,), LAST_TO_ONE),
    "a_chain_of_products": (lambda x, w: ((x * w).sin() * w,), LAST_TO_ONE),
    "two_factors": (lambda x, w: (x.exp() * w.sin(),), LAST_TO_ONE),
}
every_program = pytest.mark.parametrize("name", PROGRAMS)


@every_program
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True:UserWarning")
def test_a_second_backward_raises_where_it_does_in_eager(name: str, create_graph: bool) -> None:
    function, runs = PROGRAMS[name]
    first = Run(runs[0].outputs, runs[0].inputs, runs[0].retain_graph, create_graph)
    runs = (first, *runs[1:])
    expected = outcome(function, runs)
    assert outcome(aotgrad.aot_function(function, compile_eager), runs) == expected


def test_they_raise_somewhere_and_run_somewhere() -> None:
    found = [outcome(function, runs)[1 : len(runs)] for function, runs in PROGRAMS.values()]
    assert sum(AGAIN in later for later in found) > 5 and sum("fine" in later for later in found) > 5


def test_what_one_segment_saves_is_freed_together() -> None:
    """The rule that differs: eager frees `exp` and `sin` one by one, each when it has run."""

    def function(x, w):
        return (x.exp() + w.sin(),)

    runs = (Run((0,), inputs=(1,)), Run((0,), inputs=(0,)))
    assert outcome(function, runs)[:2] == ["fine", "fine"]
    assert outcome(aotgrad.aot_function(function, compile_eager), runs)[:2] == ["fine", AGAIN]
    retained = (Run((0,), inputs=(1,), retain_graph=True), Run((0,), inputs=(0,)))
    assert outcome(aotgrad.aot_function(function, compile_eager), retained) == outcome(function, retained)


OVERWRITTEN = {
    "a_result_computed_again": (lambda x, w: (x.amax(),), "output"),
    "a_result_of_an_inner_value": (lambda x, w: ((x * w).amax(0), x * w), "output"),
    "a_result_that_is_no_value_of_the_backward": (lambda x, w: (x + w,), "output"),
    "an_input": (lambda x, w: (x.amax(),), "input"),
    "an_input_of_which_only_the_sign_is_needed": (lambda x, w: (x.abs() + w,), "input"),
    "a_parameter_that_is_only_added": (lambda x, w: (torch.nn.functional.layer_norm(x, (3,), x.detach(), w),), "parameter"),
    "an_input_that_is_not_saved": (lambda x, w: (x + 2 * w,), "input"),
    "an_input_of_another_result": (lambda x, w: (x + w, x.sin()), "input"),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_an_overwritten_value_that_eager_saves_raises_though_it_is_not_saved(name: str) -> None:
    """`amax` is computed again from its input: eager saves it, and notices the change."""
    function, changed = OVERWRITTEN[name]

    def run(function: Callable) -> str | list:
        generator = torch.Generator().manual_seed(0)
        x, w = (torch.rand(3, generator=generator).requires_grad_() for _ in range(2))
        y = function(x, w)[0]
        with torch.no_grad():
            {"output": y, "input": x, "parameter": w}[changed].mul_(2)
        try:
            y.sum().backward()
        except RuntimeError as error:
            return str(error).partition(":")[0]
        return [None if leaf.grad is None else leaf.grad.tolist() for leaf in (x, w)]

    assert run(aotgrad.aot_function(function, compile_eager)) == run(function)
