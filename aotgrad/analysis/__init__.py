"""`Capture` -> `ViewAndMutationMeta`: the changes of inputs, and the aliases among outputs.

`analyze` is the stage. `inputs` finds mutations (`changes`), `outputs` finds aliases: `views` and `storage` follow a value
to its base, `history` compares that with autograd's graph, and `versions` finds the version counters of results. `refusals`
raises where no right result is possible.
"""

from __future__ import annotations

from aotgrad.analysis.inputs import analyze_inputs
from aotgrad.analysis.outputs import analyze_outputs, new_leaves
from aotgrad.analysis.versions import versions_of_results
from aotgrad.errors import AOTGradError, CaptureError, EagerError
from aotgrad.ir import Capture, ViewAndMutationMeta


def analyze(capture: Capture, is_derivative: bool = False) -> ViewAndMutationMeta:
    """Read mutations and aliases off the live functional tensors of a capture.

    Args:
        is_derivative: the results are gradients; see `analyze_outputs`.

    Raises:
        UnsupportedAliasingError, UnsupportedMutationError, UnsupportedOutputError: see `analyze_inputs`, `analyze_outputs`.
        CaptureError: torch cannot replay a view of a changed tensor.
    """
    try:
        with capture.trace.active():
            inputs = analyze_inputs(capture)
            outputs, bases = analyze_outputs(capture, inputs, is_derivative)
            versions = versions_of_results(capture, outputs)
    except (AOTGradError, EagerError):
        raise
    except RuntimeError as error:
        raise CaptureError(f"a view of what was changed in place cannot be replayed: {error}") from error
    changed = capture.grad_mode_after != capture.grad_mode_before
    grad_mode = capture.grad_mode_after if changed else None
    return ViewAndMutationMeta(inputs, outputs, bases, grad_mode, versions, new_leaves(capture))


__all__ = ["analyze"]
