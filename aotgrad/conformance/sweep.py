"""Runs many checks in worker processes. A crash or a hang costs only its own check.

for done in sweep(tasks, start, jobs=2, limit_s=60): print(done.task.subject, done.answer)
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from aotgrad.conformance.verdict import Crashed, SubjectVerdict, TimedOut, from_json, to_json

CONTEXT = multiprocessing.get_context("spawn")
START_LIMIT_S = 120
"""How long a new process may take to import torch and its databases."""


@dataclass(frozen=True)
class Task:
    """One check: names of a compiler, a variant and a subject, and the most samples."""

    compiler: str
    variant: str
    subject: str
    samples: int


@dataclass(frozen=True)
class Row:
    """The outcome of a task.

    Attributes:
        ops: how many ops ran compiled, and how many in eager between compiled parts, if known.
        script: the file of a minimized script, or why there is none, once that is known.
    """

    task: Task
    verdict: SubjectVerdict
    elapsed_s: float
    ops: tuple[int, int] | None = None
    script: str | None = None

    def to_line(self) -> str:
        known = {name: value for name in ("ops", "script") if (value := getattr(self, name)) is not None}
        return json.dumps({**asdict(self.task), **to_json(self.verdict), "elapsed_s": round(self.elapsed_s, 2), **known})

    @classmethod
    def from_line(cls, line: str) -> Row:
        row = json.loads(line)
        task = Task(row["compiler"], row["variant"], row["subject"], row["samples"])
        ops = tuple(row["ops"]) if "ops" in row else None
        return cls(task, from_json(row), row["elapsed_s"], ops, row.get("script"))


def read_rows(path: Path) -> dict[Task, Row]:
    """The rows of a file of JSON lines, the last of each task, without truncated lines."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    return {row.task: row for row in map(Row.from_line, lines)}


StartWorker = Callable[[], Callable[[Task], Any]]
"""Called once in each worker, and so picklable; returns what answers a task."""


@dataclass(frozen=True)
class Done:
    """The answer to a task, or `Crashed` or `TimedOut` if there is none."""

    task: Task
    answer: Any
    elapsed_s: float


def work(pipe: Connection, start: StartWorker) -> None:
    """A worker: reports that it is ready, then answers each task."""
    os.setpgid(0, 0)  # to be killed with all processes that it starts
    logging.disable(logging.CRITICAL)
    for stream in (1, 2):  # their output would garble the progress bar
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    import torch

    torch.set_num_threads(1)
    answer = start()
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(answer(pipe.recv()))


@dataclass(eq=False)
class Worker:
    """A process with at most one task."""

    start: StartWorker
    limit_s: float
    task: Task | None = None
    ready: bool = False
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=work, args=(theirs, self.start))
        self.process.start()
        assert self.process.pid is not None
        self.group = self.process.pid
        theirs.close()

    def give(self, task: Task) -> None:
        self.task, self.since = task, time.monotonic()
        self.pipe.send(task)

    @property
    def is_idle(self) -> bool:
        """Whether it has answered everything, and no task is left."""
        return self.ready and self.task is None

    @property
    def deadline(self) -> float:
        return self.since + (self.limit_s if self.ready else START_LIMIT_S)

    def done(self, answer: Any) -> Done:
        assert self.task is not None
        done = Done(self.task, answer, time.monotonic() - self.since)
        self.task = None
        return done

    def exit_status(self) -> int | None:
        """The exit code of a process that closed its pipe: negative for a fatal signal."""
        self.process.join(timeout=10)
        return self.process.exitcode

    def end(self) -> None:
        is_idle = self.is_idle
        self.pipe.close()
        if is_idle:
            self.process.join(timeout=5)  # it ends where it waits for a task
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self.process.kill()
        self.process.join()


def sweep(tasks: Iterable[Task], start: StartWorker, jobs: int, limit_s: float) -> Iterator[Done]:
    """The answers to the tasks, in order of completion."""
    waiting = deque(tasks)
    workers = [Worker(start, limit_s) for _ in range(min(jobs, len(waiting)))]
    try:
        while waiting or any(worker.task is not None for worker in workers):
            watched = [worker for worker in workers if not worker.is_idle]
            timeout = max(0.0, min(worker.deadline for worker in watched) - time.monotonic())
            answered = wait([worker.pipe for worker in watched], timeout)
            for worker in watched:
                if worker.pipe in answered:
                    successor, done = after_answer(worker, waiting)
                elif time.monotonic() > worker.deadline:
                    successor, done = after_end(worker, TimedOut(f"longer than {worker.limit_s:.0f} s"))
                else:
                    continue
                workers[workers.index(worker)] = successor
                if done is not None:
                    yield done
    finally:
        for worker in workers:
            worker.end()


def after_answer(worker: Worker, waiting: deque[Task]) -> tuple[Worker, Done | None]:
    """The worker with its next task, or its successor if it died."""
    try:
        answer: Any = worker.pipe.recv()
    except EOFError:
        return after_end(worker, None)
    done = worker.done(answer) if worker.ready else None
    worker.ready = True
    if waiting:
        worker.give(waiting.popleft())
    return worker, done


def after_end(worker: Worker, verdict: TimedOut | None) -> tuple[Worker, Done | None]:
    """Replaces a worker that hung or died, and gives the verdict for its task."""
    if not worker.ready:
        raise RuntimeError("a worker process did not start")
    done = worker.done(verdict or Crashed(f"exit status {worker.exit_status()}"))
    worker.end()
    return Worker(worker.start, worker.limit_s), done
