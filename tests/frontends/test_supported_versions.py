"""One warning where torch or Python is a version that was not tested."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aotgrad.frontends import supported_versions as supported
from aotgrad.frontends.supported_versions import TESTED, untested

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("torch_version", ["2.11.0", "2.13.0+cpu", "2.15.1+cu132", "2.15.0a0+git1234"])
@pytest.mark.parametrize("python_version", [(3, 10), (3, 13)])
def test_what_was_tested_is_silent(torch_version, python_version):
    assert untested(torch_version, python_version) is None


@pytest.mark.parametrize(
    ("torch_version", "python_version", "named"),
    [
        ("2.10.2", (3, 11), "torch 2.10"),
        ("2.16.0.dev20261101", (3, 11), "torch 2.16"),
        ("3.0.0", (3, 9), "torch 3.0 and Python 3.9"),
        ("2.13.0", (3, 14), "Python 3.14"),
        ("unknown", (3, 12), "torch 0.0"),
    ],
)
def test_what_was_not_is_named(torch_version, python_version, named):
    assert f"not tested with {named}, but with torch 2.11 to 2.15 and Python 3.10 to 3.13:" in untested(
        torch_version, python_version
    )


def test_it_is_one_warning(monkeypatch):
    monkeypatch.setattr(supported, "TESTED", {"torch": ((0, 1), (0, 2)), "Python": ((2, 7), (2, 7))})
    with pytest.warns(UserWarning, match="not tested with torch 2.* and Python 3") as warned:
        supported.warn_if_untested()
    assert len(warned) == 1


def test_importing_the_package_warns_once():
    program = (
        "import warnings, torch\n"
        "torch.__version__ = torch.torch_version.TorchVersion('9.9.0')\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import aotgrad, aotgrad.debug\n"
        "    aotgrad.aot_function(torch.sin, aotgrad.nop)(torch.ones(2))\n"
        "print([(w.filename, str(w.message)[:37]) for w in seen if 'aotgrad' in str(w.message)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[('<string>', 'aotgrad was not tested with torch 9.9')]"


def test_this_environment_was_tested():
    assert untested(torch.__version__, sys.version_info[:2]) is None


def test_the_package_asks_for_what_was_tested():
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (first, last), (oldest, newest) = TESTED["torch"], TESTED["Python"]
    assert f"torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}" in project["dependencies"]
    assert project["requires-python"] == f">={oldest[0]}.{oldest[1]}"
    named = [each for each in project["classifiers"] if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", each)]
    assert named == [f"Programming Language :: Python :: 3.{minor}" for minor in range(oldest[1], newest[1] + 1)]
