from __future__ import annotations

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from aotgrad.errors import CaptureError
from aotgrad.subclasses.bridge import GradientForm
from aotgrad.subclasses.forms import PlainForm, form_of, frozen_context, is_wrapper, parts_of, paths_of
from aotgrad.subclasses.relative import relative_form
from tests.subclasses.programs import eight_bits, two


def test_a_plain_tensor_is_its_only_part() -> None:
    x = torch.ones(2)
    assert form_of(x) == PlainForm() and parts_of(form_of(x), x) == [x] and not is_wrapper(x)


def test_nested_wrappers_have_the_parts_of_all() -> None:
    nested = TwoTensor(two(3, requires_grad=False), two(3, requires_grad=False, seed=1))
    form = form_of(nested)
    assert paths_of(form) == [".a.a", ".a.b", ".b.a", ".b.b"] and form.count == 4
    again = form.assemble(parts_of(form, nested))
    assert type(again.a) is TwoTensor and again.b.a is nested.b.a


def test_forms_differ_by_class_context_and_size_and_not_by_requires_grad() -> None:
    keys = [form_of(value).key for value in (two(3), two(3, requires_grad=False), two(4), eight_bits(False))]
    assert keys[0] == keys[1] and len(set(keys)) == 3


def test_strides_of_a_gradient_are_free() -> None:
    contiguous, turned = form_of(two(3, 3)), form_of(two(3, 3).t())
    assert contiguous.key != turned.key and contiguous.layout_free_key == turned.layout_free_key
    assert turned.made_contiguous().stride == (3, 1)


def test_a_context_that_cannot_be_hashed_is_compared() -> None:
    assert frozen_context({"dim": [1, 2]}) == (("dim", (1, 2)),)
    tags = {"a"}
    frozen = frozen_context((tags, 2))
    assert frozen == frozen_context(({"a"}, 2)) and hash(frozen) == hash(frozen_context(({"b"}, 2)))
    tags.add("b")  # the key is a copy
    assert frozen == frozen_context(({"a"}, 2)) != frozen_context((tags, 2))


def test_a_context_that_can_neither_be_hashed_nor_copied_is_refused() -> None:
    class Unique(set):
        def __reduce_ex__(self, protocol):
            raise TypeError("there is only one")

    with pytest.raises(CaptureError, match="a Unique from __tensor_flatten__, can neither be hashed nor copied"):
        frozen_context((Unique(),))


class Sized(TwoTensor):
    """Its context has its size and strides."""

    def __tensor_flatten__(self):
        return ["a", "b"], {"like": (tuple(self.shape), self.stride()), "name": (1, 2)}

    @staticmethod
    def __tensor_unflatten__(inner_tensors, context, size, stride):
        return Sized(inner_tensors["a"], inner_tensors["b"])


def sized(*shape: int) -> Sized:
    return Sized(torch.ones(shape), torch.ones(shape))


def test_a_form_apart_from_its_sizes_holds_for_other_sizes() -> None:
    gradient, result = (GradientForm.of(make(6, 4)) for make in (sized, torch.ones))
    found = relative_form(gradient, result)
    assert found.for_result(result).key == gradient.key
    other = found.for_result(GradientForm.of(torch.ones(5, 3)))
    assert other.key == GradientForm.of(sized(5, 3)).key != gradient.key
    assert other.form.context == {"like": ((5, 3), (3, 1)), "name": (1, 2)}
    assert found.key == relative_form(other, GradientForm.of(torch.ones(5, 3))).key
    assert found.for_result(GradientForm.of(torch.ones(5))) is None


def test_sizes_of_a_gradient_are_fractions_of_those_of_its_result() -> None:
    def of(*shape):
        return GradientForm.of(torch.ones(shape))

    assert relative_form(of(2, 4), of(8, 4)).for_result(of(12, 4)) == of(3, 4)
    assert relative_form(of(3, 4), of(8, 4)) is None and relative_form(of(8, 4, 1), of(8, 4)) is None
    assert relative_form(of(0), of(0)).for_result(of(3)) == of(3) and relative_form(of(), of()).for_result(of()) == of()


def test_a_size_is_told_apart_from_strides() -> None:
    gradient, result = GradientForm.of(sized(1, 1)), GradientForm.of(torch.ones(1, 1))
    assert relative_form(gradient, result) is None
