"""Part 1: programs give what eager gives, compiled in each way; and what once was wrong on CUDA is right.

Eager halves must give eager's bits, or differ from a run in float64 no more than eager does. Inductor's halves may differ
from the float64 run at most twice as much as eager or torch's own Inductor. Programs that draw random numbers, or compute in
half precision, have no float64 run; eager's result takes its place. Where Dynamo with eager's own backend raises, what is
behind Dynamo is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import device
import regressions
import torch
import torch._inductor.config as inductor_config
from case import Case, Outcome
from programs import PROGRAMS, Built, Observations, Program
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import aotgrad

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-12}
"""What an error is never smaller than: rounding of a few ops, by dtype."""

Compile = Callable[[Callable, Mapping[str, Any]], Callable]


def without_dynamo(halves: str, function: Callable, options: Mapping[str, Any]) -> Callable:
    if isinstance(function, nn.Module):
        return aotgrad.aot_module(function, halves, options=dict(options))
    return aotgrad.aot_function(function, halves, options=dict(options))


def behind_dynamo(backend: str, function: Callable, options: Mapping[str, Any]) -> Callable:
    return torch.compile(function, backend=backend, options=dict(options))


def peer(function: Callable, _: Mapping[str, Any]) -> Callable:
    return torch.compile(function, backend="inductor")


EAGER_HALVES: Mapping[str, Compile] = {
    "aot_function, eager halves": partial(without_dynamo, "eager"),
    "aotgrad_eager": partial(behind_dynamo, "aotgrad_eager"),
}
INDUCTOR_HALVES: Mapping[str, Compile] = {
    "aot_function, Inductor": partial(without_dynamo, "inductor"),
    "aotgrad": partial(behind_dynamo, "aotgrad"),
}


BEHIND_DYNAMO = ("aotgrad_eager", "aotgrad")


def fresh(program: Program) -> Built:
    """The program with the same weights and inputs in each call, on the device."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        return program.build()


def in_double(built: Built) -> Built:
    """A program in float64."""
    function, inputs = built

    def double(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    return (copy.deepcopy(function).double() if isinstance(function, nn.Module) else function), tree_map(double, inputs)


def observed(program: Program, built: Built, compile: Compile | None = None) -> Observations:
    function, inputs = built
    run = function if compile is None else compile(function, program.options or {})
    with torch.device("cuda"):
        return program.observe(run, inputs)


def error(expected: Observations, found: Observations) -> tuple[float, str]:
    """The largest difference over the largest item of the same tensor, and its place."""
    if expected.keys() != found.keys():
        return float("inf"), f"{sorted(expected.keys() ^ found.keys())[0]} is only there once"
    return max(((difference(expected[name], found[name]), name) for name in expected), default=(0.0, "nothing"))


def difference(expected: Tensor | None, found: Tensor | None) -> float:
    if expected is None or found is None:
        return 0.0 if expected is found else float("inf")
    if expected.shape != found.shape or expected.device != found.device:
        return float("inf")
    if not expected.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, found = expected.to(wide), found.to(wide)
    distance = ((expected - found).abs().max() / expected.abs().max().clamp(min=1e-3)).item()
    return distance if distance == distance else float("inf")


def tolerance(observations: Observations) -> float:
    dtypes = {value.dtype for value in observations.values() if value is not None}
    return max((TOLERANCE[dtype] for dtype in dtypes if dtype in TOLERANCE), default=0.0)


def compare(name: str, with_inductor: bool) -> Outcome:
    """Compare a program, compiled in each way, with its float64 run, beside eager and torch's own Inductor."""
    program = PROGRAMS[name]
    inductor_config.fallback_random = True  # eager's random numbers
    eager = observed(program, fresh(program))
    oracle = observed(program, in_double(fresh(program))) if program.has_oracle else eager
    errors = {"eager": error(oracle, eager)[0]}
    allowed, problems = max(2 * errors["eager"], tolerance(eager)), []
    if with_inductor:
        errors["torch's Inductor"] = peers_error(program, oracle)
    limit = max(allowed, 2 * errors.get("torch's Inductor", 0.0))
    ways, notes = {**EAGER_HALVES, **(INDUCTOR_HALVES if with_inductor else {})}, {}
    if not is_right_behind_dynamo(program, oracle):
        ways = {way: compile for way, compile in ways.items() if way not in BEHIND_DYNAMO}
        notes = dict.fromkeys(BEHIND_DYNAMO, "left out: Dynamo fails")
    for way, compile in ways.items():
        torch._dynamo.reset()
        errors[way], place = error(oracle, observed(program, fresh(program), compile))
        if errors[way] > (allowed if way in EAGER_HALVES else limit):
            problems.append(f"{way}: {place} differs by {errors[way]:.1e}")
    return Outcome(problems, {**{way: f"{value:.0e}" for way, value in errors.items()}, **notes})


def is_right_behind_dynamo(program: Program, oracle: Observations) -> bool:
    """Whether Dynamo alone keeps what a program computes: an error of its own says nothing about aotgrad."""
    try:
        found = observed(program, fresh(program), lambda function, _: torch.compile(function, backend="eager"))
    except Exception:
        return False
    finally:
        torch._dynamo.reset()
    return error(oracle, found)[0] < float("inf")


def peers_error(program: Program, oracle: Observations) -> float:
    """The error of torch's own Inductor; 0 where it raises or draws other random numbers, so that it allows nothing."""
    try:
        found = error(oracle, observed(program, fresh(program), peer))[0]
    except Exception:
        return 0.0
    return found if program.has_oracle and found < 1e-2 else 0.0


def programs() -> Sequence[Case]:
    with_inductor = not device.is_emulated()
    return [Case(name, partial(compare, name, with_inductor), 200, each.needs) for name, each in PROGRAMS.items()]


CASES: Sequence[Case] = [*regressions.CASES, *programs()]
