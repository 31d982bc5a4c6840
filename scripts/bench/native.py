"""Both implementations of guards and calls, and the least that these cost, for programs that compare them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from aotgrad import native
from aotgrad.native.build import build_library, compile_library, module_of


def libraries() -> dict[str, ModuleType | None]:
    """The C++ library by the name of its user; `None` is Python."""
    if native.library() is None:
        build_library()
        native.library.cache_clear()
    found = native.library()
    assert found is not None
    return {"in Python": None, "with C++": found}


@cache
def extension(name: str) -> ModuleType:
    """`NAME.cpp`, which lies here, compiled. Needs torch 2.13 or newer."""
    return module_of(compile_library(Path(__file__).with_name(f"{name}.cpp")), name)


@contextmanager
def using(library: ModuleType | None) -> Iterator[None]:
    """Compilations inside the context use that library."""
    before, native.library = native.library, cache(lambda: library)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        native.library = before
