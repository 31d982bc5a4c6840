"""`aotgrad.explain(fn, dynamo=True)`: the graphs that Dynamo makes of a function, each as one report, and what broke them.

In: a function or module, and the arguments of a call. Out: a `DynamoExplanation`. The function runs once, in eager, on
copies of the tensors and of the module.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn

from aotgrad import torch_compat
from aotgrad.inspect.explanation import Explanation, SourceLine, explanation_of
from aotgrad.pipeline import Compiler
from aotgrad.plan_cache.binding import NamedTensor, bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.telemetry.graph_names import qualified_name


@dataclass(frozen=True)
class GraphBreak:
    """A place where Dynamo ends a graph and lets Python run: the line, which is the user's, and Dynamo's reason."""

    where: SourceLine | None
    reason: str


@dataclass(frozen=True)
class DynamoExplanation:
    """What Dynamo makes of a call. `print` it, or take it apart; `to_json()` for other programs.

    Attributes:
        name: of the function.
        graphs: what is compiled for each graph, in the order in which the call came to them.
        breaks: where and why one graph ends and another begins.
    """

    name: str
    graphs: tuple[Explanation, ...]
    breaks: tuple[GraphBreak, ...]

    def to_dict(self) -> dict[str, Any]:
        """Lists, dictionaries, strings and numbers."""
        graphs = [graph.to_dict() for graph in self.graphs]
        return {"name": self.name, "graphs": graphs, "breaks": [dataclasses.asdict(each) for each in self.breaks]}

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict()` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        from aotgrad.inspect.report import dynamo_report_text  # it is made of these types

        return dynamo_report_text(self)


@dataclass(frozen=True)
class DynamoExplainer:
    """Call it as the function is called."""

    function: Callable
    compiler: Compiler

    def __call__(self, *args: Any, **kwargs: Any) -> DynamoExplanation:
        """What `torch.compile` makes of a call with these arguments. Dynamo forgets what it has compiled before.

        Raises:
            CaptureError: and whatever else a call raises that cannot be compiled.
        """
        function = torch_compat.without_dynamo(self.function)
        name = qualified_name(function)
        function = copy.deepcopy(function) if isinstance(function, nn.Module) else function
        args, kwargs = pytree.tree_map_only(torch.Tensor, copied, (args, kwargs))
        explaining = Explaining(name, self.compiler)
        with torch_compat.dynamo_forgets(), torch_compat.graph_breaks() as breaks:
            torch.compile(function, backend=explaining)(*args, **kwargs)
        return DynamoExplanation(
            name, tuple(explaining.graphs), tuple(GraphBreak(place(frame), why) for frame, why in breaks)
        )


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is a leaf if this is one, with memory of its own."""
    same = tensor.clone(memory_format=torch.preserve_format)
    return same.detach().requires_grad_(tensor.requires_grad) if tensor.is_leaf else same


def place(frame: Any) -> SourceLine | None:
    return None if frame is None else SourceLine(frame.filename, frame.lineno, frame.line or "")


@dataclass(frozen=True)
class Explaining:
    """A backend for Dynamo that explains each graph where it first runs, and runs it in eager."""

    name: str
    compiler: Compiler
    graphs: list[Explanation] = field(default_factory=list)

    def __call__(self, module: fx.GraphModule, example_inputs: Any) -> Callable:
        inputs = [named(node) for node in module.graph.find_nodes(op="placeholder")]  # later, Dynamo has forgotten it
        waiting = [inputs]

        def run(*args: Any) -> Any:
            if waiting:
                self.graphs.append(self.explain(module, args, waiting.pop()))
            return module(*args)

        return torch_compat.disable_dynamo(run)

    def explain(self, module: fx.GraphModule, args: tuple, inputs: Sequence[NamedTensor]) -> Explanation:
        calls = bind(module, PlanCache(self.compiler, f"{self.name}, graph {len(self.graphs) + 1}"))
        tensors = [name for name, arg in zip(inputs, args, strict=True) if isinstance(arg, torch.Tensor)]
        return explanation_of(calls.plan_for(*args), calls.cache, tensors)


KINDS = {"_parameters": "parameter", "_buffers": "buffer"}


def named(node: fx.Node) -> NamedTensor:
    """What the user calls what Dynamo passes for a placeholder: `x`, `batch['ids']`, `layers.0.weight`."""
    source = torch_compat.dynamo_source(node) or node.name
    kind = next((kind for part, kind in KINDS.items() if f".{part}[" in source), "argument")
    return NamedTensor(user_name(source), kind)


def user_name(source: str) -> str:
    """
    >>> user_name("L['self']._modules['layers']._modules['0']._parameters['weight']"), user_name("L['batch']['ids']")
    ('layers.0.weight', "batch['ids']")
    """
    name = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", source)
    return re.sub(r"^[LG]\['(\w+)'\]", r"\1", name).removeprefix("self.")
