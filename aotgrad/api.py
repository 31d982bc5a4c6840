"""`aot_function`, `aot_module` and `aot_module_simplified`: compile without Dynamo in front.

    >>> import torch, aotgrad
    >>> f = aotgrad.aot_function(lambda x: x.sin().cos(), fw_compiler=aotgrad.nop)
    >>> x = torch.ones(2, requires_grad=True)
    >>> f(x).sum().backward()
    >>> torch.equal(x.grad, -x.sin().sin() * x.cos())
    True

Source of the design: torch's AOTAutograd (functorch, 2022), whose names and signatures these are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from aotgrad import torch_compat
from aotgrad.backends.base import Backend, Compiler, FunctionBackend
from aotgrad.capture.flatten import Arguments, FlatOutput
from aotgrad.convention import Dedupe
from aotgrad.counters import counters
from aotgrad.errors import CaptureError
from aotgrad.guards import plan_key
from aotgrad.lifting import LiftedModule
from aotgrad.observe import Observer
from aotgrad.options import Options
from aotgrad.partition import min_cut_rematerialization_partition
from aotgrad.pipeline import Executable, compile_flat


@dataclass(frozen=True)
class Recipe:
    """How the plans of one compiled function are made."""

    backend: Backend
    partition_fn: Callable
    options: Options

    def compile(self, function: Callable, args: Sequence[Any], static: Sequence[bool]) -> Executable:
        observer = Observer(self.options.verify)
        return compile_flat(function, args, static, self.backend, self.partition_fn, self.options, observer)


@dataclass(frozen=True)
class CachedPlan:
    """An executable with what is needed to call it with nested arguments."""

    executable: Executable
    dedupe: Dedupe
    output: FlatOutput
    shape_guards: str | None

    def accepts(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the shape guards of a dynamic trace hold."""
        if self.shape_guards is None:
            return True
        distinct = self.dedupe.enter(tensors)
        return torch_compat.shape_guards_hold(self.shape_env, self.shape_guards, distinct)

    @property
    def shape_env(self) -> Any:
        return self.executable.capture.inputs[0].fake.fake_mode.shape_env

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        if not self.dedupe.is_identity:
            tensors = self.dedupe.enter(tensors)
        return self.output.unflatten(self.executable(tensors))


@dataclass
class PlanCache:
    """The plans of one compiled function, by the key of `guards.plan_key`."""

    recipe: Recipe
    plans: dict[tuple, list[CachedPlan]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def find(self, key: tuple, tensors: Sequence[torch.Tensor]) -> CachedPlan | None:
        return next((plan for plan in self.plans.get(key, ()) if plan.accepts(tensors)), None)

    def call(self, function: Callable, arguments: Arguments, static: Sequence[bool], key: Any) -> Any:
        """Run the plan for these arguments, after making it if there is none. `function` takes nested arguments."""
        tensors = arguments.tensors
        if any(torch_compat.is_functional(tensor) for tensor in tensors):
            return inline(function, arguments)
        full_key = plan_key(tensors, (arguments.key, key), self.recipe.options.dynamic)
        plan = self.find(full_key, tensors)
        counters["misses" if plan is None else "hits"] += 1
        if plan is None:
            with self.lock:
                plan = self.find(full_key, tensors) or self.add(full_key, function, arguments, static)
        return plan(list(tensors))

    def add(self, key: tuple, function: Callable, arguments: Arguments, static: Sequence[bool]) -> CachedPlan:
        dedupe, output = Dedupe.of(arguments.tensors), FlatOutput()

        def run_flat(*distinct: torch.Tensor) -> list[Any]:
            args, kwargs = arguments.rebuild(dedupe.exit(distinct))
            return output.flatten(function(*args, **kwargs))

        executable = self.recipe.compile(run_flat, dedupe.enter(arguments.tensors), dedupe.enter(static))
        guards = self.guards_of(executable)
        plan = CachedPlan(executable, dedupe, output, guards)
        self.plans.setdefault(key, []).append(plan)
        return plan

    def guards_of(self, executable: Executable) -> str | None:
        if not self.recipe.options.dynamic or not executable.capture.inputs:
            return None
        fakes = [spec.fake for spec in executable.capture.inputs]
        return torch_compat.shape_guards(fakes[0].fake_mode.shape_env, fakes)


def inline(function: Callable, arguments: Arguments) -> Any:
    """Inside another trace a compiled function is just the function."""
    args, kwargs = arguments.rebuild(arguments.tensors)
    return function(*args, **kwargs)


def aot_function(
    fn: Callable,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable = min_cut_rematerialization_partition,
    decompositions: Mapping[Any, Callable] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    dynamic: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Callable:
    """Compile `fn` ahead of time, forward and backward.

    Args:
        fn: takes and returns pytrees of tensors; other leaves are constants of the plan.
        fw_compiler: `(fx.GraphModule, example_inputs) -> callable` for the forward graph.
        bw_compiler: the same for the backward graph; `fw_compiler` if `None`.
        partition_fn: splits the joint graph, `(joint_module, joint_inputs, *, num_fwd_outputs) -> (forward, backward)`.
        decompositions: op overload -> function, applied while tracing.
        num_params_buffers: how many leading tensor arguments are parameters or buffers.
        keep_inference_input_mutations: graphs without a backward write mutated inputs themselves.
        inference_compiler: for graphs without a backward; `fw_compiler` if `None`.
        dynamic: trace with symbolic sizes.
        options: see `aotgrad.Options`.

    Returns:
        A function with the signature, name and docstring of `fn`. Arguments of another kind (shape, dtype,
        `requires_grad`, a Python value, ...) compile another plan.

    Raises:
        CaptureError, BackendError, OptionError: at the first call that needs a plan (options: at once).
    """
    backend = FunctionBackend("user", fw_compiler, bw_compiler, inference_compiler, decompositions or {})
    given = {"dynamic": dynamic, "keep_input_mutations": keep_inference_input_mutations, **(options or {})}
    cache = PlanCache(Recipe(backend, partition_fn, Options.from_mapping(given)))

    @functools.wraps(fn)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        arguments = Arguments.of(args, kwargs)
        static = [k < num_params_buffers for k in range(len(arguments.tensors))]
        return cache.call(fn, arguments, static, key=None)

    compiled.plan_cache = cache
    return compiled


def aot_module(mod: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Compile the forward of a module; its parameters and buffers become inputs of the graph.

    Args:
        mod: the module; it is not changed.
        *args, **kwargs: as for `aot_function`, without `fn` and `num_params_buffers`.

    Returns:
        A module that shares everything with `mod` (parameters, buffers, hooks, `training`, `state_dict`) and is an
        instance of its class; only its `forward` is compiled.

    Example:
        >>> model = aot_module(nn.Linear(2, 1), fw_compiler=nop)
        >>> list(model.state_dict())
        ['weight', 'bias']
    """
    lifted = LiftedModule(mod)
    function = aot_function(lifted.forward, *args, **kwargs)
    cache: PlanCache = function.plan_cache

    def forward(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        lifted_tensors = lifted.tensors()
        arguments = Arguments.of((lifted_tensors, *inputs), options)
        static = [k < len(lifted_tensors) for k in range(len(arguments.tensors))]
        return cache.call(lifted.forward, arguments, static, key=lifted.state_key())

    def deepcopy(self: nn.Module, memo: dict) -> nn.Module:
        import copy

        return aot_module(copy.deepcopy(mod, memo), *args, **kwargs)

    members = {"forward": functools.wraps(type(mod).forward)(forward), "__deepcopy__": deepcopy, "plan_cache": cache}
    compiled_class = type(f"AOT{type(mod).__name__}", (type(mod),), members)
    module = compiled_class.__new__(compiled_class)
    module.__dict__ = mod.__dict__
    return module


def aot_module_simplified(
    mod: nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable = min_cut_rematerialization_partition,
    decompositions: Mapping[Any, Callable] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable:
    """Compile a module for one set of flat inputs, with no guards: for graph modules that a frontend made.

    Args:
        mod: takes and returns flat tensors; its parameters and buffers become the first inputs of the graph.
        args: flat example inputs, tensors and symbolic ints.
        fw_compiler, bw_compiler, ...: as for `aot_function`.

    Returns:
        A function of the flat inputs that returns a list of the flat outputs.
    """
    given = {"keep_input_mutations": keep_inference_input_mutations, **(options or {})}
    backend = FunctionBackend("user", fw_compiler, bw_compiler, inference_compiler, decompositions or {})
    return compile_module(mod, args, Recipe(backend, partition_fn, Options.from_mapping(given)))


def compile_module(mod: nn.Module, args: Sequence[Any], recipe: Recipe) -> Callable:
    """The compiled flat forward of `mod`, for inputs that a frontend guards."""
    lifted = LiftedModule(mod)
    tensors = list(lifted.tensors().values())
    everything = [*tensors, *args]
    dedupe = Dedupe.of(everything)
    names = list(lifted.tensors())

    def run_flat(*distinct: Any) -> Sequence[Any]:
        flat = dedupe.exit(distinct)
        result = lifted.forward(dict(zip(names, flat)), *flat[len(names) :])
        if not isinstance(result, (list, tuple)):
            raise CaptureError(f"the module returned a {type(result).__name__}; a flat list or tuple is needed")
        return result

    static = [k < len(tensors) or is_static(arg) for k, arg in enumerate(everything)]
    executable = recipe.compile(run_flat, dedupe.enter(everything), dedupe.enter(static))
    return FlatCallable(executable, dedupe, tuple(tensors))


@dataclass(frozen=True)
class FlatCallable:
    """An executable with its module's own tensors bound."""

    executable: Executable
    dedupe: Dedupe
    tensors: tuple[torch.Tensor, ...]

    def __call__(self, *args: Any) -> list[Any]:
        return self.executable(self.dedupe.enter((*self.tensors, *args)))


def is_static(arg: Any) -> bool:
    return isinstance(arg, nn.Parameter) or getattr(arg, "_dynamo_static_input_type", None) is not None
