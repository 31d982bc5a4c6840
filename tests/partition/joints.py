"""Hand-made joint graphs for the tests of the partition stage; they involve no other stage of aotgrad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad.ir import JointGraph, Partition
from aotgrad.slots import Gradient, Primal, SlotSignature, Tangent, UpdatedInput, UserOutput


def joint_of(
    fn: Callable[..., Any],
    *primals: torch.Tensor,
    static: Sequence[int] = (),
    mutated: Sequence[int] = (),
    dynamic: bool = False,
) -> JointGraph:
    """The joint graph of `fn`, which returns its updated inputs first, one for each index in `mutated`."""
    outputs = _as_tuple(fn(*primals))
    differentiable = [k for k, out in enumerate(outputs) if isinstance(out, torch.Tensor) and out.requires_grad]
    tangents = [torch.ones_like(outputs[k]) for k in differentiable]

    def joint(*args):
        primals, tangents = args[: len(primals_given)], args[len(primals_given) :]
        outputs = _as_tuple(fn(*primals))
        wanted = [p for p in primals if p.requires_grad]
        roots = [outputs[k] for k in differentiable]
        found = iter(torch.autograd.grad(roots, wanted, tangents, allow_unused=True))
        return (*outputs, *(next(found) if p.requires_grad else None for p in primals))

    primals_given = primals
    module = _functional_graph(joint, [*primals, *tangents], dynamic)
    results = [UpdatedInput(i) for i in mutated]
    results += [UserOutput(k) for k in range(len(outputs) - len(mutated))]
    return as_joint(module, len(primals), results, [results[k] for k in differentiable], static, mutated)


def as_joint(module, num_primals, results, tangents_of, static=(), mutated=()) -> JointGraph:
    """A joint graph around a module whose first `num_primals` placeholders are primals."""
    _rename_placeholders(module, num_primals)
    inputs = (*(Primal(i) for i in range(num_primals)), *(Tangent(of) for of in tangents_of))
    gradients = tuple(Gradient(Primal(i)) for i in range(num_primals))
    signature = SlotSignature(inputs, (*results, *gradients))
    return JointGraph(module, signature, frozenset(static), frozenset(mutated))


def hand_made(
    build: Callable[..., tuple[Sequence[Any], Sequence[Any]]], primals: Sequence[Any], tangents: Sequence[Any], **kwargs
) -> JointGraph:
    """The joint graph of `build(*primals, *tangents) -> (results, gradients)`, traced without autograd."""
    counts = []

    def joint(*args):
        results, gradients = build(*args)
        counts[:] = [len(results)]
        return (*results, *gradients)

    module = make_fx(joint, tracing_mode="fake")(*primals, *tangents)
    results = [UserOutput(k) for k in range(counts[0])]
    return as_joint(module, len(primals), results, results[: len(tangents)], **kwargs)


def run_joint(joint: JointGraph, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    with torch.no_grad():
        return list(fx.Interpreter(joint.module).run(*primals, *tangents))


def run_halves(joint: JointGraph, halves: Partition, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """The joint graph's outputs, computed by the halves; between them mutated inputs are overwritten with garbage."""
    with torch.no_grad():
        count = len(halves.forward.signature.forward_results)
        returned = list(halves.forward.module(*primals))
        results, saved = returned[:count], returned[count:]
        handed = dict(zip(halves.forward.signature.saved, saved, strict=True))
        results = [_snapshot(value) for value in results]
        for index in joint.mutated_inputs:
            primals[index].fill_(17)
        given = dict(zip(joint.signature.tangents, tangents, strict=True))
        inputs = [given[s] if isinstance(s, Tangent) else handed[s] for s in halves.backward.signature.inputs]
        return [*results, *halves.backward.module(*inputs)]


def tangents_for(joint: JointGraph) -> list[torch.Tensor]:
    """Random tangents of the traced shapes."""
    nodes = [node for node in joint.module.graph.nodes if node.op == "placeholder"]
    pairs = zip(nodes, joint.signature.inputs, strict=True)
    values = [node.meta["val"] for node, slot in pairs if isinstance(slot, Tangent)]
    return [torch.randn([int(size) for size in value.shape], dtype=value.dtype) for value in values]


def _snapshot(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def node_names(module: fx.GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes if node.op == "call_function"]


def targets(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def _functional_graph(fn: Callable[..., Any], args: Sequence[Any], dynamic: bool) -> fx.GraphModule:
    mode = "symbolic" if dynamic else "fake"
    plain = [arg.detach() for arg in args]
    return make_fx(functionalize(make_fx(fn, tracing_mode=mode)(*args)), tracing_mode=mode)(*plain)


def _as_tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _rename_placeholders(module: fx.GraphModule, num_primals: int) -> None:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(placeholders):
        name = f"primals_{index + 1}" if index < num_primals else f"tangents_{index - num_primals + 1}"
        node.target = name
        node.name = name
    module.recompile()
