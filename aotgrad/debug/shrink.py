"""A program that fails -> a small one that fails in the same way: fewer ops and results, smaller sizes, simpler inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad.debug import programs
from aotgrad.debug.programs import ConcreteProgram
from aotgrad.debug.reduction import minimal_subset

log = logging.getLogger("aotgrad.debug")

FailureTest = Callable[["ConcreteProgram | None"], bool]
"""Whether a program still fails."""


def smaller_program(program: ConcreteProgram, fails: FailureTest, largest: int | None = None) -> ConcreteProgram:
    """A program that still fails, with few ops, results and elements."""
    values, units = programs.values_of(program), programs.units_of(program)

    def of_units(kept: Sequence[tuple[fx.Node, ...]]) -> ConcreteProgram | None:
        return programs.part_of(program, values, [node for unit in kept for node in unit])

    if fails(of_units(units)):
        program = of_units(minimal_subset(units, lambda kept: fails(of_units(kept)), largest)) or program
    log.info("%d ops are needed", len(program.ops))
    whole = program
    positions = minimal_subset(
        range(len(program.returned)), lambda kept: bool(kept) and fails(programs.with_results(whole, kept))
    )
    return with_smaller_sizes(programs.with_results(program, positions), fails)


def with_smaller_sizes(program: ConcreteProgram, fails: FailureTest) -> ConcreteProgram:
    """The program with each size reduced as far as it still fails."""
    for size in programs.sizes_of(program):
        for candidate in dict.fromkeys((1, 2, 3, 4, 8, size // 4, size // 2)):
            tried = try_size(program, size, candidate) if 0 < candidate < size else None
            if tried is not None and fails(tried):
                program = tried
                break
    return program


def try_size(program: ConcreteProgram, size: int, smaller: int) -> ConcreteProgram | None:
    """The program of `with_size`; `None` if a size does not fit."""
    try:
        return programs.with_size(program, size, smaller)
    except (RuntimeError, IndexError):
        return None


def simple_inputs(program: ConcreteProgram, fails: FailureTest) -> tuple[ConcreteProgram, tuple[bool, ...]]:
    """The program with random inputs where it still fails, and which inputs are random."""
    exact = minimal_subset(range(len(program.inputs)), lambda kept: fails(with_random_inputs(program, kept)))
    is_random = tuple(k not in exact and isinstance(value, torch.Tensor) for k, value in enumerate(program.inputs))
    return with_random_inputs(program, exact), is_random


def with_random_inputs(program: ConcreteProgram, exact: Sequence[int]) -> ConcreteProgram:
    """The program with random inputs, except for the `exact` ones; drawn as in the script."""
    torch.manual_seed(0)
    return programs.with_inputs(program, lambda k, value: value if k in exact else random_like(value))


def random_like(value: Any) -> Any:
    """A random tensor like `value`, drawn as by the function `random` of the script."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    size, stride = tuple(value.shape), value.stride()
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
    low = -1 if value.dtype.is_floating_point else 0
    values = torch.testing.make_tensor((extent,), dtype=value.dtype, device=value.device, low=low, high=1)
    return values.as_strided(size, stride)
