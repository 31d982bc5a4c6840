"""The `torch.compile` backends. Found by name through the `torch_dynamo_backends` entry point, without an import.

torch.compile(model, backend="aotgrad")                     Inductor compiles the halves
torch.compile(model, backend="aotgrad_eager")               the halves run as plain FX code
torch.compile(model, backend="aotgrad", options={"partitioner": "save_all"})
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.api import compile_module
from aotgrad.backends import Backend, registry
from aotgrad.backends.inductor import InductorBackend
from aotgrad.errors import CaptureError
from aotgrad.options import Options
from aotgrad.recipe import PARTITIONERS, Recipe


class DynamoBackend:
    """A backend for `torch.compile`: takes Dynamo's graph and gives back a callable. Dynamo sets attributes on it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.__name__ = f"aotgrad_{backend}"

    def __call__(
        self,
        module: fx.GraphModule,
        example_inputs: Sequence[Any],
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> Callable:
        """Compile Dynamo's graph. Where it needs a tensor's data, torch's own error lets Dynamo break the graph.

        Raises:
            OptionError: for an unknown option or a bad value.
        """
        given = {"keep_input_mutations": self.backend == "inductor", **({"mode": mode} if mode else {}), **(options or {})}
        checked = Options.from_mapping(given)
        recipe = Recipe(self.configured(checked), PARTITIONERS[checked.partitioner], checked)
        stored = checked.cache is not False
        try:
            compiled = compile_module(module, example_inputs, recipe, stored)
        except CaptureError as error:
            cause = error.__cause__
            if cause is not None and torch_compat.breaks_dynamos_graph(cause):
                raise cause from None
            constant = with_constant_floats(module, example_inputs) if torch_compat.lacks_symbolic_floats(cause) else None
            if constant is None:
                raise
            compiled = compile_module(constant, example_inputs, recipe, stored)
        return torch_compat.disable_dynamo(compiled.fastest)

    def configured(self, options: Options) -> Backend:
        """The registered backend, in the mode that the options ask for."""
        backend = registry.get(self.backend)
        return replace(backend, mode=options.mode) if isinstance(backend, InductorBackend) else backend


def with_constant_floats(module: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule | None:
    """The same for these floats of the user's only, which Dynamo then guards; `None` if there are none."""
    constant = copy.copy(module)
    constant.graph, found = copy.deepcopy(module.graph), False
    for node, value in zip(constant.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        number = torch_compat.float_of_tensor(value) if isinstance(value, torch.Tensor) else None
        for read in list(node.users) if number is not None else ():
            if read.target == "item":
                put_in_place(read, torch_compat.assumed_value(number))
                found = True
    constant.recompile()
    return constant if found else None


def put_in_place(node: fx.Node, value: float) -> None:
    """Use a constant in place of a node."""
    for user in list(node.users):
        user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), lambda arg: value if arg is node else arg)
    node.graph.erase_node(node)


inductor = DynamoBackend("inductor")
eager = DynamoBackend("eager")
interpreter = DynamoBackend("interpreter")
