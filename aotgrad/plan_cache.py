"""The plans of one compiled function: found by guards, made on a miss, limited in number.

    f = aotgrad.aot_function(fn, aotgrad.nop)
    f(torch.ones(2)); f(torch.ones(3))
    [plan.hits for plan in f.plans()]          [0, 0]: two plans
    aotgrad.clear_cache(f)

A hit takes no lock. Threads that miss at once compile once. A function that is called inside another trace is inlined.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from aotgrad import passes, torch_compat
from aotgrad.capture.flatten import Arguments, FlatOutput
from aotgrad.convention import Dedupe
from aotgrad.counters import counters
from aotgrad.guards import PlanGuards, structure_key
from aotgrad.ir import InputHint
from aotgrad.pipeline import Executable, SmallGraph
from aotgrad.runtime.steps import MakeView, UpdateGeometry

if TYPE_CHECKING:
    from aotgrad.recipe import Recipe

log = logging.getLogger("aotgrad.guards")
_thread = threading.local()


@dataclass
class CachedPlan:
    """One plan with its guards; `hits` counts calls after the first, `compile_ns` is how long it took to make."""

    executable: Executable | SmallGraph
    guards: PlanGuards
    output: FlatOutput
    compile_ns: int
    hits: int = 0

    def __call__(self, function: Callable, arguments: Arguments) -> Any:
        """Run the plan, which was made for `function` and arguments like these."""
        _thread.last_executed = self
        if isinstance(self.executable, SmallGraph):
            return function(*arguments.args, **arguments.kwargs)
        dedupe, tensors = self.guards.dedupe, list(arguments.tensors)
        flat = self.executable(tensors if dedupe.is_identity else dedupe.enter(tensors))
        return self.output.unflatten(flat)


def last_executed() -> CachedPlan | None:
    """The plan that ran last in this thread."""
    return getattr(_thread, "last_executed", None)


@dataclass
class PlanCache:
    """The plans of one function, by structure and then by guards. `check` may refuse an executable by raising."""

    recipe: Recipe
    name: str
    check: Callable[[Executable | SmallGraph], None] | None = None
    entries: dict[tuple, list[CachedPlan]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    warned: bool = False

    def plans(self) -> list[CachedPlan]:
        return [plan for entry in list(self.entries.values()) for plan in entry]

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()
            self.warned = False

    def call(self, function: Callable, arguments: Arguments, static_count: int, state: Any = None) -> Any:
        """Run the plan for these arguments, after making it if there is none.

        Args:
            function: takes the nested arguments.
            static_count: how many leading tensors are parameters or buffers.
            state: what else the trace depends on, hashable.
        """
        tensors = arguments.tensors
        if not self.recipe.options.enabled or torch_compat.any_functional(tensors):
            return function(*arguments.args, **arguments.kwargs)
        key = structure_key(arguments.constants, arguments.spec, (state, passes.generation()))
        plan = self.find(key, tensors)
        if plan is not None:
            plan.hits += 1
            counters["hits"] += 1
        else:
            plan = self.make(key, function, arguments, static_count)
        if plan is None:
            counters["fallbacks"] += 1
            return function(*arguments.args, **arguments.kwargs)
        return plan(function, arguments)

    def find(self, key: tuple, tensors: Sequence[torch.Tensor]) -> CachedPlan | None:
        for plan in self.entries.get(key, ()):
            if plan.guards.check(tensors):
                return plan
        return None

    def make(self, key: tuple, function: Callable, arguments: Arguments, static_count: int) -> CachedPlan | None:
        """Compile a plan, or `None` if there are too many already."""
        with self.lock:
            plan = self.find(key, arguments.tensors)
            if plan is not None:
                return plan
            counters["misses"] += 1
            self.explain_miss(key, arguments.tensors)
            if len(self.plans()) >= self.recipe.options.plan_limit:
                self.warn_once(key, arguments.tensors)
                return None
            plan = self.compile(key, function, arguments, static_count)
            self.entries[key] = [plan, *self.entries.get(key, ())]
            return plan

    def compile(self, key: tuple, function: Callable, arguments: Arguments, static_count: int) -> CachedPlan:
        start_ns = time.perf_counter_ns()
        dedupe, output = Dedupe.of(arguments.tensors), FlatOutput()

        def run_flat(*distinct: torch.Tensor) -> list[Any]:
            args, kwargs = arguments.rebuild(dedupe.exit(distinct))
            return output.flatten(function(*args, **kwargs))

        tensors = dedupe.enter(arguments.tensors)
        hints = dedupe.enter(self.hints(key, arguments.tensors, static_count))
        executable = self.recipe.compile(run_flat, tensors, hints)
        if self.check is not None:
            self.check(executable)
        guards = make_guards(executable, dedupe, tensors)
        return CachedPlan(executable, guards, output, time.perf_counter_ns() - start_ns)

    # -- which sizes are symbolic

    def hints(self, key: tuple, tensors: Sequence[torch.Tensor], static_count: int) -> list[InputHint]:
        earlier = [plan for plan in self.entries.get(key, ()) if len(plan.guards.dedupe.positions) == len(tensors)]
        return [self.hint(k, tensor, k < static_count, earlier) for k, tensor in enumerate(tensors)]

    def hint(self, position: int, tensor: torch.Tensor, static: bool, earlier: Sequence[CachedPlan]) -> InputHint:
        """`dynamic=True`: every size of what is no parameter; `None`: sizes that differ from an earlier plan's."""
        dims = torch_compat.dims_marked_dynamic(tensor)
        if self.recipe.options.dynamic and not static:
            dims = frozenset(range(tensor.dim()))
        elif self.recipe.options.dynamic is None and not static:
            seen = [traced_fake(plan, position) for plan in earlier]
            dims |= {d for d in range(tensor.dim()) for fake in seen if differs(fake, tensor, d)}
        return InputHint(static, dims)

    # -- what the user is told

    def explain_miss(self, key: tuple, tensors: Sequence[torch.Tensor]) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("%s: no plan fits: %s", self.name, self.reason(key, tensors))

    def reason(self, key: tuple, tensors: Sequence[torch.Tensor]) -> str:
        entry = self.entries.get(key, ())
        if not self.entries:
            return "there is none yet"
        if not entry:
            return "other Python values, or another structure of arguments or module state"
        return "; ".join(plan.guards.why_not(tensors) for plan in entry)

    def warn_once(self, key: tuple, tensors: Sequence[torch.Tensor]) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{self.name} has {len(self.plans())} plans, the limit (option plan_limit); calls that none of them fits "
                f"run eagerly. What keeps changing: {self.reason(key, tensors)}",
                stacklevel=2,
            )


def traced_fake(plan: CachedPlan, position: int) -> torch.Tensor:
    convention = plan.executable.capture.convention
    return convention.inputs[convention.order[plan.guards.dedupe.positions[position]]].fake


def differs(fake: torch.Tensor, tensor: torch.Tensor, dim: int) -> bool:
    """Whether a size is another one than traced, or was symbolic already."""
    if fake.dim() != tensor.dim():
        return False
    size = fake.size(dim)
    return not isinstance(size, int) or size != tensor.size(dim)


def make_guards(executable: Executable | SmallGraph, dedupe: Dedupe, tensors: Sequence[torch.Tensor]) -> PlanGuards:
    """The guards of a plan that was just traced for `tensors`."""
    specs, sharing = [spec for spec, _ in executable.arguments], executable.sharing(tensors)
    changed = sorted({*sharing.mutated, *sharing.bumped})
    steps = () if isinstance(executable, SmallGraph) else executable.plan.steps
    absolute = any(uses_geometry(step) for step in steps)
    fakes = [spec.fake for spec in specs]
    return PlanGuards(
        dedupe=dedupe,
        global_state=torch_compat.global_state_guard(),
        inference_mode=torch.is_inference_mode_enabled(),
        tensors=torch_compat.TensorGuard(tensors, fakes),
        leaves=tuple((k, tensors[k].is_leaf) for k in changed if specs[k].requires_grad),
        sharing=sharing if changed else None,
        offsets=tuple((k, t.storage_offset()) for k, t in enumerate(tensors) if absolute and t.layout is torch.strided),
        shapes=torch_compat.shape_guards(fakes) if any(map(torch_compat.is_symbolic, fakes)) else None,
    )


def uses_geometry(step: Any) -> bool:
    """Whether a step lays a tensor out by absolute size, stride and offset."""
    if isinstance(step, UpdateGeometry):
        return True
    as_strided = torch.ops.aten.as_strided.default
    return isinstance(step, MakeView) and any(view.op is as_strided for view in step.replay.steps)
