"""`aot_export_module(..., pre_dispatch=True)`: a functional graph of ops before autograd and autocast.

In: a module that was traced as usual. Out: a graph with its signature, which eager autograd can differentiate. Composite ops
such as `linear` stay; regions without gradients and with autocast are calls that begin and end them.

At this level torch records what is called, not what autograd makes of it: for instance, no result requires grad. So the
graph is traced through autograd, as the module is. If the two joint graphs differ in the backward alone, as they do after a
write to a view, the module and the graph run once for the given arguments, and must have the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn

from aotgrad import torch_compat
from aotgrad.errors import ExportError
from aotgrad.export.trace import joint_plan
from aotgrad.graph import op_table
from aotgrad.graph.equality import value_numbers
from aotgrad.ir import TensorInput
from aotgrad.pipeline import Compiler, TracedJoint
from aotgrad.plan_cache.binding import PlainFunction, module_call
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.plan_cache.module_state import LiftedModule
from aotgrad.slots import Gradient


@dataclass(frozen=True)
class FunctionOfInputs:
    """A module as a function of the inputs of its trace.

    Attributes:
        function: takes what `rebuild` makes of the tensors of a call.
        positions: the input that each tensor of a call is.
        mutated: the inputs with changed data.
    """

    function: Callable
    rebuild: Callable[[Sequence[Any]], tuple[tuple, dict[str, Any]]]
    positions: Sequence[int]
    mutated: Sequence[int]

    @classmethod
    def of(
        cls, module: nn.Module, args: tuple, kwargs: dict[str, Any], positions: Sequence[int], mutated: Sequence[int]
    ) -> FunctionOfInputs:
        lifted = LiftedModule(module)
        arguments, _ = module_call(lifted, module, args, kwargs)
        return cls(lifted.forward, arguments.rebuild, positions, mutated)

    def __call__(self, *inputs: Any) -> list[Any]:
        """The new values of the mutated inputs, then the outputs."""
        args, kwargs = self.rebuild([inputs[index] for index in self.positions])
        outputs = pytree.tree_leaves(self.function(*args, **kwargs))
        return [*(inputs[index] for index in self.mutated), *outputs]


def trace_before_autograd(
    flat: FunctionOfInputs, traced: TracedJoint, decompositions: Mapping[Any, Callable]
) -> fx.GraphModule:
    """The graph of a module before autograd: a placeholder for each input of its trace, which are all tensors.

    Raises:
        ExportError: torch cannot trace the module at this level.
    """
    inputs = [spec for spec in traced.capture.inputs if isinstance(spec, TensorInput)]
    fakes, wanted = [spec.fake for spec in inputs], [spec.requires_grad for spec in inputs]
    mode = torch_compat.fake_mode_of(traced.joint.module.graph)
    try:
        with COMPILING:
            module = torch_compat.graph_before_autograd(flat, fakes, wanted, mode, decompositions)
    except Exception as error:
        raise ExportError(f"torch cannot trace this module before autograd ({error}); {INSTEAD}") from error
    module.graph.eliminate_dead_code(lambda node: node.is_impure() or op_table.is_kept_when_dead(node.target))
    return module


def check_before_autograd(
    flat: FunctionOfInputs, module: fx.GraphModule, inputs: Sequence[torch.Tensor], compiler: Compiler
) -> None:
    """Check that a graph computes what the module does, and that autograd makes the same of it.

    Raises:
        ExportError
    """
    known: dict[Hashable, int] = {}
    functions = Copying(flat, flat.mutated), Copying(module, ())
    of_module, of_graph = (numbered_results(function, inputs, compiler, known) for function in functions)
    if of_module != of_graph and (
        numbers_of_forward(of_module) != numbers_of_forward(of_graph) or not have_equal_gradients(functions, inputs)
    ):
        raise ExportError(
            "a graph before autograd would not compute what the module does, or have other gradients: at this level no "
            f"result requires grad or has a grad_fn, and there are no hooks; {INSTEAD}"
        )


INSTEAD = "export with pre_dispatch=False, or with trace_joint=True for gradients"


@dataclass(frozen=True)
class Copying:
    """A function that changes no argument and returns new tensors."""

    function: Callable[..., Sequence[Any]]
    mutated: Sequence[int]

    def __call__(self, *inputs: torch.Tensor) -> list[Any]:
        results = self.function(*(value.clone() for value in inputs))
        return pytree.tree_map_only(torch.Tensor, torch.clone, list(results))


def numbers_of_forward(numbers: Mapping[Any, Any]) -> list[Any]:
    return [number for slot, number in numbers.items() if not isinstance(slot, Gradient)]


def have_equal_gradients(functions: Iterable[Callable], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether functions have the same gradients for these inputs, and for random gradients of their outputs."""
    one, other = (gradients_in_eager(function, inputs) for function in functions)
    try:
        torch.testing.assert_close(one, other, equal_nan=True)
    except AssertionError:
        return False
    return True


def gradients_in_eager(function: Callable, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of all inputs that require grad; zeros where there are none."""
    leaves = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
    wanted = [value for value in leaves if value.requires_grad]
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        outputs = [value for value in function(*leaves) if isinstance(value, torch.Tensor) and value.requires_grad]
        tangents = list(map(torch.randn_like, outputs))
        return list(torch.autograd.grad(outputs, wanted, tangents, materialize_grads=True)) if outputs else []


def numbered_results(
    function: Callable, inputs: Sequence[torch.Tensor], compiler: Compiler, known: dict[Hashable, int]
) -> dict[Any, Any]:
    """The number of each result of the joint graph of a function, see `value_numbers`."""
    cache = PlanCache(compiler, "export")
    _, traced = joint_plan(PlainFunction.of(cache, function), tuple(inputs), {})
    joint = traced.joint
    numbers = value_numbers(joint.module, {node: slot for slot, node in joint.placeholders.items()}, known)
    return {slot: numbers[value] if isinstance(value, fx.Node) else value for slot, value in joint.results.items()}
