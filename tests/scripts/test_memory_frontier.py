"""The command line of scripts/memory_frontier.py."""

from __future__ import annotations

import builtins
import sys

import pytest

from scripts.memory_frontier import main

SOURCE = """
from torch import nn

net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
"""


@pytest.fixture
def target(tmp_path) -> str:
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return f"{path}:net"


def test_the_table(capsys, target):
    assert main([target, "--inputs", "f32[4, 8]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["saved", "peak"] and "without a budget" in lines[1] and len(lines) > 2


def test_the_plot(target, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is an optional extra")
    file = tmp_path / "front.svg"
    assert main([target, "--inputs", "f32[4, 8]", "--plot", str(file)]) == 0
    assert "<svg" in file.read_text()


def test_without_matplotlib_a_plot_is_an_error_that_says_so(capsys, target, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert main([target, "--inputs", "f32[4, 8]", "--plot", str(tmp_path / "front.svg")]) == 1
    assert 'pip install "aotgrad[plot]"' in capsys.readouterr().err


def test_what_needs_no_gradient_is_an_error(capsys):
    assert main(["torch.nn.functional:gelu", "--inputs", "f32[4]"]) == 1
    assert "PartitionError: no argument requires grad" in capsys.readouterr().err
