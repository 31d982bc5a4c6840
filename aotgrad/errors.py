"""The exceptions that users see, and two helpers for their messages.

A message says what was done, what is supported, and what to do. The graph or plan in question is attached as a
note (`add_note`, Python 3.11 and later), so the first line stays readable.
"""

from __future__ import annotations

import pickle


class EagerError(RuntimeError):
    """An error that eager raises too, found at compile time: the function then runs eagerly, up to this error."""


class AOTGradError(RuntimeError):
    """Base class of everything that aotgrad raises on purpose."""


class OptionError(AOTGradError, ValueError):
    """An option has an unknown name or a value that is not legal; the message lists the legal ones."""


class CaptureError(AOTGradError):
    """The function cannot be traced: the message names the line and what to change."""


class UnsupportedOutputError(CaptureError, TypeError):
    """The function returned an object that a compiled function cannot create in every call."""


class UnsupportedAliasingError(CaptureError):
    """Inputs or outputs share memory in a way that cannot be replayed exactly."""


class UnsupportedMutationError(CaptureError):
    """An input was changed in a way that cannot be replayed on the caller's tensor: its storage was replaced or grew."""


class BackendError(AOTGradError):
    """There is no such backend, or it broke its contract: it is not callable, or has a wrong number or kind of results."""


class PassError(AOTGradError):
    """A pass raised, or returned a graph that cannot replace its input; the message names the pass."""


class PartitionError(AOTGradError):
    """A partition function returned halves that do not compute the joint graph."""


class GraphCheckError(AOTGradError):
    """The `interpreter` backend saw a value that differs from the traced one (dtype, shape, stride or device)."""


class HigherOrderError(AOTGradError):
    """A gradient of a gradient is not supported here."""


class EagerCallError(AOTGradError):
    """A function that is not traced, but runs in eager between compiled graphs, does something else than in the trace."""


class ExportError(AOTGradError):
    """A module or function cannot be exported as one graph, though it compiles; the message says what to change."""


class ShippingError(AOTGradError):
    """Plans cannot be saved, or a file of plans cannot be loaded: damaged, of another version, or for something else."""


class NoPlanError(AOTGradError):
    """No plan of a loaded file fits a call, or its second derivatives; the message names the guard that does not hold."""


class NotPicklable(AOTGradError, pickle.PicklingError):
    """A compiled module cannot be pickled with its compilers; the message says what can be."""


class NativeError(AOTGradError):
    """The C++ functions cannot be built or stored; everything works without them, in Python."""


class NothingToMinify(AOTGradError):
    """The backend fails on no graph of the function to minify."""


class ContractError(AssertionError):
    """A stage returned something that breaks its contract: a bug in aotgrad or in a pass."""


def short_message(error: BaseException) -> str:
    """The first line of an error's message.

    >>> short_message(ValueError("no device\\nat line 3")), short_message(ValueError())
    ('no device', 'no message')
    """
    return str(error).strip().split("\n")[0] or "no message"


def add_note(error: BaseException, note: str) -> None:
    """Attach `note` to `error` where the Python version has notes (3.11)."""
    attach = getattr(error, "add_note", None)
    if attach is not None:
        attach(note)
