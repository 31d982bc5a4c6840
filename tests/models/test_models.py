"""Real models train under `torch.compile(backend="aotgrad...")` exactly as they do in eager.

Each case is built twice with equal weights and trained for three SGD steps on the same batches under the same seeds,
once eager and once compiled. These must be equal: all results of each step's forward, the gradient of every parameter and
input (`None` exactly where eager has `None`), and every parameter and buffer at the end. Dynamo's and aotgrad's graphs
are counted, so that no case passes by running eager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters as dynamo_counters
from torch.utils import _pytree as pytree

import aotgrad

from .zoo import CASES, ModelCase

STEPS = 3
LEARNING_RATE = 0.1

pytestmark = [
    # Dynamo reads `.grad` of non-leaf inputs; it suppresses the display of the warning, not its raising.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"),
    # Inductor's first import scripts a function.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    # Inductor leaves complex numbers to eager's kernels, and says so.
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators:UserWarning"),
    # Mamba's scan calls cached functions that list the installed libraries, and Dynamo traces through the cache.
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`-wrapped function:UserWarning"),
    # Dynamo itself instantiates a custom autograd function, which torch deprecates.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

Named = Mapping[str, "Tensor | None"]


@dataclass(frozen=True)
class StepRecord:
    """Observations of one training step."""

    output_structure: pytree.TreeSpec
    requires_grad: tuple[bool, ...]
    outputs: Named
    gradients: Named


@dataclass(frozen=True)
class TrainingRecord:
    """Observations of a training run: its steps, and its final parameters and buffers."""

    steps: tuple[StepRecord, ...]
    state: Named


def train(case: ModelCase, **compile_options: Any) -> TrainingRecord:
    """Trains a fresh copy of the case's model: compiled with these options of `torch.compile`, or eager without any."""
    torch.manual_seed(0)
    model = case.build().train()
    is_whole = case.graph_breaks == 0
    forward = torch.compile(model, fullgraph=is_whole, **compile_options) if compile_options else model
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        steps.append(run_step(model, forward, seeded_batch(case, step)))
        optimizer.step()
    return TrainingRecord(tuple(steps), copied({**dict(model.named_parameters()), **dict(model.named_buffers())}))


def seeded_batch(case: ModelCase, step: int) -> Mapping[str, Tensor]:
    """The step's batch; seeds the random state equally for the forward of both runs."""
    torch.manual_seed(step + 1)
    return case.batch(step)


def run_step(model: nn.Module, forward: nn.Module, batch: Mapping[str, Tensor]) -> StepRecord:
    output = forward(**batch)
    output["loss"].backward()
    leaves, structure = pytree.tree_flatten(output)
    differentiated = {**dict(model.named_parameters()), **batch}
    return StepRecord(
        output_structure=structure,
        requires_grad=tuple(leaf.requires_grad for leaf in leaves),
        outputs=copied({f"output {index}": leaf for index, leaf in enumerate(leaves)}),
        gradients=copied({f"gradient of {name}": tensor.grad for name, tensor in differentiated.items()}),
    )


def copied(tensors: Named) -> Named:
    """Copies that keep their strides, so that later steps do not write into the record."""
    return {name: None if tensor is None else tensor.detach().clone() for name, tensor in tensors.items()}


def assert_equal_training(actual: TrainingRecord, expected: TrainingRecord, rtol: float, atol: float) -> None:
    for index, (actual_step, expected_step) in enumerate(zip(actual.steps, expected.steps, strict=True)):
        assert actual_step.output_structure == expected_step.output_structure
        assert actual_step.requires_grad == expected_step.requires_grad
        assert_equal_tensors(f"step {index}", actual_step.outputs, expected_step.outputs, rtol, atol)
        assert_equal_tensors(f"step {index}", actual_step.gradients, expected_step.gradients, rtol, atol)
    assert_equal_tensors("at the end", actual.state, expected.state, rtol, atol)


def assert_equal_tensors(where: str, actual: Named, expected: Named, rtol: float, atol: float) -> None:
    """Same names, `None` in the same places, and tensors of equal dtype, shape and strides with close values."""
    assert actual.keys() == expected.keys()
    for name, wanted in expected.items():
        found, label = actual[name], f"{where}, {name}"
        if wanted is None or found is None:
            assert found is wanted, f"{label}: {found}, eager has {wanted}"
            continue
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, msg=f"{label}: {{}}".format)
        assert strides_that_count(found) == strides_that_count(wanted), f"{label}: {found.stride()}, {wanted.stride()}"


def strides_that_count(tensor: Tensor) -> list[int]:
    """The strides of the dimensions with more than one element; the others are never stepped along."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def assert_graphs_were_compiled(case: ModelCase) -> None:
    assert dynamo_counters["stats"]["unique_graphs"] == case.graphs
    assert sum(dynamo_counters["graph_break"].values()) == case.graph_breaks
    assert aotgrad.counters["compilations"] == case.graphs


@pytest.mark.parametrize("case", CASES, ids=attrgetter("name"))
def test_eager_halves_train_as_eager(case: ModelCase) -> None:
    actual = train(case, backend="aotgrad_eager")
    assert_graphs_were_compiled(case)
    assert_equal_training(actual, train(case), case.rtol, case.atol)


@pytest.mark.parametrize("case", [case for case in CASES if case.symbolic], ids=attrgetter("name"))
def test_eager_halves_with_symbolic_sizes_train_as_eager(case: ModelCase) -> None:
    actual = train(case, backend="aotgrad_eager", dynamic=True)
    assert_graphs_were_compiled(case)
    assert_equal_training(actual, train(case), case.rtol, case.atol)


@pytest.mark.parametrize("case", CASES, ids=attrgetter("name"))
def test_inductor_halves_train_as_eager(case: ModelCase) -> None:
    actual = train(case, backend="aotgrad")
    assert_graphs_were_compiled(case)
    assert_equal_training(actual, train(case), case.inductor_rtol, case.inductor_atol)


def test_the_table_is_sorted_and_its_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert names == sorted(set(names))


def test_a_backend_that_compiles_nothing_is_noticed() -> None:
    case = next(case for case in CASES if case.name == "two_heads")
    train(case, backend="eager")
    with pytest.raises(AssertionError):
        assert_graphs_were_compiled(case)


@pytest.mark.parametrize("wrong", [None, torch.ones(2), torch.zeros(2, dtype=torch.float64), torch.zeros(4)[::2]])
def test_a_difference_is_noticed(wrong: Tensor | None) -> None:
    with pytest.raises(AssertionError, match="step 0, gradient of weight"):
        assert_equal_tensors("step 0", {"gradient of weight": wrong}, {"gradient of weight": torch.zeros(2)}, 0, 0)
