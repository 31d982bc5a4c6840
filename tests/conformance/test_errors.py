"""Every operator refuses the inputs that eager refuses: with eager halves, and through Inductor."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import aotgrad
from tests.conformance.errors import is_refused, outcome, refused_calls


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Torch logs every call that a shape function refuses."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_eager_refuses_is_refused(backend: str) -> None:
    calls = refused_calls()
    assert len(calls) > 600
    accepted = []
    for call in calls:
        under_test = aotgrad.aot_function(call.function, backend, options={"min_graph_ops": 0})
        found = outcome(under_test, call.arguments)
        if not is_refused(found, call.error):
            accepted.append(f"{call}: {type(found).__name__} {found}")
    assert not accepted, "\n".join(accepted)
