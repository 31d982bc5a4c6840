"""The steps of a schedule in words: what one call does around the compiled graphs.

In: steps of `runtime/steps.py`. Out: lines of text with the names of the emitted function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad.graph.geometry import Geometry
from aotgrad.ir import ViewReplay
from aotgrad.printing.graphs import argument_text
from aotgrad.printing.stages import chain_text, geometry_text
from aotgrad.runtime.steps import ReturnValue, Step


def steps_text(steps: Sequence[Step]) -> list[str]:
    """What each step does; the last line lists what is returned."""
    returned = [step.description(value_text) for step in steps if isinstance(step, ReturnValue)]
    others = [step.description(value_text) for step in steps if not isinstance(step, ReturnValue)]
    return [*others, f"return {', '.join(returned) or 'nothing'}"]


def value_text(value: Any) -> str:
    """The text of a constant, a geometry or a chain of views."""
    match value:
        case Geometry():
            return geometry_text(value)
        case ViewReplay():
            return chain_text(value.steps)
    return argument_text(value)
