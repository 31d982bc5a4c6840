"""Programs of the kinds that PyTorch's own tests of subclasses have, against eager."""

from __future__ import annotations

import pytest
import torch

from tests.subclasses.jagged_upstream import jagged_upstream
from tests.subclasses.programs import WAYS, compiled, two
from tests.subclasses.test_catalogue import check
from tests.subclasses.upstream_programs import Adds, total, upstream_programs

PROGRAMS = {f"{program.group}: {program.name}": program for program in (*upstream_programs(), *jagged_upstream())}
COMPILED_BY_INDUCTOR = (
    "TwoTensor: enable_grad within no_grad",
    "other classes: a wrapper as gradient of a plain result",
    "changes: by its own size",
    "jagged: halves returned",
    "jagged: values of an intermediate",
    "jagged: lengths",
)


def compare(name: str, way: str) -> None:
    if PROGRAMS[name].behind_dynamo_only and not way.startswith("dynamo"):
        pytest.skip(PROGRAMS[name].behind_dynamo_only)
    check(PROGRAMS[name], way)


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # Dynamo does
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # Dynamo reads it
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype"),  # torch uses it
]


@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, way) -> None:
    compare(name, way)


@pytest.mark.parametrize("way", [way for way in WAYS if "inductor" in way])
@pytest.mark.parametrize("name", COMPILED_BY_INDUCTOR)
def test_as_eager_by_inductor(name, way) -> None:
    compare(name, way)


class DoublesTwice(torch.autograd.Function):
    """The backward changes a view of an argument, twice."""

    @staticmethod
    def forward(ctx, x, total):
        ctx.view = total[1:]
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.view.mul_(2).mul_(2)
        return gradient * 3, None


def add_in_a_hook(x, total):
    y = x * 2
    y.register_hook(lambda gradient: (total.add_(1), None)[1])
    return y.sin()


CHANGES = {
    "a custom function": Adds.apply,
    "a view, twice": DoublesTwice.apply,
    "after the forward did": lambda x, total: Adds.apply(x, total, True),
    "a hook": add_in_a_hook,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHANGES)
def test_a_backward_raises_the_version_of_a_wrapper(name, way) -> None:
    """By as much as in eager, so that another graph that has saved the wrapper notices."""

    def run(function):
        x, changed = two(3), total()
        saved = (changed * two(3)).sum()
        function(x, changed).sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()
        return changed._version, [part.tolist() for part in (changed.a, changed.b, x.grad.a)]

    assert run(compiled(CHANGES[name], way)) == run(CHANGES[name])


def test_no_program_is_there_twice() -> None:
    everything = [*upstream_programs(), *jagged_upstream()]
    assert len({(program.group, program.name) for program in everything}) == len(everything)
    assert torch.is_grad_enabled()  # no program leaves it off
