"""Wrong use: a clear error of the right class, unchanged inputs, and a next call that works."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import (
    AOTGradError,
    BackendError,
    CaptureError,
    PartitionError,
    UnsupportedAliasingError,
    UnsupportedMutationError,
    UnsupportedOutputError,
)

from .against_eager import AOT, assert_like_eager, compiled, leaf, non_leaf, plain


def assert_refused(function, args, error: type[Exception], *words: str, backend: str = "nop") -> Exception:
    """The call raises `error` with all the words in its message, and leaves the inputs and torch's state unchanged."""
    tensors = [value for value in torch.utils._pytree.tree_leaves(args) if isinstance(value, torch.Tensor)]
    before = [(value.detach().clone(), value._version, value.grad_fn, value.shape) for value in tensors if not value.is_meta]
    under_test = compiled(function, backend) if not hasattr(function, "plans") else function
    with pytest.raises(error) as caught:
        under_test(*args)
    for word in words:
        assert word in str(caught.value)
    for value, (data, version, grad_fn, shape) in zip([t for t in tensors if not t.is_meta], before, strict=True):
        assert value.shape == shape
        assert torch.equal(value.detach(), data)
        assert (value._version, value.grad_fn) == (version, grad_fn)
    assert torch.is_grad_enabled()
    x = leaf(3)
    assert torch.equal(compiled(torch.sin, backend)(x), x.sin()), "another function can be compiled afterwards"
    return caught.value


class Strange:
    """Neither a pytree nor a value that every call can recreate."""


# --- Outputs ---------------------------------------------------------------------------------------------------------

UNSUPPORTED_OUTPUTS = {
    "object": (lambda x: (x.sin(), Strange()), "Strange"),
    "function": (lambda x: (x.sin(), lambda: x), "function"),
    "module": (lambda x: nn.Linear(1, 1), "Linear"),
    "generator": (lambda x: (value for value in (x,)), "generator"),
    "set": (lambda x: {1, 2}, "set"),
    "deep": (lambda x: {"a": [x, (Strange(),)]}, "Strange"),
}


@pytest.mark.parametrize("backend", AOT)
@pytest.mark.parametrize("case", UNSUPPORTED_OUTPUTS)
def test_an_unsupported_output(case: str, backend: str) -> None:
    function, kind = UNSUPPORTED_OUTPUTS[case]
    error = assert_refused(function, (leaf(3),), UnsupportedOutputError, kind, "output", backend=backend)
    assert isinstance(error, TypeError)


# --- Control flow on values ------------------------------------------------------------------------------------------


def branch(x):
    if x.sum() > 0:
        return x.sin()
    return x.cos()


def number(x):
    return x * float(x[0])


def index(x):
    return x[: int(x.sum())]


def loop(x):
    while x.norm() > 1:
        x = x / 2
    return x


def array(x):
    return x * 2, x.detach().numpy()


def asserted(x):
    assert (x > -100).all()
    return x * 2


DATA_DEPENDENT = {
    branch: "if x.sum() > 0:",
    number: "float(x[0])",
    index: "int(x.sum())",
    loop: "while x.norm() > 1:",
    array: "x.detach().numpy()",
    asserted: "assert (x > -100).all()",
}


class Flat(nn.Module):
    """A frontend's input: a graph that must hold for all values."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return (self.function(*args),)


def refusal_of_a_graph(function, *args) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        aotgrad.aot_module_simplified(Flat(function), args, aotgrad.nop)
    return caught.value


@pytest.mark.parametrize("function", DATA_DEPENDENT, ids=lambda function: function.__name__)
def test_control_flow_on_the_value_of_a_tensor(function) -> None:
    """The error says which line."""
    line = function.__code__.co_firstlineno + 1
    error = str(refusal_of_a_graph(function, leaf(3)))
    assert f"{__file__}:{line}" in error
    assert DATA_DEPENDENT[function] in error


# Eager warns once per process.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [branch, number, index, loop, asserted], ids=lambda function: function.__name__)
def test_control_flow_on_values_in_a_plan_with_guards(function, dynamic: bool) -> None:
    assert_like_eager(function, lambda: (leaf(3),), "nop", dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_an_array_of_a_tensor(dynamic: bool) -> None:
    line = array.__code__.co_firstlineno + 1
    under_test = compiled(array, "nop", dynamic=dynamic)
    assert_refused(under_test, (leaf(3),), CaptureError, f"{__file__}:{line}", DATA_DEPENDENT[array])


def test_the_line_is_the_users_and_not_that_of_a_library() -> None:
    def function(x):
        return nn.functional.one_hot(x)

    line = function.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}" in str(refusal_of_a_graph(function, torch.tensor([0, 2])))


# --- Devices ---------------------------------------------------------------------------------------------------------


def test_a_tensor_on_another_device() -> None:
    args = (leaf(3), torch.ones(3, device="meta"))
    with pytest.raises(Exception) as eager:
        torch.add(*args)
    error = assert_refused(lambda x, y: x + y, args, RuntimeError, "cpu", "meta", "device")
    assert isinstance(error, (type(eager.value), AOTGradError))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_tensor_on_the_gpu_among_those_on_the_cpu() -> None:
    assert_refused(lambda x, y: x + y, (leaf(3), torch.ones(3, device="cuda")), RuntimeError, "cpu", "cuda")


# --- Backends --------------------------------------------------------------------------------------------------------


def returns_no_callable(module, inputs):
    return 42


def returns_too_few(module, inputs):
    return aotgrad.make_boxed_func(lambda *args: ())


def returns_too_many(module, inputs):
    return aotgrad.make_boxed_func(lambda *args: [*module(*args), None])


def returns_one_tensor(module, inputs):
    return aotgrad.make_boxed_func(lambda *args: module(*args)[0])


def raises(module, inputs):
    raise ValueError("the compiler gave up")


def two_outputs(x):
    return x.exp(), x.sin()


@pytest.mark.parametrize("argument", [leaf(3), plain(3)], ids=["training", "inference"])
def test_a_backend_that_returns_no_callable(argument: torch.Tensor) -> None:
    function = aotgrad.aot_function(two_outputs, returns_no_callable)
    assert_refused(function, (argument,), BackendError, "int", "callable")


@pytest.mark.parametrize("argument", [leaf(3), plain(3)], ids=["training", "inference"])
def test_a_forward_with_too_few_results(argument: torch.Tensor) -> None:
    function = aotgrad.aot_function(two_outputs, returns_too_few)
    error = assert_refused(function, (argument,), BackendError, "0 values", "outputs")
    assert re.search(r"graph, which has [234] outputs", str(error))


def test_a_forward_with_too_many_results() -> None:
    function = aotgrad.aot_function(two_outputs, returns_too_many)
    assert_refused(function, (plain(3),), BackendError, "3 values", "2 outputs", "inference")


def test_a_forward_that_returns_a_lone_tensor() -> None:
    function = aotgrad.aot_function(two_outputs, returns_one_tensor)
    assert_refused(function, (plain(3),), BackendError, "1 values", "2 outputs")


@pytest.mark.parametrize("compiler", [returns_no_callable, returns_too_few, returns_too_many])
def test_a_broken_backward(compiler) -> None:
    function = aotgrad.aot_function(two_outputs, aotgrad.nop, compiler)
    x = leaf(3)
    with pytest.raises(BackendError, match="backward"):
        function(x)[0].sum().backward()
    assert x.grad is None


def test_the_error_names_the_backend() -> None:
    aotgrad.backends.register("forgetful", fw_compiler=returns_too_few)
    torch._dynamo.reset()
    function = torch.compile(two_outputs, backend=aotgrad.DynamoBackend("forgetful"))
    with pytest.raises(BackendError, match=r"backend 'forgetful' returned 0 values.*2 outputs"):
        function(plain(3))


def test_an_error_of_the_compiler_passes_through() -> None:
    function = aotgrad.aot_function(two_outputs, raises)
    assert_refused(function, (leaf(3),), ValueError, "the compiler gave up")


def test_a_compiler_that_fails_once() -> None:
    attempts = []

    def moody(module, inputs):
        attempts.append(module)
        if len(attempts) == 1:
            raise ValueError("not today")
        return aotgrad.nop(module, inputs)

    function = aotgrad.aot_function(torch.sin, moody)
    assert_refused(function, (plain(3),), ValueError, "not today")
    x = plain(3)
    assert torch.equal(function(x), x.sin())


@pytest.mark.parametrize("broken", [lambda joint, inputs, **more: None, lambda joint, inputs, **more: (joint, joint)])
def test_a_broken_partition_function(broken) -> None:
    function = aotgrad.aot_function(torch.sin, aotgrad.nop, partition_fn=broken)
    assert_refused(function, (leaf(3),), PartitionError)


def test_a_compiler_that_is_none() -> None:
    with pytest.raises((BackendError, TypeError), match="fw_compiler"):
        aotgrad.aot_function(torch.sin, None)(plain(3))


def test_a_function_that_is_none() -> None:
    with pytest.raises((CaptureError, TypeError), match="callable"):
        aotgrad.aot_function(None, aotgrad.nop)(plain(3))


# --- Errors of the user's function -----------------------------------------------------------------------------------


class OwnError(Exception):
    pass


def fails(x, fail=True):
    x.mul_(2)
    if fail:
        raise OwnError("on purpose")
    return x


@pytest.mark.parametrize("backend", AOT)
def test_an_exception_in_the_function(backend: str) -> None:
    """Mutations before the error stay, as in eager; the next call works."""
    function = compiled(fails, backend)
    x, eager = torch.ones(3), torch.ones(3)
    for call, argument in ((function, x), (fails, eager)):
        with pytest.raises(OwnError, match="on purpose"):
            call(argument)
    assert torch.equal(x, eager)
    assert x._version == eager._version
    function(x, fail=False)
    assert torch.equal(x, torch.full((3,), 4.0))


def test_an_exception_while_tracing_that_eager_does_not_know() -> None:
    def function(x):
        if type(x) is not torch.Tensor:
            raise OwnError("only plain tensors")
        return x * 2

    under_test = aotgrad.aot_function(function, aotgrad.nop)
    x = leaf(3)
    with pytest.warns(UserWarning, match="function ran eagerly: it raises OwnError while it is traced.*only plain tensors"):
        assert torch.equal(under_test(x), x * 2)
    assert under_test.plans() == []


def test_an_exception_leaves_the_grad_mode_behind_that_eager_leaves() -> None:
    def function(x):
        torch.set_grad_enabled(False)
        raise OwnError("here")

    try:
        with pytest.raises(OwnError, match="here"):
            aotgrad.aot_function(function, aotgrad.nop)(leaf(3))
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_an_exception_in_a_module_leaves_its_parameters_alone() -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x, fail=True):
            y = self.linear(x)
            if fail:
                raise OwnError("on purpose")
            return y

    model = Model()
    weight = model.linear.weight
    module = aotgrad.aot_module(model, aotgrad.nop)
    with pytest.raises(OwnError):
        module(plain(4, 3))
    assert model.linear.weight is weight
    x = plain(4, 3)
    assert torch.equal(module(x, fail=False), model.linear(x))


EAGERS_OWN_ERRORS = {
    "leaf_changed_in_place": (lambda x: x.mul_(2), lambda: (leaf(3),)),
    "view_of_a_leaf_changed_in_place": (lambda x: x[1:].mul_(2), lambda: (leaf(3),)),
    "expanded_tensor_changed_in_place": (lambda x: x.expand(2, 3).mul_(2), lambda: (plain(3),)),
    "expanded_input_changed_in_place": (lambda x: x.copy_(torch.ones(2, 3)), lambda: (plain(3).expand(2, 3),)),
    "expanded_input_changed_at_random": (lambda x: x.uniform_(), lambda: (plain(3).expand(2, 3),)),
    "expanded_input_written_as_out": (
        lambda x: torch.sin(torch.ones(2, 3), out=x),
        lambda: (plain(3).expand(2, 3),),
    ),
    "expanded_input_beside_its_base": (lambda x, y: x.mul_(y[0]), lambda: expanded_and_base(plain(1, 3))),
    "leaf_transposed_in_place": (lambda x: x.t_(), lambda: (leaf(3, 2),)),
    "shapes_that_do_not_fit": (lambda x, y: x @ y, lambda: (leaf(3, 4), leaf(3, 4))),
    "shapes_that_do_not_broadcast": (lambda x, y: x + y, lambda: (leaf(3), leaf(4))),
    "wrong_view": (lambda x: x.view(7), lambda: (leaf(3),)),
    "index_out_of_range": (lambda x: x[5], lambda: (leaf(3),)),
    "dimension_out_of_range": (lambda x: x.sum(3), lambda: (leaf(3),)),
    "unknown_attribute": (lambda x: x.nonsense, lambda: (leaf(3),)),
    "missing_argument": (lambda x, y: x + y, lambda: (leaf(3),)),
    "piece_changed_in_place": (lambda x: (x * 2).split(1)[0].mul_(2), lambda: (leaf(3),)),
    "no_grad_view_changed_in_place": (lambda x: no_grad_view(x * 2).mul_(2), lambda: (leaf(3),)),
    "integer_that_should_require_grad": (lambda x: x.long().requires_grad_(), lambda: (leaf(3),)),
}


# Torch checks the shapes of fake tensors with other code and other messages.
OTHER_WORDS = {"shapes_that_do_not_broadcast", "shapes_that_do_not_fit"}


def expanded_and_base(x):
    return x.expand(2, 3), x


def no_grad_view(x):
    with torch.no_grad():
        return x.view(-1)


@pytest.mark.parametrize("backend", AOT)
@pytest.mark.parametrize("case", EAGERS_OWN_ERRORS)
def test_what_eager_refuses_is_refused_in_its_words(case: str, backend: str) -> None:
    function, make_args = EAGERS_OWN_ERRORS[case]
    with pytest.raises(Exception) as eager:
        function(*make_args())
    error = assert_refused(function, make_args(), type(eager.value), backend=backend)
    if case not in OTHER_WORDS:
        assert without_names(str(error)) == without_names(str(eager.value))


def without_names(message: str) -> str:
    """A message without differences between fake and real tensors: class names and the names of autograd nodes."""
    first = message.splitlines()[0]
    return re.sub(r"'?(Functional)?(Fake)?Tensor'?|\w+Backward\d*", "_", first)


# --- Inputs that share memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", AOT)
def test_changed_memory_of_two_inputs_with_a_gradient_history_each(backend: str) -> None:
    def function(x, y):
        x.mul_(2)
        return x.sum() + y.sum()

    x = non_leaf(4)
    args = (x, x.detach()[1:].requires_grad_())
    assert_refused(function, args, UnsupportedAliasingError, "inputs 0 and 1", "separate histories", backend=backend)


def test_changed_memory_that_no_view_of_another_dtype_describes() -> None:
    x = plain(6)
    args = (x, x.view(torch.int32).as_strided((2, 2), (3, 2), 0))
    assert_refused(lambda x, y: x.mul_(2) + y.sum(), args, UnsupportedAliasingError, "inputs 0, 1", "clones")


def test_overlap_without_a_change_is_fine() -> None:
    base = leaf(4)
    assert torch.equal(compiled(lambda x, y: x.sum() + y.sum(), "nop")(base, base[1:]), base.sum() + base[1:].sum())


# --- Mutations that cannot be replayed -------------------------------------------------------------------------------


def new_data(x):
    x.data = torch.zeros(3)


def new_storage(x):
    x.set_(torch.zeros(3))


def grown(x):
    x.resize_(100)


def new_data_of_an_intermediate(x):
    y = x * 2
    y.data = torch.zeros(2)
    return y


def new_data_of_another_dtype(x):
    y = x * 2
    y.data = torch.zeros(3, dtype=torch.float64)
    return y


def new_storage_of_an_intermediate(x):
    return (x * 2).set_(x)


REPLACED = [new_data, new_storage, new_data_of_an_intermediate, new_storage_of_an_intermediate]


@pytest.mark.parametrize("function", REPLACED, ids=lambda function: function.__name__)
def test_a_replaced_storage(function) -> None:
    assert_like_eager(function, lambda: (plain(3),), "nop")


def test_a_replaced_storage_of_another_dtype() -> None:
    assert_refused(new_data_of_another_dtype, (plain(3),), CaptureError, "is given another storage", "copy_")


def test_a_storage_that_grows() -> None:
    """Raised by aotgrad after the trace, or by torch >= 2.15 within it."""
    kind = CaptureError if torch.__version__ >= "2.15" else UnsupportedMutationError
    assert_refused(grown, (plain(3),), kind, "input", "resized beyond its storage")


def test_a_size_taken_from_another_tensor() -> None:
    assert_like_eager(lambda x, y: x.resize_as_(y) * 1, lambda: (plain(3), plain(2)), "nop")


@pytest.mark.parametrize("make", [lambda: plain(8)[:4], lambda: plain(4).view(torch.int16)[2:4]], ids=["slice", "bytes"])
def test_memory_beyond_an_input(make) -> None:
    """A piece of a larger tensor, restrided over more of it: allowed as a view, in place only up to its last element."""
    size = (make().numel() + make().storage_offset() + 1,)
    assert_like_eager(lambda x: x.as_strided(size, (1,), 0) * 1, lambda: (make(),), "nop")
    assert_like_eager(lambda x: x.as_strided_((2,), (1,)) * 1, lambda: (make(),), "nop")
    refused = "beyond the memory of a tensor", "is a view of"
    assert_refused(lambda x: x.as_strided_(size, (1,), 0), (make(),), CaptureError, *refused)


# --- Pieces that autograd does not know ------------------------------------------------------------------------------


def piece_changed(x):
    x.unsafe_chunk(2)[0].mul_(2)
    return x * 1


def whole_changed(x):
    y = x * 1
    first, _ = y.unsafe_split(2)
    y.mul_(2)
    return first


def piece_of_an_input_changed(x):
    x.unsafe_split_with_sizes((1, 3))[1].mul_(2)


def piece_changed_and_the_whole_saved(x):
    y = x.exp()
    y.unsafe_chunk(2)[0].mul_(2)
    return y[2:]


UNSAFE = [piece_changed, whole_changed, piece_of_an_input_changed, piece_changed_and_the_whole_saved]


@pytest.mark.parametrize("function", UNSAFE, ids=lambda function: function.__name__)
def test_a_write_to_unsafe_pieces(function) -> None:
    assert_refused(function, (non_leaf(4),), CaptureError, "unsafe_chunk()", "use chunk() or split()")


# --- Inputs that autograd forbids, or gives another history, after a mutation ----------------------------------------


def under_no_grad(change):
    def function(x):
        with torch.no_grad():
            change(x)
        return x * 2

    return function


def made_under_no_grad():
    x = non_leaf(4)
    with torch.no_grad():
        return x[1:]


FORBIDDEN = {
    "view_made_under_no_grad": (made_under_no_grad, lambda x: x.mul_(2), "autograd lets nobody use"),
    "one_of_several_pieces": (lambda: non_leaf(4).chunk(2)[1], lambda x: x.mul_(2), "autograd lets nobody use"),
    "piece_of_a_leaf": (lambda: leaf(4).unbind()[1], lambda x: x.fill_(1), "autograd lets nobody use"),
    "view_whose_size_changes": (lambda: non_leaf(4)[1:], lambda x: x.unsqueeze_(0), "its size or stride is changed"),
    "view_of_a_leaf_whose_size_changes": (lambda: leaf(4)[1:], lambda x: x.unsqueeze_(0), "its size or stride is changed"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_view_that_is_changed_under_no_grad(case: str) -> None:
    make, change, message = FORBIDDEN[case]
    assert_refused(under_no_grad(change), (make(),), UnsupportedMutationError, "input 0", message)
    under_test = compiled(under_no_grad(change), "nop")
    under_test(non_leaf(*make().shape))
    with pytest.raises(UnsupportedMutationError, match=message):  # the plan for a tensor that is no view does not apply
        under_test(make())
    with torch.no_grad():
        x, y = make(), make()
        y.copy_(x)
        assert torch.equal(under_test(x), under_no_grad(change)(y))
        assert torch.equal(x, y)


# --- Tensors that are no arguments -----------------------------------------------------------------------------------


def test_a_parameter_of_the_closure() -> None:
    w = leaf(3)
    assert_refused(lambda x: x * w, (plain(3),), CaptureError, "requires grad", "argument")


def test_a_tensor_of_the_closure_that_is_changed() -> None:
    counter = torch.zeros(3)

    def function(x):
        counter.add_(1)
        return x * 2

    line = function.__code__.co_firstlineno + 1
    assert_refused(function, (plain(3),), CaptureError, f"{__file__}:{line}", "argument")
    assert torch.equal(counter, torch.zeros(3))


# --- Tensors of other kinds ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("function", [lambda x: x.to_sparse_csr() @ x, lambda x: x.detach().to_sparse_csr() * x])
def test_rows_that_require_grad_are_refused(function) -> None:
    """Torch would abort the process."""
    with pytest.raises(CaptureError, match="an operation on a sparse tensor cannot be traced"):
        aotgrad.aot_function(function, aotgrad.nop)(torch.eye(3, requires_grad=True))


OTHER_TENSORS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse_rows": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "meta": lambda: torch.ones(3, device="meta"),
    "subclass": lambda: torch.ones(3).as_subclass(type("Own", (torch.Tensor,), {})),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("kind", OTHER_TENSORS)
def test_other_kinds_of_tensors_work_or_are_refused_clearly(kind: str) -> None:
    """Either the result is eager's, or aotgrad raises its own error."""

    def function(x):
        return x.clone()

    x = OTHER_TENSORS[kind]()
    try:
        result = compiled(function, "nop")(x)
    except AOTGradError:
        return
    expected = function(x)
    assert (type(result), result.layout, result.dtype, result.device) == (
        type(expected),
        expected.layout,
        expected.dtype,
        expected.device,
    )


def test_the_notes_of_an_error_hold_what_torch_said() -> None:
    error = refusal_of_a_graph(branch, leaf(3))
    assert any("DataDependent" in note for note in getattr(error, "__notes__", ["DataDependent"]))


def test_a_refused_mutation_of_a_non_leaf_is_not_half_done() -> None:
    x = non_leaf(3)
    assert_refused(lambda x: (x.mul_(2), Strange()), (x,), UnsupportedOutputError)
