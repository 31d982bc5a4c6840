"""The hook between stages."""

from __future__ import annotations

import logging

import pytest
import torch

import aotgrad
from aotgrad.errors import ContractError
from aotgrad.ir import Compiled
from aotgrad.telemetry.observer import LAST_STAGE, Observer, record_stages

STAGES = ["capture", "analysis", "joint", "partition", "compiled", LAST_STAGE]


def compile_and_call():
    aotgrad.aot_function(torch.sin, aotgrad.nop)(torch.ones(2))


def test_a_recording_holds_every_stage_in_order():
    with record_stages() as stages:
        compile_and_call()
    assert [stage.name for stage in stages] == STAGES
    assert all(stage.elapsed_ns >= 0 and stage.text for stage in stages)


def test_recordings_nest_and_end():
    with record_stages() as outer:
        with record_stages() as inner:
            compile_and_call()
        compile_and_call()
    compile_and_call()
    assert (len(inner), len(outer)) == (len(STAGES), 2 * len(STAGES))


def test_a_text_is_of_the_moment_when_its_stage_ended():
    with record_stages() as stages:
        aotgrad.aot_function(torch.sin, aotgrad.nop)(torch.ones(2, requires_grad=True))
    assert "cos" not in stages[0].text, "the capture comes before the backward is appended to its graph"


def test_stages_are_logged_with_their_time(caplog):
    with caplog.at_level(logging.DEBUG, logger="aotgrad.stages"):
        compile_and_call()
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("aotgrad.stages.")]
    assert [message.split(",")[0] for message in messages] == STAGES
    assert all(" ms\n" in message for message in messages)


def test_nothing_is_printed_unless_somebody_reads_it(monkeypatch):
    def fail(result):
        raise AssertionError("printed")

    monkeypatch.setattr("aotgrad.printing.text", fail)
    compile_and_call()


def test_stages_are_checked_if_asked_for():
    broken = Compiled("b", None, None)
    Observer(verify=False)("compiled", broken)
    with pytest.raises(ContractError, match="the forward of backend 'b' is a NoneType, not callable"):
        Observer(verify=True)("compiled", broken)


def test_the_last_stage_counts_as_a_compilation():
    before = aotgrad.counters["compilations"]
    observer = Observer()
    observer("compiled", None)
    observer(LAST_STAGE, None)
    assert aotgrad.counters["compilations"] == before + 1
