"""Cases of golden files: one function, one idea; the text of a case is its docstring, its source and a stage's result.

    @case("analysis", "runtime", args=["f32[3] nonleaf"])
    def input_mutation(x):
        '''The data of an input changes in place.'''
        return x.mul_(2)

makes expect/analysis/input_mutation.expect and expect/runtime/input_mutation.expect.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import aotgrad
from aotgrad import passes
from aotgrad.backends.eager import compile_eager
from aotgrad.inspect.specs import parse_arguments
from aotgrad.ir import JointGraph
from aotgrad.passes import Pass
from aotgrad.passes.base import Pipeline
from aotgrad.printing import text as stage_text
from aotgrad.telemetry.observer import record_stages

STAGES = {"capture": "capture", "analysis": "analysis", "joint": "joint", "partition": "partition", "runtime": "executable"}
"""The folders of expect/, and the stage whose text is there."""


@dataclass(frozen=True)
class Case:
    """A function to compile, its arguments, and the settings."""

    function: Callable[..., Any]
    folders: tuple[str, ...]
    args: tuple[str, ...]
    helpers: tuple[Any, ...]
    around: Callable[[], contextlib.AbstractContextManager]
    options: dict[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def is_module(self) -> bool:
        return isinstance(self.function, type)

    def make_args(self) -> tuple[Any, ...]:
        return parse_arguments(self.args)

    def compiled(self) -> Callable[..., Any]:
        if self.is_module:
            return aotgrad.aot_module(self.function(), compile_eager, **self.options)
        return aotgrad.aot_function(self.function, compile_eager, **self.options)

    def run(self) -> None:
        """Compile and call; restore the grad mode."""
        torch.manual_seed(0)
        args = self.make_args()
        with self.around(), torch.set_grad_enabled(torch.is_grad_enabled()):
            self.compiled()(*args)

    def text(self, folder: str) -> str:
        """The whole golden file."""
        with record_stages() as stages:
            self.run()
        name = STAGES[folder]
        (text,) = [stage.text for stage in stages if stage.name == name]
        return f"{self.header()}\n\n{self.source()}\n\n--- {name} ---\n\n{text}\n"

    def source(self) -> str:
        return "\n\n".join(source_of(item) for item in (*self.helpers, self.function))

    def header(self) -> str:
        call = f"{self.name}({', '.join(self.args)})"
        lines = [*comment(inspect.getdoc(self.function)), "#", f"# {call}{self.settings()}"]
        return "\n".join(lines)

    def settings(self) -> str:
        around = [] if self.around is contextlib.nullcontext else [f"inside {self.around.__name__}"]
        options = [f"{name}={setting_text(value)}" for name, value in self.options.items()]
        return "".join(f", {setting}" for setting in (*around, *options))


def setting_text(value: Any) -> str:
    """An option as a person would write it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {setting_text(item)}" for key, item in value.items()) + "}"
    return getattr(value, "__name__", str(value))


@dataclass(frozen=True)
class PassCase(Case):
    """The effect of one pass on the joint graph after the passes before it, without dead nodes."""

    changed_by: Pass

    def text(self, folder: str) -> str:
        joint = self.joint_before()
        before = stage_text(joint)
        after = Pipeline("joint", (self.changed_by, passes.DeadCodeElimination())).run(joint, lambda *_: None)
        graphs = ["--- before ---", before, f"--- after {self.changed_by} ---", stage_text(after)]
        return "\n\n".join([self.header(), self.source(), *graphs]) + "\n"

    def joint_before(self) -> JointGraph:
        """The joint graph after the built-in passes that run earlier, without dead nodes."""
        names = [each.name for each in passes.JOINT]
        earlier = passes.JOINT[: names.index(self.changed_by.name)] if self.changed_by.name in names else passes.JOINT
        is_tidy = self.changed_by.name != passes.DeadCodeElimination.name
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(passes, "JOINT", (*earlier, *([passes.DeadCodeElimination()] if is_tidy else [])))
            compiled = self.compiled()
            compiled(*self.make_args())
        (plan,) = compiled.plans()
        return plan.executable.joint


CASES: dict[str, Case] = {}


def case(
    *folders: str,
    args: Sequence[str],
    helpers: Sequence[Any] = (),
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    **options: Any,
) -> Callable[[Any], Any]:
    """Make the decorated function (or module class) a case.

    Args:
        folders: the folders of its golden files; see `STAGES`.
        args: see `aotgrad.inspect.specs`.
        helpers: further classes and functions to print for the reader.
        around: makes the context of the compilation and the call.
        **options: for `aot_function` or `aot_module`.
    """

    def add(function: Any) -> Any:
        name = function.__name__
        assert name not in CASES, f"two golden cases are called {name}"
        assert set(folders) <= STAGES.keys(), f"the folders of {name} are {folders}"
        CASES[name] = Case(function, folders, tuple(args), tuple(helpers), around, options)
        function.example_inputs = CASES[name].make_args  # for `python -m aotgrad stages tests.golden.outputs:NAME`
        return function

    return add


def pass_case(changed_by: Pass, *, args: Sequence[str], **options: Any) -> Callable[[Any], Any]:
    """Make the decorated function a case of expect/passes/: the effect of `changed_by` on its joint graph."""

    def add(function: Any) -> Any:
        name = function.__name__
        assert name not in CASES, f"two golden cases are called {name}"
        CASES[name] = PassCase(function, ("passes",), tuple(args), (), contextlib.nullcontext, options, changed_by)
        return function

    return add


ERROR_CASES: dict[str, Callable[[], Any]] = {}


def error_case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Make a raising function a case of expect/errors/."""
    assert function.__name__ not in ERROR_CASES, f"two error cases are called {function.__name__}"
    ERROR_CASES[function.__name__] = function
    return function


def error_text(function: Callable[[], Any]) -> str:
    """The whole golden file of an error: the user's code and the message."""
    error = raised_by(function)
    assert error is not None, f"{function.__name__} raises nothing"
    message = without_places(f"{type(error).__name__}: {error}")
    lines = [*comment(inspect.getdoc(function)), "", source_of(function), "", "--- raises ---", "", message]
    return "\n".join(lines) + "\n"


def raised_by(function: Callable[[], Any]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def without_places(text: str) -> str:
    """The text without folders and line numbers, which vary between checkouts and edits."""
    return re.sub(r"[^\s\"']*/([\w.]+\.py):\d+", r"\1:LINE", text)


def comment(text: str | None) -> list[str]:
    assert text, "a golden case says in its docstring what it shows"
    return [f"# {line}".rstrip() for line in text.splitlines()]


def source_of(item: Any) -> str:
    """The source of a function or class, without its decorators and docstring."""
    lines = textwrap.dedent(inspect.getsource(item)).splitlines()
    tree = ast.parse("\n".join(lines)).body[0]
    first = tree.body[0]
    if not ast.get_docstring(tree):
        return "\n".join(lines[tree.lineno - 1 :])
    rest = "\n".join(lines[first.end_lineno :])
    return "\n".join([*lines[tree.lineno - 1 : first.lineno - 1], rest.strip("\n")])
