"""Minimized programs that once differed from eager, under all comparisons of the fuzzer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.fuzz import compare
from tests.fuzz.compare import Difference, Rejection, check
from tests.fuzz.inductor import Stage
from tests.fuzz.program import Apply, Name, Program, Round
from tests.fuzz.ways import WAYS

PARTITIONERS = ("aotgrad.min_cut_rematerialization_partition", "aotgrad.default_partition")


def program(
    body: str,
    result: str,
    setup: str,
    *actions: str,
    call: str = "x",
    then: str = "",
    context: str = "",
    dynamic: bool = False,
) -> Callable[[str], Program]:
    """A function of `p0`, `p1`, ..., called with the tensors `call` of `setup`, and once more after `then`."""
    arguments = tuple(call.split(", "))
    rounds = [Round(lines(each), arguments, context, lines(*actions)) for each in (setup, then) if each]
    parameters = tuple(f"p{k}" for k in range(len(arguments)))
    options = f"aotgrad.nop, dynamic={dynamic}"
    return lambda partition: Program(
        parameters, lines(body), Name(result), f"{options}, partition_fn={partition}", tuple(rounds)
    )


def lines(*texts: str) -> tuple[Apply, ...]:
    """Statements, one a line; an indented line belongs to the one before."""
    found: list[str] = []
    for line in (line for text in texts for line in text.strip("\n").splitlines()):
        if line.startswith(" "):
            found[-1] += "\n" + line
        else:
            found.append(line)
    return tuple(Apply("", text.replace("{", "{{").replace("}", "}}"), ()) for text in found)


COMPLEX = "y = tensor(2, 3, dtype=torch.complex64)"
LEAF = "x = tensor(2, 3, requires_grad=True)"
DATA = "x = tensor(2, 3)"
HIDDEN_VIEW = "w = tensor(2, 3, requires_grad=True) * 1\nwith torch.no_grad():\n    x = w.view(6)"

ALIKE = {
    "a transposed view laid out as it was after a write": program(
        "v = p0.clone().movedim(0, -1)\nv.masked_fill_(v > 0, 2)", "v, v.mul(2)", DATA
    ),
    "a running sum in place keeps the layout": program("v = p0.clone().t()\nv.cumsum_(0)\nw = v + 1", "v, w", DATA),
    "a product of matrices is no view": program("v = p0.matmul(p0)", "v, v.diagonal()", "x = tensor(1, 2, 2)"),
    "a product with a vector": program("v = p0.matmul(p0[0])", "v", LEAF, "backward(o0)"),
    "a piece of what was selected by index": program(
        "v, = p0.index_select(1, torch.tensor([0])).unbind(-1)", "p0, v", f"{LEAF} * 1", "o1.zero_()"
    ),
    "a write to windows that overlap": program(
        "v = p0.clone().unfold(0, 2, 1)", "v, v", "x = tensor(4, requires_grad=True)", "o1.copy_(o1)", "backward(o1)"
    ),
    "a view as the input came to be": program("v = p0[None]\np0.unsqueeze_(0)", "v", "x = tensor()"),
    "sizes of which one guard is an or": program(
        "v, w = p0.tensor_split(2)\nv.transpose_(0, -1)",
        "w",
        "x = tensor(2, 2, dtype=torch.int64)",
        then="x = tensor(3, 2, dtype=torch.int64)",
        context="torch.no_grad()",
        dynamic=True,
    ),
    "memory that is not aligned": program(
        "v = torch.view_as_complex(p0)", "p0.clone()", "x = tensor(2, 2)", then="x = tensor(5)[1:].view(2, 2)"
    ),
    "complex numbers in a part of a real tensor that no view of all of it has": program(
        "v = p0.clone()", "v", "x = torch.view_as_complex(tensor(3).as_strided((2,), (1,), 0).reshape(-1))"
    ),
    "a gradient of the gradient that needs the size of what was changed": program(
        "v = p0[torch.tensor([0, 0])].clone()\nw = p0.reshape(p0.shape)",
        "v, w",
        "x = tensor(3, requires_grad=True)",
        "with torch.no_grad():\n    o1.add_(x)",
        "g, = gradients([o0], [x], retain_graph=True, create_graph=True)",
        dynamic=True,
    ),
    "a view of a leaf that is transposed where autograd does not see it": program(
        "v = p0.view(2, 2)\nwith torch.no_grad():\n    v.t_()\nw = v.clone()",
        "w",
        "x = tensor(2, 2, requires_grad=True)",
        "backward(o0)",
    ),
    "a transposed input of symbolic size keeps its layout": program(
        "p0.masked_fill_(p0 > 0, 2)", "p0.clone()", "y = tensor(3, 2)\nx = y.t()", dynamic=True
    ),
    "a view laid out as another argument": program(
        "v = p1.zero_().conj()",
        "v",
        "x = tensor(dtype=torch.complex64)\ny = x.conj()\nw = x.view_as(x)",
        "o0.unsqueeze_(0)",
        call="y, w",
    ),
    "a copy of complex numbers between an indexed write and another one": program(
        "p0.index_fill_(0, torch.tensor([0]), 2)\nv = p0.clone()\np0.add_(1)", "v", "x = tensor(4, dtype=torch.complex64)"
    ),
    "an op that has no kernel for whole numbers": program(
        "v, w = p0.tensor_split(2)\nw.lerp_(v, 0.5)", "v", "x = tensor(4, dtype=torch.int64)"
    ),
    "a complex number added to a real one": program("p0.add_(p1)", "p0", f"{DATA}\n{COMPLEX}", call="x, y"),
    "a complex product added to a real one": program("p0.addcmul_(p1, p1)", "p0", f"{DATA}\n{COMPLEX}", call="x, y"),
    "an argument that a backward which raises does not lead to": program(
        "p1.addcmul_(p1, p1)",
        "p1",
        "w = tensor(2, requires_grad=True)\nx = w * 1\ny = tensor(2, requires_grad=True) * 1",
        "a, = gradients([o0, x], [x], create_graph=True)",
        call="x, y",
    ),
    "no gradient of the second order, since none of the first": program(
        "with torch.no_grad():\n    v = p0.view(6)\nw = v.clone()", "w", LEAF, "backward(o0, create_graph=True)"
    ),
    "a piece that may not be changed": program(
        "p0[p0 > 1] = 0", "p1", "y = tensor(2, 0, requires_grad=True) * 1\nx = y.split_with_sizes([1, 1])[1]", call="x, y"
    ),
    "a view of a leaf that may not be changed": program(
        "with torch.no_grad():\n    p0.unbind()[0].mul_(2)\np0.swapdims_(0, -1)",
        "p0",
        "w = tensor(8, requires_grad=True)\nx = w.squeeze()",
    ),
    "a lazily conjugated result that is saved too": program(
        "v = p0.tanh().conj()", "v", "x = tensor(2, dtype=torch.complex64, requires_grad=True)", "backward(o0)"
    ),
    "a saved result of a write beside a value that it overwrote": program(
        "v = p1.square()\np0.relu_()\nw = v.clone()", "w", f"{LEAF} * 1", "backward(x)", call="x, x"
    ),
    "a product of two dtypes that nobody uses": program(
        "p0.matmul(p0.abs())", "p0", "x = tensor(2, 2, dtype=torch.complex64)"
    ),
    "a write to what others show expanded": program(
        "p0.fill_(3)", "p1.clone()", "x = tensor()\ny = x.expand(2)", call="x, y", dynamic=True
    ),
    "transposed with grad mode on in a call without": program(
        "with torch.enable_grad():\n    p0.t_()",
        "p0.clone()",
        "x = tensor(3, 3, requires_grad=True) * 1\ntorch.set_grad_enabled(False)",
        "torch.set_grad_enabled(True)",
        "backward(x)",
    ),
    "a changed alias by data": program("v = p0.data.add_(1)", "v", DATA),
    "an argument that is transposed and then changed, whose new data the caller changes by data": program(
        "p0.transpose_(0, -1)\np0.tanh_()",
        "p0",
        "w = tensor(2, 2, dtype=torch.float64, requires_grad=True)\nx = w.clone()",
        "o0.data.add_(1)",
        "backward(x)",
    ),
    "a view that the caller transposes": program(
        "v = p0.clone()[...]",
        "v",
        "x = tensor(3, 3, requires_grad=True)",
        "with torch.no_grad():\n    o0.t_()",
        "backward(o0)",
    ),
    "a saved view of an input that is returned too": program(
        "v = p1.as_strided((2,), (1,)).abs().clone()",
        "p0, v",
        "x = tensor(3, 3, requires_grad=True)",
        "with torch.no_grad():\n    x.unsqueeze_(0)",
        "backward(o1)",
        call="x, x",
    ),
    "squeezed in place, and differentiated twice": program(
        "p0.squeeze_()",
        "p0.clone(), p1.clone()",
        "x = tensor()\ny = tensor(requires_grad=True)",
        "backward(o1, create_graph=True)",
        call="x, y",
    ),
    "an alias by data of a view, changed, beside another view": program(
        "v = p0.clone()\nw = v.squeeze(0)\nu = v.view(-1).data.add_(1)", "w, u", "x = tensor(1, 3)"
    ),
    "a saved input with a history that is returned too": program(
        "v = torch.complex(p0, p0)",
        "p0, v",
        "x = tensor(2, 3, requires_grad=True).t()",
        "with torch.no_grad():\n    o0.add_(1)",
        "backward(o1)",
    ),
    "a view that is unsqueezed in place, then written to": program(
        "v = p0.diagonal()\nv.unsqueeze_(0)\nw = v[0].mul_(2)",
        "v",
        "x = tensor(3, 3, requires_grad=True) * 1",
        "backward(x)",
    ),
    "a saved value of a node that leads to no input": program(
        "with torch.no_grad():\n    v = p0[0]\nw = v.tanh()",
        "w",
        "x = tensor(1, 3, requires_grad=True)",
        "o0.neg_()",
        "backward(o0)",
    ),
    "an input of a node that leads to no input": program(
        "with torch.no_grad():\n    v = p0.view_as(p0).split(4)[1]\nw = v.amax()",
        "p0, w",
        "x = tensor(8, requires_grad=True) * 1",
        "x.copy_(x)",
        "backward(o1)",
    ),
    "an alias of a tensor that was unsqueezed since": program(
        "v = p0.clone()\nw = v.detach()\nv.relu_()\nv.unsqueeze_(0)", "w, v", "x = tensor(3)"
    ),
    "a view as its base has come to lie": program("v = p0.clone()\nw = v.t()\nv.t_()", "w, v", "x = tensor()"),
    "the real part of a tensor, transposed in place": program(
        "p0.swapdims_(0, -1)",
        "p0.clone()",
        "x = tensor(2, 3, dtype=torch.complex64, requires_grad=True).clone().real",
        "backward(x)",
    ),
    "a changed piece that a second gradient does not need": program(
        "v = p0 * p0\nw = p1.relu() * v.sum()",
        "v, w",
        "x = tensor(4, requires_grad=True)\ny = (tensor(4, requires_grad=True) * 1).chunk(2)[0]",
        "with torch.no_grad():\n    y.mul_(2)",
        "backward(o0, create_graph=True)",
        call="x, y",
    ),
    "a saved part of an input's new value that the caller changes": program(
        "p0[0].relu_()", "p0", f"{LEAF} * 1", "o0.mul_(2)", "backward(o0)"
    ),
    "a saved new value of an input that was squeezed": program(
        "p0.squeeze_()\np0.relu_()", "p0.conj()", "x = tensor(2, 1, requires_grad=True) * 1", "o0.copy_(o0)", "backward(o0)"
    ),
    "a condition on the new value of an input, for the old one": program(
        "v = p1.cumsum(0)\np0.masked_fill_(p0 > 0, 2)",
        "torch.where(p0 > 0, p0, v)",
        "x = tensor(4, requires_grad=True) * 1",
        "backward(o0)",
        call="x, x",
    ),
    "a new value of an input that eager copies before it saves it": program(
        "p0.mul_(2)\nv = p0.clone()\nu = p1 * v",
        "u",
        f"{DATA}\ny = tensor(2, 3, requires_grad=True)",
        "x.mul_(2)",
        "backward(o0)",
        call="x, y",
    ),
    "an index into an empty tensor after a change": program(
        "p0.t_()\nv = p0.index_select(0, torch.tensor([0])).clone()", "p0", "x = tensor(2, 0)"
    ),
    "a maximum over nothing after a change": program("p0.add_(1)\nv = p0.max(0).values", "p0", "x = tensor(0, 2)"),
    "a product of unknown sizes is no view": program(
        "v = p0.matmul(p0)\nw = v.squeeze()", "w, v", "x = tensor(2, 2, 2, dtype=torch.int64)", dynamic=True
    ),
    "a view from between a change of the size and a write": program(
        "p0.unsqueeze_(0)\nv = p0[:, 0]\np0.div_(2)",
        "v",
        "w = tensor(2, 3, requires_grad=True)\ny = w.clone()\nx = y.squeeze(-1)",
        "backward(o0)",
    ),
    "a piece of a detached alias of a result that is transposed then": program(
        "v = p0.clone()\nu = v.detach()[0]\nv.swapdims_(0, -1)", "v, u", "x = tensor(2)"
    ),
    "a view of a view of a leaf that is laid out anew": program(
        "v = p0[1:]\nv.as_strided_((2,), (1,))", "v.clone()", "w = tensor(4, requires_grad=True)\nx = w.t()"
    ),
    "a detached alias that is transposed, and a view of it": program("v = p0.detach()\nv.t_()", "v[:1], v, v.mT", LEAF),
    "integers in the same memory that are transposed, and a view of them": program(
        "v = p0.view(torch.int32)\nv.transpose_(0, -1)", "v[:1], v", DATA
    ),
    "memory that is not aligned, after a change": program(
        "p0.relu_()\nv = torch.view_as_complex(p0)", "p0", "x = tensor(5)[1:3]", then="x = tensor(6)[2:4]"
    ),
    "a list of which one result is used": program(
        "v = torch._foreach_add([p0, p1], 1)[1]",
        "v.clone()",
        "w = tensor(requires_grad=True)\nx = w.clone()\ny = tensor()",
        "backward(o0)",
        call="x, y",
    ),
    "second gradients of what integers lie in": program(
        "v = p0.clone()\nu = v.clone()\nt = v.as_strided(v.shape, v.stride())\ni = t.view(torch.int32)",
        "i, u, t",
        "w = tensor(requires_grad=True)\nx = w.clone()",
        "backward(o1, create_graph=True)",
    ),
    "a view of the product of a vector and a matrix": program(
        "v = p0.matmul(p1)[-1]", "v", "x = tensor(3)\ny = tensor(3, 2)", call="x, y", dynamic=True
    ),
    "an error after a change": program("p0.add_(1)\np0.split(1)", "p0", "x = tensor()"),
    "an error of another class while tracing": program("p0.t().view(-1)", "p0", DATA),
    "the gradient of a piece that is laid out anew, of an input that is a view": program(
        "v = p0.diagonal()\nv.as_strided_((2,), (1,))",
        "v.clone()",
        "w = tensor(10, requires_grad=True)\ny = w.clone()\nx = y[1:].view(3, 3)",
        "backward(o0)",
    ),
    "what needs no gradient of a part overwritten since": program(
        "v = p0.detach() * 2\nu = v * p0\nv.add_(1)", "u, p0 * 2", f"{LEAF} * 1", "backward(o1)", "backward(o0)"
    ),
    "one of two views of a hidden tensor that is transposed and written to, and the other one's gradient": program(
        "p1.transpose_(0, -1)\np1.mul_(p0.sum())",
        "p0",
        "w = tensor(3, 2, requires_grad=True)\nz = w * 1\ny = z[1:]\nx = z[:2]",
        "backward(x)",
        call="x, y",
    ),
    "a view that is unsqueezed and written to in part, and its base": program(
        "p0.unsqueeze_(0)\np0[0] = 3",
        "p1 * p1",
        "w = tensor(3, 2, requires_grad=True)\ny = w * 1\nx = y[0]",
        "backward(o0)",
        call="x, y",
    ),
    "a saved new value in memory of another dtype that the caller changes": program(
        "p0.tanh_()",
        "p1",
        "w = tensor(3, 2, dtype=torch.complex64, requires_grad=True)\ny = w * 1\nx = y.real",
        "o0.mul_(2)",
        "backward(o0)",
        call="x, y",
    ),
    "a part of a tensor, put into it by index": program(
        "p0[torch.tensor([0])] = p0[:1]", "p0", "x = tensor(3)", then="x = tensor(4)", dynamic=True
    ),
    "a tensor with gaps, put into itself by index": program("p0[torch.tensor([0, 1, 2])] = p0", "p0", "x = tensor(6)[::2]"),
    "a result written to a part of what it is computed from": program(
        "torch.sin(p0[1:], out=p0[:-1])", "p0", "x = tensor(3)"
    ),
    "a concatenation written to one of its parts": program("torch.cat([p0[1:], p0[:1]], out=p0)", "p0", "x = tensor(3)"),
    "zeros without memory beside what is changed": program(
        "p0.add_(1)",
        "p0 * p1",
        "x = tensor(3)\ny = torch._efficientzerotensor(3)",
        call="x, y",
        then="x = tensor(3)\ny = torch._efficientzerotensor(3)",
    ),
    "a value saved of a view of a leaf, in a call under no_grad": program(
        "v = p0.view_as(p0)\nwith torch.enable_grad():\n    w = torch.stack([v, v])\n    w.mul_(w)",
        "w",
        "x = tensor(3, requires_grad=True)",
        "backward(o0)",
        context="torch.no_grad()",
    ),
}


@pytest.mark.parametrize("partition", PARTITIONERS, ids=("min_cut", "default"))
@pytest.mark.parametrize("name", ALIKE)
def test_alike(name: str, partition: str) -> None:
    assert check(ALIKE[name](partition)) == []


REFUSED = {
    "a view of an input that loses a dimension": (
        program("v = p0.mT\np0.as_strided_((2,), (1,))", "v", "w = tensor(2, 2, requires_grad=True)\nx = w.clone()"),
        "UnsupportedAliasingError",
    ),
    "a gradient of the gradient of an input of which a backward cannot run": (
        program(
            "v = p0.clone()\np0.relu_()\np0.add_(1)",
            "v",
            "w = tensor(requires_grad=True)\nx = w.clone()",
            "backward(o0, create_graph=True)",
        ),
        "HigherOrderError",
    ),
    "a gradient of the gradient from a copy of what was overwritten": (
        program(
            "p1.data.add_(1)\nv, w = p0.chunk(2, -1)\nz = (v * v).clone()",
            "z",
            "w = tensor(2, requires_grad=True)\nx = w.clone()",
            "g, = gradients([o0], [w], retain_graph=True, create_graph=True)",
            call="x, x",
        ),
        "HigherOrderError",
    ),
    "elements that a written input no longer shows": (
        program("p0.mul_(2)\np0.as_strided_((2,), (1,))", "p0", DATA),
        "UnsupportedMutationError",
    ),
    "a smaller size of a written input": (program("p0.mul_(2)\np0.resize_(2)", "p0", DATA), "UnsupportedMutationError"),
    "a view of a changed input that was made under no_grad": (
        program("v = p0.view(2, 3)\nwith torch.no_grad():\n    p0.neg_()", "v", HIDDEN_VIEW),
        "UnsupportedMutationError",
    ),
    "a piece whose size is changed": (
        program(
            "v = p0.transpose(0, -1)\nw = v.clone()\nwith torch.no_grad():\n    v.transpose_(0, -1)",
            "w",
            "x = (tensor(2, requires_grad=True) * 1).split(1)[0]",
        ),
        "UnsupportedMutationError",
    ),
    "a change of the size of an input whose memory is written to": (
        program("p1.transpose_(0, -1)\np0.mul_(2)", "p0", f"{LEAF} * 1\ny = x.detach()", "backward(x)", call="y, x"),
        "UnsupportedMutationError",
    ),
    "an owner of shared memory that is transposed and written to": (
        program(
            "p0.swapdims_(0, -1)\np0.clamp_(min=-1)",
            "p1",
            "x = tensor(2, 2, requires_grad=True) * 1\ny = x.unsqueeze(-1).detach()[0]",
            "backward(x)",
            call="x, y",
        ),
        "UnsupportedMutationError",
    ),
    "an input that is changed, and then unsqueezed where autograd does not see it": (
        program(
            "p0.exp_()\nv = p0.view_as(p0)\nwith torch.no_grad():\n    p0.unsqueeze_(0)",
            "v",
            "w = tensor(4, requires_grad=True)\nx = w * 1",
            "g, = gradients([o0, x], [x], retain_graph=True, create_graph=False)",
        ),
        "UnsupportedMutationError",
    ),
    "a value without gradient that overwrites what its own gradient needs": (
        program("v = p0.detach() * 2\nv.addcmul_(p0 * 1, v)", "v", f"{LEAF} * 1", "backward(x)"),
        "CaptureError",
    ),
    "a conjugated view that is written to and transposed": (
        program(
            "p0.mul_(2)\np0.transpose_(0, -1)",
            "p0",
            "w = tensor(3, 2, dtype=torch.complex64, requires_grad=True)\ny = w * 1\nx = y.conj()",
            "backward(y)",
        ),
        "UnsupportedMutationError",
    ),
    "a backward whose sizes do not fit": (
        program("p0.index_add_(0, torch.tensor([0]), p0[0, :1] * 1)", "p0", "x = tensor(3, 2, requires_grad=True) * 1"),
        "CaptureError",
    ),
    "a view that is changed, and then transposed where autograd does not see it": (
        program(
            "p0.masked_fill_(p0 > 0, 2)\nwith torch.no_grad():\n    p0.swapdims_(0, -1)",
            "p0",
            "y = tensor(2, 2, requires_grad=True) * 1\nx = y.movedim(0, -1)",
            "backward(y)",
        ),
        "UnsupportedMutationError",
    ),
    "a view that is transposed where autograd does not see it, and its base that is changed": (
        program(
            "with torch.no_grad():\n    p0.swapdims_(0, -1)\np1.mul_(2)",
            "p0",
            "y = tensor(2, 2, requires_grad=True) * 1\nx = y.movedim(0, -1)",
            "backward(o0)",
            call="x, y",
        ),
        "UnsupportedMutationError",
    ),
    "shared memory that comes to require grad": (
        program("p2.sub_(p0.clone())", "p2", "y = tensor()\nx = y.view(())\nw = tensor(requires_grad=True)", call="w, y, x"),
        "UnsupportedMutationError",
    ),
    "transposed back where autograd does not see it": (
        program(
            "p0.transpose_(0, -1)\nwith torch.no_grad():\n    p0.transpose_(0, -1)",
            "p0",
            "x = tensor(2, 2, requires_grad=True) * 1",
            "backward(x)",
        ),
        "UnsupportedMutationError",
    ),
    "a conjugated view of a tensor that was transposed since": (
        program("v = torch.complex(p0, p0)\nw = v.unsqueeze(-1).conj()\nv.transpose_(0, -1)", "w", "x = tensor()"),
        "UnsupportedAliasingError",
    ),
    "an empty view that is laid out beyond the tensor": (
        program("v = p0[None][1:]\nv.as_strided_((2,), (1,))", "v", "x = tensor()"),
        "CaptureError",
    ),
    "a view beyond the tensor": (
        program("v = p0.as_strided((2,), (1,), 0)\nv.mul_(2)", "p0", "x = tensor(3)[0]"),
        "CaptureError",
    ),
    "a conjugate that is transposed in place under no_grad": (
        program(
            "v = p0.conj()\nwith torch.no_grad():\n    v.t_()",
            "v",
            "x = tensor(2, 2, dtype=torch.complex64, requires_grad=True)",
        ),
        "CaptureError",
    ),
    "a view of a tensor that was reshaped since, in the backward": (
        program("v = p0.matmul(p0.t())\np0.unsqueeze_(0)", "v", "x = tensor(3, 2, requires_grad=True) * 1"),
        "CaptureError",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """Refused with an error of ours, before any change."""
    build, kind = REFUSED[name]
    (rejection,) = check(build(PARTITIONERS[0]))
    assert isinstance(rejection, Rejection)
    assert rejection.kind == kind


IN_EVERY_WAY = {
    "a gradient of a gradient of a view whose base has a detached view, too": program(
        "v = p0.clone().view(2, -1)\nwith torch.no_grad():\n    w = v.detach()[0]",
        "w, v",
        "x = tensor(3, 2, requires_grad=True)",
        "backward(o1, create_graph=True)",
    ),
    "a gradient of a gradient after the input got a dimension": program(
        "v = p0.clone()", "v", "x = tensor(requires_grad=True) * 1", "x.unsqueeze_(0)\nbackward(o0, create_graph=True)"
    ),
    "a write to a part of a view with another dtype": program(
        "p0.mul_(2)\nv = p0.view(torch.int32)\nv.diagonal().fill_(1)", "v.clone()", "x = tensor(2, 2)"
    ),
    "two backwards of what saves nothing in eager": program(
        "v = p0.roll(1, 0)", "[v, v]", "x = tensor(2, requires_grad=True) * 1", "backward(o1)\nbackward(o0)"
    ),
    "empty tensors that share memory in one call only": program(
        "p0.mul_(2)",
        "p0",
        "y = tensor(2, 0)\nx = y.view(torch.int32)",
        call="x, y",
        then="y = tensor(2, 0)\nx = y.clone().view(torch.int32)",
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", IN_EVERY_WAY)
def test_alike_in_every_way(name: str, way: str) -> None:
    with Stage().directly():
        assert check(IN_EVERY_WAY[name](PARTITIONERS[1]), way) == []


OF_DYNAMO = {
    "a view made anew in the grad mode of the caller": ("with torch.no_grad():\n    v = p0.T", "v"),
    "the size of a tensor before it got a dimension": (
        "v = p0.clone()\nv.unsqueeze_(0)",
        "v.as_strided(v.shape, v.stride())",
    ),
    "a padded tensor without a history": (
        "with torch.no_grad():\n    v = torch.nn.functional.pad(p0, (1, 1))\nw = v.clone()\nv.fill_(3)",
        "w",
    ),
}


@pytest.mark.parametrize("case", OF_DYNAMO)
def test_a_difference_that_dynamo_makes_alone_is_not_reported(case: str, monkeypatch) -> None:
    """If Dynamo has mended one, remove it."""
    if case == "a view made anew in the grad mode of the caller" and torch.__version__ >= "2.15":
        pytest.skip("torch 2.15 has mended it")
    made = program(*OF_DYNAMO[case], "x = tensor(4, 2, requires_grad=True)")(PARTITIONERS[1])
    with Stage().directly():
        assert check(made, "dynamo") == []
        monkeypatch.setattr(compare, "is_dynamos_own", lambda *given: False)
        with pytest.raises(Difference):
            check(made, "dynamo")


def test_torchs_context_for_saved_values_loses_the_history_of_ops_on_lists() -> None:
    """Once torch is right, `check_right` can compare these programs, too."""

    def gradient() -> torch.Tensor:
        x = torch.ones(2, requires_grad=True)
        total = x.dot(x)
        view = total.view(())
        torch._foreach_mul_([total], 2)
        return torch.autograd.grad(view, x)[0]

    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        lost = gradient()
    assert torch.equal(lost * 2, gradient())
