"""The options of one compilation, checked on construction. No other file reads aotgrad's environment variables.

>>> Options.from_mapping({"dynamic": True}).dynamic
True
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotgrad import torch_compat
from aotgrad.errors import OptionError
from aotgrad.passes.base import Pass
from aotgrad.passes.registry import why_no_pass


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        verify: check every stage's result against its contract (`AOTGRAD_VERIFY=1` turns it on everywhere).
        verify_results: check in each call what the graphs of a `Backend` or compile function return, see `docs/backends.md`.
        dynamic: `True`: sizes of tensor arguments are symbolic, so one plan serves many shapes; `None`: those that
            change between calls; `False`: none. For `aot_function` and `aot_module`; Dynamo decides by itself. Where torch
            has no shape function for an op, sizes are static.
        enabled: `False` runs the original function eagerly, to find out whether aotgrad is at fault (`AOTGRAD_DISABLE=1`).
        grad_segments: 1 to 64: the number of segments of a backward. Gradients, their hooks and optimizers in hooks are
            ready after each segment. `"auto"`: one, but up to 16 where gradients are awaited at compile time
            (`register_post_accumulate_grad_hook`, hooks of `AccumulateGrad`, `DistributedDataParallel`).
        partitioner: `"min_cut"`, `"save_all"` or `"recompute_all"`: what the forward saves for the backward.
        memory_budget: how much `"min_cut"` may save: bytes (`2_000_000` or `"1.5GB"`), a fraction from 0 to 1 of what is
            saved without a budget, or `None`. A smaller budget recomputes more in the backward. As with
            `torch.utils.checkpoint`, inputs and outputs must not be overwritten before the backward.
        memory_budget_of: what the budget limits: `"saved"` bytes, or the simulated `"peak"` of memory in forward and
            backward, without parameters and the arguments of the call.
        offload: `True`: saved values may wait in the memory of the host while the device computes; `memory_budget` limits
            those that stay on the device. A number of bytes (`16_000_000_000` or `"16GB"`) limits this memory of the host.
        checkpoint_policies: for names of values (`aotgrad.checkpoint_name`): `"save"`, `"recompute"` or `"offload"`.
        collectives_first: start the backward's collectives as early as possible and wait for them as late as possible, so
            that they overlap with other work; their results are held longer.
        flops_per_byte: how many floating point operations the device does while it moves a byte. It decides how much more
            expensive it is to recompute a product than a sum. `"measured"`: measured on first use, in about 50 ms, and
            stored (`AOTGRAD_CACHE_DIR`, `~/.cache/aotgrad`); `None`: a typical figure for the device and dtype.
        share_layers: compile equal layers once: the graph is cut into pieces, and equal pieces share their code. Compilation
            takes less time; ops of different layers do not fuse. Inductor's; not with CUDA graphs. `None`: with `train_step`
            only.
        early_backward: while C++ compilers of a forward run, generate the code of its backward, and start its compilers; the
            first backward waits for them, and reports what failed. It has no effect where Inductor compiles in one thread
            (one core), with `on_error="eager"`, and on graphs that are in a cache or need no C++ compiler.
        functionalize_rng: make compiled graphs pure functions of their inputs: seed and offset of the GPU's generator are
            inputs of the forward, and the offset to advance to is an output. A draw on a CPU, whose generator has no offset,
            and a draw in a backward are compile-time errors.
        plan_limit: how many plans one function may have; further calls run eagerly.
        mode: Inductor's: `"default"`, `"reduce-overhead"` (CUDA graphs), `"max-autotune"`, `"max-autotune-no-cudagraphs"`.
        inductor: Inductor's own options, on top of those of the mode: `{"max_autotune": True, "triton.cudagraphs": True}`.
            They hold for the forward and for backwards that are compiled later. Other backends ignore them, and the mode.
        on_error: `"raise"`, or `"eager"`: a function or backward that cannot be compiled runs eagerly, with a warning that
            gives the reason; `counters["eager_on_error"]` counts it.
        islands: whether a custom op or `autograd.Function` that cannot be traced runs in eager between compiled graphs, with
            eager's gradients. `None`: with backends that define `supports`. Functions marked by `aotgrad.island` always do.
            See `docs/islands.md`.
        keep_input_mutations: write mutated inputs inside the graph, not after it; in graphs with a backward, buffers only.
        cache: whether compiled functions are stored on disk for other processes (`AOTGRAD_CACHE_DIR`, `~/.cache/aotgrad`);
            `None`: with `torch.compile` they are, with `aot_function` and `aot_module` they are not. See `docs/cache.md`.
        min_graph_ops: a graph with fewer ops runs the original function eagerly; 0 compiles every graph, `None` is the
            backend's own number (see `docs/passes.md`). Only ops of the forward that compute something count.
        joint_passes, forward_passes, backward_passes: passes in addition to the built-in and the registered ones, see
            `aotgrad.passes`.
    """

    verify: bool = False
    verify_results: bool = False
    dynamic: bool | None = False
    enabled: bool = True
    grad_segments: int | str = "auto"
    partitioner: str = "min_cut"
    memory_budget: int | float | str | None = None
    memory_budget_of: str = "saved"
    offload: bool | int | str = False
    checkpoint_policies: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    collectives_first: bool = False
    share_layers: bool | None = None
    early_backward: bool = True
    mode: str = "default"
    inductor: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    on_error: str = "raise"
    islands: bool | None = None
    keep_input_mutations: bool = False
    flops_per_byte: int | str | None = None
    functionalize_rng: bool = False
    plan_limit: int = 8
    cache: bool | None = None
    min_graph_ops: int | None = None
    joint_passes: Sequence[Pass] = ()
    forward_passes: Sequence[Pass] = ()
    backward_passes: Sequence[Pass] = ()

    def __post_init__(self) -> None:
        for name in LEGAL_VALUES:
            _check(name, getattr(self, name))
        object.__setattr__(self, "inductor", _inductors(self.inductor))
        object.__setattr__(self, "checkpoint_policies", _policies(self.checkpoint_policies))
        for name in PASSES:
            _check_passes(name, getattr(self, name))
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any] | None) -> Options:
        """Options from a user's dictionary, with defaults from `aotgrad.config` and the environment.

        Raises:
            OptionError: for an unknown name or a value that is not legal; the message lists the legal ones.
        """
        options = dict(options or {})
        known = sorted(field.name for field in dataclasses.fields(cls))
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise OptionError(_unknown(unknown[0], options[unknown[0]], known))
        return cls(**{**environment(), **config.changed(), **options})

    def replace(self, **changes: Any) -> Options:
        return dataclasses.replace(self, **changes)


def cache_folder() -> Path:
    """The folder of everything that outlives the process: `AOTGRAD_CACHE_DIR`, or the user's folder for caches."""
    given = os.environ.get("AOTGRAD_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotgrad"


def environment() -> dict[str, Any]:
    """The defaults from environment variables."""
    return {"enabled": os.environ.get("AOTGRAD_DISABLE") != "1", "verify": os.environ.get("AOTGRAD_VERIFY") == "1"}


def native_wanted() -> bool:
    """Whether the C++ functions are used where they are built; `AOTGRAD_NATIVE=0` turns them off."""
    return os.environ.get("AOTGRAD_NATIVE") != "0"


def native_build_wanted() -> bool:
    """Whether the C++ functions are built where they are missing; `AOTGRAD_NATIVE=built` only uses what is there."""
    return os.environ.get("AOTGRAD_NATIVE") not in ("0", "built")


def native_sanitized() -> bool:
    """Whether the C++ functions are built with sanitizers, for tests: `AOTGRAD_SANITIZE=1`, see `scripts/sanitize.sh`."""
    return os.environ.get("AOTGRAD_SANITIZE") == "1"


def logs_wanted() -> str:
    """The value of `AOTGRAD_LOGS`, see `aotgrad.telemetry.logs`."""
    return os.environ.get("AOTGRAD_LOGS", "")


LEAST_BYTES = 64
"""The smallest legal budget in bytes: a smaller whole number is more likely a mistaken fraction."""

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def budget_of(value: int | float | str | None) -> int | float | None:
    """A memory budget as bytes (int), a fraction (float) or `None`.

    >>> budget_of("1.5GB"), budget_of(0.5), budget_of(1)
    (1500000000, 0.5, 1.0)

    Raises:
        ValueError: for anything else; 0 and 1 are fractions.
    """
    if value is None or (type(value) is float and 0 <= value <= 1):
        return value
    if type(value) is int and (value in (0, 1) or value >= LEAST_BYTES):
        return value if value > 1 else float(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(value)
    return int(float(match[1]) * _UNITS[match[2].upper()])


@dataclass(frozen=True)
class Budgets:
    """The legal values of a memory budget."""

    def __contains__(self, value: Any) -> bool:
        try:
            budget_of(value)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return f"None, a number of bytes from {LEAST_BYTES} on such as 2000000 or '1.5GB', or a fraction from 0.0 to 1.0"


def host_bytes_of(value: bool | int | str) -> float | None:
    """The memory of the host that the option `offload` allows: bytes, infinite for `True`, `None` for `False`.

    >>> host_bytes_of("16GB"), host_bytes_of(True), host_bytes_of(False)
    (16000000000, inf, None)

    Raises:
        ValueError: for anything else.
    """
    if isinstance(value, bool):
        return math.inf if value else None
    found = budget_of(value)
    if not isinstance(found, int):
        raise ValueError(value)
    return found


@dataclass(frozen=True)
class HostMemory:
    """The legal values of the option `offload`."""

    def __contains__(self, value: Any) -> bool:
        try:
            host_bytes_of(value)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return f"True, False, or a number of bytes from {LEAST_BYTES} on such as 16000000000 or '16GB'"


LEGAL_VALUES: dict[str, Sequence[Any] | Budgets | HostMemory] = {
    "cache": (True, False, None),
    "collectives_first": (True, False),
    "dynamic": (True, False, None),
    "early_backward": (True, False),
    "enabled": (True, False),
    "flops_per_byte": (*range(1, 4097), "measured"),
    "functionalize_rng": (True, False),
    "grad_segments": (*range(1, 65), "auto"),
    "islands": (True, False, None),
    "keep_input_mutations": (True, False),
    "memory_budget": Budgets(),
    "memory_budget_of": ("saved", "peak"),
    "min_graph_ops": range(1025),
    "on_error": ("raise", "eager"),
    "mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "offload": HostMemory(),
    "partitioner": ("min_cut", "save_all", "recompute_all"),
    "plan_limit": range(1, 1025),
    "share_layers": (True, False, None),
    "verify": (True, False),
    "verify_results": (True, False),
}


OPTIONAL = frozenset({"flops_per_byte", "min_graph_ops"})
"""Options that may also be `None`."""

PASSES = ("joint_passes", "forward_passes", "backward_passes")


def _check(name: str, value: Any) -> None:
    if value is None and name in OPTIONAL:
        return
    legal = LEGAL_VALUES[name]
    if not _is_legal(value, legal):
        raise OptionError(f"option {name!r} is {value!r}; legal values are {listed(legal, name in OPTIONAL)}")


def _is_legal(value: Any, legal: Sequence[Any] | Budgets | HostMemory) -> bool:
    if isinstance(legal, (Budgets, HostMemory)):
        return value in legal
    return any(type(value) is type(choice) and value == choice for choice in legal)


def listed(legal: Sequence[Any] | Budgets | HostMemory, or_none: bool) -> str:
    """The legal values as text; a range of numbers by its ends."""
    if isinstance(legal, (Budgets, HostMemory)):
        return str(legal)
    numbers = [choice for choice in legal if type(choice) is int]
    others = [repr(choice) for choice in legal if type(choice) is not int] + ["None"] * or_none
    return ", ".join([f"{numbers[0]} to {numbers[-1]}", *others] if numbers else others)


def _unknown(name: str, value: Any, known: Sequence[str]) -> str:
    if torch_compat.is_inductor_setting(name):
        return f"unknown option {name!r}: it is one of Inductor's, pass options={{'inductor': {{{name!r}: {value!r}}}}}"
    return f"unknown option {name!r}; the options are {', '.join(known)}"


def _inductors(settings: Any) -> tuple[tuple[str, Any], ...]:
    """Inductor's own options as a tuple, which is compared by content."""
    if settings == ():
        return ()
    try:
        given = dict(settings)
    except (TypeError, ValueError):
        raise OptionError(f"option 'inductor' is {settings!r}; legal is a dictionary of Inductor's own options") from None
    for name, value in given.items():
        if (problem := torch_compat.why_no_inductor_setting(name, value)) is not None:
            raise OptionError(f"option 'inductor': {problem}")
    return tuple(sorted((name.replace("-", "_"), value) for name, value in given.items()))


POLICIES = ("save", "recompute", "offload")
"""What a name of `checkpoint_policies` may stand for."""


def _policies(given: Any) -> tuple[tuple[str, str], ...]:
    """Policies by name as a tuple, which is compared by content."""
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given) if isinstance(given, tuple) else None
    if pairs is None or not all(isinstance(name, str) and policy in POLICIES for name, policy in pairs):
        legal = ", ".join(map(repr, POLICIES))
        raise OptionError(f"option 'checkpoint_policies' is {given!r}; legal is a dictionary from names to {legal}")
    return tuple(sorted(pairs))


def _check_passes(name: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        raise OptionError(f"option {name!r} is {value!r}; legal is a list of passes")
    for each in value:
        if (problem := why_no_pass(each)) is not None:
            raise OptionError(f"option {name!r}: {problem}")


# --- Defaults of the process -----------------------------------------------------------------------------------------

PARAMETERS = frozenset({"dynamic", "keep_input_mutations"})
"""Options that are parameters of the functions that compile; the parameters have the defaults."""

PEER_NAMES = {
    "activation_memory_budget": "memory_budget",
    "enable_activation_offloading": "offload",
    "functionalize_rng_ops": "functionalize_rng",
}
"""Option names of `functorch.compile.config`, where a budget of 1.0 means no budget."""


class Config:
    """`aotgrad.config`: the defaults of the options, for everything that is compiled after they are set.

    They override the environment; `options={...}` of a call overrides them.

    >>> with config.patch(memory_budget=0.5):
    ...     Options.from_mapping({}).memory_budget
    0.5
    """

    _values: dict[str, Any]

    def __init__(self) -> None:
        object.__setattr__(self, "_values", {})

    def __getattr__(self, name: str) -> Any:
        return getattr(Options.from_mapping({}), _option_name(name))

    def __setattr__(self, name: str, value: Any) -> None:
        option = _option_name(name)
        value = None if name == "activation_memory_budget" and value == 1 else value
        Options(**{option: value})
        self._values[option] = value

    def __delattr__(self, name: str) -> None:
        self._values.pop(_option_name(name), None)

    def changed(self) -> dict[str, Any]:
        """The options that were set."""
        return dict(self._values)

    @contextlib.contextmanager
    def patch(self, **changes: Any) -> Iterator[None]:
        """Change defaults inside a `with` block.

        Raises:
            OptionError: for a name or value that is not legal.
        """
        before = self.changed()
        try:
            for name, value in changes.items():
                setattr(self, name, value)
            yield
        finally:
            self._values.clear()
            self._values.update(before)


def _option_name(name: str) -> str:
    """The option with this name here or in `functorch.compile.config`.

    Raises:
        OptionError: there is none, or it is a parameter of the functions that compile.
    """
    if name in torch_compat.PEER_SETTINGS:
        raise OptionError(f"aotgrad has no setting {name!r}: {torch_compat.PEER_SETTINGS[name]}")
    name = PEER_NAMES.get(name, name)
    legal = sorted({field.name for field in dataclasses.fields(Options)} - PARAMETERS)
    if name in PARAMETERS:
        raise OptionError(f"{name!r} is a parameter of the functions that compile and has no default here; pass it to them")
    if name not in legal:
        raise OptionError(f"unknown option {name!r}; the options are {', '.join(legal)}")
    return name


def reject_parameters(function: str, given: Mapping[str, Any]) -> None:
    """Reject parameters that the function has only in `functorch.compile`, unless their value has no effect.

    Raises:
        OptionError: says what to use instead.
        TypeError: there is no such parameter there either.
    """
    known = torch_compat.PEER_PARAMETERS[function]
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if value != known[name].neutral:
            raise OptionError(f"{function} has no {name}={value!r}: {known[name].instead}")


config = Config()
