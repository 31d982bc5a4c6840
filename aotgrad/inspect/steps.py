"""The steps of a schedule in words: what one call does around the compiled graphs.

In: a step of `runtime/steps.py`. Out: a line of text with the names of the emitted function.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotgrad.printing.graphs import argument_text
from aotgrad.printing.stages import chain_text, geometry_text
from aotgrad.runtime.steps import (
    AliasBase,
    AsInference,
    AssignData,
    Attach,
    CallMethod,
    CopyBack,
    Forward,
    KeepHistory,
    KeepInputs,
    MakeAlias,
    MakeBase,
    MakeCut,
    MakeView,
    NoteResults,
    RestoreGradMode,
    ReturnValue,
    SetVersion,
    ShareVersion,
    StartVersion,
    Step,
    UpdateGeometry,
)

MOST_NAMES = 3
"""Names of a list that are shown; a large model has hundreds."""


def steps_text(steps: Sequence[Step]) -> list[str]:
    """What each step does; what is returned is one line at the end."""
    returned = [step_text(step) for step in steps if isinstance(step, ReturnValue)]
    others = [step_text(step) for step in steps if not isinstance(step, ReturnValue)]
    return [*others, f"return {', '.join(returned) or 'nothing'}"]


def step_text(step: Step) -> str:
    """What a step does; of a value that is returned, its name."""
    match step:
        case MakeBase(name, member, start, nbytes):
            return f"make {name}: {nbytes} bytes of memory from {start} after the start of {member}"
        case Forward():
            return forward_text(step)
        case KeepInputs(primals):
            return f"keep {listed(primals)} for gradients of gradients"
        case NoteResults(names):
            return f"note the results {listed(names)} for gradients of gradients"
        case MakeCut(name):
            return f"make {name}, which carries a gradient from one backward to the next"
        case Attach():
            return attach_text(step)
        case AsInference(name):
            return f"make {name} an inference tensor"
        case AliasBase(name, member):
            return f"make {name}, an alias of the memory around {member}"
        case MakeAlias(name, target):
            return f"make {name}, an alias of {target} as it lies now"
        case KeepHistory(name, target):
            return f"make {name}, which stands for {target} as it is now, before its history changes"
        case ShareVersion(name, saved):
            return f"let {name} count versions with {saved}, whose memory it is"
        case UpdateGeometry(target, geometry):
            return f"lay {target} out anew: {geometry_text(geometry)}"
        case CopyBack(target, source, through):
            return f"copy {source} into {target}{through and f', through {through}'}"
        case SetVersion(target, bumps):
            return f"set the version of {target} to what it was at the start + {bumps}"
        case AssignData(target, source):
            return f"let {target} lie where {source} lies"
        case StartVersion(name, version):
            return f"set the version of {name} to {version}"
        case MakeView(name, base, replay):
            return f"make {name}, a view of {base}{chain_text(replay.steps)}"
        case CallMethod(name, method):
            return f"call {name}.{method}()"
        case ReturnValue(value, is_name):
            return value if is_name else argument_text(value)
        case RestoreGradMode(enabled):
            return f"leave grad mode {'on' if enabled else 'off'}"
    raise AssertionError(step)


def forward_text(step: Forward) -> str:
    details = [f"release {listed(step.release)}"] if step.release else []
    details += ["autocast is off while it runs"] if step.autocast else []
    details += [f"the random state of {', '.join(step.random_devices)} is kept"] if step.random_devices else []
    text = f"run the forward graph on {counted(step.inputs, 'input')}: it returns {counted(step.results, 'value')}"
    return "; ".join([text, *details])


def attach_text(step: Attach) -> str:
    saved = f"it saves {counted(step.saved, 'tensor')}" + (f" and {counted(step.sizes, 'size')}" if step.sizes else "")
    gradients = f"returns gradients of {listed(step.inputs)}"
    return f"give {listed(step.outputs)} the autograd node of `{step.backward}`; {saved} and {gradients}"


def counted(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """The names, or the first of many.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
