"""Two autograd functions between a wrapper and its parts, each the other's derivative.

    TakeApart.apply(end, wrapper)       the parts of a wrapper: arguments outside of the graph, results in the trace
    Assemble.apply(end, detour, ...)    a wrapper of parts: arguments in the trace, results outside of the graph

The gradient of a wrapper usually has the form of the wrapper, and the gradient of a part is a part of the gradient. Where it
has another form (a DTensor's placements, a plain tensor), tensors of its own take it: *carriers*, which have the shapes of
its parts and no other use.

Compiled autograd records each backward as one call, which Dynamo does not trace: it only runs it for fake tensors.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from aotgrad import torch_compat
from aotgrad.errors import CaptureError, HigherOrderError
from aotgrad.subclasses.forms import TensorForm, WrapperForm, form_of, frozen_context, parts_of, paths_of

if TYPE_CHECKING:
    from aotgrad.subclasses.relative import RelativeForm


@dataclass(frozen=True)
class PartSpec:
    """What autograd knows of a part of a gradient."""

    size: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, part: torch.Tensor) -> PartSpec:
        return cls(tuple(part.size()), part.dtype, part.device)

    def matches(self, other: PartSpec) -> bool:
        """Whether two parts are alike, in the traced call. A size that depends on data may be any."""
        return (self.dtype, self.device) == (other.dtype, other.device) and torch_compat.may_equal(self.size, other.size)


@dataclass(frozen=True)
class GradientForm:
    """The form of a gradient, with its parts."""

    form: TensorForm
    parts: tuple[PartSpec, ...]

    @classmethod
    def of(cls, gradient: torch.Tensor, form: TensorForm | None = None) -> GradientForm:
        form = form or form_of(gradient)
        return cls.of_parts(form, parts_of(form, gradient))

    @classmethod
    def of_parts(cls, form: TensorForm, values: Sequence[torch.Tensor]) -> GradientForm:
        """Of a gradient of that form and these parts; cached ones, which come last, do not count."""
        form = form.without_cached_parts()
        parts = tuple(map(PartSpec.of, values[: form.count]))
        if isinstance(form, WrapperForm) and form.is_expanded:
            form = form.made_contiguous()
        return cls(form, parts)

    @property
    def key(self) -> Hashable:
        return (self.form.key, tuple((frozen_context(part.size), part.dtype, part.device) for part in self.parts))

    @property
    def size(self) -> tuple[int, ...]:
        """Of the gradient."""
        return self.form.size if isinstance(self.form, WrapperForm) else self.parts[0].size

    def numbers(self) -> Iterator[Any]:
        """The symbolic sizes and strides of the form, and the sizes of the parts."""
        yield from self.form.symbols()
        for part in self.parts:
            yield from part.size

    def is_known_from(self, numbers: Collection[str]) -> bool:
        """Whether each symbolic number is one of these, by its expression."""
        return all(str(number) in numbers for number in self.numbers() if isinstance(number, torch.SymInt))

    @property
    def is_symbolic(self) -> bool:
        return any(isinstance(number, torch.SymInt) for number in self.numbers())

    def for_result(self, result: GradientForm) -> GradientForm:
        """The form itself, which has certain sizes; see `RelativeForm`."""
        return self

    def sized_by(self, numbers: Mapping[str, int]) -> GradientForm:
        """The form with the values of symbolic numbers, by their expressions."""
        parts = (replace(part, size=tuple(numbers.get(str(each), each) for each in part.size)) for part in self.parts)
        return GradientForm(self.form.resized(numbers[str(each)] for each in self.form.symbols()), tuple(parts))

    def with_fixed_sizes(self) -> GradientForm:
        """The form with the sizes of this trace in place of symbolic ones, which the trace then depends on."""
        parts = tuple(replace(part, size=tuple(map(int, part.size))) for part in self.parts)
        return GradientForm(self.form.resized(map(int, self.form.symbols())), parts)

    def with_hints(self) -> GradientForm:
        """The form with the values of symbolic numbers while tracing; adds no guard."""
        parts = tuple(replace(part, size=torch_compat.hints(part.size)) for part in self.parts)
        return GradientForm(self.form.resized(iter(torch_compat.hints(tuple(self.form.symbols())))), parts)

    def matches(self, other: GradientForm) -> bool:
        """Whether gradients of both forms differ at most in their strides."""
        alike = len(self.parts) == len(other.parts) and all(map(PartSpec.matches, self.parts, other.parts))
        return alike and self.form.layout_free_key == other.form.layout_free_key


class OtherGradientForm(CaptureError):
    """A trace computes a gradient of another form than it was told: it is repeated with that form.

    Attributes:
        result: the usual form for a result.
    """

    def __init__(self, index: int, form: GradientForm, result: GradientForm | None = None) -> None:
        name = f"{'tensor' if result is None else 'result'} {index}"
        super().__init__(f"the gradient of {name} is a {form.form.name}, and has another form in each trace")
        self.index, self.found, self.result = index, form, result

    @property
    def of_result(self) -> bool:
        return self.result is not None

    @functools.cached_property
    def form(self) -> GradientForm:
        """With the sizes of the trace."""
        return self.found.with_fixed_sizes()


@dataclass
class End:
    """One tensor at the boundary.

    Attributes:
        name: for errors, as "argument 0".
        index: of the argument or result.
        form: of the tensor.
        requires_grad: the tensor requires grad.
        carried: the form of its gradient, if carriers take it.
        gradient: the form of its gradient, as the trace has found it.
        is_confirmed: a result has had a gradient of the form that the trace has assumed.
        is_traced: the trace is running.
        is_leaf, is_parameter: of an argument.
        is_changed: an argument after its change.
        is_passage: a result, or a changed argument, through which gradients of other results pass.
        in_calls: in a trace, the end of the result in calls.
        numbers: the sizes and strides of an argument and its parts, if some are symbolic: what `carried` may depend on.
        relative: `carried` apart from its sizes, if they are those of a result and symbolic in the trace.
    """

    name: str
    index: int
    form: TensorForm
    requires_grad: bool = False
    carried: GradientForm | None = None
    gradient: TensorForm | None = None
    is_confirmed: bool = False
    is_traced: bool = False
    is_leaf: bool = False
    is_parameter: bool = False
    is_changed: bool = False
    is_passage: bool = False
    in_calls: End | None = None
    numbers: tuple[Any, ...] = ()
    relative: GradientForm | RelativeForm | None = None

    @property
    def key(self) -> Hashable:
        """What plans depend on."""
        carried = None if self.carried is None else self.carried.key
        return (self.form.key, self.requires_grad, self.is_leaf, self.is_parameter, carried)

    @property
    def count(self) -> int:
        """The number of parts and carriers."""
        return self.form.count + (0 if self.carried is None else len(self.carried.parts))

    @property
    def flat_count(self) -> int:
        """The number of flat results of a traced function in the place of a result: the symbols of its form, too."""
        return self.count + sum(1 for _ in self.form.symbols())

    @property
    def gradient_form(self) -> TensorForm:
        """The form in which a gradient is assembled."""
        return self.carried.form if self.carried is not None else self.gradient or self.form

    def part_names(self, name: str) -> list[str]:
        """Names for the parts and carriers of a tensor of that name."""
        carried = 0 if self.carried is None else len(self.carried.parts)
        return [*(f"{name}{path}" for path in paths_of(self.form)), *[f"{name} (a carrier)"] * carried]

    def of_gradient(self, form: TensorForm) -> End:
        """The end of a gradient in that form."""
        return End(f"the gradient of {self.name}", 0, form, is_traced=self.is_traced)

    def sized_as(self, wrapper: torch.Tensor) -> End:
        """The end for a wrapper whose sizes are symbolic in the form."""
        if not (self.form.is_symbolic or self.relative):
            return self
        gradient = self.gradient and self.gradient.sized_as(wrapper).laid_out_as(self.gradient)
        carried = self.carried
        if carried is not None and self.numbers:
            carried = carried.sized_by(dict(zip(map(str, self.numbers), numbers_of(self.form, wrapper), strict=True)))
        sized = replace(self, form=self.form.sized_as(wrapper), gradient=gradient, carried=carried)
        return sized.carried_for(parts_of(self.form, wrapper))

    def sized_by(self, numbers: Mapping[str, int], parts: Sequence[torch.Tensor]) -> End:
        """The end for these parts and carriers, and these values of symbolic numbers.

        Raises:
            HigherOrderError: the form has another symbolic number.
        """
        if not self.numbers:
            return replace(self)
        given = [number for part in parts[: self.form.count] for number in (*part.size(), *part.stride())]
        known = {**numbers, **dict(zip(map(str, self.numbers[-len(given) :]), given, strict=True))}
        if unknown := [number for number in map(str, self.form.symbols()) if number not in known]:
            raise HigherOrderError(
                f"create_graph=True has to know {unknown[0]}, a size of {self.name}, a {self.form.name}, which neither its "
                "parts nor other arguments have; compile it with dynamic=False"
            )
        form = self.form.resized(known[str(number)] for number in self.form.symbols())
        return replace(self, form=form, carried=self.carried and self.carried.sized_by(known), gradient=None)

    def resized(self, numbers: Sequence[int], parts: Sequence[torch.Tensor]) -> End:
        """The end for these parts, with `numbers` in place of the symbolic sizes and strides of its form."""
        resized = replace(self, form=self.form.resized(iter(numbers))) if numbers else self
        return resized.carried_for(parts)

    def carrying(self, form: GradientForm | RelativeForm, usual: GradientForm) -> End:
        """The end of a traced result with carriers for a gradient of that form; `usual` is the form without them."""
        carried = form.for_result(usual)
        is_relative = carried is not None and carried.is_symbolic
        return replace(self, carried=carried, relative=form if is_relative else None)

    def carried_for(self, parts: Sequence[torch.Tensor]) -> End:
        """The end of a result with these parts, with their sizes in `carried`."""
        if self.relative is None:
            return self
        carried = self.relative.for_result(GradientForm.of_parts(self.form, parts))
        return replace(self, carried=carried, relative=None)


def numbers_of(form: TensorForm, wrapper: torch.Tensor) -> tuple[Any, ...]:
    """The sizes and strides of a wrapper and of its parts."""
    tensors = (wrapper, *parts_of(form, wrapper))
    return tuple(number for each in tensors for number in (*each.size(), *each.stride()))


class TakeApart(torch.autograd.Function):
    """The parts of a wrapper, then the carriers of its gradient."""

    arrives_whole = is_of_trace = True

    @staticmethod
    def forward(ctx: Any, end: End, wrapper: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.end = end
        ctx.passed = weakref.ref(wrapper) if end.is_passage else None
        own = parts_of(end.form, wrapper)
        parts = [torch_compat.part_with_version(part, wrapper) for part in own]
        fixed = parts  # a part of the wrapper itself, as the offsets of a nested tensor, must not get a history
        if end.carried is None:
            fixed = [part for part, given in zip(parts, own, strict=True) if part is given or not carries_gradient(part)]
        ctx.mark_non_differentiable(*fixed)
        ctx.parts = parts if fixed and end.carried is None else None
        ctx.usual = GradientForm.of(wrapper, end.form) if end.in_calls is not None else None
        return (*parts, *carriers(end))

    @staticmethod
    @torch_compat.disable_dynamo
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, torch.Tensor | None]:
        arrived = gradients if ctx.end.carried is None else gradients[ctx.end.form.count :]
        if all(gradient is None for gradient in arrived):
            return None, None
        return (None, *in_rows(lambda *values: [gradient_of_wrapper(ctx, values)], arrived))


class Assemble(torch.autograd.Function):
    """A wrapper of parts. Its gradient goes to the parts, to the carriers, or by a detour straight to `inputs`.

    Results that a detour passes come last among the values.
    """

    is_of_trace = True

    @staticmethod
    def forward(ctx: Any, end: End, detour: Detour | None, *values: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        parts = values[: end.form.count]
        ctx.end, ctx.detour, ctx.count = end, detour, len(values)
        ctx.differentiable = [carries_gradient(part) and end.carried is None for part in parts]
        wrapper = end.form.assemble(torch_compat.other_objects(parts, end.form.follows_parts))
        ctx.usual = GradientForm.of(wrapper, end.form)
        ctx.expected = end.carried or ctx.usual
        ctx.save_for_backward(*(() if detour is None else detour.inputs))
        return wrapper

    @staticmethod
    @torch_compat.disable_dynamo
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if gradient is None:
            return (None,) * (2 + ctx.count)
        return (None, None, *in_rows(lambda value: gradients_of_values(ctx, value), [gradient]))


def gradient_of_wrapper(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The backward of `TakeApart`, from the gradients of the parts, or of the carriers."""
    if ctx.end.is_leaf and not torch.is_grad_enabled():
        gradients = [None if gradient is None else unshared(gradient) for gradient in gradients]
    return assemble_gradient(ctx.end, gradients, ctx.parts)


def gradients_of_values(ctx: Any, gradient: torch.Tensor) -> list[torch.Tensor | None]:
    """The backward of `Assemble`: the gradients of its parts, carriers and `inputs`."""
    found = GradientForm.of(gradient)
    if not found.matches(ctx.expected):
        return other_gradient(ctx, gradient, found)
    ctx.end.is_confirmed = True
    if ctx.end.is_traced:
        whole = form_of(gradient)  # the argument has its cached parts
        ctx.end.gradient = whole if paths_of(whole) == paths_of(ctx.end.form) else found.form
    values = take_apart(ctx.end.of_gradient(found.form), gradient)
    if not ctx.end.is_traced:
        for value in values:
            mark_shared(value)
    to_parts = [value if wanted else None for value, wanted in zip(values, ctx.differentiable, strict=False)]
    if ctx.end.carried is not None:
        to_parts = [*[None] * ctx.end.form.count, *values]
    return [*to_parts, *[None] * (ctx.count - len(to_parts))]


def in_rows(backward: Callable[..., Sequence[Any]], gradients: Sequence[torch.Tensor | None]) -> Sequence[Any]:
    """The result of a backward. A batch of gradients passes row by row: no form tells where a wrapper has its batch.

    Raises:
        CaptureError: several transforms have wrapped the gradients.
    """
    if not any(map(torch_compat.is_wrapped, gradients)):
        return backward(*gradients)
    vmap = torch_compat.only_vmap(gradients)
    if vmap is None:
        raise CaptureError(
            "a gradient passes a tensor subclass under several transforms of torch.func, or another one than vmap; "
            "differentiate one batch at a time"
        )
    with torch_compat.outside_transforms():
        rows = [backward(*row) for row in zip(*(rows_of(value, vmap) for value in gradients), strict=False)]
        columns = [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    return [None if column is None else vmap.wrap(column) for column in columns]


def rows_of(value: torch.Tensor | None, vmap: torch_compat.Vmap) -> Iterable[torch.Tensor | None]:
    """The rows of a batch; without end, if the value is the same for all rows."""
    if value is None or not torch_compat.is_batched(value):
        return itertools.repeat(value)
    return vmap.unwrap(value).unbind()


@dataclass(frozen=True)
class Detour:
    """How the gradient of a result is computed that has another form than the trace has assumed.

    Attributes:
        inputs: the tensors of the call that require grad.
        gradients: their gradients, and those of `passed`, from these inputs, a result and its gradient.
        passed: the indices of the results that the result was computed from: gradients pass through these.
    """

    inputs: tuple[torch.Tensor, ...]
    gradients: Callable[[Sequence[torch.Tensor], ResultGradient], Sequence[torch.Tensor | None]]
    passed: tuple[int, ...] = ()


@dataclass(frozen=True)
class ResultGradient:
    """The gradient of result `index`, with its usual form; the results `passed` pass on what reaches them."""

    index: int
    value: torch.Tensor
    form: GradientForm
    usual: GradientForm
    passed: tuple[int, ...]


def is_assembled(value: Any) -> bool:
    """Whether a tensor was assembled, with a history."""
    return isinstance(value, torch.Tensor) and torch_compat.is_node_of(value.grad_fn, Assemble)


def other_gradient(ctx: Any, gradient: torch.Tensor, found: GradientForm) -> list[torch.Tensor | None]:
    """The gradients of the inputs of `Assemble` for a gradient of an unexpected form.

    Raises:
        OtherGradientForm: in a trace.
    """
    end: End = ctx.end
    if ctx.detour is None:
        raise OtherGradientForm(end.index, found)
    arrived = ResultGradient(end.index, gradient, found, ctx.usual, ctx.detour.passed)
    inputs = ctx.detour.gradients(ctx.saved_tensors, arrived)
    return [*[None] * (ctx.count - len(inputs)), *inputs]


def edges_of_parts(wrapper: torch.Tensor, count: int) -> list[tuple[int, tuple[Any, int]]]:
    """The edges of the parts that a wrapper was assembled from, or that were copied to it, by position."""
    own: Any = wrapper.grad_fn
    copied = [source for source, _ in own.next_functions[1:2]] if own is not None else []
    node: Any = next((each for each in (own, *copied) if torch_compat.is_node_of(each, Assemble)), None)
    return [] if node is None else list(enumerate(node.next_functions[:count]))


def carries_gradient(part: torch.Tensor) -> bool:
    return part.is_floating_point() or part.is_complex()


def carriers(end: End) -> list[torch.Tensor]:
    """Tensors whose gradients are the parts of the gradient of a wrapper."""
    specs = () if end.carried is None else end.carried.parts
    if end.is_traced:
        return [torch.empty(spec.size, dtype=spec.dtype, device=spec.device) for spec in specs]
    return [torch.empty((), dtype=spec.dtype, device=spec.device).expand(spec.size) for spec in specs]


def mark_shared(part: Any) -> None:
    """Note that a part of a gradient belongs to a tensor: the gradient that arrived, or that of a leaf."""
    part.is_shared_by_gradients = True


def unshared(part: torch.Tensor) -> torch.Tensor:
    """The part of a gradient for a leaf, whose later gradients are added to it in place. Autograd looks at wrappers only."""
    own = part.clone() if getattr(part, "is_shared_by_gradients", False) else part
    if 0 in own.stride() and own.numel() > 1:  # an expanded one
        own = own.contiguous()
    mark_shared(own)
    return own


def histories_kept() -> Any:
    """Inside, a wrapper with a history and its parts stay connected: a function may enable gradients under `no_grad`."""
    return torch.set_grad_enabled(not torch.is_inference_mode_enabled())


def assemble_wrapper(
    end: End, values: Sequence[torch.Tensor], detour: Detour | None = None, passed: Sequence[torch.Tensor] = ()
) -> torch.Tensor:
    """A wrapper of parts and carriers, with a history if one of them has one. `passed` are the results of the detour."""
    if any(value.requires_grad for value in values) and torch.is_grad_enabled():
        return Assemble.apply(end, detour, *values, *(() if detour is None else (*detour.inputs, *passed)))
    parts = values[: end.form.count]
    return end.form.assemble(torch_compat.other_objects(parts, end.form.follows_parts) if end.is_traced else parts)


def take_apart(end: End, wrapper: torch.Tensor) -> Sequence[torch.Tensor]:
    """The parts of a wrapper and its carriers, with a history if it has one."""
    if wrapper.requires_grad and torch.is_grad_enabled():
        return TakeApart.apply(end, wrapper)
    return [*(torch_compat.part_with_version(part, wrapper) for part in parts_of(end.form, wrapper)), *carriers(end)]


def assemble_gradient(
    end: End, gradients: Sequence[torch.Tensor | None], parts: Sequence[torch.Tensor] | None
) -> torch.Tensor:
    """The gradient of a wrapper from those of its parts. Parts without a gradient, as offsets, are those of the wrapper."""
    values = list(gradients) if parts is None else [p if g is None else g for g, p in zip(gradients, parts, strict=True)]
    known = next(value for value in values if value is not None)
    values = [torch.zeros_like(known) if value is None else value for value in values]
    return assemble_wrapper(end.of_gradient(end.gradient_form), values)


# -- compiled autograd


@dataclass(frozen=True)
class RecordedBackward:
    """A backward of tensors alone, as a call in a graph. It holds no tensor, so that one serves the calls of a plan.

    Attributes:
        expected: the form of the gradient that is taken apart; `None` if one is assembled.
        assembled: the form that one is assembled in.
        before, after: how many arguments without a gradient come before the parts, and after them.
        differentiable: which parts get a gradient.
        is_leaf: the gradient is that of a leaf, to which later ones are added in place.
    """

    expected: GradientForm | None
    assembled: TensorForm
    before: int = 0
    after: int = 0
    differentiable: tuple[bool, ...] = ()
    is_leaf: bool = False

    @property
    def key(self) -> Hashable:
        expected = self.expected and (self.expected.key, self.expected.form.layout_free_key)
        return (expected, self.assembled.key, self.before, self.after, self.differentiable, self.is_leaf)

    def take_apart(self, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = GradientForm.of(gradient).with_fixed_sizes()
        if self.expected is None or not found.matches(self.expected):
            raise torch_compat.graph_break(f"a gradient is a {found.form.name} of an unexpected form")
        parts = zip(parts_of(found.form, gradient), self.differentiable, strict=False)
        return (*[None] * self.before, *(part if wanted else None for part, wanted in parts), *[None] * self.after)

    def assemble(self, *gradients: torch.Tensor | None) -> torch.Tensor:
        known = next(gradient for gradient in gradients if gradient is not None)
        parts = [torch.zeros_like(known) if gradient is None else gradient for gradient in gradients]
        return self.assembled.assemble([part.clone() for part in parts] if self.is_leaf else parts)


_in_graphs: dict[Hashable, Callable] = {}
"""The functions of backwards by what they depend on: Dynamo guards the function of a node as an object."""


def in_graph(backward: RecordedBackward) -> Callable:
    if backward.key not in _in_graphs:
        method = backward.assemble if backward.expected is None else backward.take_apart
        _in_graphs[backward.key] = torch_compat.called_in_graph(method)
    return _in_graphs[backward.key]


class RecordedTakeApart(TakeApart):
    """A node whose backward compiled autograd records."""

    @staticmethod
    @torch_compat.hide_from_dynamo
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, torch.Tensor | None]:
        if not torch.compiler.is_compiling() or all(gradient is None for gradient in gradients[ctx.first :]):
            return cast(Any, TakeApart.backward)(ctx, *gradients)
        return None, ctx.in_graph(*gradients[ctx.first :])


class RecordedAssemble(Assemble):
    """A node whose backward compiled autograd records."""

    @staticmethod
    @torch_compat.hide_from_dynamo
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if not torch.compiler.is_compiling() or gradient is None:
            return cast(Any, Assemble.backward)(ctx, gradient)
        return (None, None, *ctx.in_graph(gradient))


def hand_over_take_apart(ctx: Any) -> type[torch.autograd.Function]:
    end: End = ctx.end
    if is_call(end) or ctx.parts is not None:
        return TakeApart
    ctx.first = 0 if end.carried is None else end.form.count
    ctx.in_graph = in_graph(RecordedBackward(None, end.gradient_form, is_leaf=end.is_leaf))
    return RecordedTakeApart


def hand_over_assemble(ctx: Any) -> type[torch.autograd.Function]:
    end: End = ctx.end
    if is_call(end):
        return Assemble
    before = 0 if end.carried is None else end.form.count
    differentiable = tuple(ctx.differentiable) if end.carried is None else (True,) * len(end.carried.parts)
    after = ctx.count - before - len(differentiable)
    ctx.in_graph = in_graph(RecordedBackward(ctx.expected, end.form, before, after, differentiable))
    return RecordedAssemble


def is_call(end: End) -> bool:
    """Whether a backward stays a call outside of the graph: it creates a graph, or its forms differ between calls."""
    return torch.is_grad_enabled() or end.form.follows_parts or end.form.is_symbolic


for function, hand_over in ((TakeApart, hand_over_take_apart), (Assemble, hand_over_assemble)):
    torch_compat.set_defaults(function, in_graph=None, first=0)
    torch_compat.compile_nodes_of(function, hand_over, lambda ctx: ())
