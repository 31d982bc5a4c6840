"""The contract of a capture: flat inputs and outputs, one placeholder per input, and no escaped fake tensor."""

from __future__ import annotations

from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.ir import CallingConvention, Capture, MemberInput, SyntheticBase, TensorInput
from aotgrad.printing import type_text
from aotgrad.verify.common import Problems, lint, same_count


def check_capture(capture: Capture) -> Problems:
    """Check for flat inputs and outputs, and placeholders for inputs. Members, which come last, have none."""
    for name in ("arguments", "before"):
        yield from same_count(name, getattr(capture, name), "inputs", capture.inputs)
    own = [spec for spec in capture.inputs if not isinstance(spec, MemberInput)]
    for name in ("primals", "placeholders"):
        yield from same_count(name, getattr(capture, name), "inputs", own)
    for spec, node in zip(own, capture.placeholders, strict=True):
        yield from check_input(spec, node)
    yield from check_convention(capture.convention)
    for index, value in enumerate(capture.outputs):
        if type(value) in (list, tuple, dict):
            yield f"output {index} is a {type(value).__name__}; outputs are flat"
        if isinstance(value, torch_compat.FakeTensor):
            yield f"output {index} is a fake tensor that escaped functionalization: {type_text(value)}"
    yield from lint(capture.trace.graph)


def check_convention(convention: CallingConvention) -> Problems:
    """Check that members come last and refer to a base, and that the arguments are the inputs that are not bases."""
    count = convention.placeholder_count
    for index, spec in enumerate(convention.inputs):
        if isinstance(spec, MemberInput) != (index >= count):
            yield f"input {spec.name} is at {index}; the {count} inputs with a placeholder come first"
        elif isinstance(spec, MemberInput) and not isinstance(convention.inputs[spec.base], SyntheticBase):
            yield f"input {spec.name} is made of input {spec.base}, which is no synthetic base"
    arguments = [k for k, spec in enumerate(convention.inputs) if not isinstance(spec, SyntheticBase)]
    if sorted(convention.order) != arguments:
        yield f"the arguments are inputs {list(convention.order)}; they must be {arguments} in some order"


def check_input(spec: Any, node: fx.Node) -> Problems:
    if spec.name != node.name:
        yield f"input {spec.name} has the placeholder {node.name}"
    if not isinstance(spec, TensorInput):
        return
    if not isinstance(spec.fake, torch_compat.FakeTensor):
        yield f"input {spec.name} is traced with a {type(spec.fake).__name__}, not with a fake tensor"
    if spec.fake.requires_grad:
        yield f"the fake tensor of {spec.name} requires grad; only the functional wrapper may"
