"""aotgrad: an ahead-of-time autograd compiler for PyTorch."""

from __future__ import annotations

from aotgrad import backends, errors, passes
from aotgrad.api import aot_function, aot_module, aot_module_simplified, clear_cache
from aotgrad.backends import make_boxed_compiler, make_boxed_func, nop
from aotgrad.budgets import memory_frontier
from aotgrad.counters import counters
from aotgrad.frontends.dynamo import DynamoBackend, eager, inductor, interpreter
from aotgrad.inspect.explain import explain
from aotgrad.options import Options
from aotgrad.partition import default_partition, min_cut_rematerialization_partition, recompute_all_partition
from aotgrad.plan_cache import last_executed

__all__ = [
    "DynamoBackend",
    "Options",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "backends",
    "clear_cache",
    "counters",
    "default_partition",
    "eager",
    "errors",
    "explain",
    "inductor",
    "interpreter",
    "last_executed",
    "make_boxed_compiler",
    "make_boxed_func",
    "memory_frontier",
    "min_cut_rematerialization_partition",
    "nop",
    "passes",
    "recompute_all_partition",
]
