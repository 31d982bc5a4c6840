"""The C++ functions: they say what torch and Python say, of tensors of every kind, and leave the interpreter whole."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

import aotgrad
from aotgrad import native, torch_compat
from aotgrad.convention import MemorySharing
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.guards import memory
from aotgrad.guards.dictionaries import CHANGES, Contents, same_contents, tells
from aotgrad.guards.disjoint_storage import Separation, span_of
from aotgrad.runtime.synthetic_base import synthetic_base
from aotgrad.torch_compat import FakeTensorMode, TensorGuard
from aotgrad.training_step.state import gradients_of
from tests.torch_compat.test_global_state import CHANGES as SETTING_CHANGES


class Named(torch.Tensor):
    """A subclass without rules of its own."""


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def replaced(how) -> torch.Tensor:
    """A tensor that got the memory of another one."""
    tensor, other = torch.ones(4), torch.ones(8)
    how(tensor, other)
    return tensor


def set_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
    tensor.data = other[2:6]


def under_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(4)


def pool() -> list[torch.Tensor]:
    """Tensors of every kind, many of them in one memory."""
    whole, leaf, array = torch.ones(16), torch.ones(4, requires_grad=True), torch.ones(8).numpy()
    product = torch.ones(16, requires_grad=True) * 2
    numbers = torch.ones(4, dtype=torch.complex64)
    return [
        *(whole[k : k + 4] for k in (0, 2, 4, 8, 12)),
        *(whole[k:k] for k in (0, 8)),
        *(whole.data[:4], whole.detach()[4:8], whole.view(4, 4).t(), whole[:4].view(torch.int32), whole[::4], whole.clone()),
        *(leaf, leaf.data, leaf.detach(), torch.nn.Parameter(leaf.detach()), torch.ones(4), torch.ones(4)[1:]),
        *(product[:4], product[2:6], product, product.detach()[:4], product.view(4, 4)[0]),
        *(numbers, numbers.conj(), numbers.conj().imag, numbers.real, torch.view_as_real(numbers)),
        *(torch.from_numpy(array), torch.from_numpy(array), torch.from_numpy(array[4:])),
        *(torch.ones(0), torch.ones(()), torch.ones(1).expand(4), freed(), torch.ones(4, device="meta")),
        *(replaced(set_data), replaced(lambda tensor, other: tensor.set_(other[2:6])), torch.ones(4).as_subclass(Named)),
        *(under_inference(), torch.ones(4, dtype=torch.float64), torch._efficientzerotensor(4)),
    ]


def with_fakes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [*tensors, FakeTensorMode().from_tensor(torch.ones(4)), torch.eye(2).to_sparse()]


chosen = st.lists(st.integers(0, 60), min_size=1, max_size=6)


def taken(tensors: list[torch.Tensor], numbers: list[int]) -> list[torch.Tensor]:
    return [tensors[number % len(tensors)] for number in numbers]


@given(chosen, chosen, st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_tensors_are_compared_as_torch_compares_them(library, first, second, grad_before, grad_now):
    everything = with_fakes(pool())
    traced = [tensor for tensor in dict.fromkeys(taken(everything, first)) if tensor.layout is torch.strided]
    call = taken(everything, second)[: len(traced)]
    with torch.set_grad_enabled(grad_before):
        guard = TensorGuard(traced, traced, library.tensor_check)
    has_rules = any(isinstance(tensor, torch_compat.FakeTensor) for tensor in traced)
    assert (guard.argument == "*tensors") == (has_rules or not traced)
    with torch.set_grad_enabled(grad_now):
        for tensors in (call, traced, traced[::-1], [*call[:-1], *traced[:1]], [*traced, *traced]):
            if guard.argument == "tensors" and all(tensor.layout is torch.strided for tensor in tensors):
                torchs = len(tensors) == guard.count and guard.check(*tensors)
                assert guard.fastest(tensors) == guard.fastest(tuple(tensors)) == torchs


def test_values_that_are_no_tensors_differ(library):
    check = library.tensor_check([torch.ones(2)], [[2]], [[1]])
    assert [check(values) for values in ([torch.zeros(2)], [2], [None], [], [torch.ones(2), 1])] == [True, *[False] * 4]


def test_symbolic_sizes_are_not_compared(library):
    check = library.tensor_check([torch.ones(4, 3)], [[None, 3]], [[3, 1]])
    assert [check([torch.ones(*shape)]) for shape in ((9, 3), (9, 4), (3,))] == [True, False, False]


@pytest.mark.parametrize("around", [torch.inference_mode, lambda: torch.autograd.forward_ad.dual_level(), torch.no_grad])
def test_keys_are_those_that_an_op_sees(library, around):
    x = torch.ones(2)
    check, torchs = library.tensor_check([x], [[2]], [[1]]), TensorGuard([x], [x])
    with around():
        assert check([x]) == torchs(x)
    assert check([x]) and torchs(x)
    torch.vmap(lambda row: [row, pytest.fail("batched")] if check([row]) else row)(torch.ones(3, 2))


def answer(guard, call) -> bool | str:
    try:
        return guard(call)
    except UnsupportedAliasingError as error:
        return str(error)


@given(chosen, st.lists(chosen, min_size=1, max_size=3), st.integers(0, 2), st.integers(0, 2))
@settings(max_examples=300, deadline=None)
def test_memory_is_compared_as_by_looking_at_every_pair(library, first, calls, one, other):
    everything = [tensor for tensor in pool() if not tensor.is_inference()]
    traced = taken(everything, first)
    changed = tuple(sorted({one % len(traced), other % len(traced)}))
    try:
        sharing = MemorySharing(changed, bumped=changed).among(traced)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "library", lambda: library)
            guard = memory.MemoryGuard(traced, sharing)
    except UnsupportedAliasingError:
        return
    for numbers in calls:
        call = taken(everything, (numbers * 6)[: len(traced)])
        if list(map(memory.has_address, call)) != list(map(memory.has_address, traced)):
            continue  # the tensors are compared first
        found = [answer(guard, call), answer(guard, tuple(call)), answer(guard, call)]
        expected = guard.is_alone or answer(guard.is_as_traced, call)
        assert found == [expected] * 3


@given(chosen)
@settings(max_examples=150, deadline=None)
def test_tensors_lie_apart_as_in_python(library, numbers):
    tensors = taken([tensor for tensor in pool() if memory.has_address(tensor)], numbers)
    others = list(range(1, len(tensors)))
    ours = library.separation([0], others)(tensors)
    in_python = Separation([0], others, {k: span_of(tensors[k]) for k in others})(tensors)
    assert ours == in_python


def test_zeros_without_memory_lie_nowhere(library):
    zeros, plain = torch._efficientzerotensor(4), torch.ones(4)
    assert library.separation([0], [1, 2])([plain, zeros, zeros]) and library.separation([1], [0])([plain, zeros])


def test_patterns_do_not_depend_on_addresses(library):
    def pattern(*tensors):
        return library.sharing(range(len(tensors)))(tensors)

    one, other = torch.ones(8), torch.ones(8)
    assert pattern(one[:4], one[4:]) == pattern(other[:4], other[4:]) != pattern(one[:4], other[4:])
    assert pattern(one[:4], one[4:]) != pattern(one[:4], one[2:6])
    assert pattern(one[:4], one[4:]) != pattern(one[:4], one.data[4:]), "another version counter"
    assert pattern(one[:4], one[4:]) != pattern(one[:4], one.detach()[4:]), "another base"
    assert pattern(one, one[4:]) != pattern(one[4:], one)
    longer = torch.ones(16)
    assert pattern(one[:4], one[4:]) != pattern(longer[:4], longer[4:8]), "another size of the storage"


def test_what_does_not_tell_where_it_lies_is_not_known_to_be_apart(library):
    fake, plain = FakeTensorMode().from_tensor(torch.ones(4)), torch.ones(4)
    assert library.sharing([0])([fake]) is None
    assert library.sharing([0])([torch.eye(2).to_sparse()]) is None
    assert library.separation([0], [1])([plain, torch.eye(2).to_sparse()])
    assert library.separation([0], [1])([plain, fake]) in (True, False)


@pytest.mark.parametrize("value", [None, 1, object(), "x", torch.float32, torch.ones(1).untyped_storage()])
def test_what_is_no_tensor_is_an_error(library, value):
    for ask in (library.versions_of, library.separation([0], []), library.separation([], [0]), library.sharing([0])):
        with pytest.raises(TypeError, match="expected a tensor"):
            ask([value])
    with pytest.raises(TypeError, match="expected a tensor"):
        library.tensor_check([value], [[]], [[]])


def test_wrong_arguments_are_errors(library):
    x, check = torch.ones(2), library.tensor_check([torch.ones(2)], [[2]], [[1]])
    for ask in (
        library.versions_of,
        library.gradients_of,
        check,
        library.separation([], []),
        library.sharing([]),
        library.sharing,
    ):
        with pytest.raises(TypeError, match="expected a sequence"):
            ask(3)
    for ask in (library.separation([1], []), library.separation([], [-1]), library.sharing([1])):
        with pytest.raises(IndexError, match="there is no item"):
            ask([x])
    with pytest.raises(IndexError):
        library.tensor_check([x], [], [])
    for bad in ([["2"]], [[2.5]], [3]):
        with pytest.raises(TypeError):
            library.tensor_check([x], bad, bad)
    with pytest.raises(OverflowError):
        library.sharing([1 << 70])
    for count in (0, 1, 3):
        with pytest.raises(TypeError, match="expected a function and its argument"):
            library.below_autograd(*[len] * count)


@given(chosen)
@settings(max_examples=50, deadline=None)
def test_versions(library, numbers):
    tensors = taken([tensor for tensor in pool() if not tensor.is_inference()], numbers)
    if tensors[0].device.type == "cpu" and not tensors[0]._is_zerotensor():
        torch_compat.raise_version(tensors[0], 3, 1)
    found = [library.versions_of(tensors), library.versions_of(tuple(tensors))]
    assert found == [[tensor._version for tensor in tensors]] * 2


def test_an_inference_tensor_has_no_version(library):
    for ask in (library.versions_of, torch_compat.versions_of):
        with pytest.raises(RuntimeError, match="Inference tensors do not track version counter"):
            ask([under_inference()])


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_synthetic_base(library, mode):
    whole = torch.arange(12.0)
    for member in (whole[4:8], whole.view(3, 4)[1:].t().requires_grad_(), whole.double()[2:].detach()):
        for start, bytes, dtype in (
            (0, 16, torch.float32),
            (-8, 24, torch.float32),
            (8, 8, torch.int8),
            (4, 8, torch.int64),
        ):
            with mode():
                found, expected = (make(member, start, bytes, dtype) for make in (library.synthetic_base, synthetic_base))
            for base in (found, expected):
                assert (base.storage_offset(), base.untyped_storage().nbytes()) == (0, bytes)
                assert not (base.requires_grad or base._is_view() or base.is_inference())
            assert (found.data_ptr(), found.dtype) == (expected.data_ptr(), expected.dtype)
            assert torch.equal(found, expected)


def test_a_synthetic_base_keeps_the_memory_alive(library):
    base = library.synthetic_base(torch.arange(4.0)[1:], 0, 12, torch.float32)
    filler = [torch.full((4,), -1.0) for _ in range(100)]
    assert base.tolist() == [1, 2, 3] and len(filler) == 100


def test_a_synthetic_base_ends_within_the_memory(library):
    member = torch.arange(4.0)[1:]
    for start, bytes in ((-8, 4), (0, 16), (1 << 40, 4), (0, -4)):
        with pytest.raises(IndexError, match="the memory ends before"):
            library.synthetic_base(member, start, bytes, torch.float32)
    for arguments in ((member, 0, 4), (member, 0, 4, "float32"), (1, 0, 4, torch.float32), (member, "0", 4, torch.float32)):
        with pytest.raises(TypeError):
            library.synthetic_base(*arguments)


def test_gradients_of_leaves(library):
    model, named = torch.nn.Linear(2, 2), torch.ones(2).as_subclass(Named).requires_grad_()
    (model(torch.ones(3, 2)).sum() + named.sum()).backward()
    model.bias.grad = None
    others = [(model.weight * 2), torch.ones(3), under_inference(), model.weight.detach()]
    found = library.gradients_of([*model.parameters(), named, *others])
    assert found[0] is model.weight.grad and found[2] is named.grad
    assert [found[1], *found[3:]] == [None] * 5
    assert all(one is other for one, other in zip(found, gradients_of([*model.parameters(), named, *others]), strict=True))


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_contents(library, monkeypatch, change):
    monkeypatch.setattr(native, "lookup", lambda name, otherwise: getattr(library, name))
    assert tells(Contents, change)


def test_contents_that_are_none(library):
    table = {"a": 1}
    for ask in (library.same_contents, same_contents):
        assert ask([], [], [], []) and ask([table, {}], [1, 0], ["a"], [1])
        assert not ask([table], [0], [], []) and not ask([{}], [1], ["a"], [1])
    with pytest.raises(TypeError, match="expected a plain dictionary, got list"):
        library.same_contents([[]], [0], [], [])
    with pytest.raises(TypeError, match="expected tables, lengths, keys and values, got 1 arguments"):
        library.same_contents([])
    with pytest.raises(IndexError, match="the lengths exceed the keys or values"):
        library.same_contents([table], [1], ["a"], [])


class Watching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("setting", sorted(SETTING_CHANGES.keys() - torch_compat.MODULE_SETTINGS.keys()))
def test_the_number_of_the_settings_changes_with_each(library, setting):
    before = library.settings_number()
    with SETTING_CHANGES[setting]():
        assert library.settings_number() != before
    assert library.settings_number() == before


@pytest.mark.parametrize("mode", [functools.partial(torch.device, "cpu"), Watching])
def test_the_number_of_the_settings_changes_with_a_function_mode(library, mode):
    before = library.settings_number()
    with mode():
        assert library.settings_number() != before
    assert library.settings_number() == before


def test_orders_of_attention_kernels_have_numbers_of_their_own(library):
    kernels = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    numbers = set()
    for order in itertools.permutations(kernels):
        with sdpa_kernel([*order], set_priority=True):
            numbers.add(library.settings_number())
    assert len(numbers) == 6


def test_running_below_autograd_nests_and_ends_with_an_error(library):
    x = torch.ones(2, requires_grad=True)

    def double(values):
        values.append(x * 2)
        return values

    def twice(values):
        library.below_autograd(double, values)
        return double(values)

    assert [value.requires_grad for value in library.below_autograd(twice, [])] == [False, False]
    with pytest.raises(ZeroDivisionError):
        library.below_autograd(lambda _: 1 / 0, [])
    assert (x * 2).requires_grad


def test_whether_a_batched_backward_is_open(library):
    found = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: found.append((library.in_vmap_mode(), torch_compat.in_vmap_mode())))
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True, retain_graph=True)
    torch.autograd.grad(y.sum(), x)
    assert found == [(True, True), (False, False)]


def test_nothing_is_kept_alive(library):
    """Neither tensors nor lists, by answers or by errors; a class as long as somebody may ask for its tensors."""

    class Short(torch.Tensor):
        pass

    tensor, names = torch.ones(2).as_subclass(Short), [torch.ones(2), torch.ones(2)]
    check, apart, pattern = (
        library.tensor_check([tensor], [[2]], [[1]]),
        library.separation([0], [1]),
        library.sharing([0, 1]),
    )
    watched = (*names, names, tensor, None, True, False)
    gc.collect()
    before = list(map(sys.getrefcount, watched))
    for _ in range(1000):
        assert check([tensor]) and not check(names) and apart(names)
        assert pattern(names) and library.versions_of(names) == [0, 0] and library.below_autograd(len, names) == 2
        for ask in (apart, pattern, library.versions_of):
            with pytest.raises(TypeError):
                ask([names[0], 3])
    gc.collect()
    after = list(map(sys.getrefcount, watched))
    del watched
    assert after[:4] == before[:4], "of the tensors and the list"
    assert all(now - then < 900 for now, then in zip(after, before, strict=True)), "others use the constants too"
    kind, reference = weakref.ref(Short), weakref.ref(tensor)
    del tensor
    assert reference() is None
    del Short
    gc.collect()
    assert kind() is not None
    del check
    gc.collect()
    assert kind() is None


@pytest.mark.parametrize("retained", [False, True])
def test_a_node_with_many_inputs_is_that_of_eager(implementation, retained):
    """It has a sentinel before its inputs: some gradients, all of them, none of an input without, and a second backward."""

    def steps(function) -> list:
        leaves = [torch.full((2,), 1 + k / 100, requires_grad=k != 5) for k in range(40)]
        seen: list = []
        leaves[3].register_hook(lambda gradient: seen.append(gradient.tolist()))
        inputs = [leaves[0] * 1, *leaves[1:]]
        result = function(*inputs)
        (some,) = torch.autograd.grad(result.sum(), leaves[7], retain_graph=True)
        result.sum().backward(retain_graph=retained)
        try:
            result.sum().backward()
        except RuntimeError as error:
            seen.append("second time" in str(error))
        return [some, *(leaf.grad for leaf in leaves), *map(torch.tensor, seen)]

    ours, eagers = steps(aotgrad.aot_function(product_of_all, aotgrad.nop)), steps(product_of_all)
    assert [value is None for value in ours] == [value is None for value in eagers]
    torch.testing.assert_close(*([value for value in some if value is not None] for some in (ours, eagers)))


def product_of_all(*factors):
    return functools.reduce(operator.mul, factors).sin()


@pytest.mark.parametrize("changed", [0, 7, 11])
def test_a_version_among_many_that_rises_before_a_second_derivative(implementation, changed):
    """The versions of all inputs are noted in one call: a gradient of a gradient runs the function again from them."""

    def second(function, changes: bool) -> torch.Tensor | str:
        inputs = [torch.full((2,), 1 + k / 10, dtype=torch.float64, requires_grad=True) for k in range(12)]
        (gradient,) = torch.autograd.grad(function(*inputs).sum(), inputs[0], create_graph=True)
        if changes:
            with torch.no_grad():
                inputs[changed].add_(1)
        try:
            return torch.autograd.grad(gradient.sum(), inputs[1])[0]
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)

    compiled = aotgrad.aot_function(product_of_all, aotgrad.nop)
    assert second(compiled, True) is second(product_of_all, True) is True
    torch.testing.assert_close(second(compiled, False), second(product_of_all, False))
    assert "*versions_of((primals_1, " in compiled.plans()[0].executable.source
