"""The C++ functions, compiled once and kept for later runs of the tests.

Half of the test files run with them, the others without; the next day, it is the other way round. `AOTGRAD_TEST_NATIVE=1`
runs all with them, `AOTGRAD_TEST_NATIVE=0` none. Tests with the fixture `implementation` run both ways; those in this folder
build and load them as users do.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from filelock import FileLock

from aotgrad import native
from aotgrad.native import build
from tests.sampling import today

FOLDER = Path(tempfile.gettempdir()) / f"aotgrad-tests-native-{getattr(os, 'getuid', int)()}"


@functools.cache
def built() -> ModuleType | None:
    """As users build and load it, in a folder of the tests; `None` where nothing can be built."""
    if not build.IS_SUPPORTED or shutil.which(os.environ.get("CXX", "c++")) is None:
        return None
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    with mock.patch.dict(os.environ, {"AOTGRAD_CACHE_DIR": str(FOLDER)}), FileLock(FOLDER / "lock"):
        found = build.load_built()
        if found is None:
            build.build_library()
            found = build.load_built()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def library() -> ModuleType:
    found = built()
    if found is None:
        pytest.skip("there is no C++ compiler")
    return found


@pytest.fixture(params=["python", "c++"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is compiled inside takes its functions from there."""
    use(request.getfixturevalue("library") if request.param == "c++" else None, monkeypatch)
    return request.param


@pytest.fixture(scope="module", autouse=True)
def implementation_of_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the tests of a file compile takes its functions from there."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if Path(__file__).parent not in request.path.parents:
            use(built() if runs_with_library(request.path) else None, monkeypatch)
        yield


def runs_with_library(file: Path) -> bool:
    """Whether it is the turn of a test file."""
    given = os.environ.get("AOTGRAD_TEST_NATIVE")
    return given == "1" if given else (zlib.crc32(file.name.encode()) + today()) % 2 == 1


def use(library: ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", functools.cache(lambda: library))
