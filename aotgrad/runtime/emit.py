"""A schedule -> one straight-line Python function. The text is what runs: `Executable.source` shows it.

def call(args):
    primals_1, = args
    args.clear()
    inputs = [primals_1]
    output_0, saved_cos = below_autograd(forward, inputs)
    recomputation = Recomputation((primals_1,), [primals_1._version], None)
    output_0, = attach(backward, (output_0,), (saved_cos,), recomputation, None, primals_1)
    recomputation.results = ((ref(output_0), None),)
    return [output_0]
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch

from aotgrad import native, torch_compat
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.graph.op_table import VIEW_METHODS
from aotgrad.ir import BackwardSegment, Compiled, ViewStep, needs_sentinel
from aotgrad.runtime.autograd import (
    LEADING_ARGUMENTS,
    SENTINEL,
    Backward,
    CallDetails,
    History,
    Segment,
    stand_in,
)
from aotgrad.runtime.recomputation import HigherOrder, Recomputation
from aotgrad.runtime.schedule import Schedule
from aotgrad.runtime.steps import (
    AliasBase,
    AsInference,
    AssignData,
    Attach,
    CallMethod,
    CopyBack,
    Forward,
    KeepHistory,
    KeepInputs,
    MakeAlias,
    MakeBase,
    MakeCut,
    MakeView,
    NoteResults,
    RestoreGradMode,
    ReturnValue,
    SetVersion,
    ShareVersion,
    StartVersion,
    Step,
    UpdateGeometry,
)
from aotgrad.runtime.synthetic_base import attached_base, memory_alias, synthetic_base
from aotgrad.runtime.variants import VariantCache
from aotgrad.slots import of_kind

LITERALS = (type(None), bool, int, str)
MANY = 8
"""From how many tensors on their versions are asked for in one call."""


def emit(schedule: Schedule) -> str:
    """The source text of a schedule's function."""
    return _Emitter(schedule).text()


def build(schedule: Schedule, source: str, compiled: Compiled, backwards: Sequence[Backward]) -> Callable[[list], list]:
    """The function that `source` defines, with the compiled graphs bound; `backwards` has one entry a segment."""
    constants = [step.value for step in schedule.steps if isinstance(step, ReturnValue) and not step.is_name]
    hooks = [argument for step in of_kind(schedule.steps, CallMethod) for argument in step.arguments]
    namespace = {
        "math": math,  # rounds sizes, in the text of symbolic numbers
        "torch": torch,
        "aten": torch.ops.aten,
        "below_autograd": native.offered("below_autograd", torch_compat.run_below_autograd),
        "disable_autocast": torch_compat.disable_autocast,
        "set_grad_enabled": torch.set_grad_enabled,
        "version_of": torch_compat.version_of,
        "versions_of": native.offered("versions_of", torch_compat.versions_of),
        "sharing_version": torch_compat.sharing_version,
        "as_inference": torch_compat.as_inference,
        "raise_version": torch_compat.raise_version,
        "forward": compiled.forward,
        "synthetic_base": synthetic_base,
        "attached_base": attached_base,
        "memory_alias": memory_alias,
        "attach": torch_compat.applied(Segment),
        "attach_many": native.offered("attaching", applied_to_all)(torch_compat.applied(Segment), LEADING_ARGUMENTS),
        "sentinel": SENTINEL,
        "CallDetails": CallDetails,
        "Recomputation": Recomputation,
        "ref": weakref.ref,
        "random_state": torch_compat.random_state,
        "stand_in": stand_in,
        "history_of": History.apply,
        **dict(zip((step.backward for step in reversed(of_kind(schedule.steps, Attach))), backwards, strict=True)),
        **{f"constant_{k}": value for k, value in enumerate(constants)},
        **{f"hook_{k}": hook for k, hook in enumerate(hooks)},
    }
    exec(compile(source, f"<aotgrad plan {compiled.backend}>", "exec"), namespace)
    return namespace["call"]


def applied_to_all(apply: Callable, leading: int) -> Callable:
    """`apply` itself: only in C++ there is a faster way to make a node with many inputs."""
    return apply


def make_backwards(
    schedule: Schedule, compiled: Compiled, segments: Sequence[BackwardSegment], higher_order: HigherOrder
) -> list[Backward]:
    """What the autograd node of each segment runs."""
    symbolic = any(torch_compat.is_symbolic_value(value) for _, value in schedule.fakes)
    backwards = []
    steps = reversed(of_kind(schedule.steps, Attach))
    parts = zip(schedule.segments, segments, steps, schedule.saved_by, strict=bool(schedule.segments))
    for number, (half, segment, step, saved_by) in enumerate(parts):
        assert compiled.compile_backward is not None, "there are segments"
        variants = VariantCache(half, compiled.compile_backward, segment.gradients)
        if symbolic:
            variants.get(variants.full_key())  # now, while guards that this adds are still read
        backwards.append(Backward.of(variants, number, higher_order, segment, step, saved_by))
    return backwards


def versions_read(step: Step) -> tuple[str, ...]:
    """The inputs whose version at entry a step needs."""
    match step:
        case SetVersion():
            return (step.target,)
        case KeepInputs():
            return tuple(name for name, _ in step.watched)
        case Attach():
            return tuple(name for name, *_ in step.watched_members)
    return ()


BARE = """def call(args):
    results = below_autograd(forward, args)
    args.clear()
    return [*results]
"""


def is_bare(schedule: Schedule) -> bool:
    """Whether a call does nothing but run the graph."""
    if (
        not schedule.steps
        or not isinstance(forward := schedule.steps[0], Forward)
        or forward.autocast
        or forward.random_devices
    ):
        return False
    returned = tuple(step.value for step in schedule.steps[1:] if isinstance(step, ReturnValue) and step.is_name)
    return len(returned) == len(schedule.steps) - 1 and forward.inputs == schedule.arguments and forward.results == returned


class _Emitter:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.fakes = {name: value for name, value in schedule.fakes if isinstance(value, torch.Tensor)}
        self.raised = {step.target for step in of_kind(schedule.steps, SetVersion)}
        self.symbols: dict[str, str] = {}
        self.bound: set[str] = set()
        self.constants = 0
        self.hooks = 0

    def text(self) -> str:
        if is_bare(self.schedule):
            return BARE
        body = [line for step in self.schedule.steps for line in self.lines(step)]
        returned = ", ".join(self.returned(step) for step in self.schedule.steps if isinstance(step, ReturnValue))
        unpack = [f"{tuple_of(self.schedule.arguments)} = args"] if self.schedule.arguments else []
        lines = [*unpack, "args.clear()", *self.versions(), *body, f"return [{returned}]"]
        return "\n".join(["def call(args):", *(f"    {line}" for line in lines), ""])

    def versions(self) -> Iterator[str]:
        names = dict.fromkeys(name for step in self.schedule.steps for name in versions_read(step))
        return (f"version_{name} = {self.version(name)}" for name in names)

    def version(self, name: str) -> str:
        """The version of a tensor: asked for by name where the trace knows that it has one, unlike inference tensors.

        Dynamo's fake tensors do not tell. One matters that is written without autograd, as inference tensors may be.
        """
        fake = self.fakes.get(name)
        may_have_none = fake is None or fake.is_inference() or (name in self.raised and not self.schedule.segments)
        return f"version_of({name})" if may_have_none else f"{name}._version"

    def lines(self, step: Step) -> Iterator[str]:
        match step:
            case MakeBase():
                yield from make_base(step)
            case Forward():
                yield from self.forward(step)
            case KeepInputs():
                yield self.keep_inputs(step)
            case NoteResults():
                pairs = [f"(ref({name}), None)" for name in step.names]
                pairs += [f"(ref({name}), {self.version(name)})" for name in step.views]
                yield f"recomputation.results = ({tuple_of(pairs)})"
            case MakeCut():
                yield from self.make_cut(step)
            case Attach():
                yield from self.attach(step)
            case UpdateGeometry():
                yield from self.update_geometry(step)
            case CopyBack():
                yield from in_grad_mode(step.grad_mode, [f"{step.target}{step.through}.copy_({step.source})"])
            case AssignData():
                yield f"{step.target}.data = {step.source}"
            case CallMethod():
                yield self.call_method(step)
            case AsInference():
                yield f"{step.name} = as_inference({step.name})"
            case ShareVersion():
                yield f"{step.name} = sharing_version({step.name}, {step.saved})"
            case AliasBase():
                yield f"{step.name} = memory_alias({step.member}, {step.start_bytes}, {step.numel})"
            case MakeAlias():
                yield f"{step.name} = {step.target}.detach()"
            case KeepHistory():
                yield from in_grad_mode(step.grad_mode, [f"{step.name} = history_of({step.target})"])
            case SetVersion():
                yield f"raise_version({step.target}, version_{step.target}, {step.bumps})"
            case StartVersion():
                yield f"raise_version({step.name}, 0, {step.version})"
            case MakeView():
                yield from self.make_view(step)
            case RestoreGradMode():
                yield f"set_grad_enabled({step.enabled})"
            case ReturnValue():
                pass

    def forward(self, step: Forward) -> Iterator[str]:
        yield f"inputs = [{', '.join(step.inputs)}]"
        if step.release:
            yield f"del {', '.join(step.release)}"
        if step.random_devices:
            yield f"state = random_state({step.random_devices!r})"
        results = f"{tuple_of(step.results)} = " if step.results else ""
        call = f"{results}below_autograd(forward, inputs)"
        yield from ["with disable_autocast():", f"    {call}"] if step.autocast else [call]

    def attach(self, step: Attach) -> Iterator[str]:
        details = yield from self.details(step)
        arguments = (step.backward, f"({tuple_of(step.outputs)})", f"({tuple_of(step.saved)})", "recomputation", details)
        has_sentinel = needs_sentinel(len(step.inputs))
        inputs = ("sentinel", *step.inputs) if has_sentinel else step.inputs
        attach = "attach_many" if has_sentinel and step.inputs else "attach"
        call = f"{tuple_of(step.outputs)} = {attach}({', '.join((*arguments, *inputs))})"
        yield from in_grad_mode(step.grad_mode, [call])

    def details(self, step: Attach) -> Generator[str, None, str]:
        """What of a call no schedule can know: symbolic sizes and layouts, and results that are watched."""
        layouts = tuple((layout.size, layout.stride) for layout in step.tangents)
        results = [f"({name}.detach(), {self.version(name)}, {nodes})" for name, nodes in step.watched_results]
        results += [f"({name}.detach(), version_{name} + {bumps}, {nodes})" for name, nodes, bumps in step.watched_members]
        symbolic = any(torch_compat.is_symbolic_value(number) for layout in layouts for part in layout for number in part)
        if not (results or step.sizes or symbolic or step.memory):
            return "None"
        text, bindings = self.render(layouts)
        yield from bindings
        arguments = [f"({tuple_of(step.sizes)})", text if symbolic else "None"]
        arguments += [f"({tuple_of(results)})"] if results or step.memory else []
        arguments += [f"({tuple_of(step.memory)})"] if step.memory else []
        return f"CallDetails({', '.join(arguments)})"

    def keep_inputs(self, step: KeepInputs) -> str:
        state = "state" if self.draws_random_numbers() else "None"
        versions = {name: self.version(name) for name in self.fakes.keys() - step.mutated}
        versions |= {name: f"version_{name} + {bumps}" for name, bumps in step.watched}
        texts = [(name, versions.get(name, "None")) for name in step.primals]
        kept = tuple_of([f"{name}.clone()" if name in step.asked else name for name in step.primals])
        return f"recomputation = Recomputation(({kept}), [{', '.join(asked_together(texts))}], {state})"

    def make_cut(self, step: MakeCut) -> Iterator[str]:
        size, bindings = self.render(step.size)
        yield from bindings
        yield f"{step.name} = stand_in({size}, {step.dtype}, {str(step.device)!r})"

    def draws_random_numbers(self) -> bool:
        return any(isinstance(step, Forward) and step.random_devices for step in self.schedule.steps)

    def update_geometry(self, step: UpdateGeometry) -> Iterator[str]:
        geometry = (step.geometry.size, step.geometry.stride, step.geometry.offset)
        text, bindings = self.render(geometry)
        yield from bindings
        call = f"{step.target}.as_strided_{text}"
        yield from in_grad_mode(step.grad_mode, [call])

    def call_method(self, step: CallMethod) -> str:
        names = [f"hook_{self.hooks + k}" for k in range(len(step.arguments))]
        self.hooks += len(names)
        return f"{step.name}.{step.method}({', '.join(names)})"

    def make_view(self, step: MakeView) -> Iterator[str]:
        base, views, lines = step.base, step.replay.steps, []
        if step.pieces is not None:
            if step.pieces.name not in self.bound:
                self.bound.add(step.pieces.name)
                lines += self.view_calls(step.pieces.name, base, step.pieces.steps)
            count = len(step.pieces.steps)
            base, views = f"{step.pieces.name}[{views[count - 1].item}]", views[count:]
            lines += [] if views else [f"{step.name} = {base}"]
        yield f"# {step.replay.reason}"
        yield from in_grad_mode(step.replay.grad_mode, [*lines, *self.view_calls(step.name, base, views)])
        if step.is_leaf:
            yield f"{step.name}.requires_grad_()"

    def view_calls(self, name: str, base: str, views: Sequence[ViewStep]) -> Iterator[str]:
        """The lines that make the views of a chain, one after the other."""
        for view in views:
            text, bindings = self.view_call(base, view)
            yield from bindings
            yield f"{name} = {text}"
            base = name

    def view_call(self, base: str, view: ViewStep) -> tuple[str, list[str]]:
        arguments, bindings = [], []
        for name, value in [*(("", arg) for arg in view.args), *view.kwargs]:
            text, bound = self.render(value)
            arguments.append(f"{name}={text}" if name else text)
            bindings.extend(bound)
        item = "" if view.item is None else f"[{view.item}]"
        method = None if view.kwargs else VIEW_METHODS.get(str(view.op))
        if method is not None:
            return f"{base}.{method}({', '.join(arguments)}){item}", bindings
        return f"{op_text(view.op)}({', '.join((base, *arguments))}){item}", bindings

    def returned(self, step: ReturnValue) -> str:
        if step.is_name:
            return step.value
        self.constants += 1
        return repr(step.value) if type(step.value) in LITERALS else f"constant_{self.constants - 1}"

    # -- symbolic sizes

    def render(self, value: Any) -> tuple[str, list[str]]:
        """Python text of a (nested) value, and the lines that bind the symbols in it."""
        bindings: list[str] = []
        return self._render(value, bindings), bindings

    def _render(self, value: Any, bindings: list[str]) -> str:
        if isinstance(value, tuple):
            return f"({tuple_of([self._render(item, bindings) for item in value])})"
        if isinstance(value, list):
            return f"[{', '.join(self._render(item, bindings) for item in value)}]"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            text, symbols = torch_compat.symbolic_text(value)
            for symbol in symbols:
                self.bind(symbol, bindings)
            return text
        return repr(value)

    def bind(self, symbol: str, bindings: list[str]) -> None:
        if symbol not in self.bound:
            self.bound.add(symbol)
            bindings.append(f"{symbol} = {find_symbol(symbol, self.schedule.fakes)}")


def asked_together(versions: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The texts of versions by name, with one question for many tensors in a row.

    >>> list(asked_together([("a", "a._version"), ("b", "None")]))
    ['a._version', 'None']
    """
    for is_plain, run in itertools.groupby(versions, lambda pair: pair[1] == f"{pair[0]}._version"):
        names, texts = zip(*run, strict=True)
        yield from [f"*versions_of(({', '.join(names)}))"] if is_plain and len(names) >= MANY else texts


def make_base(step: MakeBase) -> Iterator[str]:
    yield f"{step.name} = synthetic_base({step.member}, {step.start_bytes}, {step.nbytes}, {step.dtype})"
    if step.root is not None:
        yield f"{step.name} = attached_base({step.root}, {step.name})"


def find_symbol(symbol: str, fakes: Sequence[tuple[str, Any]]) -> str:
    """Where the value of a symbol can be read at run time.

    Raises:
        UnsupportedAliasingError: if nowhere: the graph reads it from a tensor.
    """
    for name, value in fakes:
        for text, size in size_expressions(name, value):
            if torch_compat.is_symbol(size, symbol):
                return text
    raise UnsupportedAliasingError(
        f"an output is a view whose size or place depends on the value of a tensor ({symbol}); return a clone() of it"
    )


def size_expressions(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Everything of a named value that may be a symbol, with its Python text."""
    if not isinstance(value, torch.Tensor):
        yield name, value
        return
    for dim, size in enumerate(value.size()):
        yield f"{name}.size({dim})", size
    for dim, stride in enumerate(torch_compat.strides(value)):
        yield f"{name}.stride({dim})", stride
    if value.layout is torch.strided:
        yield f"{name}.storage_offset()", value.storage_offset()


def in_grad_mode(mode: bool | None, lines: Sequence[str]) -> Iterator[str]:
    if mode is None:
        yield from lines
        return
    yield f"with set_grad_enabled({mode}):"
    yield from (f"    {line}" for line in lines)


def op_text(op: torch._ops.OpOverload) -> str:
    namespace, _, _ = op._schema.name.partition("::")
    return str(op) if namespace == "aten" else f"torch.ops.{op}"


def tuple_of(items: Sequence[str]) -> str:
    return ", ".join(items) + ("," if len(items) == 1 else "")
