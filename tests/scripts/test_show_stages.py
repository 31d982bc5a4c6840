"""The command line of scripts/show_stages.py."""

from __future__ import annotations

import pytest

from aotgrad.observe import LAST_STAGE
from scripts.show_stages import STAGES, main

SOURCE = """
import torch
from torch import nn

def loss(x, w):
    return (x @ w).sum()

def example_inputs():
    return torch.ones(2, 3), torch.ones(3, 1, requires_grad=True)

net = nn.Linear(3, 1)
size = 3
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return path


def shown(capsys, *arguments: str) -> str:
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def test_every_stage_is_shown(capsys, model):
    output = shown(capsys, f"{model}:loss")
    titles = [line for line in output.splitlines() if line.startswith("--- ")]
    assert titles == [f"--- {stage} ---" for stage in STAGES]
    assert "def backward(" in output


def test_one_stage_with_inputs_of_the_command_line(capsys, model):
    output = shown(capsys, f"{model}:loss", "--stage", "joint", "--inputs", "f64[4, 2] requires_grad", "f64[2, 2]")
    assert "--- capture ---" not in output
    assert "primals_1: f64[4, 2],  # primal 0" in output


def test_a_module_is_shown_with_its_parameters(capsys, model):
    output = shown(capsys, f"{model}:net", "--stage", "capture", "--inputs", "f32[2, 3]")
    assert "primals_1: f32[1, 3],  # parameter or buffer, leaf that requires grad" in output


def test_an_importable_function(capsys):
    output = shown(capsys, "torch.nn.functional:gelu", "--stage", "capture", "--inputs", "bf16[4]")
    assert "aten.gelu.default(primals_1)" in output


def test_settings(capsys, model):
    output = shown(capsys, f"{model}:loss", "--dynamic", "--no-grad", "--stage", "capture", "--stage", LAST_STAGE)
    assert "f32[s" in output
    assert "attach" not in output


def test_examples(capsys):
    assert "dropout " in shown(capsys, "--list")
    output = shown(capsys, "--example", "dropout", "--stage", "joint")
    assert "def dropout(x):" in output
    assert "def joint(" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "UsageError: name a function (file.py:function), --example NAME or --list"),
        (["loss"], "UsageError: 'loss' names no function; write file.py:function or module:function"),
        (["nowhere.py:loss"], "UsageError: there is no file nowhere.py"),
        (["no_such_module:loss"], "UsageError: there is no module 'no_such_module'"),
        (["MODEL:lost"], "has no 'lost'; its functions are example_inputs, loss"),
        (["MODEL:size"], "is a int, which cannot be called"),
        (["torch:sin"], "UsageError: say what it takes, --inputs"),
        (["torch:sin", "--inputs", "f31[2]"], "SpecError: unknown dtype 'f31'"),
        (["--example", "nothing"], "UsageError: there is no example 'nothing'; the examples are "),
    ],
)
def test_what_is_not_there_is_explained(capsys, model, arguments, message):
    assert main([argument.replace("MODEL", str(model)) for argument in arguments]) == 1
    assert message in capsys.readouterr().err
