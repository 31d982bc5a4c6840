"""The state of the random generators, and the ops that run other ops from a state."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.utils import autograd_not_implemented
from torch._ops import HigherOrderOperator
from torch._prims.rng_prims import graphsafe_run_with_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensorMode

RANDOM_STATE_BYTES = {"cpu": 5056, "cuda": 16}
"""The size of a generator's state, for device types whose state can be set."""


class StandInGenerator(torch.Generator):
    """Stands for the default generator `real` in torch's names for it, and where it is passed to an op."""

    real: torch.Generator

    def __new__(cls, real: torch.Generator, *_: Any) -> Any:
        found = super().__new__(cls, real.device)  # pyright: ignore[reportCallIssue]
        found.real = real
        return found


def _forwarded(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self.real, name)(*args)


for _name in ("get_state", "set_state", "manual_seed", "seed", "initial_seed", "get_offset", "set_offset"):
    setattr(StandInGenerator, _name, _forwarded(_name))
for _name in ("clone_state", "graphsafe_get_state", "graphsafe_set_state"):
    setattr(StandInGenerator, _name, _forwarded(_name))


@contextlib.contextmanager
def replaced_generators(stand_ins: Sequence[StandInGenerator]) -> Iterator[None]:
    """Inside, functions of torch find stand-ins for the default generators of the CPU, the first one, and of the GPUs."""
    cpu, gpus = stand_ins[0], tuple(stand_ins[1:])
    before = torch.random.default_generator, torch.cuda.default_generators
    torch.random.default_generator, torch.cuda.default_generators = cpu, gpus  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.random.default_generator = before[0]
        if torch.cuda.default_generators is gpus:  # else CUDA was initialized meanwhile
            torch.cuda.default_generators = before[1]


def default_generators() -> tuple[torch.Generator, ...]:
    """The default generators of the CPU, and of the GPUs if these are in use."""
    gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return (torch.default_generator, *(each.real if isinstance(each, StandInGenerator) else each for each in gpus))


def _default_generator(device: torch.device) -> torch.Generator:
    """The generator that ops on a device draw from, unless they are given another one."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()
    return default_generators()[1:][torch.cuda.current_device() if device.index is None else device.index]


def _drawing_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """The device that a call of a random op draws on: the one that it names, or that of its first tensor."""
    if (named := kwargs.get("device")) is not None:
        return torch.device(named)
    leaves = pytree.tree_leaves((args, kwargs))
    named = (leaf for leaf in leaves if isinstance(leaf, torch.device))
    return next(named, next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), torch.device("cpu")))


# --- Ops that draw from a given state --------------------------------------------------------------------------------
# Torch's own `run_and_save_rng_state` reads the generator of the current device, not of the device that draws.


class _DrawAndRecord(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("draw_and_record", cacheable=True)

    def __call__(self, op: Any, /, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(op, *args, **kwargs)


class _DrawAgain(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("draw_again", cacheable=True)

    def __call__(self, state: torch.Tensor, op: Any, /, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(state, op, *args, **kwargs)


class _DrawAndNote(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("draw_and_note", cacheable=True)

    def __call__(self, op: Any, /, *args: Any, rng_state: torch.Generator, **kwargs: Any) -> Any:
        return super().__call__(op, *args, rng_state=rng_state, **kwargs)


class _PhiloxDraw(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("philox_draw", cacheable=True)

    def __call__(self, seed: torch.Tensor, offset: torch.Tensor, op: Any, /, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(seed, offset, op, *args, **kwargs)


draw_and_record = _DrawAndRecord()
"""`(op, *args) -> (state of the generator before, op(*args))`, an op of graphs, which Inductor calls unchanged."""

draw_again = _DrawAgain()
"""`(state, op, *args) -> op(*args)` with the generator in that state; leaves the generator as it was."""

draw_again_for_dynamo = run_with_rng_state
"""The same, as Dynamo and torch's compilers know it. On a GPU it must be the current one."""

draw_and_note = _DrawAndNote()
"""`(op, *args, rng_state) -> op(*args)`; the clone `rng_state` gets the state of the generator before.

During the capture of a CUDA graph, which forbids that, and in replays the clone stays as it is.
"""

draw_from_clone = graphsafe_run_with_rng_state
"""`(op, *args, rng_state) -> op(*args)`, drawn from a clone of a GPU's generator. A CUDA graph may contain it."""

philox_draw = _PhiloxDraw()
"""`(seed, offset, op, *args) -> (op(*args), next offset)` on a GPU, whose generator stays as it is.

Seed and offsets are int64 numbers on the CPU.
"""

for _op in (draw_and_record, draw_again, draw_and_note, philox_draw):
    _op.py_impl(torch._C.DispatchKey.Autograd)(autograd_not_implemented(_op, deferred_error=True))


@draw_and_record.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
def _draw_and_record(op: Any, *args: Any, **kwargs: Any) -> Any:
    return state_before_draws(_drawing_device(args, kwargs)), op(*args, **kwargs)


@draw_again.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
def _draw_again(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    generator = _default_generator(_drawing_device(args, kwargs))
    before = state_before_draws(generator.device)
    generator.set_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        generator.set_state(before)


@draw_and_note.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
def _draw_and_note(op: Any, *args: Any, rng_state: torch.Generator, **kwargs: Any) -> Any:
    if not _is_capturing():
        rng_state.set_state(_default_generator(rng_state.device).get_state())
    return op(*args, **kwargs)


@philox_draw.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
def _philox_draw(seed: torch.Tensor, offset: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    device = _drawing_device(args, kwargs)
    clone = clone_generator(device)
    clone.set_state(torch.stack([seed, offset]).view(torch.uint8))
    with kept_generators([device]):
        _default_generator(device).graphsafe_set_state(clone)
        return op(*args, **kwargs), torch.tensor(clone.get_offset(), dtype=torch.int64, device="cpu")


def _computes_fakes(op: HigherOrderOperator) -> Callable[[Callable], Callable]:
    """The decorated function computes the fake results of an op, which are not cached."""

    def register(compute: Callable) -> Callable:
        @op.py_impl(FakeTensorMode)
        def _(mode: FakeTensorMode, *args: Any, **kwargs: Any) -> Any:
            with mode:
                return compute(*args, **kwargs)

        return compute

    return register


@_computes_fakes(draw_and_record)
def _draw_and_record_fake(op: Any, *args: Any, **kwargs: Any) -> Any:
    size = RANDOM_STATE_BYTES[_drawing_device(args, kwargs).type]
    return torch.empty(size, dtype=torch.uint8, device="cpu"), op(*args, **kwargs)


@_computes_fakes(draw_again)
def _draw_again_fake(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


@_computes_fakes(draw_and_note)
def _draw_and_note_fake(op: Any, *args: Any, rng_state: torch.Generator, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


@_computes_fakes(philox_draw)
def _philox_draw_fake(seed: torch.Tensor, offset: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs), torch.empty((), dtype=torch.int64, device="cpu")


# --- The generators of a call, on the host; nothing is read from a GPU -----------------------------------------------


@dataclass(frozen=True)
class PythonGenerators:
    """The states of the generators of the modules `random` and `numpy.random`; this one is `None` without NumPy."""

    of_python: tuple
    of_numpy: tuple | None

    @classmethod
    def now(cls) -> PythonGenerators:
        if (numpy := sys.modules.get("numpy")) is None:
            return cls(random.getstate(), None)
        kind, keys, *others = numpy.random.get_state()
        return cls(random.getstate(), (kind, tuple(keys.tolist()), *others))

    def restore(self) -> None:
        random.setstate(self.of_python)
        if self.of_numpy is not None:
            sys.modules["numpy"].random.set_state(self.of_numpy)


def can_draw_for_dynamo(device: torch.device) -> bool:
    """Whether draws on a device are the same in `draw_again_for_dynamo`, whichever GPU is current."""
    return device.type != "cuda" or torch.cuda.device_count() == 1


@contextlib.contextmanager
def kept_random_states() -> Iterator[None]:
    """Inside, random numbers are drawn that will be drawn again: by torch, Python and NumPy.

    While a CUDA graph is captured, the state of a GPU's generator cannot be read: a draw there raises.
    """
    torchs, of_python = default_generators(), PythonGenerators.now()
    if torchs[1:] and _is_capturing():
        torchs = torchs[:1]
    states = [generator.get_state() for generator in torchs]
    try:
        yield
    finally:
        for generator, state in zip(torchs, states, strict=True):
            generator.set_state(state)
        of_python.restore()


@contextlib.contextmanager
def noted_draws() -> Iterator[list[torch.device]]:
    """Inside, random numbers may be drawn. Afterwards, the list has the devices whose default generators have moved."""
    generators, found = default_generators(), list[torch.device]()
    before = [generator.get_state() for generator in generators]
    yield found
    pairs = zip(generators, before, strict=True)
    found += [generator.device for generator, state in pairs if not torch.equal(generator.get_state(), state)]


def clone_generator(device: torch.device) -> torch.Generator:
    """A clone of a device's default generator."""
    return _default_generator(device).clone_state()


@contextlib.contextmanager
def kept_generators(devices: Iterable[torch.device]) -> Iterator[None]:
    """Inside, the default generators of GPUs may be made to share the state of clones; then they have their own again."""
    generators = [_default_generator(device) for device in devices]
    before = [generator.graphsafe_get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.graphsafe_set_state(state)


def state_before_draws(device: torch.device) -> torch.Tensor:
    """The state of a device's default generator before draws that a backward repeats, as bytes.

    Raises:
        RuntimeError: a CUDA graph is being captured.
    """
    if _is_capturing():
        raise RuntimeError(
            "a CUDA graph is being captured, and the backward draws random numbers of the forward again, from a state that "
            "cannot be read during a capture; compile without memory_budget, or draw the numbers outside of checkpoints"
        )
    return _default_generator(device).get_state()


def philox_state(device: str) -> tuple[torch.Tensor, ...]:
    """The seed and the offset of a GPU's default generator, as `philox_draw` takes them.

    Raises:
        RuntimeError: a CUDA graph is being captured.
    """
    if _is_capturing():
        raise RuntimeError(
            "a CUDA graph is being captured, and with functionalize_rng each call reads a generator, which a capture "
            "forbids; compile without functionalize_rng"
        )
    return _default_generator(torch.device(device)).get_state().view(torch.int64).unbind()


def advance_philox(device: str, offset: torch.Tensor) -> None:
    """Let a GPU's default generator go on from an offset."""
    _default_generator(torch.device(device)).set_offset(int(offset))


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured; its replays move the generators without the host."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


# --- The state at the start of a call --------------------------------------------------------------------------------


def random_state(devices: Iterable[str]) -> dict[str, torch.Generator | torch.Tensor | None]:
    """The state of the generators of devices such as "cpu" and "cuda:1", to rerun the same random ops.

    For a GPU it is a copy of the generator, which reads nothing from the device, and `None` during the capture of a CUDA
    graph.
    """
    return {device: _state_of(device) for device in devices}


def _state_of(device: str) -> torch.Generator | torch.Tensor | None:
    generator = _named_generator(device)
    if device == "cpu" or isinstance(generator, StandInGenerator):
        return generator.get_state()
    return None if torch.cuda.is_current_stream_capturing() else generator.clone_state()


def _named_generator(device: str) -> torch.Generator:
    """The default generator that functions of torch find, in a trace its stand-in."""
    if device == "cpu":
        return torch.random.default_generator
    return torch.cuda.default_generators[torch.device(device).index]


def random_state_of(state: Mapping[str, Any] | None) -> AbstractContextManager[None]:
    """Inside, the random generators start from `state`; restores them afterwards. `None` changes nothing.

    Raises:
        RuntimeError: a state is that of a call during the capture of a CUDA graph.
    """
    return _generators_at(state) if state else contextlib.nullcontext()


@contextlib.contextmanager
def _generators_at(state: Mapping[str, Any]) -> Iterator[None]:
    states = [(_named_generator(device), value) for device, value in state.items()]
    if any(value is None for _, value in states):
        raise RuntimeError(
            "a gradient of a gradient draws the random numbers of a call again, and their state is not known, since a CUDA "
            "graph was captured during the call; draw the numbers outside of the compiled function"
        )
    before = [generator.get_state() for generator, _ in states]
    try:
        for generator, value in states:
            generator.set_state(value.get_state() if isinstance(value, torch.Generator) else value)
        yield
    finally:
        for (generator, _), value in zip(states, before, strict=True):
            generator.set_state(value)


def devices_that_draw() -> tuple[str, ...]:
    """The devices whose generators may have been used."""
    return tuple(str(generator.device) for generator in default_generators())


class RandomReplay:
    """Runs random ops in advance: each part starts where the last one ended, and the generators do not move."""

    def __init__(self) -> None:
        self.states: list[torch.Tensor] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        generators = default_generators()
        before = [generator.get_state() for generator in generators]
        for generator, state in zip(generators, self.states or before, strict=True):
            generator.set_state(state)
        try:
            yield
        finally:
            self.states = [generator.get_state() for generator in generators]
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)

    def next_state(self, device: torch.device) -> torch.Tensor:
        """The state that the next part starts from, of the generator that ops on a device draw from."""
        generators = default_generators()
        states = self.states or [generator.get_state() for generator in generators]
        return next(state for each, state in zip(generators, states, strict=True) if each.device == device)

    def advance(self) -> None:
        """Move the generators to where the last part ended: what was drawn in advance counts."""
        for generator, state in zip(default_generators(), self.states or (), strict=True):
            generator.set_state(state)
