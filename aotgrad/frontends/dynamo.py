"""The `torch.compile` backends. The entry point `torch_dynamo_backends` finds them by name, without an import.

torch.compile(model, backend="aotgrad")                     Inductor compiles the halves
torch.compile(model, backend="aotgrad_eager")               the halves run as plain FX code
torch.compile(model, backend="aotgrad", options={"partitioner": "save_all"})
torch.compile(model, backend=aotgrad.DynamoBackend("inductor", options={"partitioner": "save_all"}))
torch.compile(model, backend=Mine())                        a `Backend` of one's own
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.api import EagerModule, FlatCallable, compile_module
from aotgrad.backends.base import AnyBackend, PartitionCompiler
from aotgrad.backends.kit import Backend
from aotgrad.backends.own_rules import PastOwnRules, past_own_rules
from aotgrad.backends.registry import as_backend
from aotgrad.capture.recorder import give_lines
from aotgrad.errors import AOTGradError, CaptureError
from aotgrad.frontends.list_inputs import taking_lists, with_items
from aotgrad.frontends.symbolic_results import symbolic_dims_of_results, with_symbolic_results
from aotgrad.options import Options
from aotgrad.pipeline import Compiler
from aotgrad.plan_cache.compiler import make_compiler
from aotgrad.plan_cache.eager_fallback import ran_eagerly


class DynamoBackend:
    """A backend for `torch.compile`: takes Dynamo's graph and returns a callable. Dynamo sets attributes on the backend.

    Args:
        backend: the name of a registered backend, a `Backend`, or a compiler of one graph.
        options: see `aotgrad.Options`; the options of `torch.compile` override them. These options are checked here, those
            of `torch.compile` when the first graph is compiled: torch does not pass them earlier.
        mode: the option of that name.

    Raises:
        BackendError: for anything but a backend; names are looked up later.
        OptionError: for an unknown option or a bad value.
    """

    def __init__(self, backend: AnyBackend, options: Mapping[str, Any] | None = None, mode: str | None = None) -> None:
        self.backend = backend if isinstance(backend, str) else as_backend(backend)
        self.options = {"keep_input_mutations": backend == "inductor", **merge_mode(options, mode)}
        self.__name__ = f"aotgrad_{backend if isinstance(self.backend, str) else self.backend.name}"
        Options.from_mapping(self.options)

    def __call__(
        self,
        module: fx.GraphModule,
        example_inputs: Sequence[Any],
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> Callable:
        """Compile Dynamo's graph.

        Raises:
            AOTGradError: a bad option, or a graph that cannot be compiled; Dynamo passes it on as it is.
            Exception: torch's own error, on which Dynamo breaks the graph: where the data of a tensor is needed, or Dynamo
                has lost a history.
        """
        if any(isinstance(value, list) for value in example_inputs):
            flat, values = with_items(module, example_inputs)
            return torch_compat.disable_dynamo(taking_lists(self(flat, values, options, mode)))
        if any(map(torch_compat.is_functionalized, example_inputs)):
            return EagerModule(module).fastest  # another trace records the ops
        has_rules, symbolic_dims = any(map(has_traced_rules, example_inputs)), symbolic_dims_of_results(module.graph)
        torch_compat.refuse_hooks_of_later(example_inputs)
        torch_compat.refuse_lost_histories(module, example_inputs)
        torch_compat.record_backwards_of_custom_functions(module)
        torch_compat.accumulate_into_leaves(module, example_inputs)
        try:
            compiler = make_compiler(
                self.backend_for(example_inputs), Options.from_mapping({**self.options, **merge_mode(options, mode)})
            )
            compiler = replace(compiler, backend=PastOwnRules(compiler.backend)) if has_rules else compiler
            give_lines(module.graph)
            try:
                compiled = compile_module(module, example_inputs, compiler, is_stored(compiler))
            except Exception as error:
                compiled = compile_after(error, module, example_inputs, compiler)
        except AOTGradError as error:
            cause = error.__cause__
            if isinstance(error, CaptureError) and cause is not None and torch_compat.breaks_dynamos_graph(cause):
                raise cause from None
            raise torch_compat.unwrapped_by_dynamo(error, inspect.currentframe()) from cause
        function = past_own_rules(compiled.fastest) if has_rules else compiled.fastest
        return torch_compat.disable_dynamo(with_symbolic_results(function, symbolic_dims))

    def __deepcopy__(self, memo: Mapping[int, Any]) -> DynamoBackend:
        """The backend itself, as of a function: Dynamo would recompile a copy of a compiled module for a copy of it."""
        return self

    def backend_for(self, example_inputs: Sequence[Any]) -> str | PartitionCompiler:
        """A backend, or its name, that runs on such arguments: Inductor's kernels read memory, which fake tensors lack."""
        has_fakes = any(isinstance(value, torch_compat.FakeTensor) for value in example_inputs)
        return "eager" if has_fakes and self.backend == "inductor" else self.backend


def has_traced_rules(value: Any) -> bool:
    """Whether Dynamo has traced the `__torch_function__` of an argument. A capture traces that of a wrapper subclass."""
    is_wrapper = hasattr(value, "__tensor_flatten__")
    return isinstance(value, torch.Tensor) and not is_wrapper and torch_compat.has_own_function_rules(type(value))


def compile_after(
    error: Exception, module: fx.GraphModule, example_inputs: Sequence[Any], compiler: Compiler
) -> FlatCallable | EagerModule:
    """The function of a graph that could not be compiled with an error: specialized to its floats, or eager.

    Raises:
        Exception: the error, if neither helps.
    """
    if isinstance(error, CaptureError) and torch_compat.lacks_symbolic_floats(error.__cause__):
        constant = specialize_floats(module, example_inputs)
        if constant is not None:
            try:
                return compile_module(constant, example_inputs, compiler, is_stored(compiler))
            except Exception as another:
                error = another
    if breaks_graph(error) or compiler.options.on_error == "raise":
        raise error
    ran_eagerly("a graph of torch.compile", error)
    return EagerModule(module)


def is_stored(compiler: Compiler) -> bool:
    """Whether compiled graphs are kept on disk: behind Dynamo, unless the option `cache` is off."""
    return compiler.options.cache is not False


def merge_mode(options: Mapping[str, Any] | None, mode: str | None) -> dict[str, Any]:
    return {**({"mode": mode} if mode else {}), **(options or {})}


def breaks_graph(error: Exception) -> bool:
    """Whether Dynamo breaks the graph on an error or on its cause."""
    return torch_compat.breaks_dynamos_graph(error) or torch_compat.breaks_dynamos_graph(error.__cause__)


def specialize_floats(module: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule | None:
    """The graph with its float inputs as constants, which Dynamo then guards; `None` if it has no float inputs."""
    constant = copy.copy(module)
    constant.graph, found = copy.deepcopy(module.graph), False
    for node, value in zip(constant.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        number = torch_compat.float_of_tensor(value) if isinstance(value, torch.Tensor) else None
        for read in list(node.users) if number is not None else ():
            if read.target == "item":
                replace_by_constant(read, torch_compat.assumed_value(number))
                found = True
    constant.recompile()
    return constant if found else None


def replace_by_constant(node: fx.Node, value: float) -> None:
    for user in list(node.users):
        user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), lambda arg: value if arg is node else arg)
    node.graph.erase_node(node)


Backend.for_dynamo = DynamoBackend
inductor = DynamoBackend("inductor")
eager = DynamoBackend("eager")
interpreter = DynamoBackend("interpreter")
