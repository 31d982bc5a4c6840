"""Compilers from a user's choice of backend, partition function and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aotgrad.backends import registry
from aotgrad.backends.base import PartitionCompiler
from aotgrad.options import Options
from aotgrad.partition import default_partition, min_cut_rematerialization_partition, recompute_all_partition
from aotgrad.pipeline import Compiler, lower
from aotgrad.transforms.dispatch import higher_order

PARTITIONERS: Mapping[str, Callable] = {
    "min_cut": min_cut_rematerialization_partition,
    "recompute_all": recompute_all_partition,
    "save_all": default_partition,
}
"""Partition functions by the option `partitioner`."""


def make_compiler(backend: str | PartitionCompiler, options: Options, partition_fn: Callable | None = None) -> Compiler:
    """A compiler with a backend, given by name or itself, configured by the options.

    Args:
        partition_fn: overrides the option `partitioner`.
    """
    backend = registry.configured(backend, options)
    return Compiler(backend, partition_fn or PARTITIONERS[options.partitioner], options, lower, higher_order)


def make_tracer(backend: PartitionCompiler, options: Options) -> Compiler:
    """A compiler that stops at the joint graph."""
    return Compiler(backend, default_partition, options.replace(min_graph_ops=0), None, higher_order)
