"""torch's own logs: `TORCH_LOGS` and `TORCH_TRACE`."""

from __future__ import annotations

import functools
import logging

import torch


@functools.cache
def artifact_logger(name: str) -> logging.Logger:
    """The logger of an artifact of `TORCH_LOGS`, a child of torch's logger, whose handlers print it."""
    return torch._logging.getArtifactLogger("torch.aotgrad", name)


def artifact_is_on(name: str) -> bool:
    """Whether `TORCH_LOGS` or `torch._logging.set_logs` enables an artifact."""
    return torch._logging._internal.log_state.is_artifact_enabled(name)


def structured_trace_is_on() -> bool:
    """Whether `TORCH_TRACE` is on."""
    return bool(torch._logging._internal.trace_log.handlers)


def trace_structured(name: str, text: str) -> None:
    """Record a text for tlparse, next to Dynamo's records of the same compilation."""
    torch._logging.trace_structured(name, payload_fn=lambda: text, expect_trace_id=False)
