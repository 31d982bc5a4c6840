"""Feature tests of `aotgrad/torch_compat/logs.py`."""

from __future__ import annotations

import logging

import torch

from aotgrad import torch_compat as compat


def test_artifacts_of_torchs_own_logs():
    logger = compat.artifact_logger("aot_graphs")
    assert compat.artifact_logger("aot_graphs") is logger and logger.name.startswith("torch.")
    assert not compat.artifact_is_on("aot_graphs")
    torch._logging.set_logs(aot_graphs=True)
    try:
        assert compat.artifact_is_on("aot_graphs") and logger.propagate
    finally:
        torch._logging.set_logs()
    assert not compat.artifact_is_on("aot_graphs")


def test_structured_traces(monkeypatch):
    from torch._logging._internal import trace_log

    class Handler(logging.Handler):
        def emit(self, record):
            records.append((record.metadata, record.payload))

    records = []
    monkeypatch.setattr(trace_log, "handlers", [])
    assert not compat.structured_trace_is_on()
    monkeypatch.setattr(trace_log, "handlers", [Handler()])
    assert compat.structured_trace_is_on()
    compat.trace_structured("aot_joint_graph", "text")
    assert records[0][1] == "text" and "aot_joint_graph" in records[0][0]
