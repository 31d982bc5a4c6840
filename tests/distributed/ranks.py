"""Processes of a gloo group that stay alive and run functions together: importing torch takes them once as long as a test.

    with Ranks(2) as ranks:
        ranks.run(function, *arguments)     the results of `function(*arguments)` on each rank

Every wait has a limit. After an error or a limit all ranks are ended, and the next run starts others.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STARTED_WITH = ["aotgrad.api", "torch._inductor.compile_fx", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]
"""Imported once, by the process that ranks are forked from."""

SECONDS = 240
"""The limit of a run. A collective waits shorter, and then says which one it is."""

SECONDS_OF_A_COLLECTIVE = 200
SECONDS_AFTER_AN_ERROR = 2


class RankError(AssertionError):
    """A rank has raised, ended or not answered."""


class Ranks:
    """`count` processes, the members of a gloo group. They start with the first run."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.folder: Path | None = None
        self.processes: list[BaseProcess] = []
        self.connections: list[Connection] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def run(self, function: Callable[..., Any], *arguments: Any, seconds: float = SECONDS) -> list[Any]:
        """Call a function of a module on each rank.

        Raises:
            RankError: with the traceback of the first rank that raises, or the stacks of those that do not answer.
        """
        if not self.processes:
            self.start()
        job = pickle.dumps((function, arguments))
        for connection in self.connections:
            connection.send_bytes(job)
        answers = self.answers(seconds)
        if all(isinstance(answer, tuple) for answer in answers):
            return [result for (result,) in answers]
        stacks = self.stacks() if None in answers else ""
        self.end()
        errors = [f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if isinstance(answer, str)]
        silent = [f"rank {rank} does not answer" for rank, answer in enumerate(answers) if answer is None]
        raise RankError("\n".join([*errors, *silent, stacks]))

    def answers(self, seconds: float) -> list[Any]:
        """What each rank answers: a result in a tuple, an error as text, or `None` if it does not."""
        answers: list[Any] = [None] * self.count
        end = time.monotonic() + seconds
        waiting = list(self.connections)
        while waiting and (left := end - time.monotonic()) > 0:
            for connection in wait(waiting, left):
                waiting.remove(connection)
                rank = self.connections.index(connection)
                answers[rank] = received(connection)
                if isinstance(answers[rank], str):
                    end = min(end, time.monotonic() + SECONDS_AFTER_AN_ERROR)
        return answers

    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aotgrad-ranks-"))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(STARTED_WITH)
        for rank in range(self.count):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, self.count, self.folder, there), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.connections.append(here)

    def stacks(self) -> str:
        """The stacks of the ranks, which they write on a signal."""
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        return "\n".join(f"{path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("stack of rank *")))

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder, self.processes, self.connections = None, [], []


def received(connection: Connection) -> Any:
    try:
        return pickle.loads(connection.recv_bytes())
    except (EOFError, ConnectionError):
        return "has ended"


def serve(rank: int, count: int, folder: Path, connection: Connection) -> None:
    """What a rank does: it runs what it is sent."""
    with (folder / f"stack of rank {rank}").open("w") as stack:
        faulthandler.register(signal.SIGUSR1, stack)
        set_up()
        limit = timedelta(seconds=SECONDS_OF_A_COLLECTIVE)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=limit)
        while True:
            try:
                function, arguments = pickle.loads(connection.recv_bytes())
            except EOFError:
                return
            connection.send_bytes(answer(function, arguments))


def set_up() -> None:
    """What `tests/conftest.py` sets for tests in one process."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1


def answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """The pickled result of a call in a tuple, or its error as text."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    try:
        return pickle.dumps((function(*arguments),))
    except Exception:
        return pickle.dumps(traceback.format_exc())
