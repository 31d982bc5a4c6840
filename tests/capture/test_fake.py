"""Real inputs to fake ones."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat
from aotgrad.capture.fake import find_fake_mode, make_input_specs
from aotgrad.errors import CaptureError
from aotgrad.inspect.specs import parse_argument
from aotgrad.ir import InputHint, SymInput, TensorInput
from aotgrad.printing import type_text


def specs_of(*args, hints=None):
    return make_input_specs(find_fake_mode(args), args, hints or [InputHint()] * len(args))


@pytest.mark.parametrize("text", ["f32[2, 3]", "i64[4, 2][1, 4]", "c64[]", "bf16[0, 2]", "f32[3][2]"])
def test_a_fake_has_the_type_of_its_tensor(text):
    (spec,) = specs_of(parse_argument(text))
    assert type_text(spec.fake) == text
    assert isinstance(spec.fake, torch_compat.FakeTensor)


def test_a_spec_remembers_what_the_fake_does_not_say():
    leaf, history = parse_argument("f32[2] requires_grad"), parse_argument("f32[2] nonleaf")
    first, second = specs_of(leaf, history, hints=[InputHint(static=True), InputHint()])
    assert (first.name, first.requires_grad, first.is_leaf, first.is_static) == ("primals_1", True, True, True)
    assert (second.name, second.requires_grad, second.is_leaf, second.is_static) == ("primals_2", True, False, False)
    assert not first.fake.requires_grad


def test_sizes_are_symbolic_where_the_hint_says_so():
    (spec,) = specs_of(torch.ones(2, 3), hints=[InputHint(dynamic_dims=frozenset({1}))])
    assert (type(spec.fake.size(0)), type(spec.fake.size(1))) == (int, torch.SymInt)


def test_symbolic_numbers_are_inputs():
    (tensor,) = specs_of(torch.ones(4), hints=[InputHint(dynamic_dims=frozenset({0}))])
    size = tensor.fake.size(0)
    number, again = specs_of(size, tensor.fake)
    assert (type(number), number.value) == (SymInput, size)
    assert type(again) is TensorInput


def test_fakes_are_taken_as_they_are():
    (first,) = specs_of(torch.ones(4))
    mode = find_fake_mode([first.fake])
    assert mode is first.fake.fake_mode


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "argument primals_1 is of type int; a graph takes tensors and symbolic numbers only"),
        ("text", "argument primals_1 is of type str"),
    ],
)
def test_what_is_no_tensor_is_refused(value, message):
    with pytest.raises(CaptureError, match=message):
        specs_of(value)


def test_inputs_that_share_a_storage_have_fakes_that_share_one():
    x = torch.ones(4)
    mode = torch_compat.new_fake_mode()
    specs = make_input_specs(mode, [x, x.detach(), torch.ones(4)], [InputHint()] * 3)
    first, second, third = (torch_compat.storage_id(spec.fake) for spec in specs)
    assert first == second != third
