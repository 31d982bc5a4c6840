"""Each graph of a partition -> a callable.

base              the interface of the compilers of a partition's halves
kit               `Backend`, the base class for authors; `FunctionBackend` wraps any compiler of graphs
registry          backends by name
graph_values      describes the inputs and outputs of a graph to an author

eager             runs a graph's own code
interpreter       runs a graph op by op, and compares each value with the traced one
inductor          compiles a graph with Inductor

Several backends:

boxed_code        generated code that takes its arguments in one list
generator_inputs  generators as inputs, for CUDA graphs
checked_results   compares what a compiled graph returns with its trace, call by call
gradient_mode     runs halves in the gradient mode that their ops need
graphs            helpers: replace outputs, insert nodes
own_rules         arguments with a `__torch_function__`
pieces            runs a graph in the pieces that `uncompiled` or `layers` has cut
uncompiled        cuts out the ops that a compiler cannot compile
layers            finds the equal layers of a model, which are compiled once
layouts           copies results whose strides a backend has changed

Graphs for `eager`:

buffer_reuse      writes results into buffers at their last use
in_place_updates  computes new values of inputs in place
slices            many slices of a tensor in one call

Graphs for `inductor`:

corrected         the table of corrections
closed_over       closed-over tensors as inputs
copies            results that passes have aliased get their own memory
decompositions    decompositions in place of torch's
early_writes      writes inputs as soon as their new values are computed
lone_ops          ops that are worth compiling alone
parts             results that are parts of a value keep the memory of the whole
seeds             seeds of random ops
"""

from __future__ import annotations

from aotgrad.backends.base import make_boxed_compiler, make_boxed_func
from aotgrad.backends.eager import nop
from aotgrad.backends.graph_values import GraphInput, GraphOutput, graph_outputs, graph_part
from aotgrad.backends.kit import Backend, FunctionBackend
from aotgrad.backends.registry import get, names, register, register_backend
from aotgrad.graph.functionalized_call import FunctionalizedCall
from aotgrad.graph.kept_calls import CallArgument, KeptBackward

__all__ = [
    "Backend",
    "CallArgument",
    "FunctionBackend",
    "FunctionalizedCall",
    "GraphInput",
    "GraphOutput",
    "KeptBackward",
    "get",
    "graph_outputs",
    "graph_part",
    "make_boxed_compiler",
    "make_boxed_func",
    "names",
    "nop",
    "register",
    "register_backend",
]
