"""aotgrad: an ahead-of-time autograd compiler for PyTorch.

`api` has the public functions, `pipeline` the stages of a compilation, `ir` and `slots` the types that pass between stages,
`options` the options, `errors` the exceptions. The folders of the stages, in their order:

capture        runs the function once on fake inputs, under functionalization
analysis       how inputs are mutated, what outputs alias
convention     one input for several arguments that are one tensor, or share memory
joint          the backward, appended to the same graph
passes         simplifies graphs
partition      forward and backward graph, and the values saved between them
backends       each graph -> a callable
runtime        one function around the callables, and its autograd nodes

What leads to a compilation, and what remains of it:

frontends      the entry points of other libraries: Dynamo, "inductor", functorch's names
plan_cache     what happens in one call: its plan is found, or compiled
guards         what decides whether a call may reuse a plan
transforms     derivatives and batches of a compiled function
training_step  a whole step of training as one graph
subclasses     wrapper subclasses, taken apart into plain tensors
eager_calls    calls of functions that are not traced
cache          compiled functions on disk
shipping       compiled functions in a file, for another process
export         traced functions as graphs for other programs

Facts, tools and reports:

graph          facts about ops and graphs
torch_compat   the only place for private names of torch
native         what takes the most time in a call, in C++
telemetry      counters, logs, names of compilations
verify         the contracts of the stages
printing       stages as text
inspect        reports for people
debug          finds where a backend fails
conformance    compares a backend with eager
"""

from __future__ import annotations

from aotgrad import backends, debug, errors, passes
from aotgrad.api import aot_function, aot_module, aot_module_simplified, clear_cache
from aotgrad.backends import make_boxed_compiler, make_boxed_func, nop
from aotgrad.debug import minifier
from aotgrad.eager_calls.mark import island
from aotgrad.export import (
    BackwardSignature,
    ExportedJoint,
    GraphSignature,
    JointWithDescriptors,
    aot_compile_joint_with_descriptors,
    aot_export_joint_simple,
    aot_export_joint_with_descriptors,
    aot_export_module,
    compile_joint,
    export_joint,
)
from aotgrad.frontends.checkpoint_name import checkpoint_name
from aotgrad.frontends.dynamo import DynamoBackend, eager, inductor, interpreter
from aotgrad.frontends.functorch_names import (
    default_decompositions,
    draw_graph,
    draw_graph_compile,
    memory_efficient_fusion,
    nnc_jit,
    print_compile,
    ts_compile,
)
from aotgrad.frontends.install import install, uninstall
from aotgrad.frontends.supported_versions import warn_if_untested as _warn_if_untested
from aotgrad.inspect.explain import explain
from aotgrad.inspect.memory_frontier import memory_frontier
from aotgrad.options import Options, config
from aotgrad.options import logs_wanted as _logs_wanted
from aotgrad.partition import default_partition, min_cut_rematerialization_partition, recompute_all_partition
from aotgrad.plan_cache.entry import last_executed
from aotgrad.shipping import load, save
from aotgrad.telemetry.counters import counters
from aotgrad.telemetry.graph_names import get_aot_compilation_context, get_aot_graph_name, get_graph_being_compiled
from aotgrad.telemetry.logs import configure as _configure_logs
from aotgrad.telemetry.logs import set_logs
from aotgrad.torch_compat import decompose as pythonkey_decompose
from aotgrad.training_step.step import train_step

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "debug_compile":
        raise AttributeError(
            "there is no debug_compile: aotgrad.debug.minify(fn, args, ts_compile) writes a script that runs"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_warn_if_untested()
compiled_function, compiled_module = aot_function, aot_module
_configure_logs(_logs_wanted())

__all__ = [
    "BackwardSignature",
    "DynamoBackend",
    "ExportedJoint",
    "GraphSignature",
    "JointWithDescriptors",
    "Options",
    "aot_compile_joint_with_descriptors",
    "aot_export_joint_simple",
    "aot_export_joint_with_descriptors",
    "aot_export_module",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "backends",
    "checkpoint_name",
    "clear_cache",
    "compile_joint",
    "compiled_function",
    "compiled_module",
    "config",
    "counters",
    "debug",
    "default_decompositions",
    "default_partition",
    "draw_graph",
    "draw_graph_compile",
    "eager",
    "errors",
    "explain",
    "export_joint",
    "get_aot_compilation_context",
    "get_aot_graph_name",
    "get_graph_being_compiled",
    "inductor",
    "install",
    "interpreter",
    "island",
    "last_executed",
    "load",
    "make_boxed_compiler",
    "make_boxed_func",
    "memory_efficient_fusion",
    "memory_frontier",
    "min_cut_rematerialization_partition",
    "minifier",
    "nnc_jit",
    "nop",
    "passes",
    "print_compile",
    "pythonkey_decompose",
    "recompute_all_partition",
    "save",
    "set_logs",
    "train_step",
    "ts_compile",
    "uninstall",
]
