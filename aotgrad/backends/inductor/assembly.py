"""How a graph was compiled, as text: a process that has the code of its pieces need not parse, cut or compare the graph.

stored = Assembly(("<key>",), None)                                  a graph that was compiled as a whole
stored = Assembly(("<key>", "<key>"), cut.sequence)               a graph in pieces, some of them equal
stored.callable([load(key) for key in stored.keys])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from aotgrad.backends.pieces import CallSequence, PieceCall, caller_of
from aotgrad.ir import BoxedCallable


@dataclass(frozen=True)
class Assembly:
    """The code of a graph.

    Attributes:
        keys: of the stored code of each piece.
        sequence: how the pieces are called; `None`: the one piece is the graph.
        tensors: the names of the tensors that the graph refers to, which are the last inputs of its code.
    """

    keys: tuple[str, ...]
    sequence: CallSequence | None
    tensors: tuple[str, ...] = ()

    def callable(self, pieces: Sequence[Callable]) -> Callable | BoxedCallable:
        """The compiled graph; `pieces` has the code of each key."""
        return pieces[0] if self.sequence is None else caller_of(self.sequence, pieces)

    def to_bytes(self) -> bytes:
        """With a first line that is empty, as in stored code without wrapper code: there are no libraries."""
        return b"\n" + json.dumps(asdict(self)).encode()

    @classmethod
    def of_bytes(cls, content: bytes) -> Assembly:
        """Raises KeyError, TypeError or ValueError for other content than that of `to_bytes`."""
        data = json.loads(content)
        sequence = None if data["sequence"] is None else sequence_of_data(data["sequence"])
        return cls(tuple(data["keys"]), sequence, tuple(data["tensors"]))


def sequence_of_data(data: dict) -> CallSequence:
    """A sequence as JSON has it: with lists in place of tuples."""
    calls = (
        PieceCall(each["number"], *(tuple(each[name]) for name in ("reads", "makes", "last_reads")))
        for each in data["calls"]
    )
    return CallSequence(tuple(data["inputs"]), tuple(calls), tuple(data["results"]))
