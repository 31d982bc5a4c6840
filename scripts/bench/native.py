"""Both implementations of what calls are checked and run with, for programs that measure the two beside one another."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from aotgrad import native


def libraries() -> dict[str, ModuleType | None]:
    """The library in C++ by the name of what uses it; `None` is Python."""
    found = native.library()
    if found is None:
        raise SystemExit("the functions in C++ are not there: python -m aotgrad native build")
    return {"in Python": None, "with C++": found}


@contextmanager
def using(library: ModuleType | None) -> Iterator[None]:
    """What is compiled inside uses that library."""
    before, native.library = native.library, lambda: library  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        native.library = before
