"""A call that no plan fits -> a plan: the function is traced and compiled, and gets guards.

    compile_plan(call, compiler, "f", earlier plans)        a `CachedPlan`

Errors of the function and refusals of ours are raised; the cache decides what they mean for the call.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad import native, pipeline, torch_compat
from aotgrad.capture.eager_calls import Islands, untraceable_function
from aotgrad.capture.trace import DATA_DEPENDENT
from aotgrad.capture.values import NotAnswered, ValueReads
from aotgrad.convention import Dedupe, MemorySharing
from aotgrad.errors import AOTGradError, CaptureError, UnsupportedAliasingError, short_message
from aotgrad.guards.data_dependent import Level
from aotgrad.guards.memory import MemoryGuard
from aotgrad.guards.plan import PlanGuards
from aotgrad.guards.tensor_properties import PropertyReads, TracedWrapper, facts_of
from aotgrad.ir import InputHint, SymInput
from aotgrad.joint.failures import WrappedGradient
from aotgrad.passes.known_values import KnownValues
from aotgrad.pipeline import Compiler, SmallGraph, Source, Stages
from aotgrad.plan_cache.arguments import Arguments, FlatOutput
from aotgrad.plan_cache.call import Call
from aotgrad.plan_cache.entry import CachedPlan, NotCompiled
from aotgrad.plan_cache.outside_values import PythonDraws, undone_if_it_fails, watched_values
from aotgrad.plan_cache.wrappers import WrapperArguments
from aotgrad.subclasses.boundary import Wrappers
from aotgrad.subclasses.bridge import GradientForm, OtherGradientForm
from aotgrad.subclasses.forms import is_wrapper
from aotgrad.subclasses.layout import WrapperLayout

log = logging.getLogger("aotgrad.guards.plan")


def compile_plan(
    call: Call,
    compiler: Compiler,
    name: str,
    earlier: Sequence[CachedPlan],
) -> CachedPlan:
    """Trace and compile the function of a call.

    A trace that fails is repeated with stricter assumptions, see `Assumptions.after`, after what it has changed is undone.
    It is not if something stays changed, which would change twice.

    Args:
        name: what the log calls the function.
        earlier: plans with the same key; they show which sizes change between calls.
    """
    start_ns = time.perf_counter_ns()
    reject_own_rules(call.tensors)
    reject_unknown_parts(call.tensors)
    dedupe = Dedupe.of(call.tensors)
    tensors, function = dedupe.enter(call.tensors), FlatCall.of(call, dedupe)
    known = call.known and call.known.at(dedupe.positions)
    compiler = compiler.for_call(tensors)
    assumptions, later = Assumptions.of(call, compiler, earlier, dedupe), None
    while True:
        source = assumptions.source(function, tensors, known, call)
        try:
            with undone_if_it_fails():
                stages = pipeline.compile(source, compiler)
            assumptions.forget_values()
            break
        except WrappedGradient as error:
            layout = call.arguments.layout if isinstance(call.arguments, WrapperArguments) else None
            raise wrapped_gradient_form(error, dedupe, layout) from error
        except Exception as error:
            stricter = assumptions.after(error, source)
            if stricter is None or call.has_changed_its_key():
                raise
            log.info("%s: retraced with %s, after %s: %s", name, stricter, type(error).__name__, error)
            forget_frames(error)
            later = later or (error if is_after_trace(error, source) else None)
            assumptions = stricter
    if later is not None:
        warnings.warn(specialized_after(later, name), stacklevel=2)
    function.reads.check(tensors)
    function.output.wrappers.finish(stages.results_of_saved if function.output.has_wrappers else {})
    if call.state.check is not None:
        call.state.check(stages)
    guards = make_guards(stages, dedupe, tensors, function.reads)
    ends = function.draws.found or call.has_changed_its_key()
    return CachedPlan(stages, guards, function.output, time.perf_counter_ns() - start_ns, serves_one_call=ends)


def is_after_trace(error: Exception, source: Source) -> bool:
    """Whether a pass or a backend failed, for another reason than a question about a value."""
    is_over = source.values is not None and source.values.is_over
    asks = isinstance(error, NotAnswered) or any(name in f"{type(error).__name__}: {error}" for name in DATA_DEPENDENT)
    return is_over and not asks and not isinstance(error, AOTGradError)


def specialized_after(error: Exception, name: str) -> str:
    """What a user should know of a function whose graph compiles only with constants in place of symbolic numbers."""
    return (
        f"{name} is compiled with its numbers as constants, so each change of a number makes a new plan: the graph with "
        f"symbolic numbers does not compile, {type(error).__name__}: {short_message(error)}"
    )


def wrapped_gradient_form(error: WrappedGradient, dedupe: Dedupe, layout: WrapperLayout | None) -> OtherGradientForm:
    """The form of the gradient of a plain tensor, with the position of the tensor among the values of the call."""
    flat = dedupe.kept[error.primal.index]
    return OtherGradientForm(flat if layout is None else layout.origins[flat], GradientForm.of(error.gradient))


@dataclass(frozen=True)
class Assumptions:
    """What a trace takes from the call besides the kinds of its arguments: sizes that are not symbolic, and values.

    Attributes:
        hints: which arguments are static, and which of their sizes are symbolic.
        level: how many questions about values are answered; `None`: questions are not told from other errors.
        shares_guarded: see `Call`.
        islands: what is not traced; `None`: all is.
        finds_islands: whether a function that cannot be traced becomes an island.
    """

    hints: Sequence[InputHint]
    level: Level | None
    shares_guarded: bool
    islands: Islands | None
    finds_islands: bool

    @classmethod
    def of(cls, call: Call, compiler: Compiler, earlier: Sequence[CachedPlan], dedupe: Dedupe) -> Assumptions:
        """The weakest ones, but for a level that an earlier plan has needed."""
        levels = (plan.guards.values.level for plan in earlier if plan.guards.values is not None)
        level = None if compiler.lower is None else max(levels, default=call.level)
        hints = dedupe.enter(hints_of(call, compiler, earlier))
        islands = None if compiler.lower is None else Islands.on(dedupe.enter(call.tensors))
        return cls(hints, level, call.shares_guarded, islands, compiler.finds_islands)

    def source(
        self,
        function: FlatCall,
        tensors: Sequence[torch.Tensor],
        known: KnownValues | None,
        call: Call,
    ) -> Source:
        values = None if self.level is None else ValueReads(self.level, tensors, self.shares_guarded)
        return Source(
            function,
            tensors,
            self.hints,
            known,
            values,
            islands=self.islands,
            serves_one_call=call.serves_one_call,
            assigned=call.assigned,
        )

    def after(self, error: Exception, failed: Source) -> Assumptions | None:
        """The next stricter ones after a trace that raised; `None` if they would not help.

        Sizes are static where torch has no shape function for an op. A function that asked about values gets answers. A
        custom op or autograd function that still cannot be traced is an island.
        """
        if torch_compat.lacks_shape_function(error) and any(hint.dynamic_dims for hint in self.hints):
            return replace(self, hints=[replace(hint, dynamic_dims=frozenset()) for hint in self.hints])
        if failed.values is not None and failed.values.asked and self.level is not None and self.level < max(Level):
            return replace(self, level=Level(self.level + 1))
        if self.islands is None or not self.finds_islands:
            return None
        if (found := untraceable_function(error)) is None or found[0] in self.islands.functions:
            return None
        return replace(self, islands=self.islands.with_function(*found))

    def forget_values(self) -> None:
        """Free what the plan must not keep alive."""
        if self.islands is not None:
            self.islands.forget_values()

    def __str__(self) -> str:
        sizes = "symbolic sizes" if any(hint.dynamic_dims for hint in self.hints) else "static sizes"
        levels = [] if self.level is None else [f"level {self.level.name} for values"]
        islands = [f"{each} as an island" for each in self.islands.functions] if self.islands else []
        return " and ".join([sizes, *levels, *islands])


@dataclass(frozen=True, eq=False)
class FlatCall:
    """A function of the distinct tensors of a call that returns a flat list; it records the structure of the results.

    It outlives the call, and keeps none of its tensors alive but parameters.
    """

    function: Callable
    arguments: Arguments
    dedupe: Dedupe
    parameters: Sequence[torch.Tensor | None]
    output: FlatOutput
    reads: PropertyReads
    draws: PythonDraws

    @classmethod
    def of(cls, call: Call, dedupe: Dedupe) -> FlatCall:
        parameters = [tensor if isinstance(tensor, torch.nn.Parameter) else None for tensor in dedupe.enter(call.tensors)]
        arguments = call.arguments.without_tensors()
        wrappers = arguments.layout.wrappers if isinstance(arguments, WrapperArguments) else Wrappers()
        return cls(call.function, arguments, dedupe, parameters, FlatOutput(wrappers), PropertyReads(), PythonDraws())

    def __call__(self, *distinct: torch.Tensor) -> list[Any]:
        torch_compat.mark_parameters(distinct, self.parameters)
        args, kwargs = self.arguments.rebuild(self.dedupe.exit(distinct))
        before = Arguments.of(args, kwargs)
        wrappers = [TracedWrapper(value, end.name, end.is_leaf) for end, value in self.output.wrappers.live_arguments()]
        attributes = list(map(torch_compat.assigned_attributes, before.tensors))
        with self.reads.of(distinct, wrappers), self.draws.noted(), watched_values(function_of(self.function)):
            result = self.function(*args, **kwargs)
        check_containers(before, Arguments.of(args, kwargs))
        check_attributes(zip(before.tensors, attributes, strict=True), result)
        return self.output.flatten(result, before.tensors)


def hints_of(call: Call, compiler: Compiler, earlier: Sequence[CachedPlan]) -> list[InputHint]:
    """Which tensors of a call are static, and which of their sizes are symbolic."""
    dynamic = compiler.options.dynamic
    like = [plan for plan in earlier if dynamic is None and len(plan.guards.dedupe.positions) == len(call.tensors)]
    fixed, symbolic = call.arguments.fixed_count, call.arguments.symbolic
    layout = call.arguments.layout if isinstance(call.arguments, WrapperArguments) else None
    named, assigned = dict(enumerate(call.paths())), call.assigned()
    paths = [named.get(k) for k in (range(len(call.tensors)) if layout is None else layout.origins)]
    static = [k < call.static_count and path not in assigned for k, path in enumerate(paths)]
    hints = [
        hint_of(tensor, static[k], dynamic, [traced_fake(plan, k) for plan in like], symbolic.get(k))
        for k, tensor in enumerate(call.tensors[: len(call.tensors) - fixed])
    ]
    parts = [None] * len(call.tensors) if layout is None else layout.parts_by_argument()
    everything = zip([*hints, *[InputHint()] * fixed], parts, paths, strict=True)
    return [replace(hint, part=part, path=path) for hint, part, path in everything]


def hint_of(
    tensor: torch.Tensor,
    static: bool,
    dynamic: bool | None,
    seen: Sequence[torch.Tensor],
    symbolic: frozenset[int] | None = None,
) -> InputHint:
    """The hint for one tensor.

    Args:
        dynamic: `True`: all sizes of tensors that are not parameters are symbolic; `None`: sizes that differ from earlier
            traces.
        seen: its fakes in earlier traces.
        symbolic: the symbolic sizes, if they are known; `dynamic` does not count then.
    """
    if tensor.is_conj() or tensor.is_neg():
        return InputHint(static, frozenset())  # torch makes symbolic fakes of these with other strides
    dims = torch_compat.dims_marked_dynamic(tensor)
    if symbolic is not None:
        return InputHint(static, dims | symbolic)
    if dynamic and not static:
        dims = frozenset(range(tensor.dim()))
    elif dynamic is None and not static:
        dims |= {d for d in range(tensor.dim()) for fake in seen if differs(fake, tensor, d)}
    return InputHint(static, dims)


def traced_fake(plan: CachedPlan, position: int) -> torch.Tensor:
    convention = plan.executable.capture.convention
    spec = convention.inputs[convention.order[plan.guards.dedupe.positions[position]]]
    assert not isinstance(spec, SymInput), "it stands for a tensor"
    return spec.fake


def differs(fake: torch.Tensor, tensor: torch.Tensor, dim: int) -> bool:
    """Whether a size differs from the trace, or was symbolic there."""
    if fake.dim() != tensor.dim():
        return False
    size = fake.size(dim)
    return not isinstance(size, int) or size != tensor.size(dim)


@dataclass
class TracedOnce:
    """Calls a function that is traced, and stores the error that it raised, unless it is one of ours."""

    function: Callable
    raised: Exception | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.function(*args, **kwargs)
        except (AOTGradError, NotCompiled):
            raise
        except Exception as error:
            self.raised = error
            raise


def function_of(function: Callable) -> Callable:
    """The user's function."""
    return function.function if isinstance(function, TracedOnce) else function


def forget_frames(error: BaseException | None) -> None:
    """Free the local variables of the frames that an error passed: the arguments, and a trace of them.

    Until Python 3.13, a frame keeps the dictionary `f_locals` when it is cleared. Reading it again empties it.
    """
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            with contextlib.suppress(RuntimeError):  # it still runs
                frame.clear()
                _ = frame.f_locals
        error = error.__cause__ or error.__context__


def with_own_graphs(plan: CachedPlan) -> CachedPlan:
    """The plan of a function that has changed something in its trace: its graphs run, however small they are.

    The function itself would change that a second time.
    """
    small = plan.executable
    return replace(plan, executable=small.compiled) if isinstance(small, SmallGraph) else plan


def reject_own_rules(tensors: Sequence[torch.Tensor]) -> None:
    """Raise if an argument has a `__torch_function__` that a trace does not call.

    Raises:
        CaptureError: names the argument and its class.
    """
    for position, tensor in enumerate(tensors):
        if tensor.layout is torch.strided and torch_compat.has_own_function_rules(type(tensor)):
            raise CaptureError(
                f"tensor argument {position} is a {type(tensor).__name__}, whose __torch_function__ a trace does not call; "
                "pass a plain tensor, x.as_subclass(torch.Tensor)"
            )


def reject_unknown_parts(tensors: Sequence[Any]) -> None:
    """Raise if an argument has a `__torch_dispatch__`, and no `__tensor_flatten__`: graphs would run past its rules.

    Raises:
        CaptureError: names the argument and its class.
    """
    for position, tensor in enumerate(tensors):
        kind = type(tensor)
        if isinstance(tensor, torch.Tensor) and torch_compat.has_own_dispatch_rules(kind) and not is_wrapper(tensor):
            raise CaptureError(
                f"tensor argument {position} is a {kind.__name__}, which has a __torch_dispatch__ and no __tensor_flatten__ "
                "that names the tensors it consists of; give it one, or pass plain tensors"
            )


def check_containers(before: Arguments, after: Arguments) -> None:
    """Raise if the function changed a list or dict among its arguments: the caller's own would not change.

    Raises:
        CaptureError
    """
    leaves = [[*map(id, given.tensors), *(id(value) for _, value in given.constants)] for given in (before, after)]
    if before.spec != after.spec or leaves[0] != leaves[1]:
        raise CaptureError(
            "the function changes a list, dict or other container that it was given, which later calls would not do; "
            "make a new one and return it"
        )


def check_attributes(before: Iterable[tuple[torch.Tensor, set[str]]], result: Any) -> None:
    """Raise if the function assigned a new attribute to an argument or result: the tensors of a call would not get it.

    Args:
        before: the arguments, with the names of the attributes that they had.

    Raises:
        CaptureError
    """
    found = [name for tensor, names in before for name in torch_compat.assigned_attributes(tensor) - names]
    traced = (leaf for leaf in pytree.tree_leaves(result) if torch_compat.any_functional([leaf]) and not is_wrapper(leaf))
    found += [name for leaf in traced for name in torch_compat.assigned_attributes(leaf)]
    if found:
        raise CaptureError(
            f"the function assigns an attribute ({min(found)}) to a tensor that it was given, or that it returns, which "
            "later calls would not do; return the value instead"
        )


def make_guards(executable: Stages, dedupe: Dedupe, tensors: Sequence[torch.Tensor], reads: PropertyReads) -> PlanGuards:
    """The guards of a plan that was just traced for `tensors`."""
    fakes: list[Any] = [spec.fake for spec, _ in executable.arguments if not isinstance(spec, SymInput)]
    sharing = executable.sharing(tensors)
    changed = {*sharing.mutated, *sharing.bumped}
    wanted = reads.found | facts_needed(executable.depends_on_offsets, tensors, changed)
    return PlanGuards(
        dedupe=dedupe,
        global_state=torch_compat.GlobalState(native.lookup("settings_number", None)),
        tensors=torch_compat.TensorGuard(tensors, fakes, native.lookup("tensor_check", None)),
        memory=memory_guard(executable, tensors, sharing, fakes) if changed else None,
        facts=facts_of(tensors, wanted),
        shapes=torch_compat.shape_guards(fakes) if any(map(torch_compat.has_symbolic_shape, fakes)) else None,
        values=executable.value_guard,
    )


def memory_guard(
    executable: Stages,
    tensors: Sequence[torch.Tensor],
    sharing: MemorySharing,
    fakes: Sequence[Any],
) -> MemoryGuard:
    """The memory guard of a plan that changes inputs. Closed-over tensors must lie outside the changed memory.

    Raises:
        UnsupportedAliasingError
    """
    constants = [] if isinstance(executable, SmallGraph) else executable.capture.trace.constants()
    everything = [*tensors, *constants]
    found = sharing.among(everything)
    if found.groups != sharing.groups:
        raise UnsupportedAliasingError(
            "the function changes an input that shares memory with a tensor which it closed over (a global, or an attribute "
            "of an object); pass that tensor as an argument too"
        )
    return MemoryGuard(everything, found, [*fakes, *constants], closure=constants)


def facts_needed(uses_offsets: bool, inputs: Sequence[Any], changed: Collection[int]) -> set[tuple[str, int]]:
    """The tensor properties that a plan depends on because it writes to leaves, or uses storage offsets.

    A symbolic offset has guards of its own.
    """
    leaves = {k for k in changed if inputs[k].requires_grad}
    strided = {k for k, each in enumerate(inputs) if isinstance(each, torch.Tensor) and each.layout is torch.strided}
    offsets = {k for k in strided if uses_offsets and isinstance(inputs[k].storage_offset(), int)}
    views = ("is a view", "is a hooked view", "is a converted view", "is a view of a leaf", "is forbidden after a write")
    kinds = ("is a leaf", *views)
    return {*((kind, k) for kind in kinds for k in leaves), *(("storage offset", k) for k in offsets)}
