"""Every compiled function goes through its form on disk: `AOTGRAD_TEST_CACHE=1 pytest tests/numerics`.

A function runs as in a second process: its plan and graphs are encoded and decoded, and the backend compiles the decoded
graphs. A function without such a form runs as compiled. `totals` counts both kinds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from aotgrad import backends, pipeline, torch_compat
from aotgrad.cache.entry import StoredPlan
from aotgrad.cache.key import NotCacheable
from aotgrad.cache.lookup import PlanLookup, Recording
from aotgrad.cache.restore import restore
from aotgrad.cache.serialize import Encoder, NotSerializable
from aotgrad.cache.store import Store
from aotgrad.capture.fake import find_fake_mode
from aotgrad.pipeline import Compiler, Executable, Source, Stages
from aotgrad.telemetry.counters import counters

totals: Counter[str] = Counter()
compile_as_ever = pipeline.compile


def compile_and_restore(source: Source, compiler: Compiler) -> Stages:
    """The result of `pipeline.compile`, with the decoded function in place of the compiled one."""
    if source.known is not None or compiler.lower is not pipeline.lower or looks_at_graphs(compiler):
        return compile_as_ever(source, compiler)
    search = PlanLookup("key", Store(Path("/nowhere")), compiler, source.args, (), find_fake_mode(source.args), 0)
    recording = Recording(())
    made = compile_as_ever(source, replace(compiler, lower=recording))
    try:
        if not isinstance(made, Executable) or recording.problem or is_never_stored(made):
            raise NotCacheable("small, not plain, or nothing that Dynamo would give to the cache")
        search = replace(search, mode=torch_compat.fake_mode_of(made.joint.module.graph))  # which has its symbols
        encoder = Encoder()
        entry = encoder.encode(search.entry_of(made, recording))
        text = json.dumps({"entry": entry, "storages": encoder.storages})
    except (NotCacheable, NotSerializable):
        totals["as compiled"] += 1
        return made
    totals["restored"] += 1
    stored = search.entry(text.encode())
    assert isinstance(stored, StoredPlan)
    graphs = counters["graphs"]
    restored = restore(stored, source.function, compiler, search.mode, ())
    counters["graphs"] = graphs
    return replace(made, call=restored.call, backwards=restored.backwards)


def is_never_stored(made: Executable) -> bool:
    """Whether a plan has constants (inputs under Dynamo) or guards on values (which Dynamo reads itself)."""
    return bool(made.capture.trace.constants()) or made.value_guard is not None


def looks_at_graphs(compiler: Compiler) -> bool:
    """Whether a test records the compiled graphs; it would record each twice."""
    function = getattr(compiler.backend, "fw_compiler", backends)
    module = getattr(function, "__module__", backends.__name__)
    is_seen = not module.startswith("aotgrad.backends") or module.endswith(".interpreter")
    return bool(compiler.options.joint_passes) or is_seen


@contextmanager
def through_the_cache() -> Iterator[None]:
    """A context in which every plan goes through its form on disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "compile", compile_and_restore)
        yield
