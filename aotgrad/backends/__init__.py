"""Each graph of a partition -> a callable.

`kit.Backend` is the base class for authors of backends; `FunctionBackend` wraps any compiler of graphs. `registry` finds
backends by name. `eager` runs a graph's own code, `interpreter` runs it op by op, `inductor` compiles it. `corrected` lists
the corrections of Inductor. `graph_values` describes inputs and outputs to an author. Most other modules prepare graphs for
one of these; the first line of each says what it does. `pieces` runs a graph that `uncompiled` or `layers` has cut.
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
