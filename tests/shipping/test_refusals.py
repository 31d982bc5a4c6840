"""What cannot be saved, loaded or called is a clear error, and no file makes a process run what it should not."""

from __future__ import annotations

import collections
import hashlib
import json
import pickle
import zipfile
from typing import NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad.errors import NoPlanError, ShippingError

from .programs import make_step


def saved(tmp_path, function=lambda x, k: (x * k).sin(), *args):
    compiled = aotgrad.aot_function(function, "eager")
    compiled(*(args or (torch.ones(3, requires_grad=True), 2))).sum().backward()
    aotgrad.save(compiled, tmp_path / "plans")
    return tmp_path / "plans"


def changed(path, change):
    """Rewrite a file with its checksums, after `change(header, members)`."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    header = json.loads(members.pop("header.json"))
    change(header, members)
    header["members"] = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", json.dumps(header))
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_a_call_that_no_plan_fits_names_the_guard(tmp_path):
    loaded = aotgrad.load(saved(tmp_path))
    for call, message in (
        ((torch.ones(4, requires_grad=True), 2), "size mismatch at index 0. expected 3, actual 4"),
        ((torch.ones(3), 2), "requires_grad mismatch"),
        ((torch.ones(3, requires_grad=True), 3), "Python values: 3, not 2"),
        ((torch.ones(3, requires_grad=True).double(), 2), "dtype mismatch"),
    ):
        with pytest.raises(NoPlanError, match=message):
            loaded(*call)
    with torch.no_grad(), pytest.raises(NoPlanError, match="global state: grad mode"):
        loaded(torch.ones(3, requires_grad=True), 2)
    with pytest.raises(NoPlanError, match="loaded without its function"):
        torch.func.vmap(loaded, in_dims=(0, None))(torch.ones(2, 3), 2)
    loaded(torch.ones(3, requires_grad=True), 2).sum().backward()


def test_recompile_compiles_what_no_plan_fits(tmp_path):
    function = lambda x, k: (x * k).sin()  # noqa: E731
    loaded = aotgrad.load(saved(tmp_path, function), function, recompile=True)
    x = torch.ones(4, requires_grad=True)
    assert torch.equal(loaded(x, 3), function(x, 3))
    y = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(loaded(y, 2).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y)
    torch.testing.assert_close(second, -4 * torch.sin(2 * y.detach()))


def test_gradients_of_gradients_need_the_function(tmp_path):
    x = torch.ones(3, requires_grad=True)
    loaded = aotgrad.load(saved(tmp_path))
    with pytest.raises(NoPlanError, match="recompile=True"):
        torch.autograd.grad(loaded(x, 2).sum(), x, create_graph=True)


def test_what_cannot_be_saved_says_why(tmp_path):
    table = torch.ones(3)
    compiled = aotgrad.aot_function(lambda x: x * table + x.sin(), "eager")
    with pytest.raises(ShippingError, match="no plans yet"):
        aotgrad.save(compiled, tmp_path / "plans")
    compiled(torch.ones(3, requires_grad=True)).abs().sum().backward()
    with pytest.raises(ShippingError, match="constants=True"):
        aotgrad.save(compiled, tmp_path / "plans")
    assert not (tmp_path / "plans").exists()
    disabled = aotgrad.aot_function(torch.sin, "eager", options={"enabled": False})
    disabled(torch.ones(3))
    with pytest.raises(ShippingError, match="its calls ran eagerly, the option `enabled` is off"):
        aotgrad.save(disabled, tmp_path / "plans")
    with pytest.raises(ShippingError, match="aot_function, aot_module or train_step"):
        aotgrad.save(torch.sin, tmp_path / "plans")


class Doubles:
    name = "doubles"

    def apply(self, half):
        return half


MEMORY = torch.arange(6.0)


def hooks_its_argument(x):
    x.register_hook(lambda gradient: gradient * 2)
    return x.sin() * 2


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


class Box:
    def __init__(self, value):
        self.value = value


class OtherBox(Box):
    """Registered without a name, as `Box` is: torch gives both the same one."""


for kind in (Box, OtherBox):
    pytree.register_pytree_node(kind, lambda box: ([box.value], None), lambda values, _, kind=kind: kind(*values))


@pytest.mark.parametrize(
    ("function", "options", "arguments", "message"),
    [
        (lambda x: x.sin() * 2, {"backward_passes": (Doubles(),)}, (), "passes over backward graphs"),
        (lambda x: x.sin() * 2, {}, (TwoTensor(torch.ones(3), torch.ones(3)),), "takes or returns tensor subclasses"),
        (lambda x: TwoTensor(x * 2, x + 1), {}, (torch.ones(3),), "takes or returns tensor subclasses"),
        (
            lambda x, y: (x.mul_(2), y + 1),
            {"dynamic": True},
            (MEMORY[:3], MEMORY[2:5]),
            "symbolic sizes of arguments that share memory",
        ),
        (hooks_its_argument, {}, (), "it contains the function hooks_its_argument"),
        (lambda x: Box(x.sin() * 2), {}, (), "a result in a Box, which has no name as a pytree"),
        (lambda x: Pair(x.sin() * 2, x + 1), {}, (), "a result in a Pair, which has no name as a pytree"),
    ],
)
def test_what_no_file_contains(function, options, arguments, message, tmp_path):
    compiled = aotgrad.aot_function(function, "eager", options=options)
    compiled(*(arguments or (torch.ones(3, requires_grad=True) * 1,)))
    with pytest.raises(ShippingError, match=message):
        aotgrad.save(compiled, tmp_path / "plans")
    assert not (tmp_path / "plans").exists()


@pytest.mark.parametrize(
    "tensor", [nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True), torch.ones(3).to_sparse()]
)
def test_a_closed_over_tensor_that_is_no_constant(tensor, tmp_path):
    compiled = aotgrad.aot_function(lambda x: x.sin() * 2 + tensor, "eager")
    with torch.no_grad():
        compiled(torch.ones(3))
    with pytest.raises(ShippingError, match="no plain tensor, or requires grad"):
        aotgrad.save(compiled, tmp_path / "plans", constants=True)


def test_a_file_without_its_closed_over_tensors(tmp_path):
    table = torch.ones(3)
    compiled = aotgrad.aot_function(lambda x: x * table + x.sin(), "eager")
    compiled(torch.ones(3))
    aotgrad.save(compiled, tmp_path / "plans", constants=True)
    path = changed(tmp_path / "plans", lambda header, members: members.pop("tensors/0"))
    with pytest.raises(ShippingError, match="tensors/0, is missing"):
        aotgrad.load(path)


@pytest.mark.parametrize(
    "form", [["float32", [9]], ["float32", [2**40], [1], 0, "cpu", 0, [False, False]], ["load", *"abcde"]]
)
def test_a_closed_over_tensor_that_is_damaged(form, tmp_path):
    table = torch.ones(3).to(torch.complex64).conj()
    compiled = aotgrad.aot_function(lambda x: x * table + x.sin(), "eager")
    compiled(torch.ones(3))
    aotgrad.save(compiled, tmp_path / "plans", constants=True)
    assert torch.equal(aotgrad.load(tmp_path / "plans")(torch.ones(3)), compiled(torch.ones(3)))

    def smuggle(header, members):
        data = json.loads(members["plans/0.json"])
        data["closed_over"] = dict.fromkeys(data["closed_over"], form)
        members["plans/0.json"] = json.dumps(data).encode()

    with pytest.raises(ShippingError, match="damaged: a closed-over tensor"):
        aotgrad.load(changed(tmp_path / "plans", smuggle))


def test_a_damaged_file(tmp_path):
    path = saved(tmp_path)
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], pickle.dumps({"a": 1}), content.replace(b"plans/0", b"plans/1", 1)):
        path.write_bytes(damaged)
        with pytest.raises(ShippingError, match=r"truncated or damaged|is damaged|no header"):
            aotgrad.load(path)
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(ShippingError, match="no header"):
        aotgrad.load(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", "aotgrad plans 0", "has the format 'aotgrad plans 0'"),
        ("aotgrad", "0" * 64, "another version of aotgrad"),
        ("torch", ["1.0", "x"], "saved with torch 1.0"),
        ("backend", "mine", "no registered backend"),
    ],
)
def test_another_version(tmp_path, name, value, message):
    path = changed(saved(tmp_path), lambda header, members: header.update({name: value}))
    with pytest.raises(ShippingError, match=message):
        aotgrad.load(path)


class Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('the file has run code')",)


def test_a_smuggled_pickle_is_not_read(tmp_path):
    path = changed(saved(tmp_path), lambda header, members: members.update({"plans/0.json": pickle.dumps(Evil())}))
    with pytest.raises(ShippingError, match="damaged"):
        aotgrad.load(path, trust=True)

    def smuggle(header, members):
        members["code/" + "0" * 64] = b"\n" + pickle.dumps(Evil())

    path = changed(saved(tmp_path), smuggle)
    aotgrad.load(path)(torch.ones(3, requires_grad=True), 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("args.clear()", "__import__('os').abort()"),
        ("def call(args):", "def call(args=open('x')):"),
        ("def call(args):", "@print\\ndef call(args):"),
        ("below_autograd(forward", "torch.load('x')"),
        ("args.clear()", "eval('print()')"),
        ("args.clear()", "open('x')"),
        ("args.clear()", "torch.ops.load_library('x')"),
        ('["op","aten::sin"', '["torch","load"'),
        ('"primals_1","primals_1"', '"primals_1","primals_1=print()"'),
    ],
)
def test_source_that_no_plan_has_is_refused(tmp_path, old, new):
    def smuggle(header, members):
        text = members["plans/0.json"].decode()
        escaped = text.replace(old, new)
        data = json.loads(escaped) if escaped != text else None
        if data is None:  # inside of the text of a graph
            escaped = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
        assert escaped != text
        members["plans/0.json"] = escaped.encode()

    loaded = aotgrad.load(changed(saved(tmp_path), smuggle))
    with pytest.raises(ShippingError):
        loaded(torch.ones(3, requires_grad=True), 2)


def replaced(path, old, new):
    """A file with other text in its plans."""

    def replace(header, members):
        text = members["plans/0.json"].decode()
        assert old in text
        members["plans/0.json"] = text.replace(old, new).encode()

    return changed(path, replace)


def calls_missing_key(x, k):
    return collections.defaultdict(list, {"sin": (x * k).sin()})


def test_a_defaultdict_calls_no_function_that_a_file_names(tmp_path):
    x = torch.ones(3)
    compiled = aotgrad.aot_function(calls_missing_key, "eager")
    compiled(x, 2)
    aotgrad.save(compiled, tmp_path / "plans")
    found = aotgrad.load(tmp_path / "plans")(x, 2)
    assert type(found) is collections.defaultdict and found["other"] == []
    loaded = aotgrad.load(replaced(tmp_path / "plans", '"builtins"', '"os"'))
    with pytest.raises(ShippingError, match="a defaultdict of"):
        loaded(x, 2)
    unnamed = aotgrad.aot_function(lambda x: collections.defaultdict(lambda: 1, {"sin": x.sin()}), "eager")
    unnamed(x)
    with pytest.raises(ShippingError, match="a defaultdict whose factory"):
        aotgrad.save(unnamed, tmp_path / "other")


@pytest.mark.parametrize(
    "form", ['["torch","float32"],1,2', '["device","cpu"],["tuple",1]', '"float32",["size",3],["device","cpu"],5']
)
def test_a_sparse_tensor_that_is_damaged(form, tmp_path):
    matrix, y = torch.eye(3).to_sparse(), torch.ones(3, 3, requires_grad=True)
    compiled = aotgrad.aot_function(lambda matrix, y: torch.sparse.mm(matrix * 2, y.sin()).exp(), "eager")
    compiled(matrix, y)
    aotgrad.save(compiled, tmp_path / "plans")
    loaded = aotgrad.load(replaced(tmp_path / "plans", '["sparse",', f'["sparse",{form},'))
    with pytest.raises(ShippingError, match="a plan of the file cannot be used here"):
        loaded(matrix, y)


def test_a_number_is_no_text(tmp_path):
    """Sympy would evaluate it."""
    compiled = aotgrad.aot_function(lambda x: x.sin().sum() / (x.shape[0] + 3), "eager", dynamic=True)
    compiled(torch.ones(3))
    aotgrad.save(compiled, tmp_path / "plans")
    assert aotgrad.load(tmp_path / "plans")(torch.ones(4)) == compiled(torch.ones(4))
    loaded = aotgrad.load(replaced(tmp_path / "plans", '["Mul",4,', '["Mul",{"print()":1},'))
    with pytest.raises(ShippingError, match="is no number"):
        loaded(torch.ones(4))


def test_a_setting_of_inductor_names_no_program(tmp_path):
    def set_compiler(header, members):
        header["options"]["inductor"] = {"cpp.cxx": "x"}

    path = changed(saved(tmp_path), set_compiler)
    with pytest.raises(ShippingError, match=r"sets 'cpp\.cxx' of Inductor"):
        aotgrad.load(path)


def test_a_module_with_other_parameters(tmp_path):
    compiled = aotgrad.aot_module(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), "eager")
    compiled(torch.ones(2))
    aotgrad.save(compiled, tmp_path / "plans")
    with pytest.raises(ShippingError, match=r"'0.weight' has shape .3, 2.; saved: has shape .2, 2."):
        aotgrad.load(tmp_path / "plans", nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)))
    with pytest.raises(ShippingError, match=r"load\(path, module\)"):
        aotgrad.load(tmp_path / "plans")
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25))
    with pytest.raises(NoPlanError, match=r"p: 0\.25, not 0\.5"):
        aotgrad.load(tmp_path / "plans", module)(torch.ones(2))


def test_a_step_needs_its_state(tmp_path):
    step, state = make_step()
    compiled = aotgrad.train_step(step, state, backend="eager")
    compiled(torch.ones(6, 4))
    aotgrad.save(compiled, tmp_path / "plans")
    with pytest.raises(ShippingError, match="needed"):
        aotgrad.load(tmp_path / "plans")
    _, other = make_step()
    loaded = aotgrad.load(tmp_path / "plans", state=other)
    loaded(torch.ones(6, 4))
    with pytest.raises(NoPlanError, match="gradients that are there"):
        loaded(torch.ones(6, 4))
