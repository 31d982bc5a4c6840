"""Runs a check in a separate process, which may hang or crash.

In: a function that returns how something fails, and a limit in seconds. Out: a `BackendFailure`, or `None`.

The process is a fork, so the function need not be picklable. A fork has no threads, and cannot use the GPU's context.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from aotgrad import torch_compat
from aotgrad.debug.check import BackendFailure


def failure_apart(ask: Callable[[], BackendFailure | None], limit_s: float) -> BackendFailure | None:
    """The result of `ask` in another process; also a failure if that process dies or exceeds the limit.

    Raises:
        RuntimeError: `ask` raises, or this process cannot be forked.

    Examples:
        >>> failure_apart(lambda: os.abort(), 10)
        BackendFailure(kind='SIGABRT', text='the process was killed')
    """
    reject_where_forks_fail()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        process = multiprocessing.get_context("fork").Process(target=answer, args=(ask, sender))
        process.start()
    sender.close()
    if not receiver.poll(limit_s):
        process.kill()
    try:
        found = receiver.recv()
    except EOFError:
        process.join()
        return death(process.exitcode, limit_s)
    finally:
        receiver.close()
    process.join()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def reject_where_forks_fail() -> None:
    """Raise RuntimeError if this process cannot be forked."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise RuntimeError("this system cannot fork processes; leave out the time limit")
    if torch.cuda.is_initialized():
        raise RuntimeError("CUDA is in use, which a fork cannot share; leave out the time limit")


def answer(ask: Callable[[], BackendFailure | None], sender: Connection) -> None:
    """Send the result of `ask`, or the text of its error. Runs in the other process, without output."""
    silence = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    sys.stdout = sys.stderr = silence
    for stream in (1, 2):
        os.dup2(silence.fileno(), stream)
    faulthandler.disable()
    torch.set_num_threads(1)  # a fork does not have the parent's threads
    torch_compat.compile_without_workers()
    try:
        sender.send(ask())
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


def death(status: int | None, limit_s: float) -> BackendFailure:
    """How a process ended without an answer: by a signal (`-9` comes from the time limit), or by itself."""
    if status == -signal.SIGKILL:
        return BackendFailure("hangs", f"takes longer than {limit_s:g} seconds, or too much memory")
    if status is not None and status < 0:
        return BackendFailure(signal.Signals(-status).name, "the process was killed")
    return BackendFailure("exits", f"ends the process with status {status}")
