"""View chains: the view ops from a base to one of its views, read off the functional graph.

Functionalization regenerates every view from the current value of its base, so the nodes between the two are exactly the
chain to replay at run time.

    x.t()[0]   ->   primals_1 -> t -> select        steps: aten.t.default(), aten.select.int(0, 0)
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad.graph.geometry import Geometry
from aotgrad.ir import ViewReplay, ViewStep
from aotgrad.torch_compat import is_view_by_schema, known_equal

aten = torch.ops.aten
AS_STRIDED = aten.as_strided.default
DETACH = aten.detach.default
ALIAS_STEP = ViewStep(aten.alias.default, (), (), None)
DETACH_STEP = ViewStep(DETACH, (), (), None)
DATA_STEP = ViewStep(aten.data.default, (), (), None)


def parent_in_chain(node: fx.Node) -> tuple[fx.Node, ViewStep] | None:
    """The node that `node` is a view of, and the step between them; `None` if it is no view."""
    if node.op != "call_function":
        return None
    source: Any = node.args[0] if node.args else None
    if node.target is operator.getitem and is_view_by_schema(source.target):
        return source.args[0], _step(source, node.args[1])
    if is_view_by_schema(node.target):
        return source, _step(node, None)
    return None


def _step(node: fx.Node, item: Any) -> ViewStep:
    op: Any = node.target
    args = fx.map_arg(tuple(node.args[1:]), lambda arg: arg.meta["val"])
    kwargs = fx.map_arg(dict(node.kwargs), lambda arg: arg.meta["val"])
    return ViewStep(op, args, tuple(kwargs.items()), item)


def chain_from(node: fx.Node, stops: Collection[fx.Node] = ()) -> tuple[fx.Node, tuple[ViewStep, ...]]:
    """Follow views upwards from `node` to a node in `stops` or to one that is no view; the steps run downwards.

    Several `detach`es in a row become one: some traces record more of them than others.
    """
    steps: list[ViewStep] = []
    indexed = False
    while node not in stops and (found := parent_in_chain(node)) is not None:
        takes_all = is_index_of_all(node)
        indexed |= takes_all
        node, step = found
        if not takes_all and not (steps and step.op is DETACH and steps[-1].op is DETACH):
            steps.append(step)
    return node, tuple(reversed(steps)) if steps or not indexed else (ALIAS_STEP,)


def is_index_of_all(node: fx.Node) -> bool:
    """Whether a node is the part of a multi-part index that takes all of a dimension: eager makes no view for it."""
    if not node.meta.get("indexed") or node.target is not aten.slice.Tensor:
        return False
    given: Any = fx.map_arg(tuple(node.args), lambda arg: arg.meta["val"])
    filled: tuple[Any, ...] = (*given, *(0, None, None, 1)[len(given) - 1 :])
    source, dim, start, end, step = filled
    if start not in (0, None) or step != 1:
        return False
    return end is None or (isinstance(end, int) and end == sys.maxsize) or known_equal([end], [source.size(dim)])


def without_prefix(steps: tuple[ViewStep, ...], prefix: tuple[ViewStep, ...]) -> tuple[ViewStep, ...] | None:
    """The steps after `prefix`, or `None` if `steps` do not start with it."""
    if len(steps) < len(prefix) or not all(map(same_step, steps, prefix)):
        return None
    return steps[len(prefix) :]


def same_step(left: ViewStep, right: ViewStep) -> bool:
    """Whether two view ops are certainly equal, including symbolic sizes."""
    if left.op is not right.op or left.item != right.item:
        return False
    left_leaves, left_spec = pytree.tree_flatten((left.args, left.kwargs))
    right_leaves, right_spec = pytree.tree_flatten((right.args, right.kwargs))
    return left_spec == right_spec and known_equal(left_leaves, right_leaves)


def replay_of_chain(steps: tuple[ViewStep, ...], grad_mode: bool | None) -> ViewReplay:
    return ViewReplay(steps, grad_mode, "recorded view chain")


def replay_by_geometry(
    geometry: Geometry, detached: bool, is_alias: bool, grad_mode: bool | None, reason: str
) -> ViewReplay:
    """The fallback: size, stride and offset within the shared storage.

    A view of a detached tensor is detached first. If `is_alias`, the result itself is a detached tensor and no view.
    """
    steps = [ViewStep(AS_STRIDED, (geometry.size, geometry.stride, geometry.offset), (), None)]
    if detached or is_alias:
        steps.insert(is_alias, DETACH_STEP)
    return ViewReplay(tuple(steps), grad_mode, f"as_strided, because {reason}")


def detaches(steps: tuple[ViewStep, ...]) -> bool:
    return any(step.op is DETACH or step == DATA_STEP for step in steps)


def without_detaches(steps: tuple[ViewStep, ...]) -> tuple[ViewStep, ...]:
    """The steps of a view that autograd tracks: a wrapper subclass detaches its parts, which autograd does not see."""
    return tuple(ALIAS_STEP if step.op is DETACH else step for step in steps)


def with_own_version(steps: tuple[ViewStep, ...], is_view: bool) -> tuple[ViewStep, ...]:
    """The steps with `.data` in place of recorded `detach`es: its result has its own version counter."""
    if any(step.op is DETACH for step in steps):
        return tuple(DATA_STEP if step.op is DETACH else step for step in steps)
    return (DATA_STEP, *steps) if is_view else (*steps, DATA_STEP)
