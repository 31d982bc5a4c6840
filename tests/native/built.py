"""The C++ functions, compiled once and kept for later runs of the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from filelock import FileLock

from aotgrad import native
from aotgrad.native import build

FOLDER = Path(tempfile.gettempdir()) / f"aotgrad-tests-native-{getattr(os, 'getuid', int)()}"


@pytest.fixture(scope="session")
def library() -> ModuleType:
    """As users build and load it, in a folder of the tests."""
    if not build.IS_SUPPORTED or shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("there is no C++ compiler")
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    with mock.patch.dict(os.environ, {"AOTGRAD_CACHE_DIR": str(FOLDER)}), FileLock(FOLDER / "lock"):
        found = build.load_built()
        if found is None:
            build.build_library()
            found = build.load_built()
    assert found is not None
    return found


@pytest.fixture(params=["python", "c++"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is compiled inside takes its functions from there."""
    found = request.getfixturevalue("library") if request.param == "c++" else None
    monkeypatch.setattr(native, "library", lambda: found)
    return request.param
