"""What a run leaves behind that is undone."""

from __future__ import annotations

import threading

import pytest
import torch

from aotgrad.capture.undo import restored_assignments, restored_tensors
from aotgrad.errors import CaptureError


def test_tensors_get_their_values_and_versions_back():
    memory = torch.arange(6.0)
    row, other = memory[:2], torch.zeros(2)
    with restored_tensors("f"):
        made = torch.ones(2)
        made.add_(1)
        row.add_(made)
        memory.mul_(3)
        torch._foreach_add_([other], 1)
    assert memory.tolist() == [0, 1, 2, 3, 4, 5] and other.tolist() == [0, 0] and made.tolist() == [2, 2]
    assert (memory._version, row._version, other._version) == (0, 0, 0)


def test_statistics_get_their_values_back():
    mean, deviation = torch.zeros(3), torch.ones(3)
    with restored_tensors("f"):
        torch.nn.functional.batch_norm(torch.rand(4, 3), mean, deviation, training=True)
    assert mean.tolist() == [0, 0, 0] and deviation.tolist() == [1, 1, 1]


def test_they_are_set_back_after_an_error():
    x = torch.zeros(2)
    with pytest.raises(ZeroDivisionError), restored_tensors("f"):
        x.add_(1)
        raise ZeroDivisionError
    assert x.tolist() == [0, 0]


def test_a_new_history_is_an_error():
    x = torch.zeros(2)
    with (
        pytest.raises(CaptureError, match="f, which is not traced, changes a tensor that is no argument"),
        restored_tensors("f"),
    ):
        x.add_(torch.ones(2, requires_grad=True))
    assert x.tolist() == [0, 0] and not x.requires_grad and x._version == 0


def test_buffers_and_parameters_that_are_assigned_are_those_of_before():
    module = torch.nn.BatchNorm1d(2)
    before, other = dict(module.state_dict(keep_vars=True)), torch.nn.BatchNorm1d(2)
    with restored_assignments():
        for _ in range(2):
            module.running_mean, module.weight = torch.ones(2), torch.nn.Parameter(torch.zeros(2))
        module.register_buffer("new", torch.ones(2))
        thread = threading.Thread(target=lambda: setattr(other, "running_mean", torch.ones(2)))
        thread.start()
        thread.join()
    after = module.state_dict(keep_vars=True)
    assert all(after[name] is value for name, value in before.items()) and after["new"].tolist() == [1, 1]
    assert other.running_mean.tolist() == [1, 1]
    module.running_mean = torch.ones(2)
    assert module.running_mean.tolist() == [1, 1]


def test_assignments_before_an_error_are_undone():
    module = torch.nn.BatchNorm1d(2)
    with pytest.raises(ZeroDivisionError), restored_assignments():
        module.running_mean = torch.ones(2)
        raise ZeroDivisionError
    assert module.running_mean.tolist() == [0, 0]
