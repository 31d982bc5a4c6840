"""Python floats that change from call to call: one plan for all of them, with the results of Python and eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

import aotgrad

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")

VALUES = (0.25, 0.75, 1.3, 0.6)


def leaf(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.linspace(-2, 3, 12, dtype=torch.float64).sin().mul(2).to(dtype)
    return x.requires_grad_(dtype.is_floating_point)


def product(x, s):
    return (x * s).sin()


def assigned(x, s):
    y = x.clone()
    y[1:3] *= s
    return y.sin()


def in_place(x, s):
    return x.clone().mul_(s).add_(1, alpha=s).sin()


def on_lists(x, s):
    return torch._foreach_add(torch._foreach_mul([x, x.sin()], s), [x, x], alpha=s)[1].sin()


def on_lists_of_numbers(x, s):
    return torch._foreach_mul([x, x.sin()], [s, s * 2])[1].sin()


CASES: dict[str, Callable] = {
    "product": product,
    "difference": lambda x, s: (s - x).sin(),
    "quotient": lambda x, s: (s / (x + 3)).sin(),
    "alpha": lambda x, s: torch.sub(torch.add(x, x.sin(), alpha=s), x.cos(), alpha=s).cos(),
    "clamp": lambda x, s: x.sin().clamp(-s, s).clamp(min=s / 2) * 2,
    "comparison": lambda x, s: (x > s).to(x.dtype) * x.sin(),
    "where": lambda x, s: torch.where(x > 0, x, s).sin(),
    "filled": lambda x, s: torch.full((3,), s).sin().sum() + x.masked_fill(x > 0, s).sin(),
    "tensor": lambda x, s: torch.tensor(s).sin() + x.cos(),
    "addcmul": lambda x, s: torch.addcmul(x, x, x.cos(), value=s).sin(),
    "addcdiv": lambda x, s: torch.addcdiv(x, x, x.cos() + 3, value=s).sin(),
    "addmm": lambda x, s: torch.addmm(x[:3], x[:9].view(3, 3), x[:9].view(3, 3), alpha=s, beta=s * 2).sin(),
    "arithmetic": lambda x, s: (x * (s * 2 + 1) / (s - 3) - abs(-s)).sin(),
    "functions": lambda x, s: (x * math.sin(s) + math.sqrt(s) + max(s, 0.6)).sin(),
    "powers": lambda x, s: (x * s**2.0 + s**0.5 * 0.9**s).sin() * (s + 1) ** 3 * s**-1,
    "more functions": lambda x, s: x * (math.cosh(s) + math.sinh(s) + math.log2(s) + math.asin(s / 2) + math.acos(s / 2)),
    "an int and a float": lambda x, s: (x * (s * x.shape[0])).sin(),
    "remainder": lambda x, s: torch.fmod(x, s) + x % s,
    "temperature": lambda x, s: (x / s).softmax(0),
    "activations": lambda x, s: F.leaky_relu(x, s).sin() + F.elu(x, s) + F.softplus(x, s) + F.hardtanh(x, -s, s),
    "scatter": lambda x, s: x.scatter(0, torch.tensor([0, 1]), s).sin(),
    "assigned": assigned,
    "in place": in_place,
    "lists": on_lists,
    "lists of numbers": on_lists_of_numbers,
    "returned": lambda x, s: ((x * s).sin(), s * 2 + 1),
    "returned as it is": lambda x, s: ((x * s).sin(), s),
}


def compiled_by(backend: str, function: Callable) -> Callable:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, options={"cache": False, "min_graph_ops": 0})


def gradients(results: Sequence, x: torch.Tensor) -> list:
    tensors = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    return list(torch.autograd.grad([each.sum() for each in tensors], x)) if tensors else []


def outcome(function: Callable, x: torch.Tensor, s: float) -> list:
    found = function(x, s)
    results = list(found) if isinstance(found, tuple) else [found]
    return [*results, *gradients(results, x)]


def assert_same(found: Sequence, expected: Sequence, exact: bool) -> None:
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        if isinstance(other, torch.Tensor):
            half = {"rtol": 0.01, "atol": 0.01} if other.dtype is torch.float16 else {}  # a fused op rounds less often
            torch.testing.assert_close(one, other, **({"rtol": 0, "atol": 0} if exact else half))
        else:
            assert one == other


def plans_made(function: Callable, compiled: Callable, dtype: torch.dtype, exact: bool, values=VALUES) -> list[int]:
    """The number of plans for each float, after a comparison with eager."""
    made = []
    for s in values:
        before = aotgrad.counters["compilations"]
        assert_same(outcome(compiled, leaf(dtype), s), outcome(function, leaf(dtype), s), exact)
        made.append(aotgrad.counters["compilations"] - before)
    return made


@pytest.mark.parametrize("name", CASES)
def test_one_plan_for_all_floats(name: str) -> None:
    """The first float is a constant to Dynamo, which takes `addcdiv` apart for others, in other roundings."""
    exact = name != "addcdiv"
    assert plans_made(CASES[name], compiled_by("aotgrad_eager", CASES[name]), torch.float32, exact) == [1, 1, 0, 0]


@pytest.mark.parametrize("name", ["product", "alpha", "clamp", "comparison", "arithmetic", "lists", "in place"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64], ids=str)
def test_dtypes(name: str, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    if dtype is torch.int64 and name in ("alpha", "lists", "in place"):
        pytest.skip("eager refuses it")
    if name == "in place" and torch.__version__ < "2.12":
        request.applymarker(pytest.mark.xfail(reason="Dynamo refuses alpha of another dtype than the tensor's", strict=True))
    assert plans_made(CASES[name], compiled_by("aotgrad_eager", CASES[name]), dtype, exact=True) == [1, 1, 0, 0]


def test_one_plan_for_all_floats_through_inductor() -> None:
    def function(x, s):
        results = [case(x, s) for case in CASES.values()]
        return tuple(part for result in results for part in (result if isinstance(result, tuple) else (result,)))

    made = plans_made(function, compiled_by("aotgrad", function), torch.float32, exact=False, values=VALUES[:3])
    assert made == [1, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64], ids=str)
def test_dtypes_through_inductor(dtype: torch.dtype) -> None:
    def function(x, s):
        y = (x.sin() * s - s / 3).clamp(min=s - 1)
        return y, torch.add(y, y.cos(), alpha=s), (x > s).sum(), x * s

    assert plans_made(function, compiled_by("aotgrad", function), dtype, exact=False, values=(0.1, 0.7, 1 / 3)) == [1, 1, 0]


def test_all_digits_reach_the_kernels() -> None:
    """Inductor on its own passes floats in single precision."""
    compiled = compiled_by("aotgrad", lambda x, s: (x * s, x + s * 3))
    for s in (0.1, 0.2, 1 / 3, math.pi):
        x = leaf(torch.float64).detach()
        assert all(map(torch.equal, compiled(x, s), (x * s, x + s * 3)))


def bits(results: Sequence) -> list:
    """A key that distinguishes 0.0 from -0.0 and equates NaNs."""
    return [each.view(torch.int64).tolist() if isinstance(each, torch.Tensor) else float.hex(each) for each in results]


def test_special_values() -> None:
    def function(x, s):
        return x * s, s + 1, (x > s).double()

    compiled, x = compiled_by("aotgrad_eager", function), leaf(torch.float64).detach()
    for s in (0.5, 0.7, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1e300, 5e-324):
        assert bits(compiled(x, s)) == bits(function(x, s))


def made_by(compiled: Callable, function: Callable, calls: Sequence[tuple]) -> list[int]:
    made = []
    for arguments in calls:
        before = aotgrad.counters["compilations"]
        assert torch.equal(compiled(*arguments), function(*arguments))
        made.append(aotgrad.counters["compilations"] - before)
    return made


def test_ints_and_bools_that_change_as_well() -> None:
    def function(x, *numbers):
        return sum(x * number for number in numbers).sin()

    x = leaf().detach()
    calls = [(x, 0.5, 2, True), (x, 0.6, 3, True), (x, 0.7, 4, True), (x, 0.8, 5, False), (x, 0.9, 6, True)]
    assert made_by(compiled_by("aotgrad_eager", function), function, calls) == [1, 1, 0, 1, 0]


def test_a_branch_is_a_guard() -> None:
    def function(x, s):
        return (x * s).sin() if s > 0.5 else (x * s).cos()

    x = leaf().detach()
    calls = [(x, s) for s in (0.1, 0.2, 0.3, 0.7, 0.8, 0.4)]
    assert made_by(compiled_by("aotgrad_eager", function), function, calls) == [1, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_a_float_that_decides_on_a_size(backend: str) -> None:
    def function(x, s):
        return x[: int(s * 4) + 1].clone() * s

    x = leaf(torch.float64).detach()
    made = made_by(compiled_by(backend, function), function, [(x, s) for s in (0.3, 0.8, 1.3, 0.9)])
    assert made == ([1, 1, 0, 0] if backend == "aotgrad_eager" else [1, 1, 1, 1])


def test_an_attribute_of_a_module() -> None:
    class Softmax(torch.nn.Module):
        temperature = 1.0

        def forward(self, x):
            return (x / self.temperature).softmax(0)

    module, x, made = Softmax(), leaf().detach(), []
    compiled = compiled_by("aotgrad_eager", module)
    for temperature in (0.5, 0.6, 0.7, 0.8):
        module.temperature, before = temperature, aotgrad.counters["compilations"]
        assert torch.equal(compiled(x), module(x))
        made.append(aotgrad.counters["compilations"] - before)
    assert made == [1, 1, 0, 0]


def test_gradients_of_gradients() -> None:
    def function(x, s):
        return ((x * s).sin() * s).sum()

    compiled, made = compiled_by("aotgrad_eager", function), []
    for s in VALUES:
        before, found = aotgrad.counters["compilations"], []
        for each in (function, compiled):
            x = leaf(torch.float64)
            (first,) = torch.autograd.grad(each(x, s), x, create_graph=True)
            found.append((first, *torch.autograd.grad((first**2).sum(), x)))
        assert all(map(torch.equal, *found))
        made.append(aotgrad.counters["compilations"] - before)
    assert made == [2, 2, 0, 0]


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_a_memory_budget(backend: str) -> None:
    def function(x, s):
        return ((x * s).sin() * s).exp()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, options={"cache": False, "min_graph_ops": 0, "memory_budget": 0.0})
    assert plans_made(function, compiled, torch.float64, exact=backend == "aotgrad_eager") == [1, 1, 0, 0]


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_from_the_disk_cache(backend: str, tmp_path, monkeypatch) -> None:
    def function(x, s):
        return (x * s).sin() * (s + 1), s * 2

    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AOTGRAD_VERIFY", "0")  # looking at the stages needs stages
    for made_here in ([1, 1, 0, 0], [0, 0, 0, 0]):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend, options={"min_graph_ops": 0})
        assert plans_made(function, compiled, torch.float64, exact=backend == "aotgrad_eager") == made_here


def test_where_autograd_needs_the_value_it_is_a_constant() -> None:
    """C++ takes the logarithm of the base, and checks whether an exponent is 0."""
    for function in (lambda x, s: s**x, lambda x, s: (x + 3) ** s, lambda x, s: torch.lerp(x, x.cos(), s)):
        assert plans_made(function, compiled_by("aotgrad_eager", function), torch.float32, exact=True) == [1, 1, 1, 1]


def test_a_division_by_zero_raises() -> None:
    """Raises as in Python, where the graph would continue with an infinity."""

    def function(x, s):
        return (x * (1 / (s - 1))).sin()

    compiled = compiled_by("aotgrad", function)
    for s in (0.5, 0.6):
        torch.testing.assert_close(compiled(leaf(), s), function(leaf(), s))
    with pytest.raises((ZeroDivisionError, RuntimeError), match="division by zero"):
        compiled(leaf(), 1.0 + 0.0)


POWERS: dict[str, tuple[Callable, float]] = {
    "overflow": (lambda x, s: x * s**9.0, 1e300),
    "zero to a negative power": (lambda x, s: x * s**-0.5, 0.0),
    "range": (lambda x, s: x * math.cosh(s), 1e4),
    "domain": (lambda x, s: x * math.asin(s), 1.5),
    "infinity": (lambda x, s: x * math.sin(s), math.inf),
}


@pytest.mark.parametrize("name", POWERS)
@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_what_python_refuses_raises(name: str, backend: str) -> None:
    """Raises in the plan for all floats, where the graph would continue with an infinity or NaN."""
    function, refused = POWERS[name]
    compiled = compiled_by(backend, function)
    for s in (0.5, 0.6, 0.7):
        torch.testing.assert_close(compiled(leaf(), s), function(leaf(), s))
    with pytest.raises((ArithmeticError, ValueError)):
        function(leaf(), refused)
    with pytest.raises((ArithmeticError, ValueError, RuntimeError)):
        compiled(leaf(), refused)


def test_a_power_of_infinity() -> None:
    """Operations that Python allows."""
    compiled = compiled_by("aotgrad", lambda x, s: (x * s**0.5, s**2.0, 0.5**s))
    for s in (0.5, 0.6, math.inf, 0.0):
        expected = (2 * s**0.5, s**2.0, 0.5**s)
        found = compiled(torch.tensor(2.0, dtype=torch.float64), s)
        assert [float(each) for each in found] == pytest.approx(expected)


def test_a_power_of_a_result_that_is_complex_raises() -> None:
    def function(x):
        return x.cos() * x.detach().sum().item() ** 0.5

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = compiled_by("aotgrad", function)
        torch.testing.assert_close(compiled(torch.ones(3)), function(torch.ones(3)))
        with pytest.raises(RuntimeError):
            compiled(-torch.ones(3))


def test_a_float_of_a_result_reaches_inductor() -> None:
    def function(x):
        return (x.sin() * x.detach().sum().item()).cos()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = compiled_by("aotgrad", function)
        for seed in range(2):
            torch.manual_seed(seed)
            x = torch.randn(5, dtype=torch.float64, requires_grad=True)
            torch.testing.assert_close(compiled(x), function(x))
            torch.testing.assert_close(*(torch.autograd.grad(each(x).sum(), x)[0] for each in (compiled, function)))


OPTIMIZERS = {
    "Adadelta": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
}


def trained(name: str, options: dict, backend: str | None) -> tuple[list[torch.Tensor], list[int]]:
    """The parameters after steps with a schedule, and the number of plans for each step."""
    torch.manual_seed(0)
    parameters, made = [torch.nn.Parameter(torch.randn(n, 3)) for n in (2, 3)], []
    optimizer = getattr(torch.optim, name)(parameters, lr=0.01, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    torch._dynamo.reset()
    compiling = {"options": {"cache": False}} if backend in ("aotgrad", "aotgrad_eager") else {}
    step = torch.compile(optimizer.step, backend=backend, **compiling) if backend else optimizer.step
    for _ in range(4):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        before = aotgrad.counters["compilations"]
        step()
        made.append(aotgrad.counters["compilations"] - before)
        schedule.step()
    return parameters, made


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_step_of_an_optimizer_with_a_schedule(name: str) -> None:
    """Dynamo rounds some of Python's results to single precision, under any backend."""
    (expected, _), (found, made) = (trained(name, OPTIMIZERS[name], backend) for backend in ("eager", "aotgrad_eager"))
    assert all(map(torch.equal, found, expected)) and made == [1, 1, 0, 0]
    torch.testing.assert_close(found, trained(name, OPTIMIZERS[name], None)[0])


@pytest.mark.parametrize("name", ["Adam", "RMSprop", "SGD"])
def test_the_step_of_an_optimizer_through_inductor(name: str) -> None:
    (expected, _), (found, made) = (trained(name, OPTIMIZERS[name], backend) for backend in (None, "aotgrad"))
    torch.testing.assert_close(found, expected)
    assert made == [1, 1, 0, 0]


@pytest.mark.filterwarnings("ignore:.*has 8 plans")
def test_without_dynamo_each_float_has_a_plan_up_to_the_limit() -> None:
    compiled = aotgrad.aot_function(lambda x, s: x * s, aotgrad.nop)
    x = leaf().detach()
    for k in range(20):
        assert torch.equal(compiled(x, k / 7), x * (k / 7))
    assert len(compiled.plans()) == 8


OF_SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fraction": lambda x: x.sin() * (1 / x.shape[0]) + x / (x.shape[0] / 7),
    "fractions of fractions": lambda x: x.sin() * (1.0 / (x.numel() / x.shape[1] - 1.5) - abs(0.5 - x.shape[0])),
    "clamp": lambda x: x.clamp(max=x.shape[0] / 9).cos(),
    "filled": lambda x: torch.full((3,), x.shape[0] / 3, dtype=x.dtype) + x.sum(),
    "compared": lambda x: (x > x.shape[0] / 30).to(x.dtype) * x,
    "root": lambda x: x * x.shape[0] ** -0.5,
    "in float32": lambda x: x.float() * (x.shape[0] / 3),
    "batch norm": lambda x: F.batch_norm(x.sin(), None, None, training=True).cos(),
}


@pytest.mark.parametrize("dynamo", [False, True], ids=["aot_function", "dynamo"])
def test_floats_of_sizes_through_inductor(dynamo: bool) -> None:
    def all_of(x):
        return tuple(function(x) for function in OF_SIZES.values())

    torch._dynamo.reset()
    options = {"cache": False, "min_graph_ops": 0}
    if dynamo:
        compiled = torch.compile(all_of, backend="aotgrad", dynamic=True, fullgraph=True, options=options)
    else:
        compiled = aotgrad.aot_function(all_of, "inductor", dynamic=True, options=options)
    made = []
    for n in (5, 7, 9):
        x = torch.randn(n, 3, dtype=torch.float64, requires_grad=True)
        before = aotgrad.counters["compilations"]
        for name, found, expected in zip(OF_SIZES, compiled(x), all_of(x), strict=True):
            rtol = 1e-6 if name == "in float32" else 1e-7 if name == "root" else 1e-12
            torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol)
            (one,), (other,) = (torch.autograd.grad(each.sum(), x, retain_graph=True) for each in (found, expected))
            torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)
        made.append(aotgrad.counters["compilations"] - before)
    assert made == [1, 0, 0]


def test_a_size_is_made_of_a_float_of_sizes() -> None:
    def function(x):
        return x[: torch.sym_int(x.shape[0] / 2)].sin() * (x.shape[0] / 3)

    compiled = aotgrad.aot_function(function, "inductor", dynamic=True, options={"min_graph_ops": 0})
    for n in (6, 9):
        x = torch.randn(n, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-12, atol=0)
