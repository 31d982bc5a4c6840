"""Builds the library once, by another process of low priority, after the first compilation of this one.

    started()           the file that will be there; the first call starts the build

What stands against a build (no compiler, a folder that cannot be written, an earlier failure) is one line in the log at the
level DEBUG. `AOTGRAD_NATIVE=built` leaves the build to `python -m aotgrad native build`, `AOTGRAD_NATIVE=0` does without.
"""

from __future__ import annotations

import functools
import logging
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from aotgrad.errors import NativeError
from aotgrad.native import build

PRIORITY = 19
"""The lowest one, as `nice` counts."""

DELAY_S = 10
"""Seconds before the build starts. The first call may run compilers of its own, which a build beside them slows down."""

PROGRAM = "import sys; sys.path[:] = {path!r}; from aotgrad.native.background import build_here; build_here()"

log = logging.getLogger("aotgrad.native")


@functools.cache
def started() -> Path | None:
    """Start the build. Returns the file that will be there then; `None` if something stands against it."""
    if (reason := obstacle()) is not None:
        log.debug("the C++ functions are not built: %s", reason)
        return None
    program = PROGRAM.format(path=sys.path)
    # The shell leaves the build behind: this process has no child to wait for, and may end before.
    command = ["/bin/sh", "-c", '(sleep "$0"; exec "$@") &', str(DELAY_S), sys.executable, "-c", program]
    none = subprocess.DEVNULL
    subprocess.run(command, stdin=none, stdout=none, stderr=none, start_new_session=True, check=False)
    log.debug("the C++ functions will be built in %s", build.native_store().folder)
    return build.native_store().folder / build.key()


def obstacle() -> str | None:
    """Why a build would fail, as far as it is known before."""
    if not build.IS_SUPPORTED:
        return "this system does not tell who owns a folder"
    if getattr(sys, "frozen", False) or not Path(sys.executable or "").name.startswith("python"):
        return f"{sys.executable!r} is no Python interpreter"
    compiler = shlex.split(os.environ.get("CXX") or "c++")[0]
    if shutil.which(compiler) is None:
        return f"there is no compiler {compiler!r}"
    folder = build.native_store().folder
    if not os.access(next(each for each in (folder, *folder.parents) if each.exists()), os.W_OK):
        return f"{folder} cannot be written"
    if (failure := build.native_store().read(key_of_failure())) is not None:
        return f"that failed before, {failure.decode()}"
    return None


def key_of_failure() -> str:
    """The key of the message of a build that failed. Another torch, Python or source has another one."""
    return f"failed-{build.key()}"


def build_here() -> None:
    """Build the library in this process, unless another one does or has done so, and keep the reason if that fails."""
    import fcntl  # not on Windows, where nothing is built

    os.nice(PRIORITY)
    store = build.native_store()
    with build.SOURCE.open("rb") as source:
        try:
            fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        if store.read(build.key()) is not None:
            return
        try:
            store.write(build.key(), build.compile_library())
        except NativeError as error:
            store.write(key_of_failure(), str(error).encode())
