"""`python -m aotgrad`: its commands, their messages and exit statuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from aotgrad.inspect.command_line import STAGES, main
from aotgrad.telemetry.observer import LAST_STAGE
from tests.golden.harness import REPOSITORY

SOURCE = """
import torch
from torch import nn

def loss(x, w):
    return (x @ w).sum()

def talks(x, w):
    product = x @ w
    print("between")
    return product.sin()

def example_inputs():
    return torch.ones(2, 3), torch.ones(3, 1, requires_grad=True)

def seeds(x, w):
    torch.manual_seed(1)
    return x @ w

def raises(x, w):
    raise ValueError("no")

class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)

net = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 1))
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


# --- explain ---------------------------------------------------------------------------------------------------------


def test_the_report(capsys, model):
    output = shown(capsys, "explain", f"{model}:loss")
    assert output.startswith("loss with backend eager: saves 24 bytes for the backward\n")
    saved, _, memory = output.partition("recomputed in the backward")
    assert "model.py:6  return (x @ w).sum()" not in saved and "arguments of the call" in saved
    assert "memory of one call, simulated, without its arguments: 20 bytes at the peak" in memory


def test_the_report_for_programs(capsys, model):
    report = json.loads(shown(capsys, "explain", f"{model}:loss", "--json"))
    assert [row["name"] for row in report["saved"]] == ["x"]
    assert report["saved_bytes"] == 24


def test_options_and_backend(capsys, model):
    arguments = ["explain", f"{model}:net", "--inputs", "f32[4, 3]", "--json"]
    saved = json.loads(shown(capsys, *arguments))["saved_bytes"]
    less = json.loads(shown(capsys, *arguments, "--backend", "interpreter", "--option", "memory_budget=0.5"))
    assert less["saved_bytes"] <= saved / 2 and less["recomputed"] and less["backend"] == "interpreter"


def test_without_gradients(capsys, model):
    output = shown(capsys, "explain", f"{model}:loss", "--no-grad")
    assert "saves 0 bytes" in output and "inference" in output and "saved for the backward" not in output


def test_a_module_class_is_made(capsys, model):
    assert "weight" in shown(capsys, "explain", f"{model}:Net", "--inputs", "f32[2, 3]")


def test_a_function_that_raises_is_reported(capsys, model):
    assert "the function raises while it is traced (ValueError: no)" in shown(capsys, "explain", f"{model}:raises")


# --- stages ----------------------------------------------------------------------------------------------------------


def test_every_stage_is_shown(capsys, model):
    output = shown(capsys, "stages", f"{model}:loss")
    titles = [line for line in output.splitlines() if line.startswith("--- ")]
    assert titles == [f"--- {stage} ---" for stage in STAGES]
    assert "def backward(" in output


def test_one_stage_with_inputs_of_the_command_line(capsys, model):
    inputs = ["--inputs", "f64[4, 2] requires_grad", "f64[2, 2]"]
    output = shown(capsys, "stages", f"{model}:loss", "--stage", "joint", *inputs)
    assert "--- capture ---" not in output
    assert "primals_1: f64[4, 2],  # primal 0" in output


def test_a_module_is_shown_with_its_parameters(capsys, model):
    output = shown(capsys, "stages", f"{model}:Net", "--stage", "capture", "--inputs", "f32[2, 3]")
    assert "primals_1: f32[1, 3],  # parameter or buffer, leaf that requires grad" in output


def test_an_importable_function(capsys):
    output = shown(capsys, "stages", "torch.nn.functional:gelu", "--stage", "capture", "--inputs", "bf16[4]")
    assert "aten.gelu.default(primals_1)" in output


def test_settings(capsys, model):
    wanted = ["--stage", "capture", "--stage", LAST_STAGE]
    output = shown(capsys, "stages", f"{model}:loss", "--option", "dynamic=True", "--no-grad", *wanted)
    assert "f32[s" in output
    assert "attach" not in output


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_dynamos_graphs(model, capsys):
    report = json.loads(shown(capsys, "explain", f"{model}:talks", "--dynamo", "--json"))
    assert [len(graph["inputs"]) for graph in report["graphs"]] == [2, 1]
    assert report["breaks"][0]["where"]["code"] == 'print("between")'


def test_the_cases_of_the_golden_files_have_their_inputs(capsys):
    output = shown(capsys, "stages", "tests.golden.outputs:views_of_intermediate", "--stage", "joint")
    assert "intermediate base 0" in output


# --- frontier --------------------------------------------------------------------------------------------------------


def test_the_table(capsys, model):
    lines = shown(capsys, "frontier", f"{model}:net", "--inputs", "f32[4, 3]").splitlines()
    assert lines[0].split()[:2] == ["saved", "peak"] and "without a budget" in lines[1] and len(lines) > 2


def test_the_plot(model, tmp_path):
    file = tmp_path / "front.svg"
    assert main(["frontier", f"{model}:net", "--inputs", "f32[4, 3]", "--plot", str(file)]) == 0
    assert "<svg" in file.read_text()


def test_without_matplotlib_a_plot_is_an_error_that_says_so(capsys, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["frontier", f"{model}:net", "--inputs", "f32[4, 3]", "--plot", str(tmp_path / "front.svg")]) == 2
    assert 'pip install "aotgrad[plot]"' in capsys.readouterr().err


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["explain", "loss"], 2, "UsageError: 'loss' names no function; write file.py:function or module:function"),
        (["stages", "nowhere.py:loss"], 2, "UsageError: there is no file nowhere.py"),
        (["explain", "no_such_module:loss"], 2, "UsageError: there is no module 'no_such_module'"),
        (["explain", "MODEL:lost"], 2, "has no 'lost'; its functions are example_inputs, loss, raises, seeds"),
        (["explain", "MODEL:size"], 2, "is a int, which cannot be called"),
        (["explain", "torch.nn:Linear"], 2, "torch.nn:Linear is a class that needs arguments"),
        (["explain", "torch:sin"], 2, "UsageError: describe its inputs with --inputs"),
        (["explain", "MODEL:talks", "--dynamo", "--plot", "m.svg"], 2, "UsageError: --plot draws one graph"),
        (["explain", "torch:sin", "--inputs", "f31[2]"], 2, "SpecError: unknown dtype 'f31'"),
        (["explain", "torch:sin", "--inputs", "f32[2]", "--option", "verify"], 2, "has no value; write NAME=VALUE"),
        (["explain", "torch:sin", "--inputs", "f32[2]", "--option", "speed=9"], 2, "OptionError: unknown option 'speed'"),
        (
            ["frontier", "torch:sin", "--inputs", "f32[2]", "--option", "verify=True"],
            2,
            "frontier takes no --option but offload",
        ),
        (["stages", "MODEL:raises"], 2, "the function raises while it is traced: ValueError: no"),
        (["explain", "MODEL:seeds"], 1, "CaptureError: "),
        (["frontier", "torch:sin", "--inputs", "f32[4]"], 1, "PartitionError: no argument requires grad"),
    ],
)
def test_what_is_not_there_is_explained(capsys, model, arguments, status, message):
    assert main([argument.replace("MODEL", str(model)) for argument in arguments]) == status
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_imported(capsys, tmp_path):
    (tmp_path / "broken.py").write_text("import torch\nassert 1 == 2, 'sums'\n")
    assert main(["explain", f"{tmp_path}/broken.py:loss"]) == 2
    assert "broken.py cannot be imported: AssertionError: sums" in capsys.readouterr().err


def test_an_unknown_command_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["explode", "torch:sin"])
    assert exit.value.code == 2
    assert "invalid choice: 'explode'" in capsys.readouterr().err


def test_as_a_program_whose_reader_goes_away(model):
    command = [sys.executable, "-m", "aotgrad", "stages", f"{model}:net", "--inputs", "f32[4, 3]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY) as process:
        process.stdout.close()
        said = process.stderr.read().splitlines()
        assert [line for line in said if not re.match(rb"W\d{4} .*[/ ]torch/", line)] == []  # which is torch's log
    assert process.returncode == 0
