"""Stage results -> the steps that write inputs, set version counters, and keep what a write would destroy.

In: `StageResults`. Out: the steps before autograd saves tensors (versions rise, memory is aliased), and those that write.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.geometry import Geometry
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.ir import InputAliasInfo, InputSpec, MemberInput, SyntheticBase, WriteTime
from aotgrad.runtime.stage_results import StageResults, is_changed, result_name
from aotgrad.runtime.steps import (
    AliasBase,
    CopyBack,
    MakeAlias,
    SetVersion,
    ShareVersion,
    StartVersion,
    Step,
    UpdateGeometry,
)
from aotgrad.runtime.view_steps import ViewSteps
from aotgrad.slots import IntermediateBase, Primal, Saved, UpdatedInput, UserOutput, of_kind


@dataclass(frozen=True)
class VersionSettings:
    """Where the steps that write an input set its version, relative to entry: `None` leaves the version."""

    before: int | None = None
    before_copy: int | None = None
    after: int | None = None


class MutationSteps:
    """The steps that write inputs and set version counters."""

    def __init__(self, results: StageResults, views: ViewSteps) -> None:
        self.results, self.views = results, views
        self.capture, self.meta, self.inputs = results.capture, results.meta, results.inputs
        self.result_nodes = results.result_nodes

    # -- before autograd saves tensors

    def assigned_aliases(self) -> Iterator[MakeAlias]:
        """The old memory of inputs that get another memory: the backward takes it."""
        saved = {slot.name for slot in self.results.saved}
        names = (self.inputs[index] for index in self.capture.assigned)
        return (MakeAlias(f"{name}_before", name) for name in names if name in saved)

    @functools.cached_property
    def moved_inputs(self) -> dict[str, InputAliasInfo]:
        """The inputs whose version rises but whose data stays."""
        infos = zip(self.inputs, self.meta.inputs, strict=True)
        return {name: info for name, info in infos if info is not None and not info.mutation.data and info.version_bumps}

    def moved_versions(self) -> Iterator[Step]:
        """Raise versions before autograd saves a tensor whose data stays: its backward may use it.

        A hidden metadata mutation happens here, so that the gradient has the new shape.
        """
        for name, info in self.moved_inputs.items():
            if Saved(name) in self.results.saved:
                yield MakeAlias(f"{name}_before", name)
            if info.mutation.metadata and info.hidden_from_autograd:
                yield UpdateGeometry(name, self.geometry_for(name), False)
            yield SetVersion(name, info.version_bumps)

    def geometry_for(self, name: str) -> Geometry:
        """What a metadata mutation makes of an input. Its offset usually stays: then any offset may arrive."""
        index = self.inputs.index(name)
        return self.meta.info(index).geometry_after.applied_to(self.capture.fake(index))

    @functools.cached_property
    def saved_updates(self) -> dict[Saved, str]:
        """Saved values that are the new data of an input: the input itself is saved, so that later writes are noticed."""
        if not self.results.has_backward:
            return {}
        nodes = self.result_nodes
        inputs = {nodes[UpdatedInput(i)]: i for i in range(len(self.inputs)) if UpdatedInput(i) in nodes}
        found = {slot: inputs[nodes[slot]] for slot in self.results.saved if nodes[slot] in inputs}
        replaced = ((slot, i) for slot, i in found.items() if self.eager_saves(i) and self.has_layout_of(i, nodes[slot]))
        return {slot: self.inputs[i] for slot, i in replaced}

    def eager_saves(self, index: int) -> bool:
        """Whether eager saves something in the memory of an input; if not, later writes do no harm."""
        primal = placeholder_index(self.capture.inputs[index], index)
        members = [k for k, spec in enumerate(self.capture.inputs) if placeholder_index(spec, k) == primal]
        memory = {Primal(primal), *map(UpdatedInput, members)}
        return not memory.isdisjoint(self.results.joint.saved_in_eager)

    def has_layout_of(self, index: int, node: Any) -> bool:
        """Whether an input, once written, has the layout of the updated value that the backward was traced with."""
        info, fake, value = self.meta.info(index), self.capture.fake(index), node.meta["val"]
        stride = info.geometry_after.stride if info.mutation.metadata else fake.stride()
        same_layout = torch_compat.known_equal(stride, value.stride()) and fake.dtype == value.dtype
        return info.mutation.data and info.version_bumps > 0 and same_layout

    @functools.cached_property
    def saved_bases(self) -> dict[Saved, SyntheticBase]:
        """Saved values that are the new data of a synthetic base: its memory is saved, for the same reason."""
        if not self.results.has_backward:
            return {}
        members = [(i, spec) for i, spec in enumerate(self.capture.inputs) if isinstance(spec, MemberInput)]
        nodes = self.result_nodes
        bases = {memory_owner(nodes[UpdatedInput(i)]): spec.base for i, spec in members if UpdatedInput(i) in nodes}
        found = {slot: bases[nodes[slot]] for slot in self.results.saved if nodes[slot] in bases}
        specs = [(slot, self.capture.inputs[k]) for slot, k in found.items()]
        whole = {slot: base for slot, base in specs if isinstance(base, SyntheticBase) and self.is_whole(nodes[slot], base)}
        return {slot: base for slot, base in whole.items() if self.eager_saves(base.member)}

    def is_whole(self, node: Any, base: SyntheticBase) -> bool:
        """Whether a value has the layout of the flat base, and an alias of the base's member can have it, too."""
        member, value = self.capture.fake(base.member), node.meta["val"]
        bumps = self.meta.info(base.member).version_bumps
        same = value.dtype == base.fake.dtype == member.dtype and value.size() == base.fake.size()
        return bumps > 0 and same and not member.is_conj() and not member.is_neg()

    def rewritten_versions(self) -> Iterator[Step]:
        for name in self.saved_updates.values():
            info = self.meta.info(self.inputs.index(name))
            yield SetVersion(name, info.version_bumps)
            yield MakeAlias(f"{name}_after", name, self.geometry_for(name) if info.mutation.metadata else None)
        for base in self.saved_bases.values():
            member = self.inputs[base.member]
            yield SetVersion(member, self.meta.info(base.member).version_bumps)
            yield AliasBase(f"{base.name}_after", member, base.start_bytes, int(base.fake.numel()))

    def versions_of_saved(self) -> Iterator[ShareVersion]:
        """Saved views of inputs, and results in the memory of a saved value: a backward must notice the caller's writes."""
        if not self.results.has_backward:
            return
        nodes, primals = self.result_nodes, self.results.primal_names
        saved = {slot: memory_owner(nodes[slot]) for slot in self.results.saved if slot.name not in self.inputs}
        for slot, owner in saved.items():
            if owner in primals:
                yield ShareVersion(result_name(slot), primals[owner])
        first = {owner: slot for slot, owner in reversed(saved.items()) if owner not in primals}
        for slot in of_kind(self.results.signature.outputs, (Saved, UserOutput, IntermediateBase)):
            other = first.get(memory_owner(nodes[slot]))
            if other is not None and nodes[slot] is not nodes[other]:
                yield ShareVersion(result_name(slot), result_name(other))

    def started_versions(self) -> Iterator[StartVersion]:
        """Versions of results, before autograd saves them: it remembers their versions."""
        return (StartVersion(result_name(slot), version) for slot, version in self.meta.versions)

    def saved_name(self, slot: Saved) -> str:
        """The variable to save. A saved input is the caller's own tensor, so that autograd watches its version."""
        if slot.name in self.moved_inputs or slot.name in {self.inputs[index] for index in self.capture.assigned}:
            return f"{slot.name}_before"
        if slot in self.saved_updates:
            return f"{self.saved_updates[slot]}_after"
        if slot in self.saved_bases:
            return f"{self.saved_bases[slot].name}_after"
        return slot.name if slot.name in self.inputs else result_name(slot)

    # -- writes

    def time_of(self, index: int) -> WriteTime:
        """When an input is written; all in one memory count as one."""
        times = {self.capture.written.get(k, WriteTime.BEFORE) for k in self.capture.sharing(index)}
        return WriteTime.BOTH if len(times) == 2 else times.pop()

    def mutations(self, written_before: Container[int], end: Sequence[Step]) -> Iterator[Step]:
        """Write the inputs that are not among `written_before`; `end` comes before those that eager writes last."""
        left = [index for index in self.changed if index not in written_before]
        late = [index for index in left if self.time_of(index) is WriteTime.AFTER]
        for index in left:
            if index not in late:
                yield from self.mutate(index, self.meta.info(index))
        yield from end
        for index in late:
            yield from self.mutate(index, self.meta.info(index))

    @functools.cached_property
    def changed(self) -> tuple[int, ...]:
        """The inputs that are written: what is written to one member of a synthetic base, others need not be given."""
        changed = (index for index, info in enumerate(self.meta.inputs) if is_changed(info))
        return tuple(index for index in changed if index not in self.changed_by_others)

    @functools.cached_property
    def changed_by_others(self) -> frozenset[int]:
        """Members of synthetic bases without gradients that only writes to other members change, with version and data."""
        members = [(k, spec) for k, spec in enumerate(self.capture.inputs) if isinstance(spec, MemberInput)]
        found: set[int] = set()
        for base in {spec.base for _, spec in members}:
            group = {k: spec for k, spec in members if spec.base == base and is_changed(self.meta.inputs[k])}
            if any(self.keeps_history(k, spec) for k, spec in group.items()):
                continue
            written = written_views(map(self.updated_node, group))
            targets = {k: spec for k, spec in group.items() if view_of_base(spec) in written}
            if None not in written and written.issubset(map(view_of_base, targets.values())):
                families = {spec.family for spec in targets.values()}
                found.update(k for k, spec in group.items() if k not in targets and spec.family in families)
        return frozenset(found)

    def keeps_history(self, index: int, spec: MemberInput) -> bool:
        """Whether more than the data and the version of a member changes."""
        info = self.meta.info(index)
        return info.mutation.metadata or info.carries_gradient or spec.requires_grad

    def updated_node(self, index: int) -> Any:
        return self.result_nodes.get(UpdatedInput(index))

    def mutate(self, index: int, info: InputAliasInfo) -> Iterator[Step]:
        """Change the geometry of an input, write its new data, and make its version what it is in eager."""
        name = self.inputs[index]
        if name in self.moved_inputs and (info.hidden_from_autograd or not info.mutation.metadata):
            return  # `moved_versions` did it
        copies = UpdatedInput(index) in self.result_nodes
        through = copy_path(self.capture.inputs[index], info)
        versions = self.version_settings(index, info, info.mutation.metadata + (copies and through != ".data"))
        yield from set_version(name, versions.before)
        if info.mutation.metadata:
            mode = False if info.hidden_from_autograd else self.results.node_grad_mode
            yield UpdateGeometry(name, self.geometry_for(name), mode)
            yield from self.views.reshaped_views_of(name)
        yield from set_version(name, versions.before_copy)
        if copies:
            mode = self.results.node_grad_mode if info.carries_gradient else None
            yield CopyBack(name, result_name(UpdatedInput(index)), through, mode)
        yield from set_version(name, versions.after)

    def version_settings(self, index: int, info: InputAliasInfo, bumps: int) -> VersionSettings:
        """Where to set the version of an input, if the steps that write it add `bumps` to it."""
        total = info.version_bumps
        at_copy = total if self.is_written_with_others(index) else None
        if bumps == total and not (bumps and self.has_moved_version(index, info)):
            return VersionSettings(None, at_copy, at_copy)
        # A version that is set after autograd saw the metadata change would make autograd take an old history of a view.
        if info.mutation.metadata and not info.hidden_from_autograd and bumps <= total:
            return VersionSettings(total - bumps, at_copy, at_copy)
        return VersionSettings(None, at_copy, total)

    def has_moved_version(self, index: int, info: InputAliasInfo) -> bool:
        """Whether the version of an input may have risen before the steps that write it."""
        is_shared = isinstance(self.capture.inputs[index], MemberInput) or index in self.shared_versions
        return not info.mutation.data or self.inputs[index] in self.saved_updates.values() or is_shared

    @functools.cached_property
    def shared_versions(self) -> frozenset[int]:
        """The inputs that share their version counter with another input."""
        return frozenset(index for inputs in self.capture.convention.shared_versions for index in inputs)

    def is_written_with_others(self, index: int) -> bool:
        """Whether an input and other views of one tensor are written: all recreate their history after the last write.

        A view does that if its version differs from the version at its own last write.
        """
        spec = self.capture.inputs[index]
        if UpdatedInput(index) not in self.result_nodes or not isinstance(spec, MemberInput) or not spec.attached:
            return False
        written = [self.capture.inputs[slot.index] for slot in of_kind(self.results.signature.outputs, UpdatedInput)]
        return sum(isinstance(other, MemberInput) and other.base == spec.base and other.attached for other in written) > 1


def set_version(name: str, bumps: int | None) -> Iterator[SetVersion]:
    if bumps is not None:
        yield SetVersion(name, bumps)


def view_of_base(member: MemberInput) -> tuple[Any, ...] | None:
    """Size, stride and offset of a member in its base; `None` if it is not one strided view."""
    (*_, view) = member.views
    return geometry_of(view.args) if len(member.views) == 1 and view.op is torch.ops.aten.as_strided.default else None


def geometry_of(args: Sequence[Any]) -> tuple[Any, ...]:
    size, stride, *offset = args
    return tuple(size), tuple(stride), *(offset or (0,))


def written_views(updated: Iterable[Any]) -> set[tuple[Any, ...] | None]:
    """The views of a base that a graph writes, found from its members' new values. `None` is a write of another kind."""
    found: set[tuple[Any, ...] | None] = set()
    for node in map(memory_owner, updated):
        while isinstance(node, fx.Node) and node.target is torch.ops.aten.as_strided_scatter.default:
            base, _, *geometry = node.args
            found.add(geometry_of(geometry))
            node = base
        if not isinstance(node, fx.Node) or node.op != "placeholder":
            found.add(None)
    return found


def placeholder_index(spec: InputSpec, index: int) -> int:
    """The placeholder that input `index` is made of."""
    return spec.base if isinstance(spec, MemberInput) else index


def copy_path(spec: Any, info: InputAliasInfo) -> str:
    """How new data is written, so that autograd and the version counter see what they see in eager."""
    if info.version_bumps == 0:
        return ".data"
    return ".detach()" if info.hidden_from_autograd and spec.requires_grad else ""
