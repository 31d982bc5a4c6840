"""Backends that hang or crash can be minified, too: each graph runs in a separate process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time

import pytest
import torch

from aotgrad.debug import BackendFailure, minify
from aotgrad.debug.isolation import failure_apart
from aotgrad.errors import NothingToMinify
from tests.numerics.against_eager import leaf

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork processes"
)
LIMIT = 60


def abort():
    os.abort()


def segfault():
    ctypes.string_at(0)


def leave():
    os._exit(3)


def compiler_that(dies, on=torch.ops.aten.cos.default, at_run_time=False):
    """A compiler that crashes on an op, while compiling or running it."""

    def compiler(graph, example_inputs):
        is_there = any(node.target is on for node in graph.graph.nodes)
        if is_there and not at_run_time:
            dies()

        def run(*args):
            if is_there:
                dies()
            return graph(*args)

        return run

    return compiler


def function(x):
    return (x.exp().sin() + 1).sum()


@pytest.mark.parametrize("at_run_time", [False, True])
@pytest.mark.parametrize(
    ("dies", "failure"),
    [
        (abort, BackendFailure("SIGABRT", "the process was killed")),
        (segfault, BackendFailure("SIGSEGV", "the process was killed")),
        (leave, BackendFailure("exits", "ends the process with status 3")),
    ],
)
def test_a_backend_that_kills_the_process(dies, failure, at_run_time):
    """The cosine is in the backward."""
    repro = minify(function, (leaf(4),), compiler_that(dies, at_run_time=at_run_time), limit_s=LIMIT)
    assert (repro.role, repro.failure) == ("backward", failure)
    assert [node.target for node in repro.module.graph.nodes if node.op == "call_function"] == [torch.ops.aten.cos.default]
    assert f"{failure.kind}: {failure.text}" in repro.script


def test_a_backend_that_hangs():
    repro = minify(torch.cos, (torch.ones(1),), compiler_that(lambda: time.sleep(600)), limit_s=3)
    assert repro.failure.kind == "hangs"


def test_other_failures_are_the_same_ones():
    def refuse():
        raise ValueError("no")

    repro = minify(function, (leaf(4),), compiler_that(refuse), limit_s=LIMIT)
    assert repro.failure == BackendFailure("ValueError", "no")
    with pytest.raises(NothingToMinify):
        minify(function, (leaf(4),), "eager", limit_s=LIMIT)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_inductor_compiles_there():
    with pytest.raises(NothingToMinify):
        minify(function, (leaf(4),), "inductor", limit_s=LIMIT * 5)


def test_what_a_question_prints_and_raises(capfd):
    def ask():
        print("noise")
        print("noise", file=sys.stderr, flush=True)
        raise ValueError("a bug")

    with pytest.raises(RuntimeError, match=r"^ValueError: a bug$"):
        failure_apart(ask, LIMIT)
    assert capfd.readouterr() == ("", "")


def test_a_process_that_cannot_be_forked_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA is in use, which a fork cannot share"):
        minify(function, (leaf(4),), "eager", limit_s=LIMIT)
