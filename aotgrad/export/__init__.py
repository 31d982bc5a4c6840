"""Graphs for other programs: one graph of a module or function, with the meaning of its inputs and outputs.

    graph, signature = aotgrad.aot_export_module(model, (x,), trace_joint=False)
    joint = aotgrad.export_joint(f, (x,));  f = aotgrad.compile_joint(joint, compiler)

`graph` writes a traced function as one graph, `module` exports modules with a signature, `pre_dispatch` those before
autograd, `joint` exports joint graphs, which can be edited and compiled, `descriptors` describes their inputs and outputs as
torch does, and `trace` traces without compiling.
"""

from aotgrad.export.descriptors import (
    JointWithDescriptors,
    aot_compile_joint_with_descriptors,
    aot_export_joint_with_descriptors,
)
from aotgrad.export.joint import ExportedJoint, aot_export_joint_simple, compile_joint, export_joint
from aotgrad.export.module import BackwardSignature, GraphSignature, aot_export_module

__all__ = [
    "BackwardSignature",
    "ExportedJoint",
    "GraphSignature",
    "JointWithDescriptors",
    "aot_compile_joint_with_descriptors",
    "aot_export_joint_simple",
    "aot_export_joint_with_descriptors",
    "aot_export_module",
    "compile_joint",
    "export_joint",
]
