"""Records calls of functions that are not traced, and finds those that cannot be.

    found = untraceable_function(error)                          (NumpySin, "it turns a tensor into a NumPy array")
    capture_function(..., islands=Islands({NumpySin: ...}, real_inputs))

A trace that raises within a custom op or an autograd function is repeated with that op or function as an eager call. The
form of its results is learnt on the values of this call: the nodes that lead to its arguments run on the real inputs.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.capture.outside_memory import OutsideMemoryUses
from aotgrad.capture.recorder import Recorder, printed_line, user_stack_trace
from aotgrad.capture.undo import OutsideTensors, restored_assignments, restored_tensors, restored_values
from aotgrad.capture.values import Prologue, fake_of, node_of
from aotgrad.eager_calls.call import KNOWN, Differentiation, EagerCall, Invocation
from aotgrad.eager_calls.forms import DenseForm, FormOfGradient, SizeNumbers, Structure
from aotgrad.eager_calls.mark import Untraced, recorded_applications, recorded_by
from aotgrad.eager_calls.modules import modules_among, tensors_of_modules, without_assignments
from aotgrad.eager_calls.ops import CALL, Recorded, SizedCall, called_by
from aotgrad.eager_calls.wrappers import WrapperParts, tensors_in_parts
from aotgrad.errors import CaptureError, EagerCallError
from aotgrad.graph.copies import copy_node
from aotgrad.ir import CallingConvention


@dataclass(frozen=True)
class Islands:
    """The functions that a trace records as eager calls, besides marked ones, each with the reason.

    `functions` are custom ops and classes of autograd functions. `arguments` are the real ones, on which forms are learnt.
    `examples`: what was computed of them, by trace.
    """

    functions: Mapping[Any, str]
    arguments: list[torch.Tensor]
    examples: list[Examples] = field(default_factory=list)

    @classmethod
    def on(cls, arguments: Sequence[torch.Tensor]) -> Islands:
        """No functions yet. Keeps aliases: while a training step is traced, its parameters hold traced values."""
        return cls({}, [argument.detach() for argument in arguments])

    def with_function(self, function: Any, reason: str) -> Islands:
        return replace(self, functions={**self.functions, function: reason})

    def forget_values(self) -> None:
        """Free the values of the call, when the plan is made."""
        self.arguments.clear()
        for each in self.examples:
            each.forget_values()
        self.examples.clear()

    @property
    def classes(self) -> dict[type[torch.autograd.Function], str]:
        return {each: reason for each, reason in self.functions.items() if isinstance(each, type)}

    @property
    def ops(self) -> dict[Any, str]:
        """The ops, by each name under which they are called."""
        ops = {each: reason for each, reason in self.functions.items() if not isinstance(each, type)}
        return {**ops, **{each.overloadpacket: reason for each, reason in ops.items()}}


class EagerCallRecorder:
    """A handler of calls that records those of `islands` as single ops of the graph."""

    def __init__(
        self, islands: Islands | None, recorder: Recorder, convention: CallingConvention, outside: OutsideMemoryUses
    ) -> None:
        self._islands = islands or Islands.on(())
        self._examples = None if islands is None else Examples(recorder, convention, islands.arguments)
        self._islands.examples.extend([] if self._examples is None else [self._examples])
        self._recorder, self._outside = recorder, outside
        self._ops = self._islands.ops
        self.functions = self._ops.keys()
        self.calls: list[EagerCall] = []

    def handle(self, function: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self.record(Untraced(function, str(function), self._ops[function], function), args, kwargs)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with recorded_by(self.record), recorded_applications(self._islands.classes):
            yield

    def record(self, untraced: Untraced, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The results of a call, which becomes an op of the graph; inside of a transform of `torch.func`, it is traced.

        Raises:
            CaptureError: no real arguments are known, or the function cannot be an op.
        """
        if torch_compat.transform_is_open():
            with recorded_by(None):
                return untraced.function(*args, **kwargs)
        if self._examples is None:
            raise CaptureError(
                f"{untraced.name} is not traced, since {untraced.reason}, at {printed_line(user_stack_trace())}. Only "
                "aot_function, aot_module and train_step run it between compiled graphs; a graph that is exported cannot"
            )
        arguments = WrapperParts.within((args, kwargs))
        leaves, spec = pytree.tree_flatten(arguments)
        leaves = [int(value) if isinstance(value, torch.SymInt) else value for value in leaves]
        state = tensors_of_modules(modules_among(leaves))
        tensors = [*(value for value in leaves if isinstance(value, torch.Tensor)), *state]
        if any(map(torch_compat.is_wrapper_subclass, state)):
            raise CaptureError(
                f"{untraced.name} is not traced, since {untraced.reason}, and gets a module with a tensor subclass as a "
                "parameter or buffer; pass the tensor itself"
            )
        constants = tuple((k, value) for k, value in enumerate(leaves) if not isinstance(value, torch.Tensor))
        distinct = list({id(value): value for value in tensors}.values())
        places = {id(value): k for k, value in enumerate(distinct)}
        positions = tuple(places[id(value)] for value in tensors)
        grad_mode = torch.is_grad_enabled()
        needs = tuple(grad_mode and value.requires_grad for value in distinct)
        autocast = torch_compat.autocast_state()
        called = untraced.function, untraced.name, untraced.reason
        invocation = Invocation(*(*called, spec, constants, positions, needs, grad_mode, autocast))
        parts = tensors_in_parts(arguments)
        sized = self.sized(invocation, None if parts else untraced.fake, distinct)
        if sized.call.touches([places[id(part)] for part in parts]):
            raise CaptureError(
                f"{untraced.name}, which is not traced, changes a tensor subclass in place, or returns memory of one; let "
                "it use a clone()"
            )
        return WrapperParts.assembled(self.perform(sized, distinct))

    def sized(self, invocation: Invocation, fake: Callable | None, tensors: Sequence[torch.Tensor]) -> SizedCall:
        """The call of a function, with symbolic sizes if its fake tells those of its results; else they become constants.

        Raises:
            CaptureError: a fake that a user has given raises, or returns something else than the function.
        """
        examples = functools.partial(map, self.example, tensors)
        numbers = SizeNumbers()
        inputs = tuple(DenseForm.of_traced(tensor, numbers) for tensor in tensors)
        if fake is None or not numbers.values or any(map(torch_compat.has_unknown_sizes, tensors)):
            results = None
        else:
            results = self.fake_results(invocation, fake, tensors)
        if results is not None:
            structure, values = results
            forms = tuple(DenseForm.of_traced(value, numbers) for value in values)
            key = (*invocation.key, inputs, structure, forms)
            if (found := KNOWN.get(key)) is None:
                learnt, hints = self.known(invocation, tensors, examples), torch_compat.hints(numbers.values)
                try:
                    found = learnt.sized(inputs, structure, forms, hints)
                except EagerCallError as error:
                    if fake is not invocation.function:
                        raise CaptureError(str(error)) from error
            if found is not None:
                KNOWN[key] = found
                return SizedCall(found, tuple(numbers.values))
        for tensor in tensors:
            DenseForm.of(tensor)  # a guard: int() of a symbolic size
        return SizedCall(self.known(invocation, tensors, examples))

    def perform(self, sized: SizedCall, tensors: Sequence[torch.Tensor]) -> Any:
        """What a call returns, after the writes that it makes.

        Raises:
            CaptureError: it changes memory that another of its arguments shares.
        """
        call, changed = sized.call, sized.call.changed
        reject_shared_writes(call, tensors)
        self._outside.reject_before(call)
        given = [value.clone() if k in changed else value for k, value in enumerate(tensors)]  # with the old history
        outputs = self.apply(sized, given)
        self._outside.note(call, outputs)
        for k, value in call.new_values(outputs).items():
            call.writes[k].to(tensors[k], value)
        return call.returned(tensors, outputs)

    def differentiate(
        self, sized: SizedCall, tape: torch.Tensor, inputs: Sequence[torch.Tensor], gradients: Sequence[Any]
    ) -> Sequence[torch.Tensor]:
        """The gradients of the inputs of a call that get one, themselves differentiable."""
        call, given = sized.call, [value for value in gradients if value is not None]
        needs = (False, *call.invocation.needs, *(value.requires_grad for value in given))
        invocation = Differentiation(call, tuple(value is not None for value in gradients), needs)

        pairs = zip(map(FormOfGradient.of_form, call.outputs), gradients, strict=True)
        forms = [form for form, value in pairs if value is not None]
        sizes = torch_compat.hints(sized.sizes)

        def examples() -> list[torch.Tensor]:
            assert self._examples is not None
            real_tape = self._examples.value_of(node_of(tape, self._recorder))
            ones = (form.filled(sizes).empty().fill_(1) for form in forms)
            return [real_tape, *(form.filled(sizes).empty() for form in call.inputs), *ones]

        tensors = [tape, *inputs, *given]
        if not sized.sizes:
            return self.apply(SizedCall(self.known(invocation, tensors, examples)), tensors)
        if (found := KNOWN.get(invocation.key)) is None:
            found = self.known(invocation, tensors, examples).with_forms(
                (DenseForm.of(tape), *call.inputs, *forms), call.forms_of_gradients(invocation.defined)
            )
            KNOWN[invocation.key] = found
        return self.apply(SizedCall(found, sized.sizes), tensors)

    def apply(self, sized: SizedCall, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        self.calls.append(sized.call)
        return Recorded.apply(sized, self.differentiate, *tensors)

    def known(
        self,
        invocation: Invocation | Differentiation,
        tensors: Sequence[torch.Tensor],
        make_examples: Callable[[], Iterable[torch.Tensor]],
    ) -> EagerCall:
        """The call with its form, which is learnt once for the same function and arguments of the same forms.

        Raises:
            CaptureError: it is not known, and it cannot be a part of a graph.
        """
        key = (*invocation.key, *map(form_in_call, tensors))
        if (found := KNOWN.get(key)) is not None:
            return found
        with unobserved_run(invocation), explained_closures(invocation.name):
            examples = list(make_examples())
            with OutsideTensors(examples) as outside:
                call = EagerCall.learn(invocation, examples, outside.used)
        KNOWN[key] = call
        self.calls.append(call)
        return call

    def fake_results(
        self, invocation: Invocation, fake: Callable, tensors: Sequence[torch.Tensor]
    ) -> tuple[Structure, list[torch.Tensor]] | None:
        """What a function returns for fakes of its arguments; `None` if its fake does not tell that.

        Raises:
            CaptureError: a fake that a user has given raises.
        """
        try:
            with (
                torch_compat.hidden_tracing_modes(),
                torch_compat.unobserved(),
                torch_compat.ignored_unbacked_symbols(torch_compat.fake_mode_of(self._recorder.graph)),
                recorded_by(None),
                without_assignments(),
                torch_compat.kept_random_states(),
                torch.no_grad(),
            ):
                results = invocation.fake_results(fake, list(map(fake_of, tensors)))
        except Exception as error:
            if fake is invocation.function:  # which a trace cannot see into
                return None
            raise CaptureError(f"the fake of {invocation.name} raises {type(error).__name__}: {error}") from error
        values = () if results is None else results[1]
        is_told = all(isinstance(value, torch.Tensor) and not torch_compat.has_unknown_sizes(value) for value in values)
        return results if is_told else None

    def example(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of a traced tensor in this call, in memory of its own."""
        if torch_compat.any_functional([tensor]):
            assert self._examples is not None
            tensor = self._examples.value_of(node_of(tensor, self._recorder))
        return DenseForm.of(tensor).copy_of(tensor)


def form_in_call(tensor: torch.Tensor) -> DenseForm:
    """The form that a traced tensor has in this call."""
    if torch_compat.has_unknown_sizes(tensor):
        return DenseForm.of(tensor)  # which asks for them
    numbers = SizeNumbers()
    return DenseForm.of_traced(tensor, numbers).filled(torch_compat.hints(numbers.values))


def reject_shared_writes(call: EagerCall, tensors: Sequence[torch.Tensor]) -> None:
    """Raise if a call changes an argument that shares memory with another one.

    Raises:
        CaptureError
    """
    storages = [torch_compat.storage_key(value) for value in tensors]
    if any(storages.count(storages[k]) > 1 for k in call.changed):
        raise CaptureError(
            f"{call.invocation.name}, which is not traced, changes an argument in place, and another argument is a view of "
            "the same memory; pass one of them, and make the other in the function"
        )


class Examples(Prologue):
    """The values of a trace in this call; eager calls run once more for them."""

    def forget_values(self) -> None:
        self._values.clear()

    def _copy(self, node: fx.Node) -> fx.Node:
        if node.target is not CALL:
            return super()._copy(node)
        with unobserved_run(called_by(node).invocation):
            return self._run(copy_node(self.graph, node, self._copies.__getitem__))


@contextlib.contextmanager
def explained_closures(name: str) -> Iterator[None]:
    """Inside, a function runs that is not traced.

    Raises:
        CaptureError: it closes over a traced tensor.
    """
    try:
        yield
    except RuntimeError as error:
        if torch_compat.USED_OUTSIDE not in str(error):
            raise
        raise CaptureError(
            f"{name}, which is not traced, uses a tensor of the function around it that is no argument of it; pass it as an "
            "argument"
        ) from error


@contextlib.contextmanager
def unobserved_run(invocation: Invocation | Differentiation) -> Iterator[None]:
    """Inside, a function runs for real; afterwards, random generators, tensors not its own, and Python values are as before.

    Raises:
        CaptureError: it changes another tensor in a way that has a gradient.
    """
    with (
        torch_compat.bare_evaluation(),
        torch_compat.no_python_dispatcher(),
        torch_compat.unobserved(),
        torch_compat.hidden_saved_tensor_hooks(),
        torch_compat.kept_random_states(),
        restored_tensors(invocation.name),
        restored_assignments(),
        restored_values(invocation.users_values()),
        without_assignments(),
        recorded_by(None),
    ):
        yield


# -- what cannot be traced

REASONS = {
    "no fake impl registered": "it has no fake implementation",
    "UnsupportedOperatorException": "it has no fake implementation",
    "with Meta tensors": "it has no fake implementation",
    "numpy() is not supported": "it turns a tensor into a NumPy array",
    "tolist() shouldn't be called": "it turns a tensor into a list",
    "Cannot access data pointer": "it reads the memory of a tensor",
    "Cannot access storage": "it reads the memory of a tensor",
    "DataDependentOutputException": "it branches on the value of a tensor",
    "GuardOnDataDependentSymNode": "it branches on the value of a tensor",
    "a gradient that arrives only in the backward": "its backward branches on the value of a tensor",
}
"""Parts of the errors of a trace, with their types -> why a function is not traced."""


def untraceable_function(error: BaseException) -> tuple[Any, str] | None:
    """The custom op or autograd function that cannot be traced, and why; `None` if an error has another reason.

    In a backward, the function whose backward it is; else the innermost.
    """
    errors = list(causes_of(error))
    texts = [f"{type(each).__name__}: {each}" for each in errors]
    reason = next((why for part, why in REASONS.items() if any(part in text for text in texts)), None)
    if reason is None:
        return None
    frames = [frame for each in errors for frame, _ in traceback.walk_tb(each.__traceback__)]
    called = [*map(torch_compat.differentiated_in, frames), *map(torch_compat.called_in, reversed(frames))]
    found = next(filter(None, map(users_own, called)), None)
    return None if found is None else (found, reason)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def users_own(found: Any) -> Any:
    """A user's autograd function, or a user's op that only computes its results; `None` for others."""
    op = torch_compat.op_of_formula(found) if isinstance(found, type) else found
    if op is None:
        is_ours = found is None or found.__module__.startswith(("torch.", "aotgrad."))
        return None if is_ours else found
    aliases = any(each.alias_info is not None for each in (*op._schema.arguments, *op._schema.returns))
    return None if aliases or torch_compat.is_built_in(op) or op.namespace == "aotgrad" else op
