"""Options: validated on creation, with the environment as default."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest
import torch

import aotgrad
from aotgrad import torch_compat
from aotgrad.backends import registry
from aotgrad.backends.inductor.backend import InductorBackend
from aotgrad.errors import OptionError
from aotgrad.options import LEGAL_VALUES, PASSES, Options, host_bytes_of


def test_every_option_has_legal_values_and_a_legal_default():
    assert {field.name for field in dataclasses.fields(Options)} == {
        *LEGAL_VALUES,
        *PASSES,
        "inductor",
        "checkpoint_policies",
    }
    assert Options() == Options(**{field.name: field.default for field in dataclasses.fields(Options)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitioner", "greedy"),
        ("verify", 1),
        ("dynamic", "yes"),
        ("mode", None),
        ("plan_limit", 0),
        ("min_graph_ops", -1),
        ("on_error", None),
        ("grad_segments", 65),
        ("flops_per_byte", 0.5),
    ],
)
def test_an_illegal_value_is_refused_with_the_legal_ones(name, value):
    with pytest.raises(OptionError) as raised:
        Options.from_mapping({name: value})
    message = str(raised.value)
    assert message.startswith(f"option {name!r} is {value!r}; legal values are ")
    legal = LEGAL_VALUES[name]
    assert str(legal[0]) in message
    assert str(legal[-1]) in message


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(OptionError, match="unknown option 'partitoner'; the options are ") as raised:
        Options.from_mapping({"partitoner": "min_cut"})
    assert all(name in str(raised.value) for name in LEGAL_VALUES)
    assert isinstance(raised.value, ValueError)


def test_options_are_frozen_and_replaced():
    options = Options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.verify = True
    assert options.replace(partitioner="save_all").partitioner == "save_all"
    with pytest.raises(OptionError):
        options.replace(partitioner="greedy")


def test_the_environment_gives_defaults(monkeypatch):
    monkeypatch.setenv("AOTGRAD_VERIFY", "1")
    monkeypatch.setenv("AOTGRAD_DISABLE", "1")
    options = Options.from_mapping(None)
    assert (options.verify, options.enabled) == (True, False)
    assert not Options.from_mapping({"verify": False}).verify
    monkeypatch.delenv("AOTGRAD_VERIFY")
    assert not Options.from_mapping({}).verify


def test_a_disabled_compilation_runs_the_function_itself():
    seen = []
    function = aotgrad.aot_function(lambda x: seen.append(type(x)) or x + 1, aotgrad.nop, options={"enabled": False})
    assert function(torch.ones(1)).item() == 2
    assert seen == [torch.Tensor]
    assert function.plans() == []


@pytest.mark.parametrize("value", [2, 63, -1, 1.5, -0.1, float("nan"), True, "2", "-1GB", "half", [1]])
def test_a_budget_that_nobody_means_is_refused(value):
    with pytest.raises(OptionError, match=r"option 'memory_budget' is .+ legal .+ a number of bytes from 64 on"):
        Options(memory_budget=value)


@pytest.mark.parametrize("value", [None, 0, 1, 64, 2_000_000, 0.0, 0.5, 1.0, "2B", "1.5 GB"])
def test_a_budget_that_somebody_means_is_not(value):
    assert Options(memory_budget=value).memory_budget == value


@pytest.mark.parametrize("value", [0.5, 1, 0, "much", None, "0.5", -1, [True]], ids=str)
def test_a_memory_of_the_host_that_nobody_means_is_refused(value):
    with pytest.raises(OptionError, match=r"option 'offload' is .+; legal values are True, False, or a number of bytes"):
        Options(offload=value)


@pytest.mark.parametrize(
    ("value", "count"), [(True, math.inf), (False, None), ("16GB", 16e9), (64, 64), ("1.5 MiB", 3 * 2**19)], ids=str
)
def test_the_memory_of_the_host_in_bytes(value, count):
    assert host_bytes_of(Options(offload=value).offload) == count


def test_policies_are_compared_by_content():
    assert Options(checkpoint_policies={"b": "save", "a": "offload"}) == Options(
        checkpoint_policies=(("a", "offload"), ("b", "save"))
    )
    assert hash(Options(checkpoint_policies={"a": "save"})) != hash(Options())


# --- Inductor's own --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_autotun": True}, "Inductor has no option 'max_autotun'; close are max_autotune, "),
        ({3: True}, "Inductor has no option 3"),
        ({"max_autotune": 3}, "Inductor's option 'max_autotune' is 3; it must be of type bool"),
        ({"freezing": True}, "Inductor's option 'freezing' is for torch's own AOTAutograd or an export, and does nothing"),
        ({"aot_inductor.package": True}, "Inductor's option 'aot_inductor.package' is for torch's own"),
        (True, "option 'inductor' is True; legal is a dictionary"),
    ],
)
def test_inductors_options_are_checked(given, message):
    with pytest.raises(OptionError, match=message):
        Options.from_mapping({"inductor": given})


def test_inductors_options_are_compared_by_content():
    options = Options(inductor={"triton.cudagraphs": True, "max-autotune": False, "freezing": False})
    assert options == Options(inductor={"max_autotune": False, "freezing": False, "triton.cudagraphs": True})
    assert options.replace(verify=True).inductor == options.inductor != Options().inductor


@pytest.mark.parametrize("name", ["max_autotune", "triton.cudagraphs", "epilogue-fusion"])
def test_one_of_inductors_beside_ours_is_refused_with_where_it_belongs(name):
    with pytest.raises(OptionError, match="it is one of Inductor's, pass options={'inductor': {'" + name + "': True}}"):
        Options.from_mapping({name: True})


quiet = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


WAYS = {
    "dynamo": lambda function, options: torch.compile(function, backend="aotgrad", options={"cache": False, **options}),
    "aot_function": lambda function, options: aotgrad.aot_function(function, "inductor", options=options),
    "aot_module": lambda function, options: aotgrad.aot_module(Calling(function), "inductor", options=options),
    "backend": lambda function, options: aotgrad.aot_function(function, InductorBackend(), options=options),
}


class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def inductor_configurations(monkeypatch, function, way="dynamo", **options):
    """Inductor's configuration while it compiled the forward and the backward of a function."""
    from torch._inductor import config

    found, compile = [], torch_compat.inductor_compile

    def note(module, inputs, **settings):
        found.append((config.epilogue_fusion, config.max_autotune, config.split_reductions))
        return compile(module, inputs, **settings)

    monkeypatch.setattr(torch_compat, "inductor_compile", note)
    torch._dynamo.reset()
    x = torch.ones(3, 3, requires_grad=True)
    WAYS[way](function, options)(x).sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(function(x).sum(), x)[0])
    return found


@quiet
@pytest.mark.parametrize("way", WAYS)
def test_inductors_options_reach_the_forward_and_the_backward(monkeypatch, way):
    from torch._inductor import config

    usual = (config.epilogue_fusion, config.max_autotune, config.split_reductions)
    given = {"epilogue_fusion": not usual[0], "split_reductions": not usual[2]}
    expected = (not usual[0], usual[1], not usual[2])
    assert inductor_configurations(monkeypatch, lambda x: x @ x @ x, way, inductor=given) == [expected] * 2
    assert inductor_configurations(monkeypatch, lambda x: x @ x @ x, way) == [usual] * 2
    assert (config.epilogue_fusion, config.max_autotune, config.split_reductions) == usual


@quiet
@pytest.mark.parametrize("way", WAYS)
def test_inductors_options_are_on_top_of_the_mode(monkeypatch, way):
    given = {"mode": "max-autotune-no-cudagraphs", "inductor": {"epilogue_fusion": False}}
    found = inductor_configurations(monkeypatch, lambda x: x @ x @ x, way, **given)
    assert [each[:2] for each in found] == [(False, True)] * 2


def test_what_a_backend_was_made_with_stays_where_the_options_say_nothing():
    backend = InductorBackend("max-autotune-no-cudagraphs", (("epilogue_fusion", False),))
    assert registry.configured(backend, Options()) == backend
    more = registry.configured(backend, Options(inductor={"split_reductions": False}))
    assert (more.mode, more.settings) == (backend.mode, (("epilogue_fusion", False), ("split_reductions", False)))
    assert registry.configured(backend, Options(mode="reduce-overhead")).mode == "reduce-overhead"
    assert registry.configured("eager", Options(mode="reduce-overhead")) is registry.get("eager")


@quiet
def test_inductors_options_are_part_of_the_key_on_disk():
    plain = InductorBackend()
    keys = {each.cache_key() for each in (plain, replace(plain, settings=(("epilogue_fusion", False),)))}
    assert len(keys) == 2 and None not in keys
    assert replace(plain, settings=(("post_grad_custom_post_pass", print),)).cache_key() is None


# --- When they are checked -------------------------------------------------------------------------------------------


def test_options_of_a_backend_are_checked_when_it_is_made():
    with pytest.raises(OptionError, match="unknown option 'partitoner'"):
        aotgrad.DynamoBackend("eager", options={"partitoner": "min_cut"})
    with pytest.raises(OptionError, match="option 'mode' is 'fast'"):
        aotgrad.DynamoBackend("inductor", mode="fast")


def test_options_of_torch_compile_come_before_those_of_the_backend():
    torch._dynamo.reset()
    x = torch.ones(2)
    backend = aotgrad.DynamoBackend("eager", options={"enabled": True, "min_graph_ops": 9, "on_error": "eager"})
    compilations = aotgrad.counters["graphs"]
    assert torch.equal(torch.compile(torch.sin, backend=backend)(x), x.sin())
    assert aotgrad.counters["graphs"] == compilations
    torch._dynamo.reset()
    assert torch.equal(torch.compile(torch.sin, backend=backend, options={"min_graph_ops": 0})(x), x.sin())
    assert aotgrad.counters["graphs"] > compilations


@pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])
def test_dynamo_adds_nothing_to_an_error_about_options(backend):
    torch._dynamo.reset()
    with pytest.raises(OptionError) as raised:
        torch.compile(lambda x: x + 1, backend=backend, options={"mode": "fast"})(torch.ones(2))
    assert str(raised.value).startswith("option 'mode' is 'fast'; legal values are ")
    assert str(raised.value).endswith("'max-autotune-no-cudagraphs'")
    assert (type(raised.value).__name__, type(raised.value).__module__) == ("OptionError", "aotgrad.errors")
