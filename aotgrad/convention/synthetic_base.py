"""Overlapping inputs, one of them mutated: the graph gets the memory that they share, and makes each of them from it.

    t = torch.zeros(4); f(t[:3], t[1:])         graph inputs: a flat base of 4 elements
                                                arguments: as_strided(base, [3], [1], 0), as_strided(base, [3], [1], 1)

Functionalization then sees that a write to one argument is a write to the others. If gradients flow, the base is a function
of the tensor that the arguments are views of, so that tensor gets the gradients.

Known limits: one dtype per group, or nested strides; one differentiable tensor per group; sizes in a group are static.
The name is that of PyTorch's AOTAutograd (synthetic bases, pytorch#84535).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from aotgrad import torch_compat
from aotgrad.convention.geometry import nested_steps, reinterpret_steps, step, strided_steps
from aotgrad.convention.sharing import Family, Group, MemorySharing, root_of
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.ir import CallingConvention, InputSpec, MemberInput, SymInput, SyntheticBase, ViewStep
from aotgrad.torch_compat import FakeTensorMode


def share_memory(
    convention: CallingConvention, args: Sequence[Any], sharing: MemorySharing, mode: FakeTensorMode
) -> CallingConvention:
    """The convention under which the trace sees the memory that `args` share.

    Args:
        convention: a plain one, with an input per argument.
        args: the arguments, real or fake.
        sharing: of these arguments.
        mode: the mode of the inputs' fake tensors.

    Raises:
        UnsupportedAliasingError: an argument cannot be made from the memory that it shares.
    """
    grouped = [index for group in sharing.groups for index, _ in group.starts]
    alone = [index for index in range(len(args)) if index not in grouped]
    first_member = len(alone) + len(sharing.groups)
    position = {index: k for k, index in enumerate(alone)} | {index: first_member + k for k, index in enumerate(grouped)}
    kept = [replace(convention.inputs[index], name=f"primals_{k + 1}") for k, index in enumerate(alone)]
    bases, members = [], []
    for base_position, group in enumerate(sharing.groups, start=len(alone)):
        base = make_synthetic_base(f"primals_{base_position + 1}", group, args, position, mode)
        bases.append(base)
        members += make_members(group, args, convention.inputs, base, base_position)
    named = [replace(member, name=f"member_{k + 1}") for k, member in enumerate(members)]
    versions = tuple(tuple(position[index] for index in inputs) for inputs in sharing.counters)
    return CallingConvention((*kept, *bases, *named), tuple(position[index] for index in range(len(args))), versions)


def attached_family(group: Group) -> Family:
    """The family whose gradients flow to the base; the first one if none requires grad."""
    return next((family for family in group.families if family.requires_grad), group.families[0])


def make_synthetic_base(
    name: str, group: Group, args: Sequence[Any], position: Mapping[int, int], mode: FakeTensorMode
) -> SyntheticBase:
    """The base of a group. At run time it is made from a member."""
    family = attached_family(group)
    root = root_of(args[family.root]) if family.through_base else args[family.root]
    if group.nbytes % root.element_size() or (family.requires_grad and (root.is_conj() or root.is_neg())):
        refuse(group, "their memory cannot be seen as one tensor")
    with mode:
        fake = torch.empty(group.nbytes // root.element_size(), dtype=root.dtype, device=root.device)
    start = -dict(group.starts)[family.root]
    is_leaf = root_of(root).is_leaf  # autograd forbids writes to a view of a leaf, too
    return SyntheticBase(name, fake, family.requires_grad, is_leaf, False, position[family.root], start, family.through_base)


def make_members(
    group: Group, args: Sequence[Any], inputs: Sequence[InputSpec], base: SyntheticBase, base_position: int
) -> list[MemberInput]:
    """The arguments of a group, as views of its base."""
    family_of = {index: number for number, family in enumerate(group.families) for index in family.members}
    attached = attached_family(group)
    members = []
    for index, start in group.starts:
        is_attached = base.requires_grad and index in attached.members
        views = views_of(args[index], start, base.fake, is_attached)
        if views is None:
            refuse(group, f"input {index} cannot be made from that memory by views")
        if torch_compat.is_forbidden_after_a_write(args[index]):
            refuse(
                group,
                f"autograd forbids the use of input {index} then: it is a view made under no_grad, or one of several views",
            )
        spec, family = inputs[index], family_of[index]
        assert not isinstance(spec, SymInput), "it has memory"
        members.append(MemberInput(spec.name, spec.fake, spec.requires_grad, base_position, family, is_attached, views))
    return members


def views_of(member: torch.Tensor, start: int, base: torch.Tensor, attached: bool) -> tuple[ViewStep, ...] | None:
    """The view ops that make a member from the flat base, where it starts at byte `start`; `None` if there are none."""
    size, stride = tuple(map(int, member.size())), tuple(map(int, member.stride()))
    offset, misaligned = divmod(start, member.element_size())
    lazy = (step(torch_compat.CONJUGATE),) if member.is_conj() else ()
    lazy += (step(torch_compat.NEGATE),) if member.is_neg() else ()
    if member.dtype == base.dtype:
        return None if misaligned else (*strided_steps(size, stride, offset), *lazy)
    length, cut = divmod(int(base.numel()) * base.element_size(), member.element_size())
    cells = None if misaligned or cut else nested_steps(size, stride, offset, length)
    if cells is None:
        return None
    return (*reinterpret_steps(base.dtype, member.dtype, attached and member.requires_grad), *cells, *lazy)


def refuse(group: Group, why: str) -> NoReturn:
    """Raise UnsupportedAliasingError, with the arguments of the group."""
    indices = ", ".join(str(index) for index, _ in group.starts)
    raise UnsupportedAliasingError(
        f"inputs {indices} share memory and one of them is mutated, but {why}; pass clones of the others"
    )
