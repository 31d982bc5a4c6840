"""The changes of inputs: `Capture` -> `InputAliasInfo` for every tensor input."""

from __future__ import annotations

from aotgrad.analysis.changes import Change
from aotgrad.analysis.refusals import refuse_change, refuse_moved_history, refuse_new_history_of_shared_memory
from aotgrad.ir import Capture, InputAliasInfo, MemberInput, SyntheticBase


def analyze_inputs(capture: Capture) -> tuple[InputAliasInfo | None, ...]:
    """One entry for each input; `None` for inputs that are no arguments or no tensors.

    Raises:
        UnsupportedMutationError: a change cannot be repeated on the caller's tensor; see `refusals.py`.
        EagerError: eager does not allow the change either.
    """
    infos = tuple(analyze_input(capture, index) for index in range(len(capture.inputs)))
    refuse_new_history_of_shared_memory(capture, infos)
    refuse_moved_history(capture, infos)
    return infos


def analyze_input(capture: Capture, index: int) -> InputAliasInfo | None:
    if capture.before[index] is None or isinstance(capture.inputs[index], SyntheticBase):
        return None
    change = Change(capture, index)
    refuse_change(change)
    return InputAliasInfo(
        mutation=change.mutation,
        hidden_from_autograd=change.is_hidden,
        version_bumps=change.version_bumps,
        requires_grad_after=change.argument.requires_grad,
        geometry=change.geometry if change.mutation.metadata else None,
        is_used=isinstance(change.spec, MemberInput) or change.spec.is_used,
    )
