"""Both implementations of guards and calls, for programs that compare them."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from aotgrad import native


def libraries() -> dict[str, ModuleType | None]:
    """The C++ library by the name of its user; `None` is Python."""
    found = native.library()
    if found is None:
        raise SystemExit("the functions in C++ are not there: python -m aotgrad native build")
    return {"in Python": None, "with C++": found}


@contextmanager
def using(library: ModuleType | None) -> Iterator[None]:
    """Compilations inside the context use that library."""
    before, native.library = native.library, lambda: library  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        native.library = before
