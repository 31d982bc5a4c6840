"""Everything that is compiled goes through its form on disk: `AOTGRAD_TEST_CACHE=1 pytest tests/numerics`.

A function runs as it would in a second process: its plan and its graphs are written, read again, and the backend compiles
what was read. What has no such form runs as it was compiled; `totals` says how many were which.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from aotgrad import backends, torch_compat
from aotgrad.cache.entry import StoredPlan
from aotgrad.cache.key import NotStored
from aotgrad.cache.lookup import RecordingRecipe, Request
from aotgrad.cache.restore import restore
from aotgrad.cache.serialize import NotPlain, Writer
from aotgrad.cache.store import Store
from aotgrad.capture.fake import find_fake_mode
from aotgrad.pipeline import Executable, SmallGraph
from aotgrad.plan_cache.compiler import Recipe
from aotgrad.telemetry.counters import counters

totals: Counter[str] = Counter()
compile_as_ever = Recipe.compile


def compile_and_restore(recipe: Recipe, function, args, hints, known=None, values=None):
    """What `Recipe.compile` returns, with the function that was read again in place of its own."""
    if known is not None or isinstance(recipe, RecordingRecipe) or looks_at_graphs(recipe):
        return compile_as_ever(recipe, function, args, hints, known, values)
    request = Request("key", Store(Path("/nowhere")), recipe, args, (), find_fake_mode(args), 0)
    recording = RecordingRecipe.of(request)
    made = compile_as_ever(recording, function, args, hints, None, values)
    try:
        if isinstance(made, SmallGraph) or recording.stages.problem or is_never_stored(made):
            raise NotStored("small, not plain, or nothing that Dynamo would give to the cache")
        request = replace(request, mode=torch_compat.fake_mode_of(made.joint.module.graph))  # which has its symbols
        writer = Writer()
        entry = writer.write(request.entry_of(made, recording.stages))
        text = json.dumps({"entry": entry, "storages": writer.storages})
    except (NotStored, NotPlain):
        totals["as compiled"] += 1
        return made
    totals["restored"] += 1
    stored = request.entry(text.encode())
    assert isinstance(stored, StoredPlan)
    graphs = counters["graphs"]
    restored = restore(stored, function, recipe, request.mode, ())
    counters["graphs"] = graphs
    return replace(made, call=restored.call, backwards=restored.backwards)


def is_never_stored(made: Executable) -> bool:
    """Whether a plan has constants, which Dynamo makes inputs, or holds for some values only, which Dynamo reads itself."""
    return bool(made.capture.trace.constants()) or made.value_guard is not None


def looks_at_graphs(recipe: Recipe) -> bool:
    """Whether a test sees the graphs that are compiled: it would see each twice."""
    compiler = getattr(recipe.backend, "fw_compiler", backends)
    module = getattr(compiler, "__module__", backends.__name__)
    is_seen = not module.startswith("aotgrad.backends") or module.endswith(".interpreter")
    return bool(recipe.options.joint_passes) or is_seen


@contextmanager
def through_the_cache() -> Iterator[None]:
    """Every plan that is made inside goes through its form on disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recipe, "compile", compile_and_restore)
        yield
