"""The steps of a schedule. Each class says what it reads, which source it emits, and what it does in words.

the forward              MakeBase, Forward, AdvanceGenerator
autograd nodes           KeepInputs, RecordResults, MakeBoundary, Attach, EndRecomputation, KeepHistory, CallMethod
wrapper subclasses       AssembleResult, PassThrough
tensors of one memory    MakeAlias, AliasBase, ConvertToInference, MakeView
writes and versions      UpdateGeometry, CopyBack, AssignData, ShareVersion, SetVersion, StartVersion
the end of a call        ReturnValue, RestoreGradMode
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from aotgrad import torch_compat
from aotgrad.graph.geometry import Geometry
from aotgrad.ir import ViewReplay, ViewStep, needs_sentinel
from aotgrad.runtime.writer import MANY, SourceWriter, tuple_of, versions_text

if TYPE_CHECKING:
    from typing_extensions import Self

    from aotgrad.subclasses.bridge import End
    from aotgrad.subclasses.passages import Passage

LITERALS = (type(None), bool, int, str)

MOST_NAMES = 3
"""Names of a list that a description shows; a large model has hundreds."""


class Step:
    """One step of a call. A step is data: a frozen dataclass.

    Attributes:
        READS: the fields with the names of the variables that the step uses.
        SOURCE: the line that the step emits, with fields in braces.
        WORDS: what the step does, with fields in braces.
    """

    READS: ClassVar[tuple[str, ...]] = ()
    SOURCE: ClassVar[str]
    WORDS: ClassVar[str]

    def reads(self) -> tuple[str, ...]:
        """The variables that the step uses."""
        return tuple(getattr(self, field) for field in self.READS)

    def entry_versions(self) -> tuple[str, ...]:
        """The inputs whose version at entry the step uses."""
        return ()

    def objects(self) -> Sequence[tuple[str, Any]]:
        """The objects that the source refers to by name, each with its kind; see `ObjectNames`."""
        return ()

    def depends_on_offset(self) -> bool:
        """Whether the step lays a tensor out by absolute size, stride and offset."""
        return False

    def emit(self, writer: SourceWriter) -> None:
        """Write the source lines of the step."""
        writer.line(self.SOURCE.format_map(vars(self)))

    @classmethod
    def emit_all(cls, steps: Sequence[Self], writer: SourceWriter) -> None:
        """Write the source lines of several steps of this type in a row."""
        for step in steps:
            step.emit(writer)

    def description(self, value_text: Callable[[Any], str]) -> str:
        """What the step does, in one line.

        Args:
            value_text: writes constants, geometries and chains of views.
        """
        return self.WORDS.format_map(vars(self))


# --- The forward ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MakeBase(Step):
    """`name` = `nbytes` of the memory around `member`, from `start_bytes` after its first byte, as a flat tensor.

    `root` is the tensor that gets the gradient of the base: the member, its `_base`, or `None`.
    """

    name: str
    member: str
    start_bytes: int
    nbytes: int
    dtype: torch.dtype
    root: str | None

    READS = ("member",)
    WORDS = "make {name}: {nbytes} bytes of memory from {start_bytes} after the start of {member}"

    def emit(self, writer: SourceWriter) -> None:
        writer.line(f"{self.name} = synthetic_base({self.member}, {self.start_bytes}, {self.nbytes}, {self.dtype})")
        if self.root is not None:
            writer.line(f"{self.name} = attached_base({self.root}, {self.name})")


@dataclass(frozen=True)
class Forward(Step):
    """Run the compiled forward on `inputs` (names) and name its results.

    `release` are inputs that no later step reads. `random_devices` are the devices on which the graph draws random
    numbers, if a gradient of a gradient must draw the same ones: their state is kept. `philox_devices` are those whose seed
    and offset are the last inputs.
    """

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    release: tuple[str, ...]
    autocast: bool
    random_devices: tuple[str, ...]
    philox_devices: tuple[str, ...] = ()

    def reads(self) -> tuple[str, ...]:
        return self.inputs

    def emit(self, writer: SourceWriter) -> None:
        numbers = (f"*philox_state({device!r})" for device in self.philox_devices)
        writer.line(f"inputs = [{', '.join((*self.inputs, *numbers))}]")
        if self.release:
            writer.line(f"del {', '.join(self.release)}")
        if self.random_devices:
            writer.line(f"state = random_state({self.random_devices!r})")
            writer.bound.add("state")
        results = f"{tuple_of(self.results)} = " if self.results else ""
        with writer.block("with disable_autocast():" if self.autocast else None):
            writer.line(f"{results}below_autograd(forward, inputs)")

    def description(self, value_text: Callable[[Any], str]) -> str:
        text = f"run the forward graph on {count(self.inputs, 'input')}: it returns {count(self.results, 'value')}"
        details = [f"release {list_of_names(self.release)}"] if self.release else []
        details += ["autocast is off while it runs"] if self.autocast else []
        details += [f"the random state of {', '.join(self.random_devices)} is kept"] if self.random_devices else []
        details += [f"the last inputs are seed and offset of {device}" for device in self.philox_devices]
        return "; ".join([text, *details])


@dataclass(frozen=True)
class AdvanceGenerator(Step):
    """Advance the default generator of `device` to the offset `name`."""

    device: str
    name: str

    READS = ("name",)
    SOURCE = "advance_philox({device!r}, {name})"
    WORDS = "advance the generator of {device} to {name}"


# --- Autograd nodes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeepInputs(Step):
    """Keep `primals` for gradients of gradients.

    `mutated`: those that change after this step. `copied`: those whose old value the function branches on, so a retrace
    needs it. `unread`: those that are kept without their history.
    """

    primals: tuple[str, ...]
    mutated: frozenset[str]
    copied: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()

    def reads(self) -> tuple[str, ...]:
        return self.primals

    def emit(self, writer: SourceWriter) -> None:
        state = "state" if "state" in writer.bound else "None"
        kept = tuple_of(list(map(self._kept, self.primals)))
        versions = versions_text([(name, self._version(name, writer)) for name in self.primals])
        writer.line(f"recomputation = Recomputation(({kept}), {versions}, {state})")

    def _kept(self, name: str) -> str:
        return (
            f"{name}.clone()"
            if name in self.copied
            else f"{name}.detach().requires_grad_()"
            if name in self.unread
            else name
        )

    def _version(self, name: str, writer: SourceWriter) -> str:
        is_known = isinstance(writer.fakes.get(name), torch.Tensor) and name not in self.mutated
        return writer.version(name) if is_known else "None"

    def description(self, value_text: Callable[[Any], str]) -> str:
        return f"keep {list_of_names(self.primals)} for gradients of gradients"


@dataclass(frozen=True)
class RecordResults(Step):
    """Keep weak references to the results `names` and `views`, for gradients of gradients."""

    names: tuple[str, ...]
    views: tuple[str, ...] = ()

    def reads(self) -> tuple[str, ...]:
        return (*self.names, *self.views)

    def emit(self, writer: SourceWriter) -> None:
        pairs = [f"(ref({name}), None)" for name in self.names]
        pairs += [f"(ref({name}), {writer.version(name)})" for name in self.views]
        writer.line(f"recomputation.results = ({tuple_of(pairs)})")

    def description(self, value_text: Callable[[Any], str]) -> str:
        return f"keep weak references to {list_of_names(self.names)} for gradients of gradients"


@dataclass(frozen=True)
class MakeBoundary(Step):
    """`name` = a stand-in for a value inside the function, which carries its gradient from segment to segment."""

    name: str
    size: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    WORDS = "make {name}, which carries a gradient from one backward to the next"

    def emit(self, writer: SourceWriter) -> None:
        writer.line(f"{self.name} = stand_in({writer.value(self.size)}, {self.dtype}, {str(self.device)!r})")


@dataclass(frozen=True)
class AssembleResult(Step):
    """`name` = the wrapper subclass of `parts`; `numbers` are the symbolic ones of its form, names or constants."""

    name: str
    end: End
    parts: tuple[str, ...]
    numbers: tuple[str, ...]

    WORDS = "assemble {name}, through which gradients of other results pass"

    def reads(self) -> tuple[str, ...]:
        return self.parts

    def objects(self) -> Sequence[tuple[str, Any]]:
        return [("end", self.end)]

    def emit(self, writer: SourceWriter) -> None:
        parts, numbers = tuple_of(self.parts), tuple_of(self.numbers)
        writer.line(f"{self.name} = passed_result({writer.names.next('end')}, ({parts}), ({numbers}))")


@dataclass(frozen=True)
class PassThrough(Step):
    """`names` = tensors whose gradients are the parts of a gradient of `wrapper`."""

    names: tuple[str, ...]
    wrapper: str
    passage: Passage

    READS = ("wrapper",)
    WORDS = "take {wrapper} apart once more, for a gradient that passes through it"

    def objects(self) -> Sequence[tuple[str, Any]]:
        return [("passage", self.passage)]

    def emit(self, writer: SourceWriter) -> None:
        writer.line(f"{tuple_of(self.names)} = {writer.names.next('passage')}.through({self.wrapper})")


@dataclass(frozen=True)
class TangentLayout:
    """Size and stride that the backward graph expects of one tangent."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]


@dataclass(frozen=True)
class WatchedMemory:
    """A tensor whose version must be unchanged when some nodes run, a bit mask of `BackwardSegment.saving`.

    `version_bumps`: by how much the call raises the version.
    """

    name: str
    nodes: int
    version_bumps: int

    def version_after(self, writer: SourceWriter) -> str:
        """The version that the tensor has after the call."""
        return f"version_{self.name} + {self.version_bumps}" if self.version_bumps else writer.version(self.name)


@dataclass(frozen=True)
class Attach(Step):
    """Make `outputs` the outputs of the autograd node of one segment; the node's inputs are `inputs`.

    `backward` names what the node runs. `grad_mode` is the mode to make the node in; `None` leaves the caller's. `memory` is
    the memory that backwards change in place and that this one reads or changes. `watched`: see `SavingNodes.memory`.
    `waits`: a checkpoint that ends the call here, since it has all saved tensors, ends it at `EndRecomputation`. It may not
    end it if there are `partly_written` inputs.
    """

    backward: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    saved: tuple[str, ...]
    sizes: tuple[str, ...]
    tangents: tuple[TangentLayout, ...]
    grad_mode: bool | None
    memory: tuple[str, ...] = ()
    watched: tuple[WatchedMemory, ...] = ()
    waits: bool = False
    partly_written: tuple[int, ...] = ()

    def reads(self) -> tuple[str, ...]:
        watched = (each.name for each in self.watched)
        return (*self.outputs, *self.inputs, *self.saved, *self.sizes, *watched, *self.memory)

    def entry_versions(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.watched if each.version_bumps)

    def emit(self, writer: SourceWriter) -> None:
        arguments = [self.backward, f"({tuple_of(self.outputs)})", f"({tuple_of(self.saved)})", "recomputation"]
        arguments.append(self._details(writer))
        arguments += ["sentinel", *self.inputs] if needs_sentinel(len(self.inputs)) else self.inputs
        results, attach = tuple_of(self.outputs), "attach("
        if self.waits or self.partly_written:
            results, attach = f"end, {results}", f"attach_and_wait({self.partly_written}, attach, "
        with writer.grad_mode(self.grad_mode):
            writer.line(f"{results} = {attach}{', '.join(arguments)})")

    def _details(self, writer: SourceWriter) -> str:
        """What only the call knows; see `CallDetails`."""
        layouts = tuple((layout.size, layout.stride) for layout in self.tangents)
        symbolic = any(torch_compat.has_symbols(number) for layout in layouts for part in layout for number in part)
        if not (self.sizes or symbolic or self.memory or self.watched):
            return "None"
        arguments = [f"({tuple_of(self.sizes)})", writer.value(layouts) if symbolic else "None"]
        watched = [f"({each.name}.detach(), {each.version_after(writer)}, {each.nodes})" for each in self.watched]
        arguments += [f"({tuple_of(self.memory)})"] if self.memory or watched else []
        arguments += [f"({tuple_of(watched)})"] if watched else []
        return f"CallDetails({', '.join(arguments)})"

    def description(self, value_text: Callable[[Any], str]) -> str:
        sizes = f" and {count(self.sizes, 'size')}" if self.sizes else ""
        node = f"give {list_of_names(self.outputs)} the autograd node of `{self.backward}`"
        saved = f"it saves {count(self.saved, 'tensor')}{sizes}"
        return f"{node}; {saved} and returns gradients of {list_of_names(self.inputs)}"


@dataclass(frozen=True)
class EndRecomputation(Step):
    """End a call that a checkpoint has repeated for its saved tensors: eager would have been ended here."""

    WORDS = "end the call if a checkpoint only wanted what is saved"

    def emit(self, writer: SourceWriter) -> None:
        with writer.block("if end is not None:"):
            writer.line("raise end")


@dataclass(frozen=True)
class KeepHistory(Step):
    """`name` = a stand-in for `target` as it is now, before its gradient history changes."""

    name: str
    target: str
    grad_mode: bool | None

    READS = ("target",)
    WORDS = "make {name}, a stand-in for {target} before its history changes"

    def emit(self, writer: SourceWriter) -> None:
        with writer.grad_mode(self.grad_mode):
            writer.line(f"{self.name} = history_of({self.target})")


@dataclass(frozen=True)
class CallMethod(Step):
    """Call a method of a tensor that only concerns autograd, as the function does."""

    name: str
    method: str
    arguments: tuple[Any, ...]

    READS = ("name",)
    WORDS = "call {name}.{method}()"

    def objects(self) -> Sequence[tuple[str, Any]]:
        return [("hook", argument) for argument in self.arguments]

    def emit(self, writer: SourceWriter) -> None:
        writer.line(f"{self.name}.{self.method}({', '.join(writer.names.next(kind) for kind, _ in self.objects())})")


# --- Tensors of one memory -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MakeAlias(Step):
    """`name` = `target`, to be saved for the backward: its geometry or its data changes later.

    `geometry`: of the alias; `None`: that of `target` now.
    """

    name: str
    target: str
    geometry: Geometry | None = None

    READS = ("target",)

    def depends_on_offset(self) -> bool:
        return self.geometry is not None and self.geometry.offset is not None

    def emit(self, writer: SourceWriter) -> None:
        view = "" if self.geometry is None else f".as_strided{writer.value(self.geometry.numbers)}"
        writer.line(f"{self.name} = {self.target}.detach(){view}")

    def description(self, value_text: Callable[[Any], str]) -> str:
        how = "as it is now" if self.geometry is None else f"with the geometry {value_text(self.geometry)}"
        return f"make {self.name}, an alias of {self.target} {how}"


@dataclass(frozen=True)
class AliasBase(Step):
    """`name` = `numel` elements of memory from `start_bytes` after the first byte of `member`, with its version counter."""

    name: str
    member: str
    start_bytes: int
    numel: int

    READS = ("member",)
    SOURCE = "{name} = memory_alias({member}, {start_bytes}, {numel})"
    WORDS = "make {name}, an alias of the memory around {member}"


@dataclass(frozen=True)
class ConvertToInference(Step):
    """`name` becomes an inference tensor of the same memory."""

    name: str

    READS = ("name",)
    SOURCE = "{name} = as_inference({name})"
    WORDS = "make {name} an inference tensor"


@dataclass(frozen=True)
class Pieces:
    """`name` = the list that the last of `steps`, applied to `base`, returns: several views are pieces of it."""

    name: str
    steps: tuple[ViewStep, ...]


@dataclass(frozen=True)
class MakeView(Step):
    """`name` = the views of `replay`, applied to `base`. With `pieces`, its first steps run once for several views.

    `is_leaf`: the view then requires grad, as the start of a history.
    """

    name: str
    base: str
    replay: ViewReplay
    pieces: Pieces | None = None
    is_leaf: bool = False

    READS = ("base",)

    def depends_on_offset(self) -> bool:
        return any(step.op is torch.ops.aten.as_strided.default for step in self.replay.steps)

    def emit(self, writer: SourceWriter) -> None:
        writer.line(f"# {self.replay.reason}")
        with writer.grad_mode(self.replay.grad_mode):
            if self.pieces is None:
                writer.views(self.name, self.base, self.replay.steps)
            else:
                self._take_piece(self.pieces, writer)
        if self.is_leaf:
            writer.line(f"{self.name}.requires_grad_()")

    def _take_piece(self, pieces: Pieces, writer: SourceWriter) -> None:
        if pieces.name not in writer.bound:
            writer.bound.add(pieces.name)
            writer.views(pieces.name, self.base, pieces.steps)
        shared, own = self.replay.steps[: len(pieces.steps)], self.replay.steps[len(pieces.steps) :]
        piece = f"{pieces.name}[{shared[-1].item}]"
        if own:
            writer.views(self.name, piece, own)
        else:
            writer.line(f"{self.name} = {piece}")

    def description(self, value_text: Callable[[Any], str]) -> str:
        return f"make {self.name}, a view of {self.base}{value_text(self.replay)}"


# --- Writes to inputs, and versions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UpdateGeometry(Step):
    """`as_strided_`: redo a metadata mutation of an input, under `grad_mode`; `None` leaves the caller's."""

    target: str
    geometry: Geometry
    grad_mode: bool | None

    READS = ("target",)

    def depends_on_offset(self) -> bool:
        return self.geometry.offset is not None

    def emit(self, writer: SourceWriter) -> None:
        with writer.grad_mode(self.grad_mode):
            writer.line(f"{self.target}.as_strided_{writer.value(self.geometry.numbers)}")

    def description(self, value_text: Callable[[Any], str]) -> str:
        return f"set the geometry of {self.target}: {value_text(self.geometry)}"


@dataclass(frozen=True)
class CopyBack(Step):
    """`copy_`: write the new data of an input. `through` is `""`, `".detach()"` or `".data"`."""

    target: str
    source: str
    through: str
    grad_mode: bool | None

    READS = ("target", "source")

    def emit(self, writer: SourceWriter) -> None:
        with writer.grad_mode(self.grad_mode):
            writer.line(f"{self.target}{self.through}.copy_({self.source})")

    def description(self, value_text: Callable[[Any], str]) -> str:
        return f"copy {self.source} into {self.target}{self.through and f', through {self.through}'}"


@dataclass(frozen=True)
class AssignData(Step):
    """`target.data = source`: the input gets another memory."""

    target: str
    source: str

    READS = ("target", "source")
    SOURCE = "{target}.data = {source}"
    WORDS = "give {target} the memory of {source}"


@dataclass(frozen=True)
class ShareVersion(Step):
    """`name` gets the version counter of `saved`, since both show one value: the backward then notices writes to `name`."""

    name: str
    saved: str

    READS = ("name", "saved")
    SOURCE = "{name} = sharing_version({name}, {saved})"
    WORDS = "let {name} share the version counter of {saved}, whose memory it shares"


@dataclass(frozen=True)
class SetVersion(Step):
    """Set the version counter of `target` to its value at entry plus `bumps`."""

    target: str
    bumps: int

    READS = ("target",)
    SOURCE = "raise_version({target}, version_{target}, {bumps})"
    WORDS = "set the version of {target} to its version at entry + {bumps}"

    def entry_versions(self) -> tuple[str, ...]:
        return (self.target,)

    @classmethod
    def emit_all(cls, steps: Sequence[Self], writer: SourceWriter) -> None:
        if len(steps) < MANY:
            super().emit_all(steps, writer)
            return
        names = [step.target for step in steps]
        versions, bumps = [f"version_{name}" for name in names], [step.bumps for step in steps]
        writer.line(f"raise_versions(({tuple_of(names)}), ({tuple_of(versions)}), {tuple(bumps)})")


@dataclass(frozen=True)
class StartVersion(Step):
    """Set the version counter of a fresh result: the function had changed it in place."""

    name: str
    version: int

    READS = ("name",)
    SOURCE = "raise_version({name}, 0, {version})"
    WORDS = "set the version of {name} to {version}"


# --- The end of a call -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReturnValue(Step):
    """The next user output: a name, or a constant."""

    value: Any
    is_name: bool

    def reads(self) -> tuple[str, ...]:
        return (self.value,) if self.is_name else ()

    def objects(self) -> Sequence[tuple[str, Any]]:
        return () if self.is_name else [("constant", self.value)]

    def emit(self, writer: SourceWriter) -> None:
        if self.is_name:
            writer.returned.append(self.value)
            return
        name = writer.names.next("constant")
        writer.returned.append(repr(self.value) if type(self.value) in LITERALS else name)

    def description(self, value_text: Callable[[Any], str]) -> str:
        return self.value if self.is_name else value_text(self.value)


@dataclass(frozen=True)
class RestoreGradMode(Step):
    """Leave the grad mode that the function left."""

    enabled: bool

    SOURCE = "set_grad_enabled({enabled})"

    def description(self, value_text: Callable[[Any], str]) -> str:
        return f"leave grad mode {'on' if self.enabled else 'off'}"


def count(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}"


def list_of_names(names: Sequence[str]) -> str:
    """The names, or the first of many.

    >>> list_of_names(["a", "b"]), list_of_names(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
