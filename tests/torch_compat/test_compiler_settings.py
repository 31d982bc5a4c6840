"""Feature tests of `aotgrad/torch_compat/compiler_settings.py`."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

from aotgrad import torch_compat as compat

CHANGES = {
    "torch._inductor.config": ("fallback_random", True),
    "torch._dynamo.config": ("capture_scalar_outputs", True),
    "torch._functorch.config": ("treat_parameters_as_free_to_save", False),
    "torch.fx.experimental._config": ("use_duck_shape", False),
    "torch.compiler.config": ("job_id", "another"),
}


def in_a_thread(function: Callable[[], Any]) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_every_module_of_settings_is_there():
    assert [*CHANGES] == [*compat.CONFIG_MODULES]


@pytest.mark.parametrize("name", CHANGES)
def test_another_thread_gets_a_change(name: str):
    module: Any = importlib.import_module(name)
    setting, value = CHANGES[name]
    before = getattr(module, setting)
    assert before != value
    with module.patch({setting: value}):
        settings = compat.CompilerSettings.now()

    def run() -> list[Any]:
        with settings.active():
            inside = getattr(module, setting)
        return [inside, getattr(module, setting)]

    assert run() == [value, before]
    assert in_a_thread(run) == [value, before]
    assert in_a_thread(lambda: settings.changed == compat.CompilerSettings.now().changed) is False


def test_what_was_not_changed_is_not_changed_inside():
    settings = compat.CompilerSettings.now()
    with inductor.patch({"triton.cudagraphs": True, "max_autotune": True}), dynamo.patch(recompile_limit=3):
        before = compat.CompilerSettings.now()
        with settings.active():
            assert (inductor.triton.cudagraphs, inductor.max_autotune) == (False, False)
            assert compat.CompilerSettings.now().changed == settings.changed
        assert compat.CompilerSettings.now().changed == before.changed
        assert dynamo.recompile_limit == 3


def test_a_value_that_can_be_changed_in_place():
    """torch copies such a default when it is read, which is no change."""
    before = compat.CompilerSettings.now()
    inductor.post_grad_fusion_options  # noqa: B018  # a read
    assert compat.CompilerSettings.now().changed == before.changed
    with inductor.patch(post_grad_fusion_options={"a": {}}):
        changed = compat.CompilerSettings.now()
    assert changed.changed != before.changed
    with changed.active():
        assert inductor.post_grad_fusion_options == {"a": {}}
    assert inductor.post_grad_fusion_options == {}


def test_the_configuration_of_a_graph_in_inductors_cache_is_that_of_the_settings():
    with inductor.patch(max_autotune=True):
        settings, wanted = compat.CompilerSettings.now(), inductor.save_config()
    before = inductor.save_config()
    with settings.active():
        assert inductor.save_config() == wanted != before
    assert inductor.save_config() == before


def test_threads_of_a_program_are_none_of_the_engine():
    found = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: found.append(compat.is_engine_thread()))
    x.sum().backward()
    assert found == [False]
    assert not compat.is_engine_thread()
    assert not in_a_thread(compat.is_engine_thread)


def test_a_compiler_has_no_autocast_and_moves_no_generator():
    before = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16), compat.compiler_context():
        assert torch.rand(2, 2).mm(torch.ones(2, 2)).dtype is torch.float32
    assert torch.equal(torch.get_rng_state(), before)
