"""`aotgrad.install`: "inductor" means aotgrad, until it is undone."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad import torch_compat
from aotgrad.errors import OptionError
from aotgrad.frontends import accelerate

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def nothing_installed():
    torch._dynamo.reset()
    yield
    assert not aotgrad.uninstall(), "the test left it installed"


def function(x):
    return (x @ x).sin() @ x


def compiled_by_us(compiled) -> bool:
    """Whether a call compiles with aotgrad; it and its gradient are eager's."""
    x, other = (torch.eye(3).mul(0.5).requires_grad_() for _ in range(2))
    before = aotgrad.counters["graphs"]
    result = compiled(x)
    result.sum().backward(), function(other).sum().backward()
    torch.testing.assert_close((result, x.grad), (function(other), other.grad))
    return aotgrad.counters["graphs"] > before


WAYS = {
    "no backend": lambda: torch.compile(function),
    "inductor": lambda: torch.compile(function, backend="inductor"),
    "as a decorator": lambda: torch.compile(dynamic=False)(function),
    "mode": lambda: torch.compile(function, mode="max-autotune-no-cudagraphs"),
    "options": lambda: torch.compile(function, options={"max_autotune": True, "epilogue-fusion": False}),
    "dynamic and fullgraph": lambda: torch.compile(function, dynamic=True, fullgraph=True),
    "Dynamo itself": lambda: torch._dynamo.optimize("inductor")(function),
}


@pytest.mark.parametrize("way", WAYS)
def test_inductor_means_aotgrad_while_it_is_installed(way):
    with aotgrad.install():
        assert compiled_by_us(WAYS[way]())
    torch._dynamo.reset()
    assert not compiled_by_us(WAYS[way]())


def test_a_module_that_compiles_itself():
    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(super().forward(x).tanh())

    model, x = Model(3, 3), torch.ones(2, 3)
    expected, before = model(x), aotgrad.counters["graphs"]
    with aotgrad.install():
        model.compile()
    torch.testing.assert_close(model(x), expected)
    assert aotgrad.counters["graphs"] > before


def test_what_counts_is_when_torch_compile_is_called():
    earlier = torch.compile(function)
    aotgrad.install()
    during = torch.compile(function)
    assert not compiled_by_us(earlier)
    assert compiled_by_us(during), "what Inductor has compiled is not taken for ours"
    assert aotgrad.uninstall()
    torch._dynamo.reset()
    assert compiled_by_us(during) and not compiled_by_us(torch.compile(function))


def configurations(monkeypatch):
    """Inductor's configuration at each graph, as a list that grows."""
    from torch._inductor import config

    found, compile = [], torch_compat.inductor_compile

    def read(*args, **settings):
        found.append((config.max_autotune, config.epilogue_fusion))
        return compile(*args, **settings)

    monkeypatch.setattr(torch_compat, "inductor_compile", read)
    return found


def test_modes_and_options_reach_forward_and_backward(monkeypatch):
    found = configurations(monkeypatch)
    with aotgrad.install(options={"cache": False}):
        assert compiled_by_us(torch.compile(function, mode="max-autotune-no-cudagraphs"))
        torch._dynamo.reset()
        assert compiled_by_us(torch.compile(function, options={"epilogue_fusion": False}))
    assert found == [(True, True)] * 2 + [(False, False)] * 2


def test_options_of_its_own(monkeypatch):
    found = configurations(monkeypatch)
    with aotgrad.install(options={"cache": False, "inductor": {"max_autotune": True, "epilogue_fusion": False}}):
        assert compiled_by_us(torch.compile(function, options={"epilogue_fusion": True}))
    assert found == [(True, True)] * 2, "those of torch.compile come before them"
    with aotgrad.install(options={"enabled": True, "min_graph_ops": 99}):
        torch._dynamo.reset()
        assert not compiled_by_us(torch.compile(function))


def test_wrong_options_are_refused():
    before = torch._TorchCompileInductorWrapper
    with pytest.raises(OptionError, match="unknown option 'partitoner'"):
        aotgrad.install(options={"partitoner": "min_cut"})
    assert torch._TorchCompileInductorWrapper is before
    with aotgrad.install():
        with pytest.raises(RuntimeError, match="Unexpected optimization option"):
            torch.compile(function, options={"max_autotun": True})
        with pytest.raises(OptionError, match="Inductor's option 'freezing' is for torch's own AOTAutograd"):
            torch.compile(function, options={"freezing": True})(torch.eye(3))


# --- Undoing it ------------------------------------------------------------------------------------------------------


def places():
    return torch._TorchCompileInductorWrapper, torch._dynamo.lookup_backend("inductor")


def test_an_error_inside_undoes_it():
    before = places()
    with pytest.raises(ZeroDivisionError), aotgrad.install():
        assert places() != before
        raise ZeroDivisionError
    assert places() == before and sys.meta_path == [
        each for each in sys.meta_path if type(each) is not accelerate.ImportWatch
    ]


def test_installs_are_nested_and_the_last_one_counts():
    before = places()
    with aotgrad.install(options={"min_graph_ops": 99}):
        with aotgrad.install():
            assert compiled_by_us(torch.compile(function))
        torch._dynamo.reset()
        assert not compiled_by_us(torch.compile(function)), "the outer one has options under which it is too small"
        assert places() != before
    assert places() == before


def test_to_undo_it_twice_does_nothing():
    before = places()
    aotgrad.install(), aotgrad.install()
    assert (aotgrad.uninstall(), places() == before) == (True, False)
    assert (aotgrad.uninstall(), places() == before) == (True, True)
    assert (aotgrad.uninstall(), places() == before) == (False, True)
    with aotgrad.install():
        assert aotgrad.uninstall()
        outer = aotgrad.install()
    assert places() != before, "the end of a block undoes its own install only"
    with outer:
        pass
    assert places() == before


def test_what_somebody_else_has_changed_since_stays(monkeypatch):
    class Other(torch._TorchCompileInductorWrapper):
        pass

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", torch._TorchCompileInductorWrapper)
    with aotgrad.install():
        torch._TorchCompileInductorWrapper = Other
    assert torch._TorchCompileInductorWrapper is Other


def test_it_holds_in_all_threads_until_the_last_one_is_done():
    before, barrier, found = places(), threading.Barrier(4), []

    def work(k):
        barrier.wait()
        for _ in range(20):
            with aotgrad.install():
                found.append(places() != before)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert found == [True] * 80 and places() == before


# --- accelerate ------------------------------------------------------------------------------------------------------

STAND_IN = """
import enum

class WithContains(enum.EnumMeta):
    def __contains__(cls, item):
        try:
            cls(item)
        except ValueError:
            return False
        return True

class DynamoBackend(str, enum.Enum, metaclass=WithContains):
    NO = "NO"
    INDUCTOR = "INDUCTOR"
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A package with accelerate's name and its list; imports the list."""
    (tmp_path / "accelerate/utils").mkdir(parents=True)
    for name, text in {"__init__": "", "utils/__init__": "", "utils/dataclasses": STAND_IN}.items():
        (tmp_path / f"accelerate/{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        monkeypatch.delitem(sys.modules, name)
    yield lambda: importlib.import_module("accelerate.utils.dataclasses").DynamoBackend
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        sys.modules.pop(name)


@pytest.mark.parametrize("is_first", [True, False], ids=["imported before", "imported after"])
def test_its_list_has_our_names(stand_in, is_first):
    if is_first:
        stand_in()
    with aotgrad.install():
        assert ("accelerate.utils.dataclasses" in sys.modules) == is_first, "nothing is imported by us"
        names = stand_in()
        assert names("AOTGRAD").value.lower() == "aotgrad" and names("AOTGRAD") is names("AOTGRAD")
        assert isinstance(names("AOTGRAD_EAGER"), names) and "AOTGRAD" in names and names("INDUCTOR") is names.INDUCTOR
        assert copy.deepcopy({"backend": names("AOTGRAD")})["backend"] is names("AOTGRAD")
        assert pickle.loads(pickle.dumps(names("AOTGRAD"))) is names("AOTGRAD")
        with pytest.raises(ValueError, match="'OTHER' is not a valid DynamoBackend"):
            names("OTHER")
        kept = names("AOTGRAD")
    assert kept.value == "AOTGRAD"
    with pytest.raises(ValueError, match="'AOTGRAD' is not a valid DynamoBackend"):
        names("AOTGRAD")


def test_what_is_imported_after_it_was_undone_is_left_alone(stand_in):
    with aotgrad.install():
        pass
    with pytest.raises(ValueError, match="is not a valid"):
        stand_in()("AOTGRAD")


def test_without_accelerate_nothing_is_missed():
    script = """
import sys
sys.modules["accelerate"] = None
import aotgrad
with aotgrad.install():
    pass
assert "transformers" not in sys.modules and "accelerate.utils" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


TRAINING = """
import sys, torch, warnings
import aotgrad
{first}
aotgrad.install()
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(4, 4)
    def forward(self, x, labels=None):
        y = self.weight(self.weight(x).tanh())
        return {{"loss": (y - labels).pow(2).mean(), "logits": y}}

data = [{{"x": torch.ones(4), "labels": torch.zeros(4)}} for _ in range(4)]
where = dict(use_cpu=True, max_steps=2, report_to=[], save_strategy="no")
given = TrainingArguments("{folder}", torch_compile=True, {backend} **where)
Trainer(Model(), given, train_dataset=data).train()
assert aotgrad.counters["graphs"] >= 2, aotgrad.counters
"""


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize("backend", ["", "torch_compile_backend='aotgrad',", "torch_compile_backend='inductor',"])
@pytest.mark.parametrize("first", ["", "import accelerate"])
def test_a_trainer(backend, first, tmp_path):
    script = TRAINING.format(first=first, backend=backend, folder=tmp_path)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
