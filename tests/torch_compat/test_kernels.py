"""Feature tests of `aotgrad/torch_compat/kernels.py`."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import symbolic

aten = torch.ops.aten


def test_python_kernels_keep_sizes_symbolic(fake_mode):
    fake = symbolic(fake_mode, 4, 6)
    with fake_mode, compat.enable_python_dispatcher():
        product = torch.matmul(fake, fake.t())
    assert isinstance(product.size(0), torch.SymInt)


def test_dropout_that_drops_nothing_returns_its_input(fake_mode):
    fake = symbolic(fake_mode, 4)
    with fake_mode, compat.symbolic_kernels():
        assert torch.dropout(fake, 0.5, train=False) is fake
        assert torch.dropout(fake, 0.5, train=True) is not fake
    assert compat.eager_dropout(None, fake, 0.5, False) is fake


def test_a_product_of_known_sizes_is_no_view(fake_mode):
    with fake_mode, compat.symbolic_kernels():
        known = torch.ones(1, 2, 2)
        assert torch.matmul(known, known)._base is None
    unknown = symbolic(fake_mode, 3, 4, 4)
    with fake_mode, compat.symbolic_kernels():
        product = torch.matmul(unknown, unknown)
        assert isinstance(product.size(0), torch.SymInt)
        assert product._base is None
        assert compat.eager_matmul(lambda x, _: x[1:], unknown, unknown)._base is None


def test_the_last_states_of_an_lstm_have_the_shapes_of_the_first_ones():
    states = [torch.ones(2, 4, 3), torch.ones(2, 4, 5)]

    def with_one_dimension_more(input, states, *args):
        return input, *(state.unsqueeze(1) for state in states)

    for kernel in (with_one_dimension_more, lambda input, states, *args: (input, *states)):
        result = compat.lstm_with_eager_shapes(kernel, torch.ones(1), states, "other arguments")
        assert [each.shape for each in result] == [(1,), (2, 4, 3), (2, 4, 5)]


def test_replaced_kernels_are_back_after_an_error(fake_mode):
    kernels = dict(aten.dropout.default.py_kernels)
    with pytest.raises(ZeroDivisionError), compat.replace_kernels(aten.dropout.default, lambda *_: 1 / 0):
        assert aten.dropout.default.py_kernels != kernels
        with fake_mode, compat.enable_python_dispatcher():
            torch.dropout(torch.ones(2), 0.5, train=True)
    assert aten.dropout.default.py_kernels == kernels


@pytest.mark.parametrize(("op", "functional"), compat.OUT_IS_LOST, ids=lambda op: op._overloadname)
def test_out_is_written_to_under_a_dispatch_mode(op, functional):
    """Torch's own kernel forgets it; remove an entry whose kernel writes."""
    given = {"out": (0.1,), "out_tol_tensor": (torch.tensor(0.1),)}.get(op._overloadname, ())
    out = torch.zeros((), dtype=torch.int64)
    with IgnoreResults():
        op(torch.eye(3), *given, out=out)
    assert out == 0
    compat.write_result(functional, torch.eye(3), *given, out=out)
    assert out == 3


class IgnoreResults(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        return op(*args, **(kwargs or {}))


def test_a_given_kernel_is_gone_afterwards(fake_mode):
    op = aten.linalg_matrix_rank.out
    with compat.add_kernel(op, lambda *_, out: out.add_(1)), compat.enable_python_dispatcher():
        assert op(torch.eye(3), 0.1, out=torch.zeros((), dtype=torch.int64)) == 1
    assert not op.py_kernels


def test_the_python_dispatcher_is_left():
    called = []

    def kernel(input, p, train):
        called.append(p)
        return input

    with compat.replace_kernels(aten.dropout.default, lambda python_kernel, *args: kernel(*args)):
        with compat.enable_python_dispatcher():
            torch.dropout(torch.ones(2), 0.5, True)
        with compat.enable_python_dispatcher(), compat.no_python_dispatcher():
            torch.dropout(torch.ones(2), 0.25, True)
    assert called == [0.5]


def test_the_lengths_of_a_ctc_loss_may_be_numbers():
    log_probs = torch.randn(5, 2, 4).log_softmax(2)
    args = (log_probs, torch.ones(2, 3, dtype=torch.int64), (5, 4), (3, 0))
    for reduction in (0, 1, 2):
        torch.testing.assert_close(
            compat.ctc_loss_of_lists(*args, reduction=reduction), aten.ctc_loss.IntList(*args, reduction=reduction)
        )


def test_istft_is_the_kernel_of_eager():
    window = torch.ones(16)
    spectrum = torch.stft(torch.randn(40), 16, window=window, return_complex=True)
    called = []
    result = compat.eager_composite(
        aten.istft.default, lambda *args: called.append(args), spectrum, 16, None, None, window, True, False, None, 40, False
    )
    assert torch.equal(result, torch.istft(spectrum, 16, window=window, length=40))
    assert called == []


def test_some_ops_are_not_taken_apart():
    """Each has a Python kernel in this version of torch; otherwise remove it from the table."""
    for op in (*compat.DECOMPOSED_OTHERWISE, *compat.ROUNDED_OTHERWISE):
        assert op.py_kernels, op
    x, target = torch.randn(1, 4), torch.tensor([[3, 0, -1, 1]])
    op = aten.multilabel_margin_loss_forward.default
    assert compat.eager_op(op, None, x, target, 1)[0] == torch.nn.functional.multilabel_margin_loss(x, target)


def test_what_single_and_half_precision_round_otherwise():
    assert compat.single(0.1) != 0.1
    assert compat.single(0.5) == 0.5
    assert [compat.is_rounded_otherwise(0.15, dtype) for dtype in (torch.float32, torch.float64)] == [True, False]
    assert [compat.is_rounded_otherwise(p, torch.bfloat16) for p in (0.1, 0.5)] == [True, False]


def test_a_symbolic_number_is_no_complex_constant():
    number = ShapeEnv().create_unbacked_symfloat()
    assert compat.constructor_of(torch.complex64)(number) is number
    assert compat.constructor_of(torch.complex64)(1.0) == 1 + 0j
    assert compat.constructor_of(torch.float32)(1) == 1.0


def test_a_recurrent_layer_of_known_sizes_has_the_kernel_of_eager(fake_mode):
    decomposed = []

    def python_kernel(input, states, *args):
        decomposed.append(input)
        return input, *states

    layer, state = torch.nn.LSTM(3, 4), torch.zeros(1, 1, 4)
    others = (list(layer.parameters()), True, 1, 0.0, True, False, False)
    x = torch.randn(2, 1, 3)
    assert torch.equal(compat.eager_lstm(python_kernel, x, [state, state], *others)[0], layer(x)[0])
    assert not decomposed
    compat.eager_lstm(python_kernel, symbolic(fake_mode, 2, 1, 3), [state, state], *others)
    assert len(decomposed) == 1
