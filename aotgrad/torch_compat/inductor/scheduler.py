"""Corrections of Inductor's scheduler, which decides what to fuse into one kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def check_reads_of_overwritten_values() -> Iterator[None]:
    """Inside, a write to a buffer is fused with a read of what it overwrites only if both access the same element.

    Torch checks this for reads of a buffer's first value, but not for reads of what an earlier write has left in it.
    """
    from torch._inductor.scheduler import Scheduler

    fusable = Scheduler.fusable_weak_dep

    def fusable_weak_dep(self: Scheduler, weak_dep: Any, node1: Any, node2: Any) -> bool:
        return fusable(self, weak_dep, node1, node2) and not _reads_elsewhere(self, weak_dep.mutating_buf, node1, node2)

    with mock.patch.object(Scheduler, "fusable_weak_dep", fusable_weak_dep):
        yield


@contextlib.contextmanager
def keep_reads_of_written_values() -> Iterator[None]:
    """Inside, a node whose loops are regenerated keeps its dependencies on the writes that its reads wait for.

    Torch before 2.14 takes the dependencies from the new loops, which name the first version of a buffer.
    """
    from torch._inductor.scheduler import SchedulerNode

    recompute = SchedulerNode.recompute_size_and_body

    def recompute_size_and_body(self: SchedulerNode, *args: Any, **kwargs: Any) -> None:
        recompute(self, *args, **kwargs)
        self.set_read_writes(self.read_writes.rename(self.mutation_renames))

    with mock.patch.object(SchedulerNode, "recompute_size_and_body", recompute_size_and_body):
        yield


def _reads_elsewhere(scheduler: Any, written: str, reader: Any, writer: Any) -> bool:
    """Whether `reader` reads what an earlier write has left in a buffer, at other elements than `writer` writes."""
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.scheduler import ForeachKernelSchedulerNode

    real_name = scheduler.mutation_real_name
    (write,) = (write for write in writer.read_writes.writes if write.name == written)
    reads = [
        read
        for read in reader.read_writes.reads
        if read.name != real_name[written] and real_name.get(read.name) == real_name[written]
    ]
    alike = (isinstance(read, MemoryDep) and (read.index, read.size) == (write.index, write.size) for read in reads)
    return not all(alike) or (bool(reads) and isinstance(reader, ForeachKernelSchedulerNode))
