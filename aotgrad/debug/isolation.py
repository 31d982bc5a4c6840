"""Asks a question in a process of its own: what hangs there is ended, and what crashes there is an answer.

In: a function that says how something fails, and seconds. Out: a `Failure`, or `None`.

The process is a fork, so nothing of what is asked about has to be picklable. A fork has no threads, and the GPU's context is
of no use in it.
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
from aotgrad.debug.check import Failure


def failure_apart(ask: Callable[[], Failure | None], limit_s: float) -> Failure | None:
    """What `ask` returns in another process; a failure, too, if that process dies or does not answer in time.

    Raises:
        RuntimeError: `ask` raises; or processes cannot be forked here.

    Example:
        >>> failure_apart(lambda: os.abort(), 10)
        Failure(kind='SIGABRT', text='the process was killed')
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
    """Raises RuntimeError if a fork of this process is of no use."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise RuntimeError("this system cannot fork processes; leave out the time limit")
    if torch.cuda.is_initialized():
        raise RuntimeError("CUDA is in use, which a forked process cannot go on with; leave out the time limit")


def answer(ask: Callable[[], Failure | None], sender: Connection) -> None:
    """Send what `ask` returns, or the text of what it raises. Runs in the other process, silently."""
    silence = open(os.devnull, "w")  # noqa: SIM115 - it is open as long as the process lives
    sys.stdout = sys.stderr = silence
    for stream in (1, 2):
        os.dup2(silence.fileno(), stream)
    faulthandler.disable()
    torch.set_num_threads(1)  # those of the parent are not here
    torch_compat.compile_without_workers()
    try:
        sender.send(ask())
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


def death(status: int | None, limit_s: float) -> Failure:
    """How a process ended that gave no answer: by a signal (`-9` is that of the time limit), or by itself."""
    if status == -signal.SIGKILL:
        return Failure("hangs", f"takes longer than {limit_s:g} seconds, or too much memory")
    if status is not None and status < 0:
        return Failure(signal.Signals(-status).name, "the process was killed")
    return Failure("exits", f"ends the process with status {status}")
