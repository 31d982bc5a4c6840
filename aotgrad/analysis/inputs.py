"""What the function did to each input: `Capture` -> `InputAliasInfo` for every tensor input."""

from __future__ import annotations

from aotgrad.analysis.views import chain_from
from aotgrad.ir import Capture, Geometry, InputAliasInfo, InputState, MutationType


def analyze_inputs(capture: Capture) -> tuple[InputAliasInfo | None, ...]:
    """One entry an input; `None` where the input is not a tensor."""
    return tuple(_analyze(capture, index) for index in range(len(capture.inputs)))


def _analyze(capture: Capture, index: int) -> InputAliasInfo | None:
    before = capture.before[index]
    if before is None:
        return None
    argument = capture.arguments[index]
    mutation = mutation_type(capture, index, before)
    return InputAliasInfo(
        mutation=mutation,
        hidden_from_autograd=argument.grad_fn is before.grad_fn,
        version_bumps=0 if argument.is_inference() else argument._version - before.version,
        requires_grad_after=argument.requires_grad,
        geometry=Geometry.of(argument) if mutation.metadata else None,
    )


def mutation_type(capture: Capture, index: int, before: InputState) -> MutationType:
    """Data was mutated if the current value is no view of the placeholder; metadata, if the geometry differs."""
    placeholder = capture.placeholders[index]
    root, _ = chain_from(capture.trace.node_of(capture.arguments[index]))
    data = root is not placeholder
    metadata = Geometry.of(capture.arguments[index]) != before.geometry
    return {
        (False, False): MutationType.NONE,
        (False, True): MutationType.METADATA_ONLY,
        (True, False): MutationType.DATA,
        (True, True): MutationType.DATA_AND_METADATA,
    }[data, metadata]

