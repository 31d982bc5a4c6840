"""The package builds without its repository, and works where it is installed, from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from aotgrad.inspect.page import write

pytest.importorskip("setuptools", minversion="77")

ROOT = Path(__file__).parents[1]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "aotgrad")
"""What a build reads."""

BUILD = "import sys; from setuptools import build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
"""What installers call, in a process with the project as current folder."""

PROGRAM = """
import importlib.metadata, torch, aotgrad
assert aotgrad.__file__.startswith({target!r}), aotgrad.__file__
assert aotgrad.__version__ == importlib.metadata.version("aotgrad")
x = torch.randn(3, requires_grad=True)
y = torch.compile(lambda x: (x * 2).sin(), backend="aotgrad_eager", options={{"min_graph_ops": 0}})(x)
assert torch.equal(torch.autograd.grad(y.sum(), x)[0], 2 * (x * 2).cos())
print("works")
"""


def build(kind: str, project: Path, folder: Path) -> Path:
    """A distribution of a project: `kind` is "build_sdist" or "build_wheel"."""
    found = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(folder)], cwd=project, capture_output=True, text=True, check=True
    )
    return folder / found.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the unpacked sdist of a copy of the project."""
    folder = tmp_path_factory.mktemp("packaging")
    project = folder / "project"
    project.mkdir()
    for name in PARTS:
        (project / name).symlink_to(ROOT / name)
    with tarfile.open(build("build_sdist", project, folder)) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("aotgrad-*/")
    return build("build_wheel", unpacked, folder)


def test_a_wheel_has_the_package_and_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "aotgrad").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    page = {f"aotgrad/inspect/page/{name}" for name in ("page.html", "page.css", *write.PAGE_SCRIPTS)}
    native = {f"aotgrad/native/{name}" for name in ("library.cpp", "node.h", "values.h")}
    assert {"aotgrad/py.typed", *native, *page} <= set(names)
    (points,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "aotgrad.frontends.dynamo:inductor" in zipfile.ZipFile(wheel).read(points).decode()


def test_an_installed_wheel_works_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(target)  # a pure wheel is installed by unpacking it
    environment = {**os.environ, "PYTHONPATH": str(target), "AOTGRAD_CACHE_DIR": str(tmp_path / "cache")}
    program = PROGRAM.format(target=str(target))
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout.splitlines()[-1:] == ["works"], found.stderr
