"""The steps that a schedule is made of: data, in the order in which they run. `emit.py` turns them into source text.

KeepHistory    a stand-in for an input that is written  MakeCut       a stand-in for a value inside the function
MakeBase       the memory of overlapping inputs       CallMethod     register a hook of an input
Forward        run the compiled forward                Attach         give its results their autograd nodes
UpdateGeometry redo a metadata mutation of an input    CopyBack       write the new data of a mutated input
SetVersion     make a version counter what eager's is  MakeView       replay a view on its base
StartVersion   the same for a result of the forward    ShareVersion   two results count together
ReturnValue    one user output                         RestoreGradMode  leave the grad mode that the function left
AssignData     give an input another memory
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import torch

from aotgrad.ir import Geometry, ViewReplay, ViewStep


@dataclass(frozen=True)
class MakeBase:
    """`name` = `nbytes` of the memory around `member`, from `start_bytes` after its first byte, as a flat tensor.

    `root` is the tensor whose gradient is taken through it: the member, what it is a view of, or nothing.
    """

    name: str
    member: str
    start_bytes: int
    nbytes: int
    dtype: torch.dtype
    root: str | None


@dataclass(frozen=True)
class CallMethod:
    """Call a method of an input that says something to autograd, as the function does."""

    name: str
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Forward:
    """Run the compiled forward on `inputs` (names) and name its results.

    `release` are inputs not needed afterwards. `random_devices` are the device types on which the graph draws random
    numbers, if their state must be kept to draw the same ones again.
    """

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    release: tuple[str, ...]
    autocast: bool
    random_devices: tuple[str, ...]


@dataclass(frozen=True)
class TangentLayout:
    """Size and stride that the backward graph expects of one tangent."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]


@dataclass(frozen=True)
class KeepInputs:
    """Keep `primals` for gradients of gradients; those in `mutated` change after this step.

    `watched`: those of them whose new value eager saves, and by how much their version is higher after the call.
    `asked`: those of them whose old value the function asks for; what it does again depends on that.
    """

    primals: tuple[str, ...]
    mutated: frozenset[str]
    watched: tuple[tuple[str, int], ...] = ()
    asked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NoteResults:
    """Note which tensors are the results `names` and `views`, as long as the caller has them, for gradients of gradients."""

    names: tuple[str, ...]
    views: tuple[str, ...] = ()


@dataclass(frozen=True)
class MakeCut:
    """`name` = a tensor that stands for a value inside the function, to carry its gradient from segment to segment."""

    name: str
    size: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Attach:
    """Make `outputs` the outputs of the autograd node of one segment, whose inputs are `inputs`.

    `watched_inputs` (by position) and `watched_results` are tensors that eager would save, with a bit mask of the nodes that
    do: their versions are to stay. So are `watched_members`, inputs in shared memory that the function changes, with the
    mask and by how much their version is higher after the call. `memory` is what backwards change in place, as far as this
    one reads or changes it.
    `backward` names what the node runs. `grad_mode` is the mode that the node must be made in, or `None` if the caller's is
    right.
    """

    backward: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    saved: tuple[str, ...]
    sizes: tuple[str, ...]
    tangents: tuple[TangentLayout, ...]
    grad_mode: bool | None
    watched_inputs: tuple[tuple[int, int], ...] = ()
    watched_results: tuple[tuple[str, int], ...] = ()
    watched_members: tuple[tuple[str, int, int], ...] = ()
    memory: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShareVersion:
    """`name` gets the version counter of `saved`: both are views of one value, and writes to it must be noticed."""

    name: str
    saved: str


@dataclass(frozen=True)
class MakeAlias:
    """`name` = `target` as it lies now, to be saved for the backward: its geometry or its data changes after that."""

    name: str
    target: str


@dataclass(frozen=True)
class KeepHistory:
    """`name` = a tensor that stands for `target` as it is now, whose gradient history is about to change."""

    name: str
    target: str
    grad_mode: bool | None


@dataclass(frozen=True)
class AliasBase:
    """`name` = `numel` elements of memory from `start_bytes` after the first byte of `member`, with its version counter."""

    name: str
    member: str
    start_bytes: int
    numel: int


@dataclass(frozen=True)
class AsInference:
    """`name` becomes an inference tensor of the same memory."""

    name: str


@dataclass(frozen=True)
class UpdateGeometry:
    """`as_strided_`: the input's metadata was mutated. `grad_mode`: while it runs; `None` leaves the caller's."""

    target: str
    geometry: Geometry
    grad_mode: bool | None


@dataclass(frozen=True)
class CopyBack:
    """`copy_`: the input's data was mutated. `through` is how: `""`, `".detach()"` or `".data"`."""

    target: str
    source: str
    through: str
    grad_mode: bool | None


@dataclass(frozen=True)
class AssignData:
    """`target.data = source`: the input was given another memory."""

    target: str
    source: str


@dataclass(frozen=True)
class SetVersion:
    """Set the version counter of `target` to its value at entry plus `bumps`."""

    target: str
    bumps: int


@dataclass(frozen=True)
class StartVersion:
    """Set the version counter of a fresh result: the function had changed it in place."""

    name: str
    version: int


@dataclass(frozen=True)
class Pieces:
    """`name` = the list that the last of `steps`, applied to `base`, returns: several views are pieces of it."""

    name: str
    steps: tuple[ViewStep, ...]


@dataclass(frozen=True)
class MakeView:
    """`name` = the views of `replay`, applied to `base`. With `pieces`, its first steps run once for several views.

    `is_leaf`: it then requires grad, as the start of a history.
    """

    name: str
    base: str
    replay: ViewReplay
    pieces: Pieces | None = None
    is_leaf: bool = False


@dataclass(frozen=True)
class ReturnValue:
    """The next user output: a name, or a constant."""

    value: Any
    is_name: bool


@dataclass(frozen=True)
class RestoreGradMode:
    enabled: bool


Step = Union[
    MakeBase,
    CallMethod,
    Forward,
    KeepInputs,
    NoteResults,
    MakeCut,
    Attach,
    AsInference,
    AliasBase,
    MakeAlias,
    KeepHistory,
    ShareVersion,
    UpdateGeometry,
    CopyBack,
    AssignData,
    SetVersion,
    StartVersion,
    MakeView,
    ReturnValue,
    RestoreGradMode,
]
