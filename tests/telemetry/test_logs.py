"""Printed artifacts, and the logs for torch's own tools."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch

import aotgrad
from aotgrad.telemetry.logs import ARTIFACTS
from tests.golden.harness import REPOSITORY
from tests.numerics.against_eager import leaf, plain


@pytest.fixture(autouse=True)
def nothing_is_printed_afterwards():
    yield
    aotgrad.set_logs()


def compile_something():
    f = aotgrad.aot_function(lambda x: x.sin().exp(), aotgrad.nop)
    f(leaf(2)).sum().backward()
    f(plain(3))
    return f


WRITTEN = {
    "analysis": "[aotgrad.stages.analysis] analysis, ",
    "capture": "[aotgrad.stages.capture] capture, ",
    "guards": "no plan fits: tensor 'tensor argument 0' requires_grad mismatch",
    "joint": "[aotgrad.stages.joint] joint, ",
    "partition": "saved for the backward: ",
    "passes": "[aotgrad.passes] joint pass ",
    "plan": "def call(args):",
}


@pytest.mark.parametrize("artifact", WRITTEN)
def test_an_artifact_is_printed(artifact, capsys):
    aotgrad.set_logs(artifact)
    compile_something()
    printed = capsys.readouterr().err
    assert WRITTEN[artifact] in printed
    others = [text for name, text in WRITTEN.items() if name != artifact]
    assert not any(text in printed for text in others)
    aotgrad.set_logs()
    compile_something()
    assert capsys.readouterr().err == ""


def test_every_artifact_is_tested():
    assert set(WRITTEN) | {"minify"} == set(ARTIFACTS)


def test_minify_says_how_it_goes_on(capsys):
    def broken(graph, example_inputs):
        raise ValueError("broken")

    aotgrad.set_logs("minify")
    aotgrad.debug.minify(torch.sin, (plain(2),), broken)
    assert "the inference graph, 1 ops, fails: ValueError: broken" in capsys.readouterr().err


def test_the_guards_of_a_new_plan(capsys):
    aotgrad.set_logs("guards")
    compile_something()
    assert (
        "a new plan, used if\n    tensor 0: torch.float32 (2,) strides (1,) cpu requires_grad\n" in capsys.readouterr().err
    )


def test_an_unknown_artifact_is_an_error():
    with pytest.raises(aotgrad.errors.OptionError, match="there is no log 'graphs'; the logs are analysis, capture, guards"):
        aotgrad.set_logs("joint", "graphs")
    assert not logging.getLogger("aotgrad.stages.joint").handlers


def test_a_users_own_level_and_handlers_stay():
    logger, handler = logging.getLogger("aotgrad.guards.plan"), logging.NullHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    try:
        aotgrad.set_logs("joint")
        aotgrad.set_logs()
        assert (logger.level, logger.handlers) == (logging.ERROR, [handler])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


PROGRAM = """
import torch, aotgrad
f = aotgrad.aot_function(lambda x: x.sin().exp(), aotgrad.nop)
f(torch.ones(2, requires_grad=True)).sum().backward()
f(torch.ones(2))
g = torch.compile(lambda x: x.sin().exp(), backend=aotgrad.eager)
g(torch.ones(2, requires_grad=True)).sum().backward()
"""


def test_the_environment_and_the_traces_of_torch(tmp_path):
    environment = {"PYTHONPATH": str(REPOSITORY), "AOTGRAD_LOGS": "joint, plan", "TORCH_TRACE": str(tmp_path)}
    settings = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=settings, capture_output=True, text=True, check=True)
    assert done.stderr.count("def joint(") == done.stderr.count("= attach(backward, ") == 2
    (file,) = tmp_path.glob("*.log")
    trace = file.read_text()
    assert [trace.count(f'"aot_{name}_graph"') for name in ("joint", "forward", "backward", "inference")] == [2, 2, 2, 1]
    assert "torch.ops.aten.sin.default(primals_1)" in trace
    of_dynamo = [line for line in trace.splitlines() if '"aot_joint_graph"' in line and '"frame_id": 0' in line]
    assert len(of_dynamo) == 1


def test_artifacts_of_torch_logs(capsys, caplog):
    with caplog.at_level(logging.INFO):
        compile_something()
        assert "graph" not in caplog.text
        torch._logging.set_logs(aot_graphs=True, aot_joint_graph=True)
        try:
            compile_something()
        finally:
            torch._logging.set_logs()
    printed = capsys.readouterr().err
    for name in ("Joint", "Forward", "Backward", "Inference"):
        assert f"{name} graph" in printed
