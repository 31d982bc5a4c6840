"""Programs of the kinds that PyTorch's own tests of subclasses have, against eager."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from tests.subclasses.jagged_upstream import jagged_upstream
from tests.subclasses.programs import WAYS, two
from tests.subclasses.test_catalogue import check
from tests.subclasses.upstream_programs import Adds, total, upstream_programs

PROGRAMS = {f"{program.group}: {program.name}": program for program in (*upstream_programs(), *jagged_upstream())}
COMPILED_BY_INDUCTOR = (
    "TwoTensor: enable_grad within no_grad",
    "other classes: a wrapper as gradient of a plain result",
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


@pytest.mark.xfail(reason="a backward changes the parts of a wrapper, whose version stays", strict=True)
def test_a_backward_raises_the_version_of_a_wrapper() -> None:
    x, changed = two(3), total()
    aotgrad.aot_function(Adds.apply, "eager")(x, changed).sum().backward()
    assert changed._version == 1


def test_no_program_is_there_twice() -> None:
    everything = [*upstream_programs(), *jagged_upstream()]
    assert len({(program.group, program.name) for program in everything}) == len(everything)
    assert torch.is_grad_enabled()  # no program leaves it off
