"""Runs many checks in worker processes. A crash or a hang costs only its own check.

for row in sweep(tasks, jobs=2, limit_s=60): print(row.task.subject, row.verdict)
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.conformance.verdict import Crashed, TimedOut, Verdict, from_json, to_json

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
    """The outcome of a task."""

    task: Task
    verdict: Verdict
    elapsed_s: float

    def to_line(self) -> str:
        return json.dumps({**asdict(self.task), **to_json(self.verdict), "elapsed_s": round(self.elapsed_s, 2)})

    @classmethod
    def from_line(cls, line: str) -> Row:
        row = json.loads(line)
        task = Task(row["compiler"], row["variant"], row["subject"], row["samples"])
        return cls(task, from_json(row), row["elapsed_s"])


def read_rows(path: Path) -> dict[Task, Row]:
    """The rows of a file of JSON lines, the last of each task, without truncated lines."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    return {row.task: row for row in map(Row.from_line, lines)}


def work(pipe: Connection) -> None:
    """A worker: reports that it is ready, then answers each task with its verdict."""
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # output of C++ would garble the progress bar
    import torch

    from tests.conformance.check import check
    from tests.conformance.subjects import find_subjects
    from tests.conformance.variants import VARIANTS

    torch.set_num_threads(1)
    os.chdir(tempfile.mkdtemp())  # the peer leaves a file behind if its partitioner fails
    subjects = find_subjects()
    pipe.send("ready")
    while True:
        task = pipe.recv()
        pipe.send(check(subjects[task.subject], VARIANTS[task.variant], task.compiler, task.samples))


@dataclass(eq=False)
class Worker:
    """A process with at most one task."""

    limit_s: float
    task: Task | None = None
    ready: bool = False
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
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

    def row(self, verdict: Verdict) -> Row:
        assert self.task is not None
        row = Row(self.task, verdict, time.monotonic() - self.since)
        self.task = None
        return row

    def exit_status(self) -> int | None:
        """The exit code of a process that closed its pipe: negative for a fatal signal."""
        self.process.join(timeout=10)
        return self.process.exitcode

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def sweep(tasks: Iterable[Task], jobs: int, limit_s: float) -> Iterator[Row]:
    """The rows of the tasks, in order of completion."""
    waiting = deque(tasks)
    workers = [Worker(limit_s) for _ in range(min(jobs, len(waiting)))]
    try:
        while waiting or any(worker.task is not None for worker in workers):
            watched = [worker for worker in workers if not worker.is_idle]
            timeout = max(0.0, min(worker.deadline for worker in watched) - time.monotonic())
            answered = wait([worker.pipe for worker in watched], timeout)
            for worker in watched:
                if worker.pipe in answered:
                    successor, row = after_answer(worker, waiting)
                elif time.monotonic() > worker.deadline:
                    successor, row = after_end(worker, TimedOut(f"longer than {worker.limit_s:.0f} s"))
                else:
                    continue
                workers[workers.index(worker)] = successor
                if row is not None:
                    yield row
    finally:
        for worker in workers:
            worker.end()


def after_answer(worker: Worker, waiting: deque[Task]) -> tuple[Worker, Row | None]:
    """The worker with its next task, or its successor if it died."""
    try:
        answer: Any = worker.pipe.recv()
    except EOFError:
        return after_end(worker, None)
    row = worker.row(answer) if worker.ready else None
    worker.ready = True
    if waiting:
        worker.give(waiting.popleft())
    return worker, row


def after_end(worker: Worker, verdict: TimedOut | None) -> tuple[Worker, Row | None]:
    """Replaces a worker that hung or died, and gives the verdict for its task."""
    if not worker.ready:
        raise RuntimeError("a worker did not start; `python -c 'import tests.conformance.check'` says why")
    row = worker.row(verdict or Crashed(f"exit status {worker.exit_status()}"))
    worker.end()
    return Worker(worker.limit_s), row
