"""A function and a backend that fails on it -> a small script that fails in the same way.

In: a function, arguments and a backend. Out: a `Repro`. The function runs in eager, forward and backward, to record the
inputs of each graph. The first graph on which the backend fails is reduced: ops, results, sizes, then input values.

Limits: the inner graphs of control-flow ops are not reduced.
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

from aotgrad.backends.base import AnyBackend, PartitionCompiler, WrappedBackend
from aotgrad.backends.registry import as_backend
from aotgrad.debug import programs
from aotgrad.debug.check import BackendFailure, failure_of
from aotgrad.debug.isolation import failure_apart
from aotgrad.debug.programs import ConcreteProgram
from aotgrad.debug.script import needs_data, script_text
from aotgrad.debug.shrink import simple_inputs, smaller_program
from aotgrad.errors import NothingToMinify
from aotgrad.graph.copies import copy_graph_module
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, Partition
from aotgrad.options import Options, reject_parameters
from aotgrad.plan_cache.binding import bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.compiler import make_compiler

log = logging.getLogger("aotgrad.debug")


@dataclass(frozen=True)
class Repro:
    """A small graph on which a backend fails.

    Attributes:
        role: the graph of the function that contains it: `"forward"`, `"backward"` or `"inference"`.
        failure: how the backend fails on it.
        module: the graph; it returns a tuple.
        inputs: its inputs.
        script: the source of a program that fails in the same way.
    """

    role: str
    failure: BackendFailure
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
    """Find a small part of a function on which a backend raises, or differs from eager.

    Args:
        fn: a function of tensors or a module, as for `aot_function`; it runs on copies.
        args, kwargs: arguments for which it fails.
        backend: a name, a `Backend`, or a compiler `(fx.GraphModule, example_inputs) -> callable`.
        path: the file for the script, if any. Inputs that the script cannot create go into `<path>.pt`.
        tolerance: the allowed error relative to the largest element of a result; by dtype (1e-4 for float32), if `None`.
        dynamic: compile graphs for symbolic sizes.
        limit_s: the seconds that the backend may take for one graph. With a limit, each graph runs in a fork of this
            process, so backends that hang or crash can be reduced, too. Not possible once CUDA is in use.

    Returns:
        The graph, its inputs, and a script that checks the backend on it (`aotgrad.debug.check_backend`).

    Raises:
        NothingToMinify: the backend agrees with eager on each graph.

    Examples:
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
            return reduce_program(role, program, failure, trial, None if path is None else Path(path))
    raise NothingToMinify("the backend agrees with eager on each graph of this function: nothing to minify")


@dataclass(frozen=True)
class Trial:
    """How a graph is checked: see `minify`."""

    backend: AnyBackend
    tolerance: float | None
    dynamic: bool
    limit_s: float | None

    def failure(self, program: ConcreteProgram) -> BackendFailure | None:
        """How the backend fails on a graph, if it does. Raises the error of eager, if eager raises."""
        arguments = program.module, program.inputs, self.backend, self.tolerance, self.dynamic
        if self.limit_s is None:
            return failure_of(*arguments)
        return failure_apart(functools.partial(failure_of, *arguments), self.limit_s)


def reduce_program(role: str, program: ConcreteProgram, failure: BackendFailure, trial: Trial, path: Path | None) -> Repro:
    """A small repro for a graph on which the backend fails."""
    fails = FailsAlike(trial, failure.kind)
    small = smaller_program(program, fails)
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
class FailsAlike:
    """Whether a program fails in the same way; `False` for a program that raises in eager."""

    trial: Trial
    kind: str

    def __call__(self, program: ConcreteProgram | None) -> bool:
        if program is None:
            return False
        try:
            failure = self.trial.failure(program)
        except Exception:
            return False
        return failure is not None and failure.kind == self.kind


# --- The graphs of a function ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphRecorder(WrappedBackend):
    """Shapes graphs like a backend, runs them in eager, and records each with its inputs."""

    runs: list[tuple[str, ConcreteProgram]] = field(default_factory=list)

    @property
    def min_graph_ops(self) -> int:
        return 0

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        if partition.backward is None:
            return Compiled(self.name, self.record("inference", partition.forward), None)
        forward = self.record("forward", partition.forward)
        return Compiled(self.name, forward, lambda half: self.record("backward", half))

    def record(self, role: str, half: GraphHalf) -> BoxedCallable:
        def run(args: list) -> Any:
            program = ConcreteProgram(copy_graph_module(half.module), tuple(map(programs.copy_value, args)))
            args.clear()
            self.runs.append((role, program))
            return program()

        return run


def graphs_of(
    fn: Callable, args: tuple, kwargs: dict[str, Any], backend: PartitionCompiler, dynamic: bool
) -> list[tuple[str, ConcreteProgram]]:
    """The graphs that a call and a backward through all its results run, with their inputs."""
    recorder = GraphRecorder(backend)
    options = Options.from_mapping({"enabled": True, "dynamic": dynamic})
    compiler = make_compiler(recorder, options)
    target = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
    args, kwargs = pytree.tree_map_only(torch.Tensor, copy_leaf, (args, kwargs))
    calls = bind(target, PlanCache(compiler, "minify"))
    outputs = [leaf for leaf in pytree.tree_leaves(calls(*args, **kwargs)) if is_differentiable(leaf)]
    wanted = [tensor for tensor in calls.call_of(args, kwargs).arguments.tensors if tensor.requires_grad]
    if outputs and wanted:
        torch.autograd.grad(outputs, wanted, [torch.randn_like(output) for output in outputs], allow_unused=True)
    return recorder.runs


def copy_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf with the same values in new memory."""
    return programs.copy_value(tensor.detach()).requires_grad_(tensor.requires_grad)


def is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


# --- functorch's minifier --------------------------------------------------------------------------------------------


def print_state(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Print a graph and the types of its inputs."""
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
    **of_peer: Any,
) -> tuple[fx.GraphModule, Sequence[Any]]:
    """Reduce a graph and its inputs while `module_fails` holds. For a whole function, see `minify`.

    Args:
        fail_f: a graph without in-place ops.
        inps: its inputs.
        module_fails: whether a graph fails on inputs. An exception counts as `False`.
        dump_state: called with each smaller graph that fails, and its inputs.
        skip_sanity: do not check `fail_f` itself first.
        max_granularity: the largest number of ops to try or omit at once.
        **of_peer: parameters that torch's function has, with its default values.

    Returns:
        The smaller graph, which returns a tuple, and its inputs.

    Raises:
        NothingToMinify: `fail_f` does not fail.
    """
    reject_parameters("minifier", of_peer)
    if not skip_sanity and not module_fails(fail_f, inps):
        raise NothingToMinify("the graph does not fail on these inputs")

    def fails(program: ConcreteProgram | None) -> bool:
        try:
            failed = program is not None and module_fails(copy_graph_module(program.module), list(program.inputs))
        except Exception:
            return False
        if failed and program is not None:
            dump_state(program.module, program.inputs)
        return failed

    program = smaller_program(ConcreteProgram(fail_f, tuple(inps)), fails, max_granularity)
    return program.module, list(program.inputs)
