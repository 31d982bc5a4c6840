"""Each correction of Inductor: without it a result is wrong or cannot be compiled, with it every result is right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.codegen.cpp import stride_at_vec_range
from torch._inductor.utils import fresh_cache

import aotgrad
from aotgrad.backends import corrected

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part"),
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators"),
]


def losses(x, target):
    return F.multilabel_margin_loss(x.sin(), target)


def put_into_expanded(x, index, values):
    return (x * 2).expand(3, 4).index_put((torch.arange(3), index), values)


def put_a_number(x):
    y = x.clone()
    y[0] = 0.25
    return y.sin()


def write_read_and_write(x):
    columns = x.as_strided_scatter(x.as_strided((5,), (5,), 1) * 2, (5,), (5,), 1)
    rows = columns.as_strided((4, 5), (5, 1), 5)
    return columns.as_strided_scatter(rows.flip(0), (4, 5), (5, 1), 5)


@torch.library.custom_op("aotgrad_tests::add_into", mutates_args=("out",))
def add_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(x)


def add_into_a_view(x, out):
    torch.ops.aotgrad_tests.add_into(x.detach()[0], out[1])
    return x.sin() * out


class Upsampling(torch.nn.Module):
    """A reduced block of a U-Net. The upsampling's backward writes into zeros that are read before."""

    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Conv2d(64, 32, 3, padding=1)
        self.time = torch.nn.Linear(64, 32)
        self.norm = torch.nn.GroupNorm(8, 32)
        self.inner = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.last = torch.nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x, time):
        hidden = self.into(x) + self.time(F.silu(time))[:, :, None, None]
        hidden = self.inner(F.silu(self.norm(hidden))) / 1.0
        return self.last(F.interpolate(hidden, scale_factor=2.0, mode="nearest"))


def upsample(x, time, weights):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.func.functional_call(UPSAMPLING, weights, (x, time)).float()


UPSAMPLING = Upsampling()


def gradients(function, x, time):
    torch.manual_seed(0)
    weights = {name: (0.1 * torch.randn_like(each)).requires_grad_() for name, each in UPSAMPLING.named_parameters()}
    (gradient,) = torch.autograd.grad(function(x, time, weights).square().mean(), x)
    return gradient / gradient.abs().max()


def call(function, *args):
    return function(*args)


@dataclass(frozen=True)
class Case:
    """A function that is wrong, or cannot be compiled, without a correction. `show` returns a result to compare."""

    function: Callable
    make_args: Callable[[], tuple[torch.Tensor, ...]]
    dynamic: bool = False
    show: Callable = call
    tolerance: float = 1e-6

    def is_right(self) -> bool:
        torch._dynamo.reset()
        stride_at_vec_range.cache_clear()  # remembers what it computed inside a correction
        with fresh_cache():
            options = {"min_graph_ops": 0, "cache": False}
            compiled = torch.compile(self.function, backend="aotgrad", dynamic=self.dynamic, options=options)
            try:
                result = self.show(compiled, *self.make_args())
            except (RuntimeError, IndexError):  # of a backend or of a decomposition
                return False
        expected = self.show(self.function, *self.make_args())
        return result.stride() == expected.stride() and torch.allclose(result, expected, atol=self.tolerance)


@dataclass(frozen=True)
class Refused:
    """A function that eager refuses, and that returns something without a correction."""

    function: Callable
    make_args: Callable[[], tuple[torch.Tensor, ...]]

    def is_right(self) -> bool:
        with pytest.raises(RuntimeError):
            self.function(*self.make_args())
        with fresh_cache():
            compiled = aotgrad.aot_function(self.function, "inductor", options={"min_graph_ops": 0})
            try:
                compiled(*self.make_args())
            except RuntimeError:
                return True
        return False


def add_swapped(x):
    doubled = x * 2
    return doubled.index_add(0, torch.tensor([1, 0]), doubled[:2])


def multiply_by_flipped(x):
    torch._foreach_mul_([x], [x.flip(0)])
    return x.clone()


def two_clones(x):
    doubled = x * 2
    return doubled.clone(), doubled.clone()


def second_after_a_change_of_the_first(function, x):
    first, second = function(x)
    first.add_(10)
    return second


def requires_grad_under_no_grad(function, *args):
    with torch.no_grad():
        return torch.tensor([float(result.requires_grad) for result in function(*args)])


def put_into_bits(x):
    x.view(torch.int32).index_fill_(0, torch.tensor([0]), 2)
    return x.clone()


def empty_in_no_order(x):
    torch.empty_permuted(x.size(), (0, 0))
    return x.sin().cos()


def flip_a_permuted_one(x):
    moved = x.t()
    moved.copy_(moved.flip(0))
    return moved


def put_into_a_concatenation(x):
    product = x @ x
    both = torch.cat([product, x])
    both.index_put_((torch.arange(2),), x[0] @ x)
    return (product + 1) * both[:3]


def ones_summed(x):
    return torch.ones_like(x).cumsum(0)


def scatter_nothing(x, op):
    nowhere = torch.zeros(0, dtype=torch.int64)
    name, _, overload = op.partition(".")
    how = ("sum",) if overload == "two" else ()
    return getattr(getattr(torch.ops.aten, name), overload)(x, 0, nowhere, x.expand(0), *how) * 2


def double_transposed_bits(x):
    value = x * 1
    value.view(torch.int32).mT.mul_(2)
    return value.real.sum(0)


@dataclass(frozen=True)
class Checked:
    """A program that is right if it ends: the C library stops it after a write past a block of memory.

    It runs with vectors of AVX2, where the error occurs. Its argument is the correction to leave out.

    Attributes:
        op: a program that calls torch's op as Inductor does. It ends where the op is right, which depends on the processor.
    """

    program: str
    op: str

    def is_right(self) -> bool:
        return self.ends(self.program, *(corrected.CORRECTIONS.keys() ^ CASES.keys()))

    def is_shown_here(self) -> bool:
        """Whether torch's op is wrong on this machine."""
        return not self.ends(self.op)

    def ends(self, program: str, *arguments: str) -> bool:
        checks = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3"}
        settings = {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, env={**os.environ, **checks, **settings}, capture_output=True).returncode == 0


TRAIN_A_CONVOLUTION = """
import sys
import torch
from torch import nn
from aotgrad.backends import corrected

corrected.CORRECTIONS = {name: each for name, each in corrected.CORRECTIONS.items() if name not in sys.argv}
model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 8, 1, stride=2, bias=False))
compiled = torch.compile(model, backend="aotgrad", options={"min_graph_ops": 0, "cache": False})
for _ in range(20):
    compiled(torch.randn(4, 4, 8, 8)).sum().backward()
"""

DIFFERENTIATE_A_CONVOLUTION = """
import torch
from torch import nn

images = torch.randn(4, 4, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
convolution = nn.Conv2d(4, 8, 1, stride=2, bias=False).to(memory_format=torch.channels_last)
for _ in range(20):
    convolution(images).sum().backward()
"""


CASES = {
    "targets end at the first -1": Case(
        losses, lambda: (torch.arange(8.0).view(2, 4), torch.tensor([[3, -1, 1, -1], [0, 2, -1, 1]]))
    ),
    "index_put into an expanded tensor": Case(
        put_into_expanded, lambda: (torch.arange(4.0), torch.tensor([0, 2, 2]), torch.tensor([1.0, 2.0, 3.0]))
    ),
    "index_put into a view as another dtype": Case(put_into_bits, lambda: (torch.arange(4.0),)),
    "constants without dimensions": Case(put_a_number, lambda: (torch.arange(4.0),)),
    "factors of sums": Case(
        lambda x, a, b: torch.add(x, a @ b, alpha=3), lambda: (torch.ones(2), torch.ones(2, 4), torch.ones(4, 2))
    ),
    "offsets in memory": Case(
        add_into_a_view,
        lambda: (torch.ones(3, 4, requires_grad=True), torch.arange(40.0).view(10, 4)[2:5]),
        dynamic=True,
    ),
    "offsets of inputs": Case(
        lambda x: (x.as_strided((2, 2), (2, 1), 1) * 2, x[1:].as_strided((2,), (1,)) + 1)[0],
        lambda: (torch.arange(20.0)[3:],),
    ),
    "strides of values viewed as another dtype": Case(
        double_transposed_bits, lambda: (torch.ones(3, 4, dtype=torch.complex64),)
    ),
    "reads between two writes": Case(write_read_and_write, lambda: (torch.arange(25.0),)),
    "sums of a number": Case(ones_summed, lambda: (torch.tensor(2.0),)),
    "numbers in aten.scatter.value": Case(
        lambda x, index: x + torch.full((), 2.0).scatter(0, index, 5.0), lambda: (torch.ones(3), torch.tensor(0))
    ),
    **{
        f"numbers in aten.{op}": Case(lambda x, op=op: scatter_nothing(x, op), lambda: (torch.tensor(2.0),))
        for op in ("scatter.src", "scatter_add.default", "scatter_reduce.two")
    },
    "indices into a number": Refused(
        lambda x: x.index_select(0, torch.zeros(0, dtype=torch.int64)), lambda: (torch.tensor(2.0),)
    ),
    "operands of cat that are empty": Refused(lambda x: torch.cat([x[1:], x[0]]), lambda: (torch.ones(1, 2),)),
    "orders of dimensions": Refused(empty_in_no_order, lambda: (torch.ones(2, 3),)),
    "sizes of what index_add adds": Refused(
        lambda x: x.index_add(0, torch.tensor([0, 1]), x[0]), lambda: (torch.ones(3, 2),)
    ),
    "complex sums": Case(lambda x: x + x, lambda: (torch.ones(2, 0, dtype=torch.complex64).unfold(0, 2, 1),)),
    "conversions of complex numbers": Case(
        lambda x, z: (x.to(torch.complex128), z.to(torch.float64)),
        lambda: (torch.tensor(1.0, requires_grad=True), torch.tensor(1j, requires_grad=True)),
        show=requires_grad_under_no_grad,
    ),
    "strided convolutions of few channels": Checked(TRAIN_A_CONVOLUTION, op=DIFFERENTIATE_A_CONVOLUTION),
    "folded constants that are expanded": Case(ones_summed, lambda: (torch.ones(3, 4),)),
    "writes over what they read": Case(add_swapped, lambda: (torch.tensor([1.0, 10.0, 100.0]),)),
    "results and writes that share memory": Case(
        two_clones, lambda: (torch.ones(4),), show=second_after_a_change_of_the_first
    ),
    "strides of indices": Case(
        lambda x: x[1:].roll(1, 0),
        lambda: (torch.arange(8.0, requires_grad=True),),
        dynamic=True,
        show=lambda function, x: torch.autograd.grad(function(x).square().sum(), x)[0],
    ),
    "writes of what they move": Case(flip_a_permuted_one, lambda: (torch.arange(8.0).view(4, 2),)),
    "writes to concatenated values": Case(put_into_a_concatenation, lambda: (torch.arange(9.0).view(3, 3),)),
    "reads after a write": Case(
        upsample,
        lambda: (torch.arange(8192.0).sin().view(2, 64, 8, 8).requires_grad_(), torch.ones(2, 64).requires_grad_()),
        show=gradients,
        tolerance=0.1,
    ),
}


SWAPPED = torch.tensor([1, 0])

WRITES_OVER_WHAT_THEY_READ: dict[str, Callable] = {
    "index_add": add_swapped,
    "index_put": lambda x: (doubled := x * 2).index_put((SWAPPED,), doubled[:2]),
    "index_copy": lambda x: (doubled := x * 2).index_copy(0, SWAPPED, doubled[:2]),
    "computed in the same kernel": lambda x: (doubled := x * 2).index_put((SWAPPED,), doubled[:2] * 3),
    "one after the other": lambda x: (put := (x * 2).index_put((SWAPPED,), x[:2])).index_put((SWAPPED,), put[1:]),
    "indices": lambda x: (places := x.abs().long() * 0).index_put((places[1:],), SWAPPED),
    "a list": multiply_by_flipped,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in WRITES_OVER_WHAT_THEY_READ]
    + [(name, dtype) for name in ("index_put", "a list") for dtype in (torch.int64, torch.bfloat16, torch.complex64)],
)
def test_a_write_does_not_read_what_it_has_written(name: str, dtype: torch.dtype) -> None:
    function, x = WRITES_OVER_WHAT_THEY_READ[name], torch.tensor([1, 10, 100]).to(dtype)
    mine, expected = x.clone(), x.clone()
    compiled = aotgrad.aot_function(function, "inductor", options={"min_graph_ops": 0})
    assert torch.equal(compiled(mine), function(expected))
    assert torch.equal(mine, expected)


FACTORS = {
    "the product is the second operand": lambda x, a, b: torch.add(x, a @ b, alpha=-0.5),
    "the product is the first operand": lambda x, a, b: torch.add(a @ b, x, alpha=2),
    "a row for all": lambda x, a, b: torch.add(x[0], F.linear(a, b), alpha=2),
    "in place": lambda x, a, b: x.clone().add_(a @ b, alpha=-0.5),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_product_is_added_with_its_factor(name: str) -> None:
    """In the value and in the gradients."""
    operands = [torch.rand(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    expected, found = FACTORS[name](*operands), torch.compile(FACTORS[name], backend="aotgrad")(*operands)
    assert torch.allclose(found, expected)
    gradients = (torch.autograd.grad(result.sin().sum(), operands) for result in (found, expected))
    assert all(map(torch.allclose, *gradients))


@pytest.mark.parametrize("operand", ["itself", "a clone"])
def test_a_sum_of_no_complex_numbers(operand: str) -> None:
    def function(x):
        row = x[-1]
        return row + (row.clone() if operand == "a clone" else row)

    x = torch.ones(2, 0, dtype=torch.complex64)
    compiled = aotgrad.aot_function(function, "inductor", options={"min_graph_ops": 0})
    assert compiled(x).shape == (0,)


@pytest.mark.parametrize("stride", [2, (1, 3), (2, 1)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("wanted", ["both", "weight"])
def test_gradients_of_a_strided_convolution_of_few_channels(stride, groups: int, wanted: str) -> None:
    x, weight = (
        torch.randn(2, 4, 9, 8, requires_grad=wanted == "both"),
        torch.randn(6, 4 // groups, 1, 1, requires_grad=True),
    )

    def function(x, weight):
        return F.conv2d(x, weight, stride=stride, groups=groups).sin()

    compiled = aotgrad.aot_function(function, "inductor", options={"min_graph_ops": 0})
    inputs = [each for each in (x, weight) if each.requires_grad]
    found, expected = (torch.autograd.grad(called(x, weight).sum(), inputs) for called in (compiled, function))
    for mine, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, eager)


OF_OTHER_DEVICES = {"numbers on the CPU"}
"""Tested on the emulated device: `tests/emulated_cuda/test_host_numbers.py`."""


def test_every_correction_has_a_case() -> None:
    assert set(CASES) | OF_OTHER_DEVICES == set(corrected.CORRECTIONS)


@pytest.mark.parametrize("name", CASES)
def test_with_a_correction_a_result_is_right(name: str) -> None:
    assert CASES[name].is_right()


OF_OLDER_TORCHES = {"offsets of inputs"}


@pytest.mark.skipif(torch.__version__[:4] != "2.13", reason="each torch has its own defects, and these are that one's")
@pytest.mark.parametrize("name", sorted(CASES.keys() - OF_OLDER_TORCHES))
def test_a_correction_is_needed(name: str, monkeypatch) -> None:
    """If this fails, torch has fixed the error: remove the correction."""
    others = {other: correction for other, correction in corrected.CORRECTIONS.items() if other != name}
    monkeypatch.setattr(corrected, "CORRECTIONS", others)
    case = CASES[name]
    if isinstance(case, Checked) and not case.is_shown_here():
        pytest.skip("torch's op is right on this processor")
    assert not case.is_right()
