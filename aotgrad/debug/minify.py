"""A function and a backend that fails on it -> a small script that fails in the same way.

In: a function, arguments and a backend. Out: a `Repro`. The function runs in eager, forward and backward, to find what each
of its graphs gets; the first graph on which the backend fails is reduced: ops, results, sizes, then the values of inputs.

Limits: graphs that control-flow ops call are not reduced themselves.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn

from aotgrad.backends.base import AnyBackend, Backend, WrappedBackend
from aotgrad.backends.registry import as_backend
from aotgrad.debug.check import Failure, failure_of
from aotgrad.debug.isolation import failure_apart
from aotgrad.debug.programs import (
    Program,
    copied,
    copy_module,
    part_of,
    sizes_of,
    units_of,
    values_of,
    with_inputs,
    with_results,
    with_size,
)
from aotgrad.debug.reduction import needed
from aotgrad.debug.script import needs_data, script_text
from aotgrad.errors import NothingToMinify
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, Partition
from aotgrad.options import Options
from aotgrad.plan_cache.binding import bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.compiler import make_compiler

log = logging.getLogger("aotgrad.debug")


@dataclass(frozen=True)
class Repro:
    """A small graph on which a backend fails.

    Attributes:
        role: which graph of the function it is a part of: `"forward"`, `"backward"` or `"inference"`.
        failure: how the backend fails on it.
        module: the graph; it returns a tuple.
        inputs: what it is called with.
        script: the source of a program that fails in this way.
    """

    role: str
    failure: Failure
    module: fx.GraphModule
    inputs: tuple[Any, ...]
    script: str

    def __str__(self) -> str:
        return self.script


def minify(
    fn: Callable[..., Any],
    args: Sequence[Any],
    backend: AnyBackend,
    *,
    kwargs: Mapping[str, Any] | None = None,
    path: str | Path | None = None,
    tolerance: float | None = None,
    dynamic: bool = False,
    limit_s: float | None = None,
) -> Repro:
    """Find a small part of a function on which a backend raises, or returns something else than eager.

    Args:
        fn: a function of tensors or a module, as for `aot_function`; it runs on copies.
        args, kwargs: what it fails for.
        backend: a name, a `Backend`, or a compiler `(fx.GraphModule, example_inputs) -> callable`.
        path: where the script is written, if anywhere; inputs that it cannot make go into a file `<path>.pt`.
        tolerance: how far a result may be off, relative to its largest number; by dtype (1e-4 for float32), if `None`.
        dynamic: whether graphs are compiled for symbolic sizes.
        limit_s: seconds that the backend may take for one graph. Each graph is tried in a process of its own then, a fork
            of this one, so that a backend which hangs or kills the process is reduced as well. Not once CUDA is in use.

    Returns:
        The graph, its inputs, and a script that checks the backend on it (`aotgrad.debug.check`).

    Raises:
        NothingToMinify: the backend does what eager does on each graph.

    Example:
        >>> import aotgrad
        >>> def wrong(graph, example_inputs):
        ...     for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default):
        ...         node.target = torch.ops.aten.sin.default
        ...     graph.recompile()
        ...     return graph
        >>> def f(x):
        ...     return (x.exp().cos() + 1).sum()
        >>> [node.name for node in minify(f, (torch.ones(8),), wrong).module.graph.nodes]
        ['exp', 'cos', 'output']
    """
    trial = Trial(backend, tolerance, dynamic, limit_s)
    for role, program in graphs_of(fn, tuple(args), dict(kwargs or {}), as_backend(backend), dynamic):
        failure = trial.failure(program)
        if failure is not None:
            log.info("the %s graph, %d ops, fails: %s: %s", role, len(program.ops), failure.kind, failure.text)
            return reduced(role, program, failure, trial, None if path is None else Path(path))
    raise NothingToMinify("on each graph of this function alone the backend does what eager does: nothing to minify")


@dataclass(frozen=True)
class Trial:
    """How a graph is tried: see `minify`."""

    backend: AnyBackend
    tolerance: float | None
    dynamic: bool
    limit_s: float | None

    def failure(self, program: Program) -> Failure | None:
        """How the backend fails on a graph, if it does. Raises what eager raises."""
        arguments = program.module, program.inputs, self.backend, self.tolerance, self.dynamic
        if self.limit_s is None:
            return failure_of(*arguments)
        return failure_apart(functools.partial(failure_of, *arguments), self.limit_s)


def reduced(role: str, program: Program, failure: Failure, trial: Trial, path: Path | None) -> Repro:
    """The repro of a graph on which the backend fails."""
    fails = Fails(trial, failure.kind)
    small = smaller(program, fails)
    small, is_random = simple_inputs(small, fails)
    failure = trial.failure(small) or failure
    data = path.with_suffix(".pt") if path is not None else Path("inputs.pt")
    script = script_text(small, trial.backend, failure, is_random, trial.tolerance, data, trial.dynamic)
    if path is not None:
        path.write_text(script)
        if needs_data(small, is_random):
            torch.save(list(small.inputs), data)
    return Repro(role, failure, small.module, small.inputs, script)


@dataclass(frozen=True)
class Fails:
    """Whether a program still fails in the same way; one that does not even run in eager does not."""

    trial: Trial
    kind: str

    def __call__(self, program: Program | None) -> bool:
        if program is None:
            return False
        try:
            failure = self.trial.failure(program)
        except Exception:
            return False
        return failure is not None and failure.kind == self.kind


# --- What the backend gets -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphRecorder(WrappedBackend):
    """Shapes graphs as a backend does, runs them in eager, and remembers each with its inputs."""

    runs: list[tuple[str, Program]] = field(default_factory=list)

    @property
    def min_graph_ops(self) -> int:
        return 0

    def compile(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        if partition.backward is None:
            return Compiled(self.name, self.recorded("inference", partition.forward), None)
        forward = self.recorded("forward", partition.forward)
        return Compiled(self.name, forward, lambda half: self.recorded("backward", half))

    def recorded(self, role: str, half: GraphHalf) -> BoxedCallable:
        def run(args: list) -> Any:
            program = Program(copy_module(half.module), tuple(map(copied, args)))
            args.clear()
            self.runs.append((role, program))
            return program()

        return run


def graphs_of(
    fn: Callable, args: tuple, kwargs: dict[str, Any], backend: Backend, dynamic: bool
) -> list[tuple[str, Program]]:
    """Each graph that a call and a backward through all its results run, with what it gets."""
    recorder = GraphRecorder(backend)
    options = Options.from_mapping({"enabled": True, "dynamic": dynamic})
    compiler = make_compiler(recorder, options)
    target = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
    args, kwargs = pytree.tree_map_only(torch.Tensor, fresh, (args, kwargs))
    calls = bind(target, PlanCache(compiler, "minify"))
    outputs = [leaf for leaf in pytree.tree_leaves(calls(*args, **kwargs)) if differentiable(leaf)]
    wanted = [tensor for tensor in calls.call_of(args, kwargs).arguments.tensors if tensor.requires_grad]
    if outputs and wanted:
        torch.autograd.grad(outputs, wanted, [torch.randn_like(output) for output in outputs], allow_unused=True)
    return recorder.runs


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf with the same values."""
    return copied(tensor.detach()).requires_grad_(tensor.requires_grad)


def differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


# --- Reduction -------------------------------------------------------------------------------------------------------


def smaller(program: Program, fails: Callable[[Program | None], bool], largest: int | None = None) -> Program:
    """A program that still fails, of as few ops, results and elements as are found."""
    values, units = values_of(program), units_of(program)

    def of_units(kept: Sequence[tuple[fx.Node, ...]]) -> Program | None:
        return part_of(program, values, [node for unit in kept for node in unit])

    if fails(of_units(units)):
        program = of_units(needed(units, lambda kept: fails(of_units(kept)), largest)) or program
    log.info("%d ops are needed", len(program.ops))
    whole = program
    positions = needed(range(len(program.returned)), lambda kept: bool(kept) and fails(with_results(whole, kept)))
    return with_smaller_sizes(with_results(program, positions), fails)


def with_smaller_sizes(program: Program, fails: Callable[[Program | None], bool]) -> Program:
    """The program with each size as small as it still fails."""
    for size in sizes_of(program):
        for candidate in dict.fromkeys((1, 2, 3, 4, 8, size // 4, size // 2)):
            tried = resized(program, size, candidate) if 0 < candidate < size else None
            if tried is not None and fails(tried):
                program = tried
                break
    return program


def resized(program: Program, size: int, smaller: int) -> Program | None:
    """`with_size`, where that is possible."""
    try:
        return with_size(program, size, smaller)
    except (RuntimeError, IndexError):
        return None


def simple_inputs(program: Program, fails: Callable[[Program | None], bool]) -> tuple[Program, tuple[bool, ...]]:
    """The program with random inputs wherever it still fails, and which of its inputs are random."""
    exact = needed(range(len(program.inputs)), lambda kept: fails(with_random_inputs(program, kept)))
    is_random = tuple(k not in exact and isinstance(value, torch.Tensor) for k, value in enumerate(program.inputs))
    return with_random_inputs(program, exact), is_random


def with_random_inputs(program: Program, exact: Sequence[int]) -> Program:
    """Random numbers in each input but some, drawn as the script draws them."""
    torch.manual_seed(0)
    return with_inputs(program, lambda k, value: value if k in exact else random_like(value))


def random_like(value: Any) -> Any:
    """As the function `random` of a script."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    size, stride = tuple(value.shape), value.stride()
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
    low = -1 if value.dtype.is_floating_point else 0
    values = torch.testing.make_tensor((extent,), dtype=value.dtype, device=value.device, low=low, high=1)
    return values.as_strided(size, stride)


# --- functorch's minifier --------------------------------------------------------------------------------------------


def print_state(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Print a graph and what its inputs are."""
    described = [f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value for value in inputs]
    print(f"# inputs: {described}\n{module.code}")


def minifier(
    fail_f: fx.GraphModule,
    inps: Sequence[Any],
    module_fails: Callable[[fx.GraphModule, Sequence[Any]], bool],
    dump_state: Callable[[fx.GraphModule, Sequence[Any]], None] = print_state,
    *,
    skip_sanity: bool = False,
    max_granularity: int | None = None,
) -> tuple[fx.GraphModule, Sequence[Any]]:
    """Reduce a graph and its inputs, as long as `module_fails` says that it fails; see `minify` for a whole function.

    Args:
        fail_f: a graph without in-place ops.
        inps: its inputs.
        module_fails: whether a graph fails on inputs. An exception counts as no.
        dump_state: called with each smaller graph that fails, and its inputs.
        skip_sanity: whether `fail_f` itself is not tried first.
        max_granularity: at most so many ops are tried or left out at once.

    Returns:
        The smaller graph, which returns a tuple, and its inputs.

    Raises:
        NothingToMinify: `fail_f` does not fail.
    """
    if not skip_sanity and not module_fails(fail_f, inps):
        raise NothingToMinify("the graph does not fail on these inputs")

    def fails(program: Program | None) -> bool:
        try:
            failed = program is not None and module_fails(copy_module(program.module), list(program.inputs))
        except Exception:
            return False
        if failed and program is not None:
            dump_state(program.module, program.inputs)
        return failed

    program = smaller(Program(fail_f, tuple(inps)), fails, max_granularity)
    return program.module, list(program.inputs)
