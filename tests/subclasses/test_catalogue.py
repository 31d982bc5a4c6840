"""The programs of the catalogue, against eager."""

from __future__ import annotations

import contextlib

import pytest
import torch.utils._pytree as pytree

from tests.subclasses.catalogue import Program, programs
from tests.subclasses.programs import WAYS, Raised, compiled

PROGRAMS = {f"{program.group}: {program.name}": program for program in programs()}
FAILURES = {  # the messages of errors of Dynamo, which names no source for a size of the base
    ("views: sliced argument, symbolic sizes", "dynamo"): "sources must not be empty|invalid syntax",
}


def check(program: Program, way: str) -> None:
    """Two calls give what eager gives.

    Raises:
        AssertionError: with the message of the error, if one raises.
    """
    ours = compiled(program.function, way, program.dynamic)
    for _ in range(2):
        expected, found = program.run(program.function, program.arguments()), program.run(ours, program.arguments())
        error = next((leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Raised)), None)
        assert found == expected, found if error is None else error.message


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # Dynamo does
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # Dynamo reads it
]


@pytest.mark.parametrize("way", [way for way in WAYS if "inductor" in way])
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.group == "pieces"])
def test_pieces_through_inductor(name, way) -> None:
    check(PROGRAMS[name], way)


@pytest.mark.parametrize("way", [way for way in WAYS if "eager" in way])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, way) -> None:
    if PROGRAMS[name].behind_dynamo_only and not way.startswith("dynamo"):
        pytest.skip(PROGRAMS[name].behind_dynamo_only)
    reason = FAILURES.get((name, way.split(",")[0]))
    with contextlib.nullcontext() if reason is None else pytest.raises(Exception, match=reason):
        check(PROGRAMS[name], way)
