"""Which steps a function needs."""

from __future__ import annotations

import pytest
import torch

from aotgrad.runtime.steps import (
    Attach,
    CopyBack,
    Forward,
    KeepInputs,
    MakeBoundary,
    MakeView,
    RestoreGradMode,
    SetVersion,
    UpdateGeometry,
)
from tests.executables import executable_of


def steps(function, *specs: str) -> list[str]:
    with torch.set_grad_enabled(True):
        return [type(step).__name__ for step in executable_of(function, *specs).schedule.steps]


def grad_mode_off(x):
    torch.set_grad_enabled(False)
    return x + 1


@pytest.mark.parametrize(
    ("function", "specs", "expected"),
    [
        (lambda x: x + 1, ["f32[2]"], ["Forward", "ReturnValue"]),
        (lambda x: x + 1, ["f32[2] requires_grad"], ["Forward", "KeepInputs", "Attach", "RecordResults", "ReturnValue"]),
        (lambda x: x.add_(1), ["f32[2]"], ["Forward", "CopyBack", "ReturnValue"]),
        (lambda x: x.add_(1).mul_(2), ["f32[2]"], ["Forward", "CopyBack", "SetVersion", "ReturnValue"]),
        (lambda x: x.data.add_(1), ["f32[1]"], ["Forward", "CopyBack", "MakeView", "StartVersion", "ReturnValue"]),
        (lambda x: x.t(), ["f32[2, 2]"], ["MakeView", "ReturnValue"]),
        (lambda x: (x, None), ["f32[2]"], ["ReturnValue", "ReturnValue"]),
        (grad_mode_off, ["f32[2]"], ["Forward", "ReturnValue", "RestoreGradMode"]),
    ],
)
def test_a_schedule_has_the_steps_that_its_function_needs(function, specs, expected):
    assert steps(function, *specs) == expected


def test_views_come_after_mutations():
    found = steps(lambda x: x.mul_(2).view(2, 2), "f32[4] requires_grad nonleaf")
    assert found.index("CopyBack") < found.index("MakeView")


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (Forward(("x",), ("y",), (), False, ()), ("x",)),
        (KeepInputs(("x", "z"), frozenset()), ("x", "z")),
        (MakeBoundary("cut_0", (2,), torch.float32, torch.device("cpu")), ()),
        (Attach("backward", ("y",), ("x",), ("s",), ("n",), (), None), ("y", "x", "s", "n")),
        (CopyBack("x", "y", "", None), ("x", "y")),
        (SetVersion("x", 1), ("x",)),
        (UpdateGeometry("x", None, None), ("x",)),
        (MakeView("v", "x", None), ("x",)),
        (RestoreGradMode(True), ()),
    ],
)
def test_what_steps_read(step, names):
    assert step.reads() == names
