"""The printed origin of a node: the user's code at the end of its stack trace.

File "model.py", line 3, in f
    y = x.sin()                     ->      y = x.sin()
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any


@functools.lru_cache(maxsize=4096)
def source_line(trace: str | None) -> str | None:
    """The user's code at the end of a stack trace, or `file.py:line`; `None` without a trace.

    If every module is torch's own, the path of the module follows: `model(x), inside 0 (Linear)`.
    """
    lines = [line.strip() for line in (trace or "").splitlines() if line.strip(" ^~")]
    if not lines:
        return None
    frame = re.match(r'File "(.*)", line (\d+)', lines[-1])
    code = f"{os.path.basename(frame[1])}:{frame[2]}" if frame else lines[-1]
    return code + inside_of(lines[-1 if frame else -2] if len(lines) > 1 or frame else "")


def module_path(meta: Mapping[str, Any]) -> str | None:
    """The path of the module that a node with this `meta` is in, or that its forward op is in; `None` if unknown,
    or the outermost one."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    return path_and_class(stack)[0] or None


def path_and_class(stack: Mapping[str, tuple[str, Any]] | None) -> tuple[str, Any]:
    """The path and class of the innermost module of an `nn_module_stack`; the root's path is empty."""
    *_, (path, kind) = ("", None), *(stack or {}).values()
    return re.sub(r"^[LG]\['\w+'\]\.?", "", path), kind


def inside_of(frame: str) -> str:
    """The text after the function's name in a frame of a stack trace: `, inside 0 (Linear)`."""
    return "".join(re.findall(r", inside .*$", frame.splitlines()[0] if frame else ""))
