"""A plan of this process -> an entry for a file, as plain data.

In: a `CachedPlan`. Out: a `ShippedPlan` in plain data; its code is made when it is revived once in this process.

Raises ShippingError for what has no plain form; the message says what it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.cache.entry import GraphText, GuardedTensor, ShippedPlan, StoredBackward, StoredGuard, StoredVariant
from aotgrad.cache.graphs import Attributes, encode_half, kept_name
from aotgrad.cache.lookup import stored_plan
from aotgrad.cache.restore import joint_digest
from aotgrad.cache.serialize import Encoder, NotSerializable
from aotgrad.convention import MemorySharing
from aotgrad.errors import AOTGradError, ShippingError
from aotgrad.graph.kept_calls import kept_function_of
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.guards.data_dependent import ValueGuard
from aotgrad.ir import GraphHalf, MemberInput, SymInput
from aotgrad.pipeline import CompiledGuard, Executable, SmallGraph, halves_of
from aotgrad.plan_cache.entry import CachedPlan
from aotgrad.runtime.backward import Backward
from aotgrad.shipping.closed_over import SavedTensors, closed_over, kind_and_shape
from aotgrad.slots import SlotSignature


def recorded(plan: CachedPlan, tensors: SavedTensors | None) -> dict[str, Any]:
    """A plan as plain data.

    Args:
        plan: the plan.
        tensors: gets the tensors that the function has closed over; `None`: there must be none.

    Raises:
        ShippingError: a part of it cannot be saved.
    """
    made = plan.executable
    if not isinstance(made, Executable):
        raise ShippingError("it was loaded from a file: copy that file")
    reject_unshippable(plan, made)
    held = closed_over(made)
    if held and tensors is None:
        found = kind_and_shape(next(iter(held.values())))
        raise ShippingError(
            f"it reads a tensor that the function has closed over ({found}): pass it as an argument, or save its present "
            "values with constants=True"
        )
    form = {} if tensors is None else tensors.form_of(held)
    try:
        entry = shipped(plan, made, held)
        encoder = Encoder(custom_ops=True, unbacked=True)
        data = {"entry": encoder.encode(entry), "storages": encoder.storages, "symbols": symbolic_layouts(made)}
    except NotSerializable as error:
        raise ShippingError(f"it contains {error}") from None
    return {**data, "backend": made.compiled.backend, "settings": plan.guards.global_state.described, "closed_over": form}


def with_graphs(plan: CachedPlan) -> CachedPlan:
    """The plan; with graphs, if its function is so small that the function itself runs.

    Raises:
        ShippingError: the function has no graphs.
    """
    small = plan.executable
    if not isinstance(small, SmallGraph):
        return plan
    try:
        made = small.compiled
    except (AOTGradError, NotImplementedError) as error:
        raise ShippingError(f"its function is small and runs itself, and has no graphs: {error}") from error
    for backward in made.backwards:  # which ones are used is not known
        backward.variants.get(backward.variants.full_key())
    facts = dict.fromkeys((*plan.guards.facts, *offset_facts(made, plan.guards.tensors.fakes)))
    return replace(plan, executable=made, guards=replace(plan.guards, facts=tuple(facts)))


def offset_facts(made: Executable, fakes: Sequence[Any]) -> Iterator[tuple[int, str, Any]]:
    """The storage offsets that a plan depends on, as they were in the trace."""
    if made.depends_on_offsets:
        strided = {k: fake.storage_offset() for k, fake in enumerate(fakes) if fake.layout is torch.strided}
        offsets = torch_compat.hints(list(strided.values()))
        yield from ((k, "storage offset", offset) for k, offset in zip(strided, offsets, strict=True))


def reject_unshippable(plan: CachedPlan, made: Executable) -> None:
    """Raises ShippingError."""
    if plan.output.has_wrappers or plan.output.wrappers.needed:
        raise ShippingError("it takes or returns tensor subclasses")
    if any(half.communicates() for half in halves_of(made.partition)):
        raise ShippingError("it communicates with other processes")


def kept_functions(made: Executable) -> set[str]:
    """The functions that the graphs of a plan call whole, by name."""
    nodes = [node for half in halves_of(made.partition) for node in half.module.graph.nodes]
    return {kept_name(function) for node in nodes if (function := kept_function_of(node)) is not None}


def shipped(plan: CachedPlan, made: Executable, held: Attributes) -> ShippedPlan:
    """Raises NotSerializable."""
    guards = plan.guards
    forward, *halves = (text_of_half(half, held) for half in (made.partition.forward, *made.schedule.segments))
    conditions = torch_compat.conditions_since(torch_compat.fake_mode_of(made.joint.module.graph), 0)
    sharing = MemorySharing() if guards.memory is None else guards.memory.sharing
    stored = stored_plan(made, sharing, forward, tuple(halves), joint_digest(made.joint), conditions)
    tensors = zip(guards.tensors.fakes, guards.tensors.flags, guards.tensors.inference, strict=True)
    return ShippedPlan(
        plan=stored,
        dedupe=guards.dedupe,
        tensors=tuple(guarded_tensor(fake, flags, is_inference) for fake, flags, is_inference in tensors),
        facts=guards.facts,
        changes=guards.memory is not None,
        values=None if guards.values is None else stored_guard(guards.values, held),
        output=spec_form(plan.output.spec),
        backwards=tuple(stored_backward(backward, held) for backward in made.backwards),
    )


def stored_backward(backward: Backward, held: Attributes) -> StoredBackward:
    """Raises NotSerializable."""
    variants, full = dict(backward.variants.variants), backward.variants.full
    for ran in (backward.everything_ran, *(frozenset((key,)) for key in variants)) if backward.saves else ():
        backward.saved_needed_later(ran)  # notes what variants that follow need
    return StoredBackward(
        variants=tuple(
            StoredVariant(key, None if each.half is full else text_of_half(each.half, held), each.undefined)
            for key, each in variants.items()
        ),
        needed=tuple(backward.needed_positions.items()),
        is_written_over=backward.variants.run_over is not None,
    )


def guarded_tensor(fake: Any, flags: list[str], is_inference: bool) -> GuardedTensor:
    """Raises NotSerializable."""
    if unknown := set(flags) - {"Parameter", "requires_grad", "conjugate", "negative"}:
        raise NotSerializable(f"an argument of the class {sorted(unknown)[0]}")
    is_parameter, requires_grad = "Parameter" in flags, "requires_grad" in flags
    return GuardedTensor(fake, is_parameter, requires_grad, "conjugate" in flags, "negative" in flags, is_inference)


def text_of_half(half: GraphHalf, held: Attributes) -> GraphText:
    return encode_half(half, held=held, custom_ops=True, unbacked=True)


def stored_guard(guard: ValueGuard, held: Attributes) -> StoredGuard:
    """Raises NotSerializable."""
    compute, values, static = guard.compute, None, frozenset[int]()
    if isinstance(compute, CompiledGuard):
        values, static, compute = text_of_half(compute.values, held), compute.static_inputs, compute.answers
    assert isinstance(compute, fx.GraphModule)
    answers = text_of_half(GraphHalf(without_values(compute), SlotSignature((), ())), held)
    return StoredGuard(guard.level, guard.names, guard.inputs, guard.conditions, guard.draws, values, static, answers)


def without_values(module: fx.GraphModule) -> fx.GraphModule:
    """The module with a graph that has no notes: it only runs."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta = {}
    return LazyGraphModule(module, graph)


def symbolic_layouts(made: Executable) -> list[dict[str, Any]]:
    """The arguments with symbolic sizes: their number, and the layout that they were traced with."""
    found = []
    for index, (spec, _) in enumerate(made.arguments):
        if isinstance(spec, SymInput):
            raise NotSerializable("a symbolic number as an argument")
        if torch_compat.has_symbolic_shape(spec.fake):
            if isinstance(spec, MemberInput):
                raise NotSerializable("symbolic sizes of arguments that share memory which the function changes")
            size, stride = map(torch_compat.hints, (spec.fake.size(), spec.fake.stride()))
            dims = sorted(torch_compat.symbolic_dims(spec.fake))
            found.append({"index": index, "size": size, "stride": stride, "dims": dims})
    return found


# --- Structures of results -------------------------------------------------------------------------------------------


FACTORIES = (bool, dict, float, int, list, set, str, tuple)
"""What a defaultdict in a file may call: torch would import and call whatever the file names."""


RETURN_TYPES: Mapping[str, type] = {
    f"torch.return_types.{kind.__name__}": kind for kind in torch.return_types.all_return_types
}
"""What ops with named results return. Torch gives these types no name as pytrees."""


def name_of_container(kind: type) -> str:
    """The name that leads back to a type of container.

    Raises:
        NotSerializable: there is none. Types that were registered without a name all have the same one.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    if RETURN_TYPES.get(name) is kind:
        return name
    known = pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    if known is None or pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(known.serialized_type_name) is not kind:
        raise NotSerializable(f"a result in a {kind.__qualname__}, which has no name as a pytree")
    return known.serialized_type_name


def spec_form(spec: pytree.TreeSpec | None) -> Any:
    """The structure of a nested value: `None` for a leaf, else its registered type, its context and its parts.

    Raises:
        NotSerializable: a container has no registered name.
    """
    assert spec is not None, "the function was traced"
    if spec.is_leaf():
        return None
    name = name_of_container(spec.type)
    if spec.type is defaultdict and spec.context[0] not in FACTORIES:
        raise NotSerializable("a result in a defaultdict whose factory is no type of Python's own")
    to_plain = pytree.SUPPORTED_SERIALIZED_TYPES[spec.type].to_dumpable_context
    try:
        context = spec.context if to_plain is None else to_plain(spec.context)
    except NotImplementedError:  # a class of named tuples, which is the context of `namedtuple`
        raise NotSerializable(f"a result in a {spec.context.__qualname__}, which has no name as a pytree") from None
    return (name, context, tuple(map(spec_form, spec.children())))


def spec_of_form(form: Any) -> pytree.TreeSpec:
    """The structure of a form. Raises ShippingError if this process does not know one of its types."""
    if form is None:
        return pytree.tree_structure(0)
    name, context, parts = form
    kinds: Mapping[str, type] = {**pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE, **RETURN_TYPES}
    if name not in kinds:
        raise ShippingError(f"a result contains a {name}, which this process does not know: import its library before")
    if kinds[name] is defaultdict and not names_factory(context):
        raise ShippingError(f"the file is not one that aotgrad has written: a defaultdict of {context!r}")
    from_plain = pytree.SUPPORTED_SERIALIZED_TYPES[kinds[name]].from_dumpable_context
    return pytree.TreeSpec(
        kinds[name], context if from_plain is None else from_plain(context), list(map(spec_of_form, parts))
    )


def names_factory(context: Mapping[str, Any]) -> bool:
    """Whether the plain context of a defaultdict names one of `FACTORIES`."""
    names = {kind.__qualname__ for kind in FACTORIES}
    return context["default_factory_module"] == "builtins" and context["default_factory_name"] in names
