"""What Inductor's CUDA graphs demand, without the graphs: inputs that stay at one address, and no state of a generator.

    with recorded() as recordings: ...      recordings == {"forward": 1, "backward": 1}

A graph is recorded anew if an input that is declared static is at another address than before. Memory of earlier graphs
keeps its address, and other inputs are copied. Here results keep no address, so that results of a graph count as copied.
The first call of a function only warms it up; others are captured, where reading or setting a generator's state raises.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from tests.emulated_cuda.device import capturing


@contextlib.contextmanager
def recorded() -> Iterator[Counter[str]]:
    """Inside, counts the recordings of each role."""
    from torch._inductor import compile_fx

    counts: Counter[str] = Counter()

    def cudagraphify(model: Callable, static_input_idxs: Sequence[int] = (), **settings: Any) -> Callable:
        role = "backward" if settings["is_backward"] else "forward"
        known: set[tuple[int, ...]] = set()

        def run(inputs: list[Any]) -> Any:
            addresses = tuple(inputs[k].data_ptr() for k in static_input_idxs if isinstance(inputs[k], torch.Tensor))
            is_warm = bool(known)
            counts[role] += addresses not in known
            known.add(addresses)
            with capturing() if is_warm else contextlib.nullcontext():
                return model(inputs)

        run._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
        return run

    enabled = mock.patch.object(torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True, create=True)
    with mock.patch.object(compile_fx, "cudagraphify", cudagraphify), enabled:
        yield counts
