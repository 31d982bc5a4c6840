"""Passes of users: for every compilation (`register`), or by the options of one compilation.

aotgrad.passes.register(MyPass())                                  for every later joint graph
aotgrad.passes.register(MyPass(), place="backward")
aotgrad.aot_function(f, compiler, options={"joint_passes": [MyPass()]})
"""

from __future__ import annotations

from collections.abc import Iterable

from aotgrad.errors import OptionError
from aotgrad.passes.base import PLACES, Pass, Pipeline
from aotgrad.passes.checked import CheckedPass

_registered: dict[str, dict[str, Pass]] = {place: {} for place in PLACES}
_generations = [0]


def register_pass(new: Pass, *, place: str = "joint") -> Pass:
    """Run a pass in every later compilation. Replaces a pass of the same name in that place.

    Existing plans are not reused: the next call recompiles. What `torch.compile` has compiled stays until
    `torch.compiler.reset()`.

    Args:
        new: a frozen dataclass with a `name` and `apply(graph) -> graph`.
        place: `"joint"`: before the joint graph is partitioned; `"forward"`, `"backward"`: before the backend compiles.

    Raises:
        OptionError: `place` is none of the three, or `new` is no pass.

    Examples:
        >>> register(CommonSubexpressionElimination(), place="backward").name
        'cse'
        >>> unregister("cse", place="backward")
    """
    check_place(place)
    if (problem := why_no_pass(new)) is not None:
        raise OptionError(problem)
    set_passes(place, {**_registered[place], new.name: new})
    return new


def unregister(name: str, *, place: str = "joint") -> None:
    """Undo `register`; an unknown name is ignored."""
    check_place(place)
    set_passes(place, {key: each for key, each in _registered[place].items() if key != name})


def set_passes(place: str, passes: dict[str, Pass]) -> None:
    _registered[place] = passes
    _generations[:] = [_generations[-1] + 1]


def registered(place: str = "joint") -> tuple[Pass, ...]:
    """The registered passes of one place, in the order of their registration."""
    check_place(place)
    return tuple(_registered[place].values())


def generation_of_passes() -> int:
    """The number of changes by `register` and `unregister`. A plan belongs to one generation."""
    return _generations[-1]


def check_place(place: str) -> None:
    if place not in PLACES:
        raise OptionError(f"place is {place!r}; passes run at {', '.join(map(repr, PLACES))}")


def why_no_pass(value: object) -> str | None:
    """Why `value` is no pass; `None` if it is one."""
    if isinstance(value, type):
        return f"{value.__name__} is a class; a pass is an instance of it"
    if not isinstance(getattr(value, "name", None), str) or not callable(getattr(value, "apply", None)):
        return f"{value!r} is no pass: it needs a name and apply(graph) -> graph"
    return None


def pipeline_of(place: str, built_in: Iterable[Pass], given: Iterable[Pass], afterwards: Iterable[Pass] = ()) -> Pipeline:
    """The built-in passes of a place, then registered and given passes, checked. If there are any, `afterwards` follow."""
    added = tuple(CheckedPass(each, place) for each in (*registered(place), *given))
    return Pipeline(place, (*built_in, *added, *(afterwards if added else ())))
