"""The interface of the compilers of a partition's halves, and what its implementations share.

`kit.Backend` is the one for authors of backends; Inductor's is in `inductor`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch.fx as fx

from aotgrad.errors import BackendError
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, JointGraph, Partition

GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], Callable]


class Artefact(Protocol):
    """The stored compilation of one graph; `read` returns `None` if there is none."""

    @property
    def key(self) -> str:
        """The name that the store has for it."""
        ...

    def read(self) -> bytes | None: ...

    def write(self, content: bytes) -> None: ...

    def failed(self, error: Exception) -> None:
        """Report that what `read` returned cannot be used."""
        ...


class Artefacts(Protocol):
    """Finds artefacts."""

    def __call__(self, half: GraphHalf, how: str) -> Artefact | None:
        """The artefact of a graph compiled with certain settings, given as text; `None` if the graph is not stored."""
        ...

    def assembly(self, half: GraphHalf, how: str) -> Artefact | None:
        """Where it is stored of which pieces a graph consists; `None` for a graph that was parsed anyway."""
        ...

    def with_key(self, key: str) -> Artefact:
        """The artefact of this name."""
        ...


class PartitionCompiler(Protocol):
    """Compiles the halves of a partition. `decompositions` are applied while the function is traced.

    `fuses`: whether ops share kernels, so that a cheap op costs next to nothing to recompute for its reader.
    `share_layers`: whether equal layers of a graph are compiled once.
    """

    @property
    def name(self) -> str: ...

    @property
    def min_graph_ops(self) -> int:
        """The fewest ops for which a graph is worth compiling; the option of this name overrides it."""
        ...

    @property
    def fuses(self) -> bool: ...

    @property
    def share_layers(self) -> bool: ...

    def reason_to_leave(self, node: fx.Node) -> str | None:
        """Why a graph with this op and few others is not worth compiling; `None` if it is."""
        ...

    @property
    def keep(self) -> Collection[Any]:
        """Functions whose calls reach it whole."""
        ...

    def decompositions(self) -> Mapping[Any, Callable]: ...

    def prepare_joint(self, joint: JointGraph) -> JointGraph:
        """The backend's own passes, before partitioning."""
        ...

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled: ...

    def islands(self, graph: fx.Graph) -> Mapping[fx.Node, str]:
        """The ops that run in eager, between the compiled parts of the graph, and why."""
        ...

    def cache_key(self) -> str | None:
        """Everything besides the function that decides what it compiles to, decompositions included.

        `None` if unknown: then nothing is stored on disk.
        """
        ...

    def storing(self, artefacts: Artefacts) -> PartitionCompiler:
        """This backend with a store for compiled graphs, if it can serialize them."""
        ...

    def compile_forward(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        """Compile a forward half that another process has partitioned."""
        ...


AnyBackend = str | PartitionCompiler | GraphCompiler
"""How users specify a backend: a registered name, a backend, or a compiler of one graph."""


@dataclass(frozen=True)
class WrappedBackend:
    """Shapes graphs as another backend does; subclasses define `compile`."""

    backend: PartitionCompiler

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def min_graph_ops(self) -> int:
        return self.backend.min_graph_ops

    @property
    def fuses(self) -> bool:
        return self.backend.fuses

    @property
    def share_layers(self) -> bool:
        return self.backend.share_layers

    @property
    def keep(self) -> Collection[Any]:
        return self.backend.keep

    def reason_to_leave(self, node: fx.Node) -> str | None:
        return self.backend.reason_to_leave(node)

    def decompositions(self) -> Mapping[Any, Callable]:
        return self.backend.decompositions()

    def prepare_joint(self, joint: JointGraph) -> JointGraph:
        return self.backend.prepare_joint(joint)

    def islands(self, graph: fx.Graph) -> Mapping[fx.Node, str]:
        return self.backend.islands(graph)

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        raise NotImplementedError

    def cache_key(self) -> str | None:
        return None

    def storing(self, artefacts: Artefacts) -> PartitionCompiler:
        return self

    def compile_forward(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        raise NotImplementedError


def example_inputs(module: fx.GraphModule) -> list[Any]:
    """The fake inputs that the graph was traced with."""
    return [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]


def make_boxed_func(f: Callable) -> BoxedCallable:
    """A callable that takes its arguments in one list, which it may clear.

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
    """`function` as a boxed callable; itself if it is one."""
    return function if getattr(function, "_boxed_call", False) else make_boxed_func(function)


def checked_arity(function: BoxedCallable, expected: int, backend: str, role: str) -> BoxedCallable:
    """A boxed callable that raises if it returns a wrong number of values; a lone value counts as one."""

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
    run.expected = expected  # for `aotgrad.verify`
    return run
