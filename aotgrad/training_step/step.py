"""`train_step`: compiles a whole step of training.

    step = train_step(lambda x, y: ..., state=[model, optimizer], backend="eager")
    loss = step(x, y)

A step without a plan runs eagerly, on the same state: so where the function raises, its error and the state are eager's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import passes, torch_compat
from aotgrad.backends.base import AnyBackend
from aotgrad.backends.kit import backend_of_steps
from aotgrad.backends.registry import as_backend
from aotgrad.guards.data_dependent import Level
from aotgrad.inspect.debug_state import debug_state
from aotgrad.options import Options
from aotgrad.plan_cache.binding import BoundFunction, NamedTensor, tensor_names
from aotgrad.plan_cache.cache import PlanCache, Planned
from aotgrad.plan_cache.call import AmbientState, Call
from aotgrad.plan_cache.compiler import make_compiler
from aotgrad.plan_cache.function_state import FunctionState
from aotgrad.telemetry.graph_names import qualified_name
from aotgrad.training_step.arguments import StepArguments
from aotgrad.training_step.names import state_names
from aotgrad.training_step.state import Snapshot, State
from aotgrad.training_step.trace import RanEagerly, TracedStep
from aotgrad.training_step.update import update

BYTES_OF_NUMBERS = 64
"""What the update of one parameter reads besides its tensors: fewer than eight numbers."""


def train_step(
    fn: Callable | None = None,
    state: Iterable[Any] = (),
    *,
    keep_gradients: bool = True,
    backend: AnyBackend = "inductor",
    options: Mapping[str, Any] | None = None,
) -> Callable:
    """Compile a step of training as one graph. Without `fn`, this is a decorator: `@train_step(state=[model, optimizer])`.

    Args:
        fn: takes pytrees of tensors. It may call models, `backward()`, `clip_grad_norm_`, `zero_grad()`, `step()`, ...
        state: the modules, optimizers and tensors that `fn` changes; lists and dictionaries of them, too.
        keep_gradients: `False`: every `.grad` is `None` after a step. Each parameter is updated when its gradient is ready,
            and the gradient is freed then.
        backend: a registered name, a backend, or a compiler of one graph.
        options: see `aotgrad.Options`; `keep_input_mutations` is on.

    Returns:
        A function with the signature of `fn`, or without `fn` a function that takes it. Tensors that `fn` returns have no
        history. Parameters, buffers, gradients and the optimizers' state are those of eager after each call. `plans()` lists
        its plans; `debug_state()` returns their guards, graphs and source, to print.

    Raises:
        CaptureError, BackendError, OptionError: at the first step that needs a plan (the state and options: at once).
    """
    if fn is None:
        return functools.partial(train_step, state=state, keep_gradients=keep_gradients, backend=backend, options=options)
    return step_with(plan_cache_of(fn, backend, options or {}, keep_gradients), fn, State.of(state), keep_gradients)


def step_with(cache: PlanCache, fn: Callable, state: State, keep_gradients: bool) -> Callable:
    """The step whose calls find their plans in `cache`; see `train_step`."""
    step = TrainStep(cache, fn, state, FunctionState((fn,), state.objects), keep_gradients)

    @functools.wraps(fn)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    function: Any = compiled
    function.plan_cache, function.plans, function.calls = step.cache, step.cache.plans, step
    function.debug_state = functools.partial(debug_state, step.cache)
    return function


def plan_cache_of(fn: Callable, backend: AnyBackend, options: Mapping[str, Any], keep_gradients: bool) -> PlanCache:
    chosen = Options.from_mapping({"keep_input_mutations": True, **options})
    if chosen.share_layers is None:
        chosen = chosen.replace(share_layers=True)
    if not keep_gradients:  # Inductor would compute all updates in one kernel, since they read the same numbers
        apart = torch_compat.fusions_that_save(BYTES_OF_NUMBERS)
        early = (*chosen.joint_passes, passes.EarlyUpdates())
        chosen = chosen.replace(joint_passes=early, inductor={**apart, **dict(chosen.inductor)})
    compiler = make_compiler(backend_of_steps(as_backend(backend)), chosen)
    if keep_gradients and compiler.backend.share_layers:  # ops on lists belong to no layer; on a GPU, each is one kernel
        compiler = compiler.with_options(joint_passes=(*chosen.joint_passes, passes.EarlyUpdates(only_on="cpu")))
    return PlanCache(compiler, qualified_name(fn))


@dataclass(frozen=True)
class TrainStep(BoundFunction):
    """A step of training and its plans; `captured`: what the function depends on besides arguments and state."""

    function: Callable
    state: State
    captured: FunctionState
    keep_gradients: bool

    def call_on(self, found: Snapshot, args: tuple, kwargs: dict[str, Any]) -> Call:
        arguments, fuses = StepArguments.after(found, args, kwargs), self.cache.compiler.backend.fuses
        traced = TracedStep(self.function, self.state, torch.is_grad_enabled(), self.keep_gradients, fuses)

        def key_of(found: Snapshot) -> Hashable:
            return (traced.key_of(found), self.captured.read())

        ambient = AmbientState(traced.run_eagerly, key_of(found), lambda: key_of(self.state.read()))
        return Call(
            traced,
            arguments,
            len(found.tensors),
            ambient,
            level=Level.GUARD,
            shares_guarded=True,
            serves_one_call=traced.creates_state,
            paths=lambda: [named.name for named in state_names(self.state, found)],
        )

    def captures(self, state: Any) -> bool:
        return state[1] == self.captured.read()

    def call_of(self, args: tuple, kwargs: dict[str, Any]) -> Call:
        return self.call_on(self.state.read(), args, kwargs)

    def named_arguments(self, args: tuple, kwargs: dict[str, Any]) -> list[NamedTensor]:
        arguments = (NamedTensor(name, "argument") for name in tensor_names(self.function, args, kwargs))
        return [*state_names(self.state, self.state.read()), *arguments]

    def planned(self, call: Call, counts: bool) -> Planned:
        """The plan of a call, found in the mode of the graph, which has no autograd."""
        with torch.no_grad():
            return self.cache.plan_for(call, counts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self.state.read()
        call = self.call_on(found, args, kwargs)
        if self.cache.runs_eagerly(call.tensors):
            return self.function(*args, **kwargs)
        with torch.no_grad():
            results = self.cache.run(self.cache.plan_for(call))
        return results.returned if isinstance(results, RanEagerly) else update(self.state, found, results)
