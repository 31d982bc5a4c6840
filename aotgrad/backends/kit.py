"""The base class of backends for a compiler, or a device, of one's own.

    class Mine(aotgrad.backends.Backend):
        name = "mine"

        def supports(self, node):
            return node.target in MY_OPS            # other ops run in eager, between the graphs that `compile` gets

        def compile(self, graph, inputs, role):
            return my_compiler(graph)

    torch.compile(model, backend=Mine())

`docs/backends.md` is a tutorial.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.base import Artefacts, GraphCompiler, PartitionCompiler, WrappedBackend, boxed, checked_arity
from aotgrad.backends.checked_results import GraphContract
from aotgrad.backends.graph_values import (
    GraphInput,
    GraphParts,
    Kinds,
    graph_outputs,
    graph_part,
    mark_outputs,
    names_of_slots,
)
from aotgrad.backends.pieces import compile_pieces
from aotgrad.backends.uncompiled import cut_apart
from aotgrad.eager_calls.ops import reasons_of_eager_calls
from aotgrad.errors import BackendError
from aotgrad.graph import op_table
from aotgrad.graph.ends import outputs_of
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, JointGraph, Partition
from aotgrad.slots import Primal

if TYPE_CHECKING:
    from typing_extensions import Self

Role = Literal["forward", "backward", "inference", "step"]
"""What a graph computes: a forward that saves values, its backward, a function without gradients, a whole training step."""


class Backend:
    """A backend: subclasses define `compile`, and may define the rest.

    Attributes:
        name: for messages and reports.
        fuses: ops share kernels, so that the backward recomputes cheap ones instead of saving their results.
        min_graph_ops: functions with fewer ops that compute something run eagerly.
        writes_over: `compile` makes use of `GraphInput.may_be_overwritten`.
        keep: functions of torch whose calls reach `compile` as one node each, with one node for their gradients.
        runs_torch: graphs run torch's own kernels, so `verify_results` does not check what each call returns.
    """

    name: str = "user"
    fuses: bool = True
    min_graph_ops: int = 0
    writes_over: bool = False
    keep: Collection[Any] = frozenset()
    runs_torch: bool = False
    role_without_backward: Role = "inference"
    share_layers: bool = False
    for_dynamo: ClassVar[Callable[[Backend], Callable[..., Callable]]]
    """Makes the backend that Dynamo calls. `frontends/dynamo.py` sets it, since a stage imports no frontend."""

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        if args and isinstance(args[0], fx.GraphModule):  # torch.compile(backend=Mine) calls the class
            raise class_for_backend(cls)
        return super().__new__(cls)

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable:
        """Compile a graph of Dynamo's with its backward: what `torch.compile(model, backend=Mine())` calls."""
        return type(self).for_dynamo(self)(graph, example_inputs, **settings)

    def compile(self, graph: fx.GraphModule, inputs: Sequence[GraphInput], role: Role) -> Callable:
        """A function of the graph's inputs that returns its results, in a list or tuple.

        Results have the traced shapes, strides and dtypes. A boxed function (`make_boxed_func`) takes a list of arguments.

        Args:
            graph: functional, but for writes to inputs at its end. Its fake values are in `node.meta["val"]`.
            inputs: one per placeholder.
            role: what the graph is for. A backward is compiled when it first runs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define compile(graph, inputs, role)")

    def supports(self, node: fx.Node) -> bool:
        """Whether `compile` takes an op; others run in eager. It is asked about all calls but items of results.

        Also about those on numbers (`operator.mul`, `aten.sym_size.int`, `aten._local_scalar_dense`), which run in Python.
        """
        return True

    def decompositions(self) -> Mapping[Any, Callable]:
        """Ops that the trace takes apart, with functions that compute them."""
        return {}

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Entered around the calls of `compile` for one graph, also for a backward on a thread of autograd."""
        return contextlib.nullcontext()

    def cache_key(self) -> str | None:
        """Text that changes with what the backend compiles to; `None`: nothing is stored on disk."""
        return None

    # -- what aotgrad calls

    def reason_to_leave(self, node: fx.Node) -> str | None:
        return f"{self.name} compiles no {op_table.op_name(node.target)} alone"

    def prepare_joint(self, joint: JointGraph) -> JointGraph:
        return joint

    def storing(self, artefacts: Artefacts) -> PartitionCompiler:
        return self

    def of_steps(self) -> Backend:
        """This backend, for graphs of whole training steps."""
        other = copy.copy(self)
        vars(other)["role_without_backward"] = "step"
        return other

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        return self.compile_forward(partition.forward, static_inputs, partition.backward is not None)

    def compile_forward(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        primals = ((name, slot) for name, slot in names_of_slots(forward) if isinstance(slot, Primal))
        static = frozenset(name for name, slot in primals if slot.index in static_inputs)
        role = "forward" if differentiable else self.role_without_backward
        run = self.compile_half(forward, static, role, forward.is_checked)
        compile_backward = functools.partial(
            self.compile_half, static=static, role="backward", is_checked=forward.is_checked
        )
        return Compiled(self.name, run, compile_backward if differentiable else None, writes_over=self.writes_over)

    def compile_half(self, half: GraphHalf, static: frozenset[str], role: Role, is_checked: bool = False) -> BoxedCallable:
        """Compile a graph: as a whole, or the parts of it that are supported."""
        graph, kinds = half.module.graph, Kinds.of(half, static)
        mark_outputs(half)
        compile_part = self.compile_checked if is_checked and not self.runs_torch else self.compile_graph
        with self.context():
            if not self.islands(graph):
                return compile_part(half.module, kinds, role)
            parts = GraphParts.of(cut_apart(graph, self.apart), half, kinds)
            cut, kinds_of = parts.cut, parts.kinds
            run = compile_pieces(half.module, cut, lambda module: compile_part(module, kinds_of[module.graph], role))
        return checked_arity(run, len(half.signature.outputs), self.name, role)

    def compile_graph(self, module: fx.GraphModule, kinds: Kinds, role: Role) -> BoxedCallable:
        """Compile a graph, and check what the author returns."""
        inputs, expected = map(kinds.input_of, module.graph.find_nodes(op="placeholder")), len(outputs_of(module.graph))
        compiled = self.compile(module, list(inputs), role)
        if not callable(compiled):
            kind = type(compiled).__name__
            raise BackendError(f"backend {self.name!r} returned a {kind} for the {role} graph; it must return a callable")
        return checked_arity(boxed(compiled), expected, self.name, role)

    def compile_checked(self, module: fx.GraphModule, kinds: Kinds, role: Role) -> BoxedCallable:
        """Compile a graph that is checked in each call."""
        part = graph_part(module)
        title = f"the {role} graph" if part is None else f"part {part} of the {role} graph"
        contract = GraphContract.of(module.graph, graph_outputs(module), kinds.overwritable, f"backend {self.name!r}", title)
        return contract.around(self.compile_graph(module, kinds, role))

    def apart(self, graph: fx.Graph) -> set[fx.Node]:
        """The ops that run in eager, with their items."""
        ops = self.islands(graph)
        return {*ops, *(user for op in ops for user in op.users if op_table.is_getitem(user.target))}

    def islands(self, graph: fx.Graph) -> Mapping[fx.Node, str]:
        known = reasons_of_eager_calls(graph)
        ops = [node for node in graph.nodes if may_be_unsupported(node) and node not in known]
        return known | {node: f"{self.name} does not support it" for node in ops if not self.supports(node)}


def class_for_backend(kind: type[Backend]) -> BackendError:
    """The error for a class of backends in place of an instance."""
    return BackendError(f"{kind.__name__} is a class; a backend is an instance of it: {kind.__name__}()")


def backend_of_steps(backend: PartitionCompiler) -> PartitionCompiler:
    """A backend for graphs of whole training steps: an author's is told that they are."""
    return backend.of_steps() if isinstance(backend, Backend) else backend


def makes_islands(backend: PartitionCompiler) -> bool:
    """Whether the author of a backend says which ops it supports."""
    while isinstance(backend, WrappedBackend):
        backend = backend.backend
    return isinstance(backend, Backend) and type(backend).supports is not Backend.supports


def reject_what_compiles_no_graph(compiler: Any, name: str) -> None:
    """Raise BackendError for anything but a compiler of one graph."""
    if isinstance(compiler, Backend) or (isinstance(compiler, type) and issubclass(compiler, Backend)):
        raise BackendError(f"{name} is a backend, not a compiler of one graph: pass it alone, or to register_backend")
    if not callable(compiler):
        raise BackendError(f"{name} is a {type(compiler).__name__}; it must be a callable of a graph and its inputs")


def may_be_unsupported(node: fx.Node) -> bool:
    """Whether a node is a call that a backend is asked about."""
    return node.op == "call_function" and not op_table.is_getitem(node.target)


@dataclass(frozen=True)
class FunctionBackend(Backend):
    """A backend of plain functions `(gm, example_inputs) -> callable`, which get every graph, however small.

    `key`: see `cache_key`.
    """

    name: str = field()
    fw_compiler: GraphCompiler = field()
    bw_compiler: GraphCompiler | None = None
    inference_compiler: GraphCompiler | None = None
    decomposition_table: Mapping[Any, Callable] = field(default_factory=dict)
    min_graph_ops: int = 0
    fuses: bool = True
    key: str | None = None
    keep: Collection[Any] = frozenset()
    runs_torch: bool = False

    def __post_init__(self) -> None:
        for place in ("fw_compiler", "bw_compiler", "inference_compiler"):
            compiler = getattr(self, place)
            if compiler is not None or place == "fw_compiler":
                reject_what_compiles_no_graph(compiler, f"backend {self.name!r}: {place}")

    def decompositions(self) -> Mapping[Any, Callable]:
        return self.decomposition_table

    def cache_key(self) -> str | None:
        names = torch_compat.names_of_decompositions(self.decomposition_table)
        return None if self.key is None or names is None else repr((self.key, names))

    def compile(self, graph: fx.GraphModule, inputs: Sequence[GraphInput], role: Role) -> Callable:
        without_backward = self.inference_compiler
        of_role = {"backward": self.bw_compiler, "inference": without_backward, "step": without_backward}
        compiler = of_role.get(role) or self.fw_compiler
        return compiler(graph, [each.value for each in inputs])
