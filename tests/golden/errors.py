"""Error messages for programs that cannot be compiled."""

from __future__ import annotations

import functools
import pickle
import warnings
from unittest import mock

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch._higher_order_ops import triton_kernel_wrap
from torch._higher_order_ops.effects import _EffectType as EffectType
from torch._higher_order_ops.effects import _register_effectful_op
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad.frontends import dynamo
from tests.fake_processes import fake_processes
from tests.golden.cases import error_case
from tests.numerics.triton_kernels import launch


@error_case
def unknown_option():
    """An option that does not exist."""
    aotgrad.aot_function(torch.sin, aotgrad.nop, options={"partitoner": "min_cut"})


@error_case
def illegal_option_value():
    """An option with an illegal value."""
    aotgrad.Options(partitioner="greedy")


@error_case
def option_of_inductors():
    """An option of Inductor beside ours."""
    aotgrad.DynamoBackend("inductor", options={"max_autotune": True})


@error_case
def unknown_option_of_inductors():
    """An option that Inductor does not have."""
    aotgrad.DynamoBackend("inductor", options={"inductor": {"max_autotun": True}})


@error_case
def option_of_inductors_of_another_type():
    """An option of Inductor with a value of another type."""
    aotgrad.DynamoBackend("inductor", options={"inductor": {"triton.cudagraphs": "always"}})


@error_case
def option_that_inductor_does_not_read():
    """An option of Inductor for a step of torch before Inductor."""
    aotgrad.DynamoBackend("inductor", options={"inductor": {"freezing": True}})


@error_case
def budget_of_two_bytes():
    """A memory budget out of range."""
    aotgrad.Options(memory_budget=2)


@error_case
def host_memory_of_half():
    """The memory of the host for offloaded values is no number of bytes."""
    aotgrad.Options(offload=0.5)


@error_case
def policy_that_does_not_exist():
    """A name of values has an unknown policy."""
    aotgrad.Options(checkpoint_policies={"block": "forget"})


@error_case
def pickled_with_a_local_compiler():
    """A compiled module is saved together with a compiler that cannot be imported."""
    pickle.dumps(aotgrad.aot_module(nn.Linear(2, 2), fw_compiler=lambda graph, inputs: aotgrad.nop(graph, inputs)))


@error_case
def data_dependent_branch():
    """Python control flow that depends on the value of a tensor, in a graph that must hold for all values."""

    class Clipped(nn.Module):
        def forward(self, x):
            if x.sum() > 1:
                return (x / x.sum(),)
            return (x,)

    aotgrad.aot_export_module(Clipped(), (torch.ones(3),), trace_joint=False)


@torch.library.custom_op("aotgrad_golden::temperature", mutates_args=())
def temperature(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


temperature.register_fake(torch.empty_like)
temperature.register_autograd(lambda ctx, gradient: gradient)
_register_effectful_op("aotgrad_golden::temperature", EffectType.ORDERED)


@error_case
def branch_on_an_effect():
    """Python control flow that depends on the result of an effect, which must run only once."""

    def heated(x):
        return x * 2 if temperature(x).sum() > 0 else x

    aotgrad.aot_function(heated, aotgrad.nop)(torch.ones(3))


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 if gradient.sum() < 10 else gradient


@error_case
def branch_in_a_backward():
    """Python control flow in a backward that depends on the gradient, which does not exist at compile time."""
    aotgrad.aot_function(lambda x: Clipped.apply(x).sin(), aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def linearized_inside():
    """`torch.func.linearize` runs its own trace, which is opaque to this one."""

    def tangent(x):
        _, push_forward = torch.func.linearize(torch.sin, x)
        return push_forward(torch.ones_like(x))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning about the other trace
        aotgrad.aot_function(tangent, aotgrad.nop)(torch.ones(3))


@error_case
def unsupported_output():
    """An output that calls cannot recreate."""
    aotgrad.aot_function(lambda x: (x, object()), aotgrad.nop)(torch.ones(3))


@error_case
def overlap_of_two_histories():
    """Two inputs share mutated memory, and each has its own gradient history."""
    add = aotgrad.aot_function(lambda x, y: x.mul_(2) + y, aotgrad.nop)
    x = torch.ones(3, requires_grad=True) * 1
    add(x, x.detach().requires_grad_())


@error_case
def changed_sparse_tensor():
    """A sparse tensor is changed in place."""
    aotgrad.aot_function(lambda x: x.mul_(2), aotgrad.nop)(torch.eye(2).to_sparse())


@error_case
def values_of_a_sparse_input():
    """The values of a sparse input are returned."""
    aotgrad.aot_function(lambda x: x.values(), aotgrad.nop)(torch.eye(2).to_sparse().coalesce())


@error_case
def entries_of_a_sparse_tensor():
    """An exported graph depends on the number of entries of a sparse tensor."""

    class Count(nn.Module):
        def forward(self, x):
            return x * x.to_sparse()._nnz()

    aotgrad.export_joint(Count(), (torch.eye(2),))


@error_case
def expanded_tensor_filled():
    """An expanded tensor is filled, which eager allows."""
    aotgrad.aot_function(lambda x: x.expand(2, 3).fill_(1), aotgrad.nop)(torch.ones(3))


@error_case
def part_of_an_expanded_input():
    """A row of an expanded input is changed."""

    def function(x):
        x[0] = 3

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3).expand(2, 3))


@error_case
def strided_and_changed():
    """Memory with an offset is mutated, and viewed by its geometry."""

    def function(x):
        row = x.as_strided((2,), (1,), 1)
        x.mul_(2)
        return row + 1

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(4)[1:])


@error_case
def reshaped_under_no_grad():
    """A tensor with a history is transposed in place, hidden from autograd."""

    def function(x):
        y = x * 2
        with torch.no_grad():
            y.t_()
        return y

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(2, 3, requires_grad=True))


@error_case
def view_before_a_transposition():
    """A view is used after its base was transposed in place."""

    def function(x):
        row = x[0]
        x.t_()
        return row * 2

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, 3, requires_grad=True) * 1)


@error_case
def returned_view_before_a_transposition():
    """A view is returned after its base was transposed in place."""

    def function(x):
        row = x[0]
        x.t_()
        return row

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, 3, requires_grad=True) * 1)


@error_case
def piece_of_a_changed_tensor():
    """A view is returned that eager forbids to use."""

    def function(x):
        first, _ = x.split(2)
        x.mul_(2)
        return first

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(4, requires_grad=True) * 1)


@error_case
def mutated_closure():
    """A tensor that is no argument is changed in place."""
    total = torch.zeros(3)
    aotgrad.aot_function(lambda x: total.add_(x), aotgrad.nop)(torch.ones(3))


@error_case
def view_of_a_closure():
    """A view of a tensor that is no argument is returned."""
    total = torch.zeros(3)
    aotgrad.aot_function(lambda x: (x * 2, total[1:]), aotgrad.nop)(torch.ones(3))


@error_case
def closure_in_changed_memory():
    """An input that shares memory with a tensor of the closure is mutated."""
    total = torch.zeros(3)
    aotgrad.aot_function(lambda x: x.add_(1) * total, aotgrad.nop)(total[:])


@error_case
def gradient_of_a_closure():
    """A tensor that requires grad comes from a closure."""
    weight = torch.ones(3, requires_grad=True)
    aotgrad.aot_function(lambda x: x * weight, aotgrad.nop)(torch.ones(3))


@error_case
def mutated_leaf():
    """A leaf that requires grad is mutated while grad mode is on: eager's own error."""
    aotgrad.aot_function(lambda x: x.mul_(2), aotgrad.nop)(torch.ones(3, requires_grad=True))


def assign(x, y):
    x.data = y
    return x * y


@error_case
def replaced_storage():
    """An input that requires grad gets another storage of another size: its gradient would not fit."""
    aotgrad.aot_function(assign, aotgrad.nop)(torch.ones(3, requires_grad=True), torch.zeros(1))


@error_case
def changed_before_an_assignment():
    """An input is mutated, and then gets other memory."""
    aotgrad.aot_function(lambda x, y: assign(x.mul_(2), y), aotgrad.nop)(torch.ones(3), torch.zeros(3))


@error_case
def changed_after_an_assignment():
    """An input that requires grad gets other memory, and is then mutated."""
    x = torch.ones(3, requires_grad=True) * 1
    aotgrad.aot_function(lambda x, y: (assign(x, y), x.mul_(2)), aotgrad.nop)(x, torch.zeros(3))


@error_case
def gradient_after_an_assignment():
    """A gradient of a gradient of a function that gives an input other memory."""
    x = torch.ones(3, requires_grad=True)
    y = aotgrad.aot_function(lambda x, y: assign(x, y).sin(), aotgrad.nop)(x, torch.zeros(3))
    torch.autograd.grad(y.sum(), x, create_graph=True)


@error_case
def unsafe_pieces_changed():
    """A piece that is no view for autograd is mutated, and then the whole is used."""

    def function(x):
        x.unsafe_chunk(2)[0].mul_(2)
        return x * 1

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(4))


@error_case
def strided_beyond_an_input():
    """An input is restrided beyond its last element, in the memory of the tensor that it is a piece of."""
    aotgrad.aot_function(lambda x: x.as_strided_((4,), (1,)), aotgrad.nop)(torch.ones(4)[:2])


@error_case
def hidden_data_alias():
    """Two views of `.data` are returned, but not their base."""

    def function(x):
        alias = x.data
        return alias[0], alias[1]

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(4))


@error_case
def piece_changed_under_no_grad():
    """One of several views is mutated under `no_grad`, and must not be used afterwards."""

    def function(x):
        with torch.no_grad():
            x.mul_(2)

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(4, requires_grad=True).chunk(2)[0])


@error_case
def view_reshaped_under_no_grad():
    """A view has its size changed in place under `no_grad`."""

    def function(x):
        with torch.no_grad():
            x.unsqueeze_(0)
        return x * 2

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(4, requires_grad=True)[1:])


@error_case
def value_of_a_list_changed():
    """An op on a list saves a value that is mutated afterwards."""

    def function(x):
        (product,) = torch._foreach_mul([x], [x])
        x.add_(1)
        return product

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, requires_grad=True) * 1)


@error_case
def converted_view_reshaped():
    """The conjugate of a tensor is transposed in place."""
    x = torch.ones(2, 3, dtype=torch.complex64, requires_grad=True)
    aotgrad.aot_function(lambda x: (x * 2).conj().t_(), aotgrad.nop)(x)


@error_case
def converted_view_written_and_reshaped():
    """The real part of a complex tensor is written to and transposed in place."""

    def function(x):
        x.mul_(2).t_()

    numbers = torch.ones(2, 3, dtype=torch.complex64, requires_grad=True) * 1
    aotgrad.aot_function(function, aotgrad.nop)(numbers.real)


@error_case
def swapped_tensors():
    """An input is exchanged for another tensor."""
    aotgrad.aot_function(lambda x: torch.utils.swap_tensors(x, x + 1), aotgrad.nop)(torch.ones(4))


@error_case
def read_as_an_array():
    """The values of a tensor are read while tracing."""
    aotgrad.aot_function(lambda x: x * float(x.detach().numpy()[0]), aotgrad.nop)(torch.ones(3))


@error_case
def read_as_an_array_by_a_function():
    """A function that the traced one calls reads the values of a tensor."""

    def rounded(x):
        return torch.from_numpy(x.detach().numpy().round(1))

    aotgrad.aot_function(lambda x: rounded(x.cos()) * 2, aotgrad.nop)(torch.ones(3))


@error_case
def memory_in_two_storages():
    """Two tensors made from one NumPy array; one is mutated."""
    array = torch.zeros(3).numpy()
    x, y = torch.from_numpy(array), torch.from_numpy(array)
    aotgrad.aot_function(lambda x, y: x.add_(1) + y, aotgrad.nop)(x, y)


@error_case
def resized_beyond_its_storage():
    """An input is resized beyond its storage."""
    aotgrad.aot_function(lambda x: x.resize_(100).zero_(), aotgrad.nop)(torch.ones(3))


@error_case
def freed_storage():
    """The storage of an input is freed inside the function."""

    def free(x):
        y = x * 2
        x.untyped_storage().resize_(0)
        return y

    aotgrad.aot_function(free, aotgrad.nop)(torch.ones(3))


@error_case
def other_elements_shown():
    """An input is mutated, and then restrided to only some of the mutated elements."""
    aotgrad.aot_function(lambda x: x.mul_(2).as_strided_((2,), (1,)), aotgrad.nop)(torch.ones(4))


@error_case
def owner_of_changed_memory_transposed():
    """An input is transposed in place, while its memory is mutated through a detached alias."""
    x = torch.ones(2, 3, requires_grad=True) * 1
    aotgrad.aot_function(lambda x, alias: (x.t_(), alias.mul_(2)), aotgrad.nop)(x, x.detach())


@error_case
def shared_memory_comes_to_require_grad():
    """Two inputs are views of one tensor; a mutation makes it require grad."""
    memory = torch.ones(3)
    w = torch.ones(3, requires_grad=True)
    aotgrad.aot_function(lambda x, y, w: x.mul_(w), aotgrad.nop)(memory, memory.view(3), w)


@error_case
def transposed_back_under_no_grad():
    """An input is transposed in place, and then transposed back, hidden from autograd."""

    def there_and_back(x):
        x.t_()
        with torch.no_grad():
            x.t_()

    aotgrad.aot_function(there_and_back, aotgrad.nop)(torch.ones(2, 2, requires_grad=True) * 1)


@error_case
def returned_view_after_as_strided_in_place():
    """A view of an input, which is a view itself, is returned after as_strided_() on it."""

    def function(x):
        part = x[:2]
        part.as_strided_((1,), (1,))
        return part

    base = torch.ones(3, requires_grad=True) * 1
    aotgrad.aot_function(function, aotgrad.nop)(base[:])


@error_case
def view_of_an_output_that_was_transposed_since():
    """An integer view of an input is returned after a transposition in place, and a view of it from before."""

    def transposed(x):
        integers = x.view(torch.int32)
        rows = integers.view(-1)
        return rows, integers.t_()

    aotgrad.aot_function(transposed, aotgrad.nop)(torch.ones(2, 3))


@error_case
def transposed_while_another_input_is_its_view():
    """An input is transposed in place, and another one is a view of it."""
    x = torch.ones(2, 2, requires_grad=True) * 1
    aotgrad.aot_function(lambda x, view: (x.t_(), view * 2)[1], aotgrad.nop)(x, x[:])


@error_case
def written_and_reshaped_under_no_grad():
    """A leaf is written to and unsqueezed in place, hidden from autograd."""

    def changed(x):
        with torch.no_grad():
            x.mul_(2).unsqueeze_(0)

    aotgrad.aot_function(changed, aotgrad.nop)(torch.ones(2, requires_grad=True))


@error_case
def backward_of_what_was_reshaped():
    """The backward needs a view of a tensor whose number of dimensions has changed since."""
    x = torch.ones(3, 2, requires_grad=True) * 1
    aotgrad.aot_function(lambda x: (x @ x.t(), x.unsqueeze_(0))[0], aotgrad.nop)(x)


@error_case
def requires_grad_changed():
    """An input stops requiring grad, and is mutated."""
    x = torch.ones(3, requires_grad=True)
    aotgrad.aot_function(lambda x: x.sin() * x.requires_grad_(False).mul_(2), aotgrad.nop)(x)


@error_case
def backward_inside():
    """A gradient is accumulated in an input."""

    def step(x):
        (x * x).sum().backward()
        return x * 2

    aotgrad.aot_function(step, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def history_of_an_argument():
    """A traced tensor has only its own history."""
    aotgrad.aot_function(lambda x: x * x._version, aotgrad.nop)(torch.ones(3))


@error_case
def changed_container():
    """A dictionary that is an argument is changed."""

    def keep(cache, x):
        cache["x"] = x * 2
        return x

    aotgrad.aot_function(keep, aotgrad.nop)({}, torch.ones(3))


@error_case
def attribute_of_an_argument():
    """An attribute of an argument is assigned."""

    def mark(x):
        x.scale = 2
        return x * 2

    aotgrad.aot_function(mark, aotgrad.nop)(torch.ones(3))


@error_case
def kept_tensor():
    """A module puts a tensor into a list of its own."""

    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.results = []

        def forward(self, x):
            self.results.append(x * 2)
            return x

    aotgrad.aot_module(Keeping(), aotgrad.nop)(torch.ones(3))


@error_case
def removed_attribute():
    """A module removes an attribute that is a tensor."""

    class Removing(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.ones(3)

        def forward(self, x):
            y = x * self.last
            del self.last
            return y

    aotgrad.aot_module(Removing(), aotgrad.nop)(torch.ones(3))


@error_case
def seeded_inside():
    """The random generator is seeded while tracing."""

    def draw(x):
        torch.manual_seed(3)
        return x * torch.rand(3)

    aotgrad.aot_function(draw, aotgrad.nop)(torch.ones(3))


@error_case
def seeded_for_a_while():
    """The random generator is seeded while tracing, and its state is restored afterwards."""

    def draw(x):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(3)
            return x * torch.rand(3)

    aotgrad.aot_function(draw, aotgrad.nop)(torch.ones(3))


@error_case
def view_at_a_computed_place():
    """The elements of a view depend on the value of a tensor."""

    class Part(nn.Module):
        def forward(self, x, k):
            return (x.narrow(0, k, 2),)

    aotgrad.aot_module_simplified(Part(), (torch.ones(4), torch.tensor(1)), aotgrad.nop)


@error_case
def noise_with_gaps():
    """A tensor with gaps between its elements is filled with random numbers."""
    aotgrad.aot_function(lambda x: x.normal_(), aotgrad.nop)(torch.ones(4, 10)[:, ::2])


@error_case
def list_in_shared_memory():
    """A list of tensors that share memory is mutated while autograd records."""

    def function(x):
        y = x * 1
        torch._foreach_mul_([y, y.view(-1)], 2)
        return y

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def kernel_in_shared_memory():
    """A Triton kernel reads and writes pieces of one input that overlap."""

    def function(x, y):
        launch(x[:4], y, x[1:5])
        return x * 1

    with mock.patch.object(triton_kernel_wrap, "get_mutated_tensors", lambda *_: ["out"]):
        aotgrad.aot_function(function, aotgrad.nop)(torch.ones(5), torch.ones(4))


@error_case
def gradient_of_a_backward_that_draws():
    """A custom backward adds noise, and is differentiated."""

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient + torch.rand_like(gradient)

    x = torch.ones(3, requires_grad=True)
    y = aotgrad.aot_function(lambda x: Noisy.apply(x).sin(), aotgrad.nop)(x)
    torch.autograd.grad(y.sum(), x, create_graph=True)


@error_case
def checkpoint_of_what_changes():
    """A region gets a tensor that is mutated before the backward recomputes the region."""

    def changed(x):
        h = x * 2
        y = torch.utils.checkpoint.checkpoint(torch.exp, h, use_reentrant=False)
        h.add_(1)
        return y

    aotgrad.aot_function(changed, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def higher_order_of_what_is_detached():
    """An argument is detached, and a gradient of a gradient is computed."""
    x = torch.ones(3, requires_grad=True)
    y, _ = aotgrad.aot_function(lambda x: (x.sin(), x.detach_()), aotgrad.nop)(x)
    y.sum().backward(create_graph=True)


@error_case
def hook_of_a_node_outside():
    """A hook is registered on the node that accumulates the gradient of an argument."""

    def hooked(x):
        y = x.sin()
        torch.autograd.graph.get_gradient_edge(x).node.register_hook(print)
        return y

    aotgrad.aot_function(hooked, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def drawn_again_in_another_way():
    """Two ops draw from one state."""

    def function(x):
        with torch.random.fork_rng(devices=()):
            y = torch.rand(3)
        return torch.randn(3) + y * x

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3))


@error_case
def checkpoint_with_a_policy_and_a_write():
    """The user selects the saved values of a region that mutates a tensor."""

    def policy(ctx, op, *args, **kwargs):
        return torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    def region(x, count):
        count.add_(1)
        return x.exp()

    kept = torch.fx.symbolic_trace(region)
    contexts = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, policy)
    kept.meta["_checkpoint_context_fn"] = contexts
    counted = functools.partial(torch.ops.higher_order.tag_activation_checkpoint, kept)
    aotgrad.aot_function(counted, aotgrad.nop)(torch.ones(3, requires_grad=True), torch.zeros(()))


@error_case
def checkpoint_that_writes_around_two_results():
    """A region mutates a tensor, and a function in it has two results; a backward may need only one."""

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx, first, second):
            (x,) = ctx.saved_tensors
            return first * x.cos() - second * x.sin()

    def counted(x, count):
        def region(h):
            count.add_(1)
            first, second = Two.apply(h.exp())
            return first.exp(), second.exp()

        return torch.utils.checkpoint.checkpoint(region, x, use_reentrant=False)

    aotgrad.aot_function(counted, aotgrad.nop)(torch.ones(3, requires_grad=True), torch.zeros(()))


@error_case
def backward_that_writes_and_decides():
    """The backward gets `None` for a result that is not used, and counts its runs."""

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, count):
            ctx.set_materialize_grads(False)
            ctx.count = count
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx, first, second):
            ctx.count.add_(1)
            return first if second is None else second, None

    def function(x, count):
        first, second = Two.apply(x, count)
        return first.exp(), second.exp()

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, requires_grad=True), torch.zeros(()))


@error_case
def gradient_only_if_another_is_undefined():
    """The backward of `x.exp()` is not traced: no gradient reaches it if both results are used."""

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx, first, second):
            return None if first is not None and second is not None else first

    def function(x):
        first, second = Two.apply(x.exp())
        return first.exp(), second.exp()

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def reentrant_checkpoint_without_a_gradient():
    """All results of such a region require grad in eager."""

    def block(x):
        return torch.utils.checkpoint.checkpoint(lambda h: (h.exp(), h.detach()), x, use_reentrant=True)

    aotgrad.aot_function(block, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def saved_value_that_is_drawn():
    """A saved-tensor hook draws random numbers in the backward."""

    def function(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved + torch.rand_like(saved)):
            return x.exp()

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def detached_alias_that_requires_grad():
    """A detached alias of an input starts its own history, and only a view of it is returned."""

    def split_off(x):
        y = x.detach().requires_grad_()
        return y[1:]

    aotgrad.aot_function(split_off, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def dtypes_without_a_view():
    """Two inputs of different dtypes share memory at positions that no view of one describes."""
    x = torch.ones(6)
    y = x.view(torch.int32)[1:].as_strided((2, 2), (2, 2), 1)
    aotgrad.aot_function(lambda x, y: x.mul_(2) + y.sum(), aotgrad.nop)(x, y)


@error_case
def stopped_gradient():
    """A view of a view that was made under no_grad."""

    def middle(x):
        with torch.no_grad():
            y = x[1:]
        return y[1:], x * 2

    aotgrad.aot_function(middle, aotgrad.nop)(torch.ones(4, requires_grad=True))


@error_case
def gradient_beside_a_new_leaf():
    """A gradient of a gradient of a function that returns a new leaf."""
    x = torch.ones(3, requires_grad=True)

    def function(x):
        leaf = torch.ones(3, requires_grad=True)
        return (x * leaf).sin(), leaf

    y, _ = aotgrad.aot_function(function, aotgrad.nop)(x)
    torch.autograd.grad(y.sum(), x, create_graph=True)


@error_case
def attribute_changed_under_a_transform():
    """A module that counts its calls has no plan under `vmap`, because it mutates its argument."""

    class Counter(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x.mul_(2)

    torch.vmap(aotgrad.aot_module(Counter(), aotgrad.nop))(torch.ones(2, 3))


@error_case
def attribute_changed_before_a_derivative():
    """A module that counts its calls, and a second derivative, which runs it a second time."""

    class Counter(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x.sin()

    count = aotgrad.aot_module(Counter(), aotgrad.nop)
    torch.func.grad(torch.func.grad(count))(torch.tensor(1.0))


@error_case
def gradient_through_an_old_value():
    """A gradient of a gradient needs the value of an input before its mutation by the call."""
    x = torch.ones(4, requires_grad=True)
    y = x * 1
    scale = aotgrad.aot_function(lambda first, whole: (first.mul_(2), whole.sin())[1], aotgrad.nop)
    torch.autograd.grad(scale(y[:2], y).sum(), x, create_graph=True)


class Counting(torch.autograd.Function):
    """Counts its backwards in a tensor."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.count = count
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.count.add_(1)
        return gradient * 2, None


class Transposing(torch.autograd.Function):
    """Transposes an existing tensor in the backward."""

    @staticmethod
    def forward(ctx, x, other):
        ctx.other = other
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.other.t_()
        return gradient * 2, None


@error_case
def new_parameter():
    """An output is a parameter that was made inside the function."""
    aotgrad.aot_function(lambda x: (x * 2, torch.nn.Parameter(torch.ones(3))), aotgrad.nop)(torch.ones(3))


@error_case
def backward_that_changes_a_closure():
    """The backward of an autograd function mutates a tensor that is no argument."""
    count = torch.zeros(3)
    aotgrad.aot_function(lambda x: Counting.apply(x, count), aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def backward_that_changes_shared_memory():
    """The backward of an autograd function mutates an argument that shares memory with another one."""
    memory = torch.zeros(4)
    count = aotgrad.aot_function(lambda x, count, other: Counting.apply(x, count) + other, aotgrad.nop)
    count(torch.ones(3, requires_grad=True), memory[1:], memory[:3])


@error_case
def backward_that_transposes_an_argument():
    """The backward of an autograd function changes the strides of an argument."""
    transposing = aotgrad.aot_function(Transposing.apply, aotgrad.nop)
    transposing(torch.ones(3, requires_grad=True), torch.ones(2, 3))


@error_case
def backward_that_gets_no_gradient():
    """The backward of an autograd function mutates a tensor, and another backward gives it no gradient."""

    class Ends(Counting):
        @staticmethod
        def backward(ctx, gradient):
            return None, None

    count = aotgrad.aot_function(lambda x, count: Ends.apply(Counting.apply(x.sin(), count), count) + x, aotgrad.nop)
    count(torch.ones(3, requires_grad=True), torch.zeros(3))


@error_case
def backward_behind_none_that_computes():
    """A backward gets no gradient, so eager runs it on zeros, and a returned value lies on the path."""

    class Ends(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            return None, gradient

    class AddsOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient + 1

    def function(x, y):
        hidden = AddsOne.apply(x)
        product = Ends.apply(hidden, y)
        return product, product.sin(), Ends.apply(hidden, y)

    aotgrad.aot_function(function, aotgrad.nop)(*(torch.ones(3, requires_grad=True) for _ in range(2)))


@error_case
def gradient_beside_a_changed_result():
    """A gradient of a gradient of a function with a backward that mutates its result."""

    def function(x):
        count = x.detach() * 2
        return Counting.apply(x.sin(), count), count

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(aotgrad.aot_function(function, aotgrad.nop)(x)[0].sum(), x, create_graph=True)


@error_case
def gradient_after_a_change_of_what_was_read():
    """Two gradients of gradients of a function that reads a tensor mutated by its backward."""
    x, count = torch.ones(3, requires_grad=True), torch.ones(3)
    y = aotgrad.aot_function(lambda x, count: Counting.apply((x + count).exp(), count), aotgrad.nop)(x, count)
    for _ in range(2):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@error_case
def gradient_after_a_change_with_a_history():
    """Two gradients of gradients; the first gives a history to the tensor that the backward mutates."""

    class Summing(Counting):
        @staticmethod
        def backward(ctx, gradient):
            ctx.count.add_(gradient)
            return gradient * 2, None

    x, count = torch.ones(3, requires_grad=True), torch.ones(3)
    y = aotgrad.aot_function(lambda x, count: Summing.apply(x.sin(), count).exp(), aotgrad.nop)(x, count)
    for _ in range(2):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@error_case
def gradient_beside_an_overwritten_value():
    """A gradient of a gradient beside a value that was overwritten in a view: it is unknown what exactly raises."""

    def function(x, weight):
        y = x.clone()
        y[1:].mul_(y[1:])
        return y * weight, weight * 3

    x, weight = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    product, _ = aotgrad.aot_function(function, aotgrad.nop)(x, weight)
    torch.autograd.grad(product.sum(), weight, create_graph=True)


@error_case
def gradient_through_an_effect():
    """A gradient of a gradient needs the result of an effect, which must run only once, and of which a part was saved."""
    x = torch.ones(9, requires_grad=True)
    y = aotgrad.aot_function(lambda x: temperature(x)[:1].sin(), aotgrad.nop)(x)
    torch.autograd.grad(y.sum(), x, create_graph=True)


@error_case
def subclass():
    """A tensor subclass with its own rules."""

    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs)
            return result * 2 if func is torch.Tensor.sin else result

    aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop)(torch.ones(3).as_subclass(Doubled))


class Assigning(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.function(self, x)


@error_case
def assigned_parameter():
    """A module binds its parameter to a new one."""

    def f(self, x):
        self.weight = nn.Parameter(x * 2)

    aotgrad.aot_module(Assigning(f), aotgrad.nop)(torch.ones(3))


@error_case
def registered_buffer():
    """A forward registers a buffer."""

    def f(self, x):
        self.register_buffer("cache", x * 2)

    aotgrad.aot_module(Assigning(f), aotgrad.nop)(torch.ones(3))


@error_case
def assigned_buffer_around_a_region():
    """A module binds its buffer to a new tensor, and has a checkpointed region."""

    def f(self, x):
        y = torch.utils.checkpoint.checkpoint(torch.sin, x * self.weight, use_reentrant=False)
        self.count = self.count + 1
        return y

    aotgrad.aot_module(Assigning(f), aotgrad.nop)(torch.ones(3))


@error_case
def assigned_attribute_in_a_hook():
    """A hook that runs in the backward keeps a gradient."""

    class Keeping(nn.Module):
        def forward(self, x):
            y = x * 2
            y.register_hook(lambda gradient: setattr(self, "gradient", gradient))
            return y * 3

    aotgrad.aot_module(Keeping(), aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def assigned_buffer_that_a_hook_reads():
    """A module binds its buffer to a new tensor, and a hook reads it in the backward."""

    def f(self, x):
        y = x * self.weight
        y.register_hook(lambda gradient: gradient * self.count)
        self.count = self.count + 1
        return y

    aotgrad.aot_module(Assigning(f), aotgrad.nop)(torch.ones(3))


@error_case
def assigned_buffer_of_a_closure():
    """A function calls a module that binds its buffer to a new tensor."""

    def f(self, x):
        self.count = self.count + 1
        return x * self.count

    model = Assigning(f)
    aotgrad.aot_function(lambda x: model(x), aotgrad.nop)(torch.ones(3))


@error_case
def backward_that_counts():
    """A hook inside of the function counts its calls."""
    calls = []

    def f(x):
        y = x.sin()
        y.register_hook(lambda gradient: calls.append(1))
        return y * 2

    aotgrad.aot_function(f, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def assigned_buffer_of_a_flat_module():
    """The module of a frontend binds its buffer to a new tensor."""

    def f(self, x):
        self.count = self.count + 1
        return [x * self.count]

    aotgrad.aot_module_simplified(Assigning(f), (torch.ones(3),), aotgrad.nop)


@error_case
def compiler_returns_no_callable():
    """A backend's compiler returns no callable."""
    aotgrad.aot_function(torch.sin, lambda graph, inputs: 42)(torch.ones(3))


@error_case
def wrong_number_of_results():
    """A backend's callable returns a wrong number of values."""

    def compiler(graph, inputs):
        return lambda *args: (args[0], args[0])

    aotgrad.aot_function(torch.sin, compiler)(torch.ones(3))


@error_case
def result_with_other_strides():
    """A backend's callable returns a result with other strides than the trace."""

    def compiler(graph, inputs):
        return lambda *args: [each.t().contiguous().t() for each in graph(*args)]

    aotgrad.aot_function(torch.sin, compiler, options={"verify_results": True})(torch.ones(3, 4))


@error_case
def class_for_an_instance():
    """A class of backends in place of an instance."""
    aotgrad.aot_function(torch.sin, type("Mine", (aotgrad.backends.Backend,), {}))


@error_case
def number_for_a_backend():
    """Neither a backend, nor its name, nor a compile function."""
    aotgrad.DynamoBackend(5)


@error_case
def backend_for_a_compiler():
    """A backend as the compiler of one graph."""
    aotgrad.backends.register("mine", fw_compiler=aotgrad.backends.Backend())


@error_case
def registered_function():
    """A compile function that is registered as a backend."""
    aotgrad.backends.register_backend(aotgrad.nop)


@error_case
def unknown_backend():
    """An unregistered backend."""
    aotgrad.backends.get("tpu")


@error_case
def compiler_is_no_function():
    """A registered backend must be callable."""
    aotgrad.backends.register("mine", fw_compiler="inductor")


@error_case
def user_error():
    """An error of the function itself passes through unchanged."""

    def broken(x):
        raise KeyError("temperature")

    aotgrad.aot_function(broken, aotgrad.nop)(torch.ones(3))


@error_case
def sparse_output_with_a_gradient():
    """A sparse result requires grad."""
    aotgrad.aot_function(lambda x: x.to_sparse(), aotgrad.nop)(torch.ones(2, requires_grad=True))


@error_case
def operation_on_a_sparse_tensor():
    """An operation has no kernel for a traced sparse tensor."""
    with warnings.catch_warnings():  # torch calls such tensors a prototype
        warnings.simplefilter("ignore")
        rows = torch.eye(2).to_sparse_csr()
    aotgrad.aot_function(lambda s, x: s @ x, aotgrad.nop)(rows, torch.ones(2, 2, requires_grad=True))


@error_case
def nested_tensor():
    """An argument is a nested tensor of the strided layout."""
    with warnings.catch_warnings():  # torch calls such tensors a prototype
        warnings.simplefilter("ignore")
        rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    aotgrad.aot_function(lambda x: x * 2, aotgrad.nop)(rows)


@error_case
def views_of_one_wrapper():
    """Two outputs are a tensor subclass that wraps others, and a view of it that is told to require grad."""
    x = TwoTensor(torch.ones(3), torch.ones(3))
    aotgrad.aot_function(lambda x: (y := x * 2, y.view(3, 1).requires_grad_()), aotgrad.nop)(x)


@error_case
def subclass_without_parts():
    """An argument has rules of its own for ops, and does not say what it consists of."""
    aotgrad.aot_function(lambda x: x * 2, aotgrad.nop)(LoggingTensor(torch.ones(3)))


@error_case
def resized_wrapper():
    """A function transposes a tensor subclass that wraps others in place."""
    aotgrad.aot_function(lambda x: x.t_() * 2, aotgrad.nop)(TwoTensor(torch.ones(2, 3), torch.ones(2, 3)))


@error_case
def assigned_part_of_a_wrapper():
    """A function assigns a part of a tensor subclass that wraps others."""

    def assign(x):
        x.b = x.b * 2
        return x + 1

    aotgrad.aot_function(assign, aotgrad.nop)(TwoTensor(torch.ones(2), torch.ones(2)))


@error_case
def context_that_cannot_be_hashed():
    """A tensor subclass has a context that can neither be hashed nor copied."""

    class Unique(set):
        def __reduce_ex__(self, protocol):
            raise TypeError("there is only one")

    class Tagged(TwoTensor):
        def __tensor_flatten__(self):
            return ["a", "b"], Unique()

    aotgrad.aot_function(lambda x: x * 2, aotgrad.nop)(Tagged(torch.ones(3), torch.ones(3)))


@error_case
def effect_and_a_gradient_of_another_form():
    """A function draws from a generator, and its result gets a gradient that is no tensor subclass."""

    def function(x, generator):
        return torch.rand(3, generator=generator) * x

    x = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_()
    aotgrad.aot_function(function, aotgrad.nop)(x, torch.Generator()).backward(torch.ones(3))


@error_case
def ragged_size_as_a_result():
    """A function returns the shape of a nested tensor."""
    x = torch.nested.nested_tensor_from_jagged(torch.ones(5, 2), torch.tensor([0, 2, 5]))
    aotgrad.aot_function(lambda x: (x * 2).shape, aotgrad.nop)(x)


@error_case
def transformed_gradient_of_a_wrapper():
    """The gradient of a result that is a tensor subclass is a tensor that `torch.func.grad` differentiates."""
    x = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_()
    y = aotgrad.aot_function(lambda x: x * x, aotgrad.nop)(x)
    torch.func.grad(lambda gradient: torch.autograd.grad(y, x, gradient)[0].sum())(torch.ones_like(y))


@error_case
def differentiable_rows():
    """An argument is a sparse tensor in rows that requires grad."""
    with warnings.catch_warnings():  # torch calls such tensors a prototype
        warnings.simplefilter("ignore")
        rows = torch.eye(2).to_sparse_csr().requires_grad_()
    aotgrad.aot_function(lambda x: x * 2, aotgrad.nop)(rows)


@error_case
def number_for_a_flat_module():
    """A module that takes flat tensors gets a number."""
    aotgrad.aot_module_simplified(nn.Identity(), [3], aotgrad.nop)


@error_case
def flat_module_that_returns_a_tensor():
    """A module that must return a flat list returns a tensor."""
    aotgrad.aot_module_simplified(nn.Identity(), [torch.ones(3)], aotgrad.nop)


@error_case
def hook_that_uses_an_intermediate():
    """A hook on an input uses a tensor of the function."""

    def function(x):
        y = x.sin()
        x.register_hook(lambda gradient: gradient * y.detach())
        return y

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def hook_on_a_view_in_between():
    """A returned view is a view of another one, which is hooked and not returned: the plan bypasses the second."""

    def function(x):
        transposed = x.t()
        transposed.register_hook(lambda gradient: gradient * 2)
        return transposed[0]

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(2, 3, requires_grad=True))


@error_case
def hook_on_a_changed_input():
    """An input is hooked and changed in place."""

    def function(x):
        x.register_hook(lambda gradient: gradient * 2)
        x.mul_(2)

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, requires_grad=True) * 1)


@error_case
def address_of_a_tensor():
    """A function reads the address of a tensor."""
    aotgrad.aot_function(lambda x: x * (x.data_ptr() % 16), aotgrad.nop)(torch.ones(2))


@error_case
def unfolded_view_changed():
    """A view with overlapping elements is mutated."""
    aotgrad.aot_function(lambda x: x.unfold(0, 2, 1).add_(1), aotgrad.nop)(torch.ones(4))


@error_case
def dtype_view_at_an_odd_place():
    """A tensor cannot be viewed as a larger dtype from its second element on."""
    aotgrad.aot_function(lambda x: (x * 2)[1:].view(torch.float64), aotgrad.nop)(torch.ones(4))


@error_case
def dtype_view_with_gaps():
    """A tensor whose rows are not dense cannot be viewed as a smaller dtype."""
    aotgrad.aot_function(lambda x: x.t().view(torch.int16), aotgrad.nop)(torch.ones(2, 2))


@error_case
def piece_that_grows():
    """A piece of an input is resized beyond its storage."""
    aotgrad.aot_function(lambda x: x[1:3].resize_(9), aotgrad.nop)(torch.ones(4))


@error_case
def backward_that_cannot_be_traced():
    """The backward of a custom function raises while it is traced."""

    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("not on fake tensors")

    aotgrad.aot_function(Checked.apply, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def generator_of_its_own():
    """A function draws from a generator that it creates."""
    aotgrad.aot_function(lambda x: x * torch.rand(3, generator=torch.Generator()), aotgrad.nop)(torch.ones(3))


@error_case
def functional_draw_on_a_cpu():
    """With `functionalize_rng`, a random op draws on a CPU."""
    options = {"functionalize_rng": True}
    aotgrad.aot_function(lambda x: x * torch.rand_like(x), aotgrad.nop, options=options)(torch.ones(3))


@error_case
def seeded_generator():
    """A function seeds a generator that is an argument."""

    def function(x, generator):
        return x * torch.rand(3, generator=generator.manual_seed(0))

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3), torch.Generator())


@error_case
def partly_hidden_reshape():
    """An input is reshaped in place twice, and autograd sees it once."""

    def function(x):
        x.unsqueeze_(0)
        with torch.no_grad():
            x.unsqueeze_(0)
        return x * 2

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3, requires_grad=True) * 1)


@error_case
def number_that_inductor_has_to_know():
    """An op takes no tensor in place of a data-dependent number."""

    class Padded(torch.nn.Module):
        def forward(self, x):
            return (torch.constant_pad_nd(x.sin(), (1, 1), x.sum().item()) * 2,)

    dynamo.inductor(torch.fx.symbolic_trace(Padded()), [torch.ones(3)], {"cache": False})


@error_case
def communication_in_place():
    """A collective fills its argument in the background."""

    def function(x):
        y = x * 2
        dist.all_reduce(y)
        return y

    with fake_processes(2):
        aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3))


@error_case
def data_parallel_module_inside():
    """The part that is sharded communicates before and after its forward."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with fake_processes(1):
        fully_shard(model[0])
        aotgrad.aot_module(model, aotgrad.nop)(torch.ones(3, 4))


@error_case
def island_that_returns_an_array_of_its_argument():
    """A function that is not traced returns the memory of its argument, and autograd does not know."""
    same = aotgrad.island(lambda x: torch.from_numpy(x.numpy()))
    aotgrad.aot_function(lambda x: same(x.cos()), aotgrad.nop)(torch.ones(3, 2))


@error_case
def island_that_returns_an_argument_with_another_gradient():
    """A function that is not traced returns its argument through an autograd function, which a view would not repeat."""

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    same = aotgrad.island(Same.apply)
    aotgrad.aot_function(lambda x: same(x.cos()), aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def island_that_changes_shared_memory():
    """A function that is not traced changes an argument, and another argument is a view of the same memory."""
    add = aotgrad.island(lambda x, row: x.add_(row))
    aotgrad.aot_function(lambda x: add(x, x[0]), aotgrad.nop)(torch.ones(3, 2))


@error_case
def island_that_reshapes_an_argument():
    """A function that is not traced changes the size of an argument in place."""
    flat = aotgrad.island(lambda x: x.unsqueeze_(0).sum())
    aotgrad.aot_function(lambda x: flat(x.cos()), aotgrad.nop)(torch.ones(3))


@error_case
def island_that_changes_a_tensor_with_a_gradient():
    """A function that is not traced adds what has a gradient to a tensor that is no argument."""
    total = torch.zeros(3)
    add_up = aotgrad.island(lambda x: total.add_(x) * 2)
    aotgrad.aot_function(lambda x: add_up(x.cos()), aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def island_that_changes_what_the_function_uses():
    """A function that is not traced changes a tensor that is no argument, and the function around it reads this tensor."""
    total = torch.zeros(3)
    add_up = aotgrad.island(lambda x: total.add_(x.detach()) * 2)
    aotgrad.aot_function(lambda x: add_up(x.cos()) + total.sin() * x, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def island_that_reads_a_changed_argument():
    """A function that is not traced reads a tensor that is no argument, after the function around it has changed it."""
    total = torch.zeros(3)
    scaled = aotgrad.island(lambda x: x * total)
    aotgrad.aot_function(lambda x, y: (y.add_(1), scaled(x)), aotgrad.nop)(torch.ones(3), total)


@error_case
def island_whose_kept_result_is_changed():
    """A function that is not traced returns a tensor that it keeps, and the function around it changes this tensor."""
    kept = torch.zeros(3)
    get = aotgrad.island(lambda x: kept)
    aotgrad.aot_function(lambda x: get(x).add_(1) * x, aotgrad.nop)(torch.ones(3))


@error_case
def island_that_changes_its_earlier_result():
    """A function that is not traced returns a tensor that it keeps, and changes it when it is called again."""
    mean = torch.zeros(3)
    average = aotgrad.island(lambda x: mean.lerp_(x, 0.1))
    aotgrad.aot_function(lambda x: x - average(x) - average(x.cos()), aotgrad.nop)(torch.ones(3))


@error_case
def island_that_calls_backward():
    """A function that is not traced calls backward(), and its arguments stand for those of the caller."""
    step = aotgrad.island(lambda x: (x.sum().backward(), x.sin())[1])
    aotgrad.aot_function(lambda x: step(x.cos()), aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def island_that_draws_in_a_checkpoint():
    """A function that is not traced draws random numbers, which a checkpoint draws again in the backward."""
    noisy = aotgrad.island(lambda x: x * torch.rand_like(x))
    noise = functools.partial(torch.utils.checkpoint.checkpoint, lambda y: noisy(y).sin(), use_reentrant=False)
    aotgrad.aot_function(noise, aotgrad.nop)(torch.ones(3, requires_grad=True))


@error_case
def island_that_changes_an_argument_later():
    """A function that is not traced changes an argument in a later call only."""
    calls = []

    @aotgrad.island
    def count(x):
        calls.append(1)
        return x.add_(1) * 2 if len(calls) > 1 else x * 2

    compiled = aotgrad.aot_function(lambda x: count(x.cos()), aotgrad.nop)
    compiled(torch.ones(3))
    compiled(torch.ones(3))


@error_case
def island_that_assigns_a_buffer():
    """A function that is not traced assigns a buffer of a module that it gets."""
    model = torch.nn.BatchNorm1d(3)
    reset = aotgrad.island(lambda model, x: (setattr(model, "running_mean", x.mean(0)), x * 2)[1])
    aotgrad.aot_function(lambda x: reset(model, x.cos()), aotgrad.nop)(torch.ones(4, 3))


@error_case
def island_that_returns_a_number():
    """A function that is not traced returns a Python value, which a graph would keep as it is."""
    mean = aotgrad.island(lambda x: x.mean().item())
    aotgrad.aot_function(lambda x: x * mean(x), aotgrad.nop)(torch.ones(3))


@error_case
def island_with_a_closed_over_parameter():
    """A function that is not traced computes with a tensor that requires grad, and would give it no gradient."""
    weight = torch.ones(3, requires_grad=True)
    scaled = aotgrad.island(lambda x: x * weight)
    aotgrad.aot_function(lambda x: scaled(x.cos()), aotgrad.nop)(torch.ones(3))


@error_case
def island_whose_results_change():
    """The size of a result depends on the values of the argument."""
    positive = aotgrad.island(lambda x: x[x > 0])
    compiled = aotgrad.aot_function(lambda x: positive(x.cos()), aotgrad.nop)
    compiled(torch.ones(3))
    compiled(torch.arange(3.0))


@error_case
def island_with_a_fake_of_another_size():
    """The fake of a function tells other sizes than the function returns."""
    doubled = aotgrad.island(fake=torch.empty_like)(lambda x: torch.cat([x, x]))
    aotgrad.aot_function(lambda x: doubled(x.cos()), aotgrad.nop, dynamic=True)(torch.ones(3))


@error_case
def island_with_a_fake_of_another_pytree():
    """The fake of a function returns two tensors, and the function one."""
    doubled = aotgrad.island(fake=lambda x: (x, x))(lambda x: x * 2)
    aotgrad.aot_function(lambda x: doubled(x.cos()), aotgrad.nop, dynamic=True)(torch.ones(3))


@error_case
def island_with_a_fake_that_raises():
    """The fake of a function does not run on fake tensors."""
    copied = aotgrad.island(fake=lambda x: torch.from_numpy(x.numpy()))(lambda x: x.clone())
    aotgrad.aot_function(lambda x: copied(x.cos()), aotgrad.nop, dynamic=True)(torch.ones(3))


@error_case
def island_with_a_fake_that_is_wrong_later():
    """The fake of a function tells the right size of a result, but not for every size."""
    short = aotgrad.island(fake=torch.empty_like)(lambda x: x[:6] * 2)
    compiled = aotgrad.aot_function(lambda x: short(x.cos()), aotgrad.nop, dynamic=True)
    compiled(torch.ones(3))
    compiled(torch.ones(7))


@error_case
def island_behind_a_hook_that_copies():
    """A saved-tensor hook stores a copy of what the backward needs."""
    exponential = aotgrad.island(torch.exp)
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda value: value):
        y = aotgrad.aot_function(lambda x: exponential(x.cos()), aotgrad.nop)(x)
    y.sum().backward()


@error_case
def stopped_between_two_writes():
    """A checkpoint repeats a call up to its last saved tensor, and the call writes a buffer before and after it."""

    @functools.partial(aotgrad.aot_function, fw_compiler=aotgrad.nop)
    def function(x, count):
        count.add_(1)
        y = x.sin().exp()
        count.add_(1)
        return y

    x, count = torch.ones(3, requires_grad=True), torch.zeros(3)
    torch.utils.checkpoint.checkpoint(lambda x: function(x, count), x, use_reentrant=False).sum().backward()


@error_case
def island_in_an_export():
    """A graph that is exported runs without the function."""
    exponential = aotgrad.island(lambda x: x.exp())
    aotgrad.export_joint(lambda x: exponential(x.cos()), (torch.ones(3, requires_grad=True),))


@error_case
def island_with_a_module_of_subclasses():
    """A function that is not traced gets a module that has a parameter which consists of others."""
    layer = torch.nn.Linear(3, 3)
    layer.weight = torch.nn.Parameter(TwoTensor(torch.ones(3, 3), torch.ones(3, 3)))
    call = aotgrad.island(lambda layer, x: layer(x))
    aotgrad.aot_function(lambda x: call(layer, x.cos()), aotgrad.nop)(torch.ones(3))


@error_case
def island_that_changes_a_subclass():
    """A function that is not traced changes a tensor that consists of others."""
    add = aotgrad.island(lambda x: x.add_(1))
    pair = TwoTensor(torch.ones(3), torch.ones(3))
    aotgrad.aot_function(lambda x: add(x.cos()), aotgrad.nop)(pair)


@error_case
def gradient_through_a_changed_argument_of_an_island():
    """An argument of a function that is not traced is changed in place after the call."""
    exponential = aotgrad.island(lambda x: x.exp())

    def function(x):
        z = x * 2
        y = exponential(z)
        z.add_(1)
        return y * z

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(aotgrad.aot_function(function, aotgrad.nop)(x).sum(), x, create_graph=True)


@error_case
def gradient_of_a_gradient_past_a_hook():
    """A returned view of a tensor subclass has a hook, and a gradient of a gradient passes it."""
    x = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_()
    y, z = aotgrad.aot_function(lambda x: (y := x.view(3, 1), y.sin()), aotgrad.nop)(x)
    y.register_hook(lambda gradient: gradient * 2)
    torch.autograd.grad(z.sum(), x, create_graph=True)


@error_case
def island_with_a_tensor_of_the_function():
    """A function that is not traced closes over a traced tensor."""

    def function(x):
        y = x.sin()
        scaled = aotgrad.island(lambda z: z * y)
        return scaled(x)

    aotgrad.aot_function(function, aotgrad.nop)(torch.ones(3))
