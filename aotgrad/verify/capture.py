"""The contract of a capture: flat in, flat out, one placeholder an input, and no fake tensor that escapes."""

from __future__ import annotations

from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.ir import Capture, TensorInput
from aotgrad.printing import type_text
from aotgrad.verify.common import Problems, lint, same_count


def check_capture(capture: Capture) -> Problems:
    """Flat in, flat out, and one placeholder an input."""
    for name in ("primals", "arguments", "before", "placeholders"):
        yield from same_count(name, getattr(capture, name), "inputs", capture.inputs)
    for spec, node in zip(capture.inputs, capture.placeholders, strict=True):
        yield from check_input(spec, node)
    for index, value in enumerate(capture.outputs):
        if type(value) in (list, tuple, dict):
            yield f"output {index} is a {type(value).__name__}; outputs are flat"
        if isinstance(value, torch_compat.FakeTensor):
            yield f"output {index} is a fake tensor that escaped functionalization: {type_text(value)}"
    yield from lint(capture.trace.graph)


def check_input(spec: Any, node: fx.Node) -> Problems:
    if spec.name != node.name:
        yield f"input {spec.name} has the placeholder {node.name}"
    if not isinstance(spec, TensorInput):
        return
    if not isinstance(spec.fake, torch_compat.FakeTensor):
        yield f"input {spec.name} is traced with a {type(spec.fake).__name__}, not with a fake tensor"
    if spec.fake.requires_grad:
        yield f"the fake tensor of {spec.name} requires grad; only the functional wrapper may"
