"""`aotgrad.explain(fn, dynamo=True)`: a report on each graph that Dynamo makes of a function, and the graph breaks.

In: a function or module, and the arguments of a call. Out: a `DynamoExplanation`. The function runs once, in eager, on
copies of the tensors and of the module.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn

from aotgrad import torch_compat
from aotgrad.inspect.explanation import Explanation, SourceLine
from aotgrad.inspect.page.write import write_page
from aotgrad.inspect.report import dynamo_report_text
from aotgrad.inspect.rows import explanation_of
from aotgrad.pipeline import Compiler
from aotgrad.plan_cache.binding import NamedTensor, bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.telemetry.graph_names import qualified_name


@dataclass(frozen=True)
class GraphBreak:
    """A place where Dynamo ends a graph and lets Python run: the user's line, and Dynamo's reason."""

    where: SourceLine | None
    reason: str


@dataclass(frozen=True)
class DynamoExplanation:
    """What Dynamo makes of a call. Print it, read its attributes, or export it with `to_json()`.

    Attributes:
        name: the name of the function.
        graphs: the explanation of each graph, in the order in which the call ran them.
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

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write a page of all graphs, as `Explanation.html` does of one.

        Raises:
            MissingPackage: plotly is not installed, which `pip install "aotgrad[plot]"` does.
        """
        write_page(self.to_dict(), path)

    def __str__(self) -> str:
        return dynamo_report_text(self)


@dataclass(frozen=True)
class DynamoExplainer:
    """Takes the arguments of the function."""

    function: Callable
    compiler: Compiler

    def __call__(self, *args: Any, **kwargs: Any) -> DynamoExplanation:
        """What `torch.compile` makes of a call with these arguments. Resets Dynamo.

        Raises:
            CaptureError: or any other error of a call that cannot be compiled.
        """
        function = torch_compat.uncompiled_function(self.function)
        name = qualified_name(function)
        function = copy.deepcopy(function) if isinstance(function, nn.Module) else function
        args, kwargs = pytree.tree_map_only(torch.Tensor, copy_tensor, (args, kwargs))
        explaining = ExplainingBackend(name, self.compiler)
        with torch_compat.reset_dynamo(), torch_compat.graph_breaks() as breaks:
            torch.compile(function, backend=explaining)(*args, **kwargs)
        return DynamoExplanation(
            name, tuple(explaining.graphs), tuple(GraphBreak(source_line_of(frame), why) for frame, why in breaks)
        )


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor in new memory; a leaf if the tensor is one."""
    same = tensor.clone(memory_format=torch.preserve_format)
    return same.detach().requires_grad_(tensor.requires_grad) if tensor.is_leaf else same


def source_line_of(frame: Any) -> SourceLine | None:
    return None if frame is None else SourceLine(frame.filename, frame.lineno, frame.line or "")


@dataclass(frozen=True)
class ExplainingBackend:
    """A backend for Dynamo that explains each graph at its first run, and runs it in eager."""

    name: str
    compiler: Compiler
    graphs: list[Explanation] = field(default_factory=list)

    def __call__(self, module: fx.GraphModule, example_inputs: Any) -> Callable:
        inputs = [name_of_input(node) for node in module.graph.find_nodes(op="placeholder")]  # Dynamo drops sources later
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


def name_of_input(node: fx.Node) -> NamedTensor:
    """The user's name for the input of a placeholder: `x`, `batch['ids']`, `layers.0.weight`."""
    source = torch_compat.dynamo_source(node) or node.name
    kind = next((kind for part, kind in KINDS.items() if f".{part}[" in source), "argument")
    return NamedTensor(user_name(source), kind)


def user_name(source: str) -> str:
    """The user's name for a source of Dynamo's.

    >>> user_name("L['self']._modules['layers']._modules['0']._parameters['weight']"), user_name("L['batch']['ids']")
    ('layers.0.weight', "batch['ids']")
    """
    name = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", source)
    return re.sub(r"^[LG]\['(\w+)'\]", r"\1", name).removeprefix("self.")
