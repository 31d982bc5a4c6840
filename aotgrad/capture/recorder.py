"""The FX tracer of a capture: records the user's line of every node.

A forward node gets the stack trace that Dynamo recorded, or else the user's frames at the moment of the call. If no frame of
the user is inside the function, because every module is torch's own, the line is the call of the function, with the module's
path:

    File "train.py", line 12, in <module>, inside 0 (Linear)
      loss = model(x)

The line is kept by autograd sequence number. A backward node gets the line of its forward op (`attribute_to`).
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx
from torch.utils import _pytree as pytree

from aotgrad import torch_compat
from aotgrad.capture import repeats
from aotgrad.capture.inner_backwards import InnerBackward
from aotgrad.errors import CaptureError
from aotgrad.graph.kept_calls import MARK, KeptCall
from aotgrad.graph.source_lines import path_and_class
from aotgrad.torch_compat import PythonKeyTracer

ORIGIN_FIELDS = ("stack_trace", "torch_fn", "custom")
STACK_FIELDS = {"nn_module_stack": "fwd_nn_module_stack", "source_fn_stack": "fwd_source_fn_stack"}
"""Fields that a backward node takes from its forward op: by the same name, and by a name that marks it as backward."""
ModuleStack = dict[str, tuple[str, type]]
"""Module path -> (path, class), for each module around a node, the outermost first."""

CHECKED_OPS = frozenset({torch.ops.aten.as_strided_scatter.default})
"""Ops that write into a view of any sizes and strides, which can exceed the memory that the trace knows."""

LIBRARY_FOLDERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)


UNSEEN = (
    "a value was computed where the trace does not see it: torch.func.linearize and make_fx run a trace of their own. "
    "Use torch.func.jvp or vjp, or do this outside of the compiled function"
)


class Recorder(PythonKeyTracer):
    """Records nodes into `graph`, with `meta["stack_trace"]` and `meta["seq_nr"]`.

    `region`: the number of the checkpointed region that runs, if one does. `backward`: the `backward()` that the
    function runs, if it does. `kept`: the call of a kept function that runs, or whose gradients are computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph(tracer_cls=PythonKeyTracer)
        self.tensor_tracker: Any = torch_compat.TensorTracker(self)
        self.root = torch.nn.Module()
        self.tensor_attrs: dict[torch.Tensor, str] = {}
        self._origins: dict[int, dict[str, Any]] = {}
        self._stacks = UserStacks()
        self._attributed: dict[str, Any] | None = None
        self.is_indexing = False
        self.region: int | None = None
        self.backward: InnerBackward | None = None
        self.kept: KeptCall | None = None

    def create_node(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: Any = None, type_expr: Any = None
    ) -> fx.Node:
        if target in CHECKED_OPS:
            value, _, *layout = pytree.tree_map_only(fx.Node, lambda number: number.meta["val"], args)
            torch_compat.check_bounds(value, *layout)
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        if kind != "call_function":
            return node
        self._describe(node)
        return node

    def _describe(self, node: fx.Node) -> None:
        if self._attributed is not None:
            self._attribute(node)
        else:
            self._record_origin(node)
            if self.backward is not None:
                self.backward.mark(node, is_rerun=self.region is not None)
        if self.kept is not None:
            node.meta[MARK] = self.kept
        if self.region is not None:
            torch_compat.tag_recomputed(node, self.region)

    def _attribute(self, node: fx.Node) -> None:
        """Mark a node as the backward of an op. A node that recomputes a checkpoint's value is not `own_backward`."""
        node.meta.update(self._attributed or {}, autograd_backward=True)
        if node.meta.get("own_backward") and torch_compat.has_saved_tensor_hooks():
            del node.meta["own_backward"]

    def graphs(self) -> list[fx.Graph]:
        """The graph, and the graphs that its higher-order ops call."""
        return [self.graph, *(each.graph for each in self.root.modules() if isinstance(each, fx.GraphModule))]

    def annotate(self, node: fx.Node, op: Any) -> None:
        """Complete the meta of a node that was made without `create_node`."""
        torch_compat.copy_current_meta(node.meta, op)
        if self._attributed is not None:
            node.meta["seq_nr"] = torch_compat.sequence_nr() - 1
        self._describe(node)

    def create_arg(self, a: Any) -> Any:
        """The argument of a node. A tensor here was not recorded.

        A zero without memory, which forward mode makes below the trace, becomes a constant with memory.

        Raises:
            CaptureError: for a tensor without values, from another trace.
        """
        if isinstance(a, torch.Tensor) and torch_compat.has_no_memory(a):
            with torch_compat.bare_evaluation():
                a = torch.zeros(a.size(), dtype=a.dtype, device=a.device)
        if isinstance(a, torch.Tensor) and torch_compat.is_traced(a):
            raise CaptureError(UNSEEN)
        return super().create_arg(a)

    def _record_origin(self, node: fx.Node) -> None:
        if "stack_trace" not in node.meta:
            trace = self._stacks.current()
            if trace:
                node.meta["stack_trace"] = trace
            if self._stacks.modules:
                node.meta.setdefault("nn_module_stack", self._stacks.modules)
        if depth := repeats.repeat_depth():
            node.meta["repeated"] = depth
        if self.is_indexing:
            node.meta["indexed"] = True
        sequence_nr = torch_compat.sequence_nr() - 1
        node.meta["seq_nr"] = sequence_nr
        if sequence_nr in self._origins:
            return
        origin = {field: node.meta[field] for field in ORIGIN_FIELDS if field in node.meta}
        origin |= {name: node.meta.get(field) for field, name in STACK_FIELDS.items()}
        self._origins[sequence_nr] = {**origin, "seq_nr": sequence_nr, "forward_op": str(node.target)}

    def origin_of(self, sequence_nr: int) -> dict[str, Any]:
        """The meta of the forward op with this autograd sequence number; empty if there is none."""
        return self._origins.get(sequence_nr, {})

    def attribute_to(self, origin: dict[str, Any] | None) -> None:
        """Attribute every node recorded from now on to `origin`; `None` returns to forward nodes."""
        self._attributed = origin


class UserStacks:
    """The frames of the user's function as text: outermost first, without frames of torch and aotgrad.

    Equal stacks are the same string; each is formatted once. `modules` are those around the current stack, in FX's form.
    """

    LIBRARY, USER, ENTRY = range(3)

    def __init__(self) -> None:
        self._kinds: dict[
            int, tuple[int, Any]
        ] = {}  # by the code's id, since hashing code is slow; the value keeps it alive
        self._texts: dict[tuple[int, ...], str] = {}
        self._call: tuple[str, int, str] | None = None  # the call of the traced function, once it is known
        self._names: dict[int, str] = {}
        self._module_stacks: dict[tuple[int, ...], ModuleStack] = {(): {}}
        self.modules: ModuleStack = {}

    def current(self) -> str:
        """The current stack; empty outside of the user's function."""
        key: list[int] = []
        frames: list[Any] = []
        forwards: list[Any] = []
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            found = self._kinds.get(id(code))
            kind = self._kind_of(code) if found is None else found[0]
            if kind == self.ENTRY:
                break
            if code.co_name == "forward":
                forwards.append(frame)
            if kind == self.USER:
                key += id(code), frame.f_lasti
                frames.append(frame)
            frame = frame.f_back
        self.modules = {} if frame is None else self._modules_of(forwards)
        if frame is None:
            return ""
        if not frames:
            return self._of_the_call(frame)
        text = self._texts.get(tuple(key))
        if text is None:
            text = self._texts[tuple(key)] = "".join(map(_format_frame, reversed(frames))).rstrip("\n")
        return text

    def _of_the_call(self, entry: Any) -> str:
        """The line that calls the traced function, and the innermost module."""
        call = self._call or calling_frame(entry)
        if call is None:
            return ""
        self._call = call
        return called_line(*call, *path_and_class(self.modules))

    def _modules_of(self, forwards: Sequence[Any]) -> ModuleStack:
        """The modules whose `forward` runs in frames, the innermost first."""
        modules = [part for part in map(self_of, reversed(forwards)) if isinstance(part, torch.nn.Module)]
        key = tuple(map(id, modules))
        if key not in self._module_stacks:
            if id(modules[0]) not in self._names:
                self._names.update((id(part), name) for name, part in modules[0].named_modules())
            found = ((name, type(part)) for part in modules if (name := self._names.get(id(part))) is not None)
            self._module_stacks[key] = {name: (name, kind) for name, kind in found}
        return self._module_stacks[key]

    def _kind_of(self, code: Any) -> int:
        kind = self.LIBRARY if code.co_filename.startswith(LIBRARY_FOLDERS) else self.USER
        if code.co_name == "run_user_function" and code.co_filename.endswith("trace.py"):
            kind = self.ENTRY
        self._kinds[id(code)] = kind, code
        return kind


def self_of(frame: Any) -> Any:
    return frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None


def calling_frame(frame: Any) -> tuple[str, int, str] | None:
    """File, line and function of the innermost user frame around a frame."""
    while frame is not None and frame.f_code.co_filename.startswith((*LIBRARY_FOLDERS, contextlib.__file__)):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def called_line(filename: str, line_number: int, function: str, path: str = "", kind: type | None = None) -> str:
    """The text of a user's call, with the path and class of the module around it."""
    if kind is not None:
        function += f", inside {path} ({kind.__name__})" if path else f", inside {kind.__name__}"
    return _format_line(filename, line_number, function).rstrip("\n")


def give_lines(graph: fx.Graph) -> None:
    """Give nodes of a frontend's graph that lack a line the line of the current call, and their module."""
    call = calling_frame(sys._getframe(1))
    if call is None:
        return
    for node in graph.nodes:
        if node.op.startswith("call_") and not node.meta.get("stack_trace"):
            node.meta["stack_trace"] = called_line(*call, *path_and_class(node.meta.get("nn_module_stack")))


def user_stack_trace() -> str:
    """The current stack; see `UserStacks`."""
    return UserStacks().current()


def _format_frame(frame: Any) -> str:
    return _format_line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


@functools.lru_cache(maxsize=4096)
def _format_line(filename: str, line_number: int, function: str) -> str:
    line = linecache.getline(filename, line_number).strip()
    return f'  File "{filename}", line {line_number}, in {function}\n' + (f"    {line}\n" if line else "")


def printed_line(text: str) -> str:
    """`file:line: code` of the innermost frame of a traceback in `text`."""
    frames = re.findall(r'File "(.*)", line (\d+), in .*(?:\n +(\S.*))?', text)
    return "{}:{}: {}".format(*frames[-1]) if frames else "an unknown line"
