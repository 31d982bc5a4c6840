"""The choice of operators of `scripts/conformance/ops.py`."""

from __future__ import annotations

import re
import sys

import pytest

from aotgrad.inspect.targets import UsageError
from scripts.conformance.ops import chosen_tasks, main, parse_arguments


def tasks_of(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["ops.py", "--compilers", "aotgrad", *options])
    return [(task.variant, task.subject) for task in chosen_tasks(parse_arguments())]


def test_names_may_be_written_as_in_torch(monkeypatch):
    found = tasks_of(monkeypatch, "--variants", "static", "bool", "--operators", "nn.functional.layer_n")
    assert found == [("static", "nn_functional_layer_norm"), ("bool", "nn_functional_layer_norm")]


def test_a_prefix_of_no_name_is_an_error(monkeypatch, capsys):
    with pytest.raises(UsageError, match="no operator starts with nonesuch"):
        tasks_of(monkeypatch, "--variants", "static", "--operators", "sin", "nonesuch")
    with pytest.raises(SystemExit, match="no operator starts with nonesuch"):
        main()


def test_an_operator_that_a_variant_leaves_out_is_an_error(monkeypatch):
    everything = tasks_of(monkeypatch, "--variants", "static")
    sample = [name for _, name in tasks_of(monkeypatch, "--variants", "through Inductor")]
    left_out = next(name for _, name in everything if not any(each.startswith(name) for each in sample))
    with pytest.raises(UsageError, match=f"no operator starts with {re.escape(left_out)}"):
        tasks_of(monkeypatch, "--variants", "through Inductor", "--operators", left_out)
