"""The `inductor` backend: torch's own code generator compiles both halves.

Besides the graphs, it needs its decompositions while tracing, its joint passes before partitioning, the inputs that keep
their address (parameters and buffers), the outputs that a user sees (their strides must be eager's), and, for the
backward, the strides that the forward has chosen for saved values. Inductor has global state, so one thread at a time uses
it, under the lock `COMPILING`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.base import Artefact, Artefacts, checked_arity, example_inputs
from aotgrad.backends.closed_over import bind_tensors, closed_over_tensors, lift_closed_over
from aotgrad.backends.copies import keep_returned_copies
from aotgrad.backends.corrected import CORRECTIONS, amend_inductor, corrected_decompositions, rewrite
from aotgrad.backends.early_writes import write_early_updates
from aotgrad.backends.generator_inputs import (
    BackwardWithClones,
    ForwardWithClones,
    backward_with_clones,
    forward_with_clones,
)
from aotgrad.backends.inductor.assembly import Assembly
from aotgrad.backends.inductor.compiler_threads import compilers_run
from aotgrad.backends.inductor.cpp_kernels import KernelBatch
from aotgrad.backends.inductor.wrapper_code import Wrapper
from aotgrad.backends.layers import cut_layers
from aotgrad.backends.layouts import keep_output_layouts, note_layouts
from aotgrad.backends.lone_ops import reason_to_leave
from aotgrad.backends.parts import keep_memory_of_parts
from aotgrad.backends.pieces import CallSequence, Cut, compile_pieces
from aotgrad.backends.seeds import draw_once, give_backward_own_seeds
from aotgrad.backends.uncompiled import cut_uncompiled, must_be_cut, reasons
from aotgrad.graph import op_table
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.floats import replace_floats
from aotgrad.ir import BoxedCallable, Compiled, GraphHalf, JointGraph, Partition
from aotgrad.options import Options
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.plan_cache.unfinished import finish_later
from aotgrad.slots import Gradient, IntermediateBase, Primal, Saved, SlotSignature, UserOutput
from aotgrad.telemetry.code_version import code_version
from aotgrad.telemetry.counters import counters


@dataclass(frozen=True)
class InductorBackend:
    """`mode` is one of `torch.compile`'s and chooses Inductor's configuration; `settings` are additional names and values.

    `artefacts` stores compiled graphs, if given. `share_layers`: equal layers of a graph are compiled once.
    """

    mode: str = "default"
    settings: tuple[tuple[str, Any], ...] = ()
    name: str = "inductor"
    fuses: bool = True
    share_layers: bool = False
    artefacts: Artefacts | None = None

    @property
    def keep(self) -> Collection[Any]:
        return ()

    @property
    def min_graph_ops(self) -> int:
        """A lone op has nothing to fuse with (`scripts/bench/small_graphs.py`). With another mode, users expect Inductor."""
        return 2 if self.mode == "default" and not self.settings else 0

    def reason_to_leave(self, node: fx.Node) -> str | None:
        return reason_to_leave(node)

    def with_options(self, options: Options) -> InductorBackend:
        """This backend with the mode, the settings and the sharing of the options, if set."""
        mode = self.mode if options.mode == "default" else options.mode
        settings = (*self.settings, *options.inductor)
        return replace(self, mode=mode, settings=settings, share_layers=self.share_layers or bool(options.share_layers))

    def configured(self, **more: Any) -> contextlib.AbstractContextManager[None]:
        """Inside, Inductor has this backend's configuration."""
        return torch_compat.inductor_config(self.mode, **{**dict(self.settings), **more})

    def context(self, module: fx.GraphModule, **more: Any) -> contextlib.AbstractContextManager[None]:
        """The context that Inductor compiles in."""
        fake_mode = torch_compat.fake_mode_of(module.graph)
        return torch_compat.inductor_context(fake_mode, self.mode, **{**dict(self.settings), **more})

    def decompositions(self) -> Mapping[Any, Callable]:
        """Inductor's table, corrected, and without `detach`: view replay must know where a view was detached."""
        with self.configured():  # eager's random numbers need other decompositions
            table = corrected_decompositions(torch_compat.inductor_decompositions())
        return {op: function for op, function in table.items() if op is not torch.ops.aten.detach.default}

    def prepare_joint(self, joint: JointGraph) -> JointGraph:
        with COMPILING, self.context(joint.module):
            replace_floats(joint.module.graph)
            graph, results = joint.module.graph, len(joint.signature.forward_results)
            copies, parts = keep_returned_copies(graph, results), keep_memory_of_parts(graph, results)
            with keep_output_layouts(graph), parts, copies, lift_closed_over(joint.module):
                module = torch_compat.inductor_joint_passes(joint.module)
            rewrite(module.graph)
            give_backward_own_seeds(module.graph)
            if torch_compat.inductor_uses_cudagraphs() and not may_take_clones(module.graph):
                draw_once(module.graph)
            module.recompile()  # Inductor's cache uses the code as the key
            return replace(joint, module=module)

    def islands(self, graph: fx.Graph) -> Mapping[fx.Node, str]:
        return reasons(graph)

    def compile_partition(self, partition: Partition, static_inputs: frozenset[int]) -> Compiled:
        with COMPILING, self.context(partition.forward.module):
            with torch_compat.reported_output_strides() as strides:
                compiled = self.compile_forward(partition.forward, static_inputs, partition.backward is not None)
            if partition.backward is not None:
                apply_strides(partition, strides)
        return compiled

    def compile_forward(self, forward: GraphHalf, static_inputs: frozenset[int], differentiable: bool) -> Compiled:
        names = forward.input_names
        with self.configured():
            shared = Shared(torch_compat.inductor_uses_cudagraphs(), frozenset(names[k] for k in static_inputs))
        job = Job(forward, "forward", (UserOutput, IntermediateBase), {"static_input_idxs": sorted(static_inputs)})
        job.settings["is_inference"] = not differentiable
        compiled = self._compile_forward(job, shared)
        backward = InductorBackward(self, shared) if differentiable else None
        return Compiled(self.name, compiled, backward, shared.cudagraphs, not shared.cudagraphs)

    def _compile_forward(self, job: Job, shared: Shared) -> BoxedCallable:
        if not takes_clones(job.half, shared):
            return self._compile(job, shared)
        half, clones = forward_with_clones(job.half)
        compiled = self._compile(replace(job, half=half), shared)
        return ForwardWithClones(compiled, clones) if clones else compiled

    def backward(self, half: GraphHalf, shared: Shared) -> BoxedCallable:
        """Compile a backward half for the forward that was compiled with `shared`.

        Of the saved values, parameters and buffers keep their address. Others may be the caller's own tensors, anywhere.

        Layout optimization is off, because the forward has chosen the layouts. Otherwise one recomputed convolution would
        change the layouts of the whole graph, and Inductor would copy the inputs.
        """
        half, clones = backward_with_clones(half) if takes_clones(half, shared) else (half, {})
        inputs = enumerate(half.signature.inputs)
        static = [k for k, slot in inputs if isinstance(slot, Saved) and slot.name in shared.static]
        settings = {"static_input_idxs": static, "is_backward": True}
        over = [k for k, slot in enumerate(half.signature.inputs) if slot in half.overwritable]
        job = Job(half, "backward", (Gradient,), settings, {"layout_optimization": False}, tuple(over))
        compiled = self._compile(job, shared)
        return BackwardWithClones(compiled, clones) if clones else compiled

    def _compile(self, job: Job, shared: Shared) -> BoxedCallable:
        with COMPILING:
            with KernelBatch.collected() as batch:
                how = f"{job.interface} {self.share_layers}"
                stored = None if self.artefacts is None or shared.cudagraphs else self.artefacts.assembly(job.half, how)
                compiled = None if stored is None else self._assemble(stored, job)
                if compiled is None:
                    compiled, assembly = self._compile_parsed(job, shared, batch)
                    if stored is not None and assembly is not None:
                        stored.write(assembly.to_bytes())
            finish = batch.start()
            finish_later(finish) if compilers_run() else finish()
        return checked_arity(compiled, len(job.half.signature.outputs), self.name, job.role)

    def _compile_parsed(self, job: Job, shared: Shared, batch: KernelBatch) -> tuple[Callable, Assembly | None]:
        """A compiled graph, and what it consists of; `None` if that is not stored code alone."""
        module, keys = job.half.module, list[str | None]()
        if (cut := self.cut(module.graph, shared)) is None:
            tensors = closed_over_tensors(module)
            compiled = bind_tensors(self._load_or_make(job, shared, batch, keys), tensors)
            return compiled, assembly_of(keys, None, tensors)
        compiled = compile_pieces(module, cut, functools.partial(self._compile_piece, job, batch, keys))
        is_code = all(piece.is_compiled for piece in cut.pieces) and not closed_over_tensors(module)
        return compiled, assembly_of(keys, cut.sequence) if is_code else None

    def _assemble(self, stored: Artefact, job: Job) -> Callable | None:
        """A compiled graph made of stored code, without a look at the graph; `None` if something is missing."""
        if self.artefacts is None or (content := stored.read()) is None:
            return None
        try:
            assembly = Assembly.of_bytes(content)
            tensors = job.half.attributes(assembly.tensors)
        except (KeyError, TypeError, ValueError) as error:
            stored.failed(error)
            return None
        pieces = [self._load(self.artefacts.with_key(key), job) for key in assembly.keys]
        if None in pieces:
            return None
        return bind_tensors(assembly.callable([piece for piece in pieces if piece is not None]), tensors)

    def cut(self, graph: fx.Graph, shared: Shared) -> Cut | None:
        """The pieces of a graph; `None` if it is compiled as a whole, as CUDA graphs are."""
        if must_be_cut(graph):
            return cut_uncompiled(graph)
        if not shared.cudagraphs and all(node.op in ("placeholder", "output") for node in graph.nodes):
            return Cut.of(graph, [])  # Inductor has no code for it
        return cut_layers(graph) if self.share_layers and not shared.cudagraphs else None

    def _load_or_make(self, job: Job, shared: Shared, batch: KernelBatch, keys: list[str | None]) -> Callable:
        """A compiled graph, loaded from the store or compiled and stored. Its kernels are compiled with the batch.

        `keys` gets the key of its code.
        """
        artefact = None if self.artefacts is None or shared.cudagraphs else self.artefacts(job.half, job.text)
        keys.append(None if artefact is None else artefact.key)
        compiled = None if artefact is None else self._load(artefact, job)
        if compiled is None:
            compiled = self._make(job, shared)
            if artefact is not None:
                batch.then.append(functools.partial(store_graph, compiled, artefact))
        return compiled

    def _load(self, artefact: Artefact, job: Job) -> Callable | None:
        content = artefact.read()
        counters["artefact_misses" if content is None else "artefact_hits"] += 1
        if content is None:
            return None
        try:
            with self.configured(**job.configuration):
                with KernelBatch.collected() as batch:
                    compiled = deserialize(content, job.role == "backward")
                batch.start()()
                return compiled
        except Exception as error:  # whatever is wrong with it, the graph is recompiled
            artefact.failed(error)
            return None

    def _make(self, job: Job, shared: Shared) -> Callable:
        module = job.half.module
        told = (job.strides, job.offsets, job.overwritable)
        apart = torch_compat.inductor_cache_tag(repr((*told, code_version(), *CORRECTIONS)))
        settings = {**job.configuration, **apart, **settings_for(module.graph)}
        with self.context(module, **settings), lift_closed_over(module):
            output_node(module.graph).meta["user_visible_output_idxs"] = job.visible
            note_layouts(module.graph, job.visible)
            torch_compat.call_in_inductor({node.target for node in module.graph.nodes})
            if any(map(op_table.uses_random_state, module.graph.nodes)):
                torch_compat.disable_cudagraphs(shared.settings)
            # Last, since corrections look for writes at the end.
            early_writes = torch_compat.around_post_grad_passes(write_early_updates)
            over = torch_compat.inductor_writes_over(job.overwritable)
            with amend_inductor(), early_writes, over:
                return torch_compat.inductor_compile(module, example_inputs(module), **job.settings, **shared.settings)

    def _compile_piece(self, job: Job, batch: KernelBatch, keys: list[str | None], piece: fx.GraphModule) -> Callable:
        """Compile a piece of a half; all its results keep the traced strides. `keys` gets the key of its code."""
        settings = {key: value for key, value in job.settings.items() if key != "static_input_idxs"}
        inputs = map(Primal, range(len(piece.graph.find_nodes(op="placeholder"))))
        signature = SlotSignature(tuple(inputs), tuple(map(UserOutput, range(len(outputs_of(piece.graph))))))
        dense = Job(GraphHalf(piece, signature), job.role, (UserOutput,), settings, job.configuration)
        with torch_compat.reported_output_strides():
            compiled = self._load_or_make(dense, Shared(False, frozenset()), batch, keys)
        return bind_tensors(compiled, closed_over_tensors(piece))

    def cache_key(self) -> str | None:
        with self.configured():
            configuration = torch_compat.inductor_key()
            names = torch_compat.names_of_inductor_decompositions()
        return None if configuration is None or names is None else repr((configuration, names))

    def storing(self, artefacts: Artefacts) -> InductorBackend:
        return replace(self, artefacts=artefacts)


@dataclass(frozen=True)
class Shared:
    """What the forward and the backward of one region share.

    `static`: the names of the inputs that keep their address. `settings` are created on first use.
    """

    cudagraphs: bool
    static: frozenset[str]

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        return torch_compat.inductor_graph_settings(self.cudagraphs)


@dataclass(frozen=True)
class Job:
    """A graph to compile, with settings; outputs of the kinds `seen` keep the traced strides.

    `overwritable`: the positions of the inputs whose memory the graph may write over.
    """

    half: GraphHalf
    role: str
    seen: tuple[type, ...]
    settings: dict[str, Any]
    configuration: dict[str, Any] = field(default_factory=dict)
    overwritable: tuple[int, ...] = ()

    @property
    def visible(self) -> list[int]:
        """The positions of the outputs whose strides a user sees; Inductor expects a node at each of them."""
        outputs = zip(self.half.signature.outputs, outputs_of(self.half.module.graph), strict=True)
        return [k for k, (slot, value) in enumerate(outputs) if isinstance(slot, self.seen) and isinstance(value, fx.Node)]

    @property
    def strides(self) -> dict[int, str]:
        """The strides of the visible outputs. They are not in the graph if Inductor changes the layouts of saved tensors."""
        values = [getattr(output, "meta", {}).get("val") for output in outputs_of(self.half.module.graph)]
        return {k: str(stride()) for k in self.visible if (stride := getattr(values[k], "stride", None)) is not None}

    @property
    def offsets(self) -> list[str]:
        """The storage offsets of the inputs, if an op counts from the start of a storage. Inductor's cache ignores them."""
        graph = self.half.module.graph
        is_needed = any(op_table.is_absolute(node.target) for node in graph.nodes)
        values = (node.meta["val"] for node in graph.find_nodes(op="placeholder") if is_needed)
        return [str(value.storage_offset()) for value in values if isinstance(value, torch.Tensor)]

    @property
    def text(self) -> str:
        """Everything but the graph, as text."""
        return repr((self.strides, self.interface))

    @property
    def interface(self) -> str:
        """What is known without a look at the graph, as text."""
        settings = sorted(self.settings.items()), sorted(self.configuration.items())
        seen = [k for k, slot in enumerate(self.half.signature.outputs) if isinstance(slot, self.seen)]
        return repr((self.role, seen, *settings, self.overwritable))


@dataclass(frozen=True)
class InductorBackward:
    """Compiles variants of one backward; `shared` pairs them with their forward."""

    backend: InductorBackend
    shared: Shared

    def __call__(self, half: GraphHalf) -> BoxedCallable:
        return self.backend.backward(half, self.shared)


def takes_clones(half: GraphHalf, shared: Shared) -> bool:
    """Whether a half is compiled for CUDA graphs, and whole: its random ops then draw again from clones of generators."""
    if not shared.cudagraphs:
        return False
    graph = half.module.graph
    return any(map(op_table.uses_random_state, graph.nodes)) and not must_be_cut(graph)


def may_take_clones(graph: fx.Graph) -> bool:
    """Whether CUDA graphs of the halves may draw from clones of generators: how far a draw moves one depends on sizes."""
    sizes = any(torch_compat.has_symbols(node.meta.get("val")) for node in graph.find_nodes(op="placeholder"))
    return not sizes and torch_compat.inductor_takes_generators()


def assembly_of(keys: Sequence[str | None], sequence: CallSequence | None, tensors: Iterable[str] = ()) -> Assembly | None:
    """What a graph consists of; `None` if the code of a piece is not stored."""
    known = tuple(key for key in keys if key is not None)
    return Assembly(known, sequence, tuple(tensors)) if len(known) == len(keys) else None


WORKSPACES = frozenset({"aten.mkldnn_rnn_layer", "aten.mkldnn_rnn_layer_backward"})
"""Ops with a workspace whose size depends on the processor, so that PyTorch traces it with another one."""


def settings_for(graph: fx.Graph) -> dict[str, Any]:
    """Inductor's settings for what a graph contains.

    Copies to and from the host stay where they are, and so do several ops that draw from a generator of PyTorch's: the order
    decides on their numbers. Sizes are not checked beside a workspace.
    """
    copies = any(op_table.is_host_copy(node.target) for node in graph.nodes)
    draws = sum(op_table.draws(node) or op_table.uses_random_state(node) for node in graph.nodes)
    workspaces = any(op_table.op_name(node.target) in WORKSPACES for node in graph.nodes)
    settings = {"reorder_for_peak_memory": copies or draws > 1, "size_asserts": workspaces}
    return {name: False for name, is_off in settings.items() if is_off}


def store_graph(compiled: Callable, artefact: Artefact) -> None:
    """Store a compiled graph, if it has a form of bytes."""
    if (content := serialize(compiled)) is not None:
        artefact.write(content)


def serialize(compiled: Any) -> bytes | None:
    """A compiled graph as bytes: a line with the wrapper code, or an empty one, and then Inductor's own format."""
    content = torch_compat.inductor_dump(compiled)
    if content is None:
        return None
    module = torch_compat.inductor_module(compiled)
    wrapper = None if module is None else Wrapper.of(compiled.source_code, module)
    return (b"" if wrapper is None else wrapper.to_text().encode()) + b"\n" + content


def deserialize(content: bytes, is_backward: bool) -> Callable:
    """The compiled graph of `serialize`. Inductor itself loads it if there is no wrapper code, or kernels are missing.

    Raises:
        Exception: of any kind, if it cannot be used.
    """
    text, _, content = content.partition(b"\n")
    if text:
        with contextlib.suppress(OSError):
            module = Wrapper.of_text(text.decode()).module("aotgrad_stored_wrapper")
            return torch_compat.inductor_load_module(content, module, is_backward)
    return torch_compat.inductor_load(content, is_backward)


def libraries_of(content: bytes) -> dict[str, str]:
    """The libraries of C++ kernels that the wrapper code in the result of `serialize` loads: their digests and paths."""
    text, _, _ = content.partition(b"\n")
    kernels = Wrapper.of_text(text.decode()).kernels if text else {}
    return {digest: path for _, path, _, digest in kernels.values()}


def with_libraries_at(content: bytes, paths: Mapping[str, str]) -> bytes:
    """The result of `serialize`, with the libraries at other paths, by digest."""
    text, end, rest = content.partition(b"\n")
    if not text:
        return content
    wrapper = Wrapper.of_text(text.decode())
    kernels = {key: (module, paths[found], name, found) for key, (module, _, name, found) in wrapper.kernels.items()}
    return replace(wrapper, kernels=kernels).to_text().encode() + end + rest


def apply_strides(partition: Partition, strides: Sequence[Sequence[int] | None]) -> None:
    """Give the values that the forward saves the strides that they have after Inductor's layout choices.

    Where a saved value is an input of the forward, the caller's own tensor is saved, and keeps its strides.
    """
    primals = {node.name for node in partition.forward.module.graph.find_nodes(op="placeholder")}
    reported = zip(partition.forward.signature.outputs, strides, strict=False)
    stride_of = {slot: stride for slot, stride in reported if isinstance(slot, Saved)}
    backward = partition.backward
    assert backward is not None, "called for partitions with a backward"
    placeholders = backward.module.graph.find_nodes(op="placeholder")
    for node, slot in zip(placeholders, backward.signature.inputs, strict=True):
        if not isinstance(slot, Saved) or slot.name in primals or (reported_stride := stride_of.get(slot)) is None:
            continue
        value = node.meta["val"]
        actual = torch_compat.as_symints(value.fake_mode, reported_stride)
        if torch_compat.hints(value.stride()) != torch_compat.hints(actual):
            node.meta["val"] = value.as_strided(value.size(), actual)


INDUCTOR = InductorBackend()
