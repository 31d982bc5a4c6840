"""The printed origin of a node: the user's code at the end of its stack trace.

File "model.py", line 3, in f
    y = x.sin()                     ->      y = x.sin()
"""

from __future__ import annotations

import functools
import os
import re


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


def inside_of(frame: str) -> str:
    """The text after the function's name in a frame of a stack trace: `, inside 0 (Linear)`."""
    return "".join(re.findall(r", inside .*$", frame.splitlines()[0] if frame else ""))
