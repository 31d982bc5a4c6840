"""What a backend is: how a half becomes a callable, and the registry of backends by name.

A backend of ten lines:

    def my_compiler(gm, example_inputs):
        print(gm.code)
        return aotgrad.make_boxed_func(gm.forward)

    aotgrad.backends.register("mine", fw_compiler=my_compiler)
    torch.compile(model, backend=aotgrad.DynamoBackend("mine"))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import BackendError
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, JointGraph, Partition

GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], Callable]


class Artefact(Protocol):
    """Where what was made of one graph is kept; `read` gives `None` if there is nothing."""

    def read(self) -> bytes | None: ...

    def write(self, content: bytes) -> None: ...

    def failed(self, error: Exception) -> None:
        """What was read is of no use."""
        ...


Artefacts = Callable[[GraphHalf, str], "Artefact | None"]
"""The place of what is made of a graph with settings, given as text; `None` if there is none."""


class Backend(Protocol):
    """Compiles the halves of a partition. `decompositions` are applied while the function is traced.

    `fuses`: whether ops share kernels, so that cheap ones cost next to nothing to run again beside what reads them.
    """

    @property
    def name(self) -> str: ...

    @property
    def min_graph_ops(self) -> int:
        """From how many computing ops on a graph is worth compiling, unless the option of that name says something else."""
        ...

    @property
    def fuses(self) -> bool: ...

    def decompositions(self) -> Mapping[Any, Callable]: ...

    def prepare_joint(self, joint: JointGraph) -> JointGraph:
        """Passes of the backend's own, before partitioning."""
        ...

    def compile(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled: ...

    def cache_key(self) -> str | None:
        """What else than a function decides what is made of it, decompositions included.

        `None` if that is unknown: then nothing is kept on disk.
        """
        ...

    def storing(self, artefacts: Artefacts) -> Backend:
        """The backend that keeps what it makes of graphs, and takes what was kept, if it can."""
        ...

    def recompile(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        """What `compile` gave for the forward half of another process."""
        ...


AnyBackend = str | Backend | GraphCompiler
"""What users name a backend by: the name that it is registered under, itself, or a compiler of one graph."""


@dataclass(frozen=True)
class FunctionBackend:
    """A backend made of plain functions `(gm, example_inputs) -> callable`. They get every graph: whoever wrote them
    expects to be called. `key`: see `cache_key`.
    """

    name: str
    fw_compiler: GraphCompiler
    bw_compiler: GraphCompiler | None = None
    inference_compiler: GraphCompiler | None = None
    decomposition_table: Mapping[Any, Callable] = field(default_factory=dict)
    min_graph_ops: int = 0
    fuses: bool = True
    key: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.fw_compiler):
            kind = type(self.fw_compiler).__name__
            raise BackendError(
                f"backend {self.name!r}: fw_compiler is a {kind}; it must be a callable of a graph and its inputs"
            )

    def decompositions(self) -> Mapping[Any, Callable]:
        return self.decomposition_table

    def prepare_joint(self, joint: JointGraph) -> JointGraph:
        return joint

    def compile(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        return self.recompile(partition.forward, static_inputs, partition.backward is not None)

    def cache_key(self) -> str | None:
        names = torch_compat.names_of_decompositions(self.decomposition_table)
        return None if self.key is None or names is None else repr((self.key, names))

    def storing(self, artefacts: Artefacts) -> Backend:
        return self

    def recompile(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        if not differentiable:
            inference = self.inference_compiler or self.fw_compiler
            return Compiled(self.name, self._compile(inference, forward, "inference"), None)
        return Compiled(self.name, self._compile(self.fw_compiler, forward, "forward"), self.compile_backward)

    def compile_backward(self, half: GraphHalf) -> BoxedCallable:
        return self._compile(self.bw_compiler or self.fw_compiler, half, "backward")

    def _compile(self, compiler: GraphCompiler, half: GraphHalf, role: str) -> BoxedCallable:
        compiled = compiler(half.module, example_inputs(half.module))
        if not callable(compiled):
            kind = type(compiled).__name__
            raise BackendError(f"backend {self.name!r} returned a {kind} for the {role} graph; it must return a callable")
        return checked_arity(boxed(compiled), len(half.signature.outputs), self.name, role)


@dataclass(frozen=True)
class WrappedBackend:
    """Shapes graphs as another backend does; what it does with them is for a subclass to say (`compile`)."""

    backend: Backend

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def min_graph_ops(self) -> int:
        return self.backend.min_graph_ops

    @property
    def fuses(self) -> bool:
        return self.backend.fuses

    def decompositions(self) -> Mapping[Any, Callable]:
        return self.backend.decompositions()

    def prepare_joint(self, joint: JointGraph) -> JointGraph:
        return self.backend.prepare_joint(joint)

    def compile(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        raise NotImplementedError

    def cache_key(self) -> str | None:
        return None

    def storing(self, artefacts: Artefacts) -> Backend:
        return self

    def recompile(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        raise NotImplementedError


def example_inputs(module: fx.GraphModule) -> list[Any]:
    """The fake inputs that the graph was traced with."""
    return [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]


def make_boxed_func(f: Callable) -> BoxedCallable:
    """A callable that takes one list of arguments, which it may clear, in place of the arguments.

    >>> add = make_boxed_func(lambda a, b: (a + b,))
    >>> add([1, 2])
    (3,)
    """

    def call_boxed(args: list) -> Any:
        unboxed = tuple(args)
        args.clear()
        return f(*unboxed)

    call_boxed._boxed_call = True
    return call_boxed


def make_boxed_compiler(compiler: GraphCompiler) -> GraphCompiler:
    """A compiler whose results are boxed (see `make_boxed_func`)."""

    @functools.wraps(compiler)
    def compile_boxed(fx_g: fx.GraphModule, inps: Sequence[Any]) -> BoxedCallable:
        return make_boxed_func(compiler(fx_g, inps))

    return compile_boxed


def boxed(function: Callable) -> BoxedCallable:
    """`function` itself if it is boxed already."""
    return function if getattr(function, "_boxed_call", False) else make_boxed_func(function)


def checked_arity(function: BoxedCallable, expected: int, backend: str, role: str) -> BoxedCallable:
    """A boxed callable that names its backend if it returns a wrong number of values; a lone value counts as one."""

    def run(args: list) -> Sequence[Any]:
        results = function(args)
        if not isinstance(results, (list, tuple)):
            results = (results,)
        if len(results) != expected:
            raise BackendError(
                f"backend {backend!r} returned {len(results)} values from the {role} graph, which has {expected} outputs"
            )
        return results

    run._boxed_call = True
    run.expected = expected  # asked for by `aotgrad.verify`
    return run
