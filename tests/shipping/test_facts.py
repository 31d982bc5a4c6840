"""Facts beside the graphs in a file: with the code of the file, no graph is parsed. Other facts are refused."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

import aotgrad
from aotgrad.cache import graphs
from aotgrad.errors import ShippingError

from .programs import Net, leaf, net_outcome
from .test_calls import USES, of_one_result, pair, whole
from .test_refusals import changed

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")


def refuse_to_parse(monkeypatch):
    def parse(*args):
        raise AssertionError("a graph was parsed")

    monkeypatch.setattr(graphs, "decode_graph", parse)


def partly(f):
    """Backwards of some gradients and of some results; what they need later stays."""
    x, w = leaf(3, 4), leaf(3, 4)
    one, other = f(x, w)
    first = torch.autograd.grad(one.sum(), w, retain_graph=True)
    second = torch.autograd.grad(other.sum(), x)
    return *first, *second, *torch.autograd.grad(one.sum(), x)


def frozen(f):
    x, w = leaf(3, 4), leaf(3, 4).detach()
    one, other = f(x, w)
    (one.sum() + other.sum()).backward()
    return one.detach(), x.grad


def saves_nothing(x, w):
    """The gradient of `w` needs no saved value, so eager's graph of it is never freed."""
    return (x * 3).sin() + (w + 1), x.exp().sum(0)


def twice_where_nothing_is_saved(f):
    x, w = leaf(3, 4), leaf(3, 4)
    one, other = f(x, w)
    first = torch.autograd.grad((one.sum(), other.sum()), (x, w))
    return *first, *torch.autograd.grad(one.sum(), w)


CLOSED_OVER = torch.linspace(0, 1, 4)


def reads_tensors(x, w):
    made = x * torch.tensor([1.0, 2.0, 3.0, 4.0])
    return (made * CLOSED_OVER).sin() @ w.t(), (x * CLOSED_OVER + 1).exp()


OF_FUNCTIONS = {
    **{name: case for name, case in USES.items() if name != "aliased"},
    "parts": (pair, (whole, partly)),
    "frozen": (pair, (whole, frozen)),
    "repeated": (saves_nothing, (twice_where_nothing_is_saved,)),
    "tensors": (reads_tensors, (whole, of_one_result)),
    "linear": (lambda x, w: (F.gelu(F.linear(x, w)), x.softmax(-1).sum(0)), (whole, partly)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OF_FUNCTIONS)
def test_a_loaded_function_parses_no_graph(name, dynamic, tmp_path, monkeypatch):
    function, uses = OF_FUNCTIONS[name]
    compiled = aotgrad.aot_function(function, "inductor", dynamic=dynamic)
    for use in uses:
        use(compiled)
    aotgrad.save(compiled, tmp_path / "plans", constants=True)
    loaded = aotgrad.load(tmp_path / "plans", trust=True)
    refuse_to_parse(monkeypatch)
    for use in uses:
        torch.testing.assert_close(use(loaded), use(function))


def test_a_loaded_module_parses_no_graph(tmp_path, monkeypatch):
    torch.manual_seed(0)
    module = Net()
    compiled = aotgrad.aot_module(module, "inductor")
    net_outcome(compiled)
    aotgrad.save(compiled, tmp_path / "plans")
    loaded, other = (Net() for _ in range(2))
    for each in (loaded, other):
        each.load_state_dict(module.state_dict())
    loaded = aotgrad.load(tmp_path / "plans", loaded, trust=True)
    refuse_to_parse(monkeypatch)
    compiled.zero_grad()
    torch.testing.assert_close(net_outcome(loaded), net_outcome(compiled))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_variant_that_is_not_in_the_file_is_compiled_from_its_graph(backend, tmp_path, monkeypatch):
    compiled = aotgrad.aot_function(pair, backend)
    whole(compiled)
    aotgrad.save(compiled, tmp_path / "plans")
    loaded = aotgrad.load(tmp_path / "plans", trust=True)
    torch.testing.assert_close(whole(loaded), whole(pair))
    parsed, parse = [], graphs.decode_graph
    monkeypatch.setattr(graphs, "decode_graph", lambda *args: parsed.append(1) or parse(*args))
    torch.testing.assert_close(partly(loaded), partly(pair))
    assert parsed


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_variants_of_the_file(backend, trust, tmp_path):
    compiled = aotgrad.aot_function(pair, backend)
    for use in (whole, partly):
        use(compiled)
    aotgrad.save(compiled, tmp_path / "plans")
    loaded = aotgrad.load(tmp_path / "plans", trust=trust)
    for use in (partly, whole, of_one_result):
        torch.testing.assert_close(use(loaded), use(pair))


def items_of(data, name):
    """The plain forms of the values of one type."""
    if isinstance(data, list):
        if data[:1] == [name]:
            yield data
        for each in data:
            yield from items_of(each, name)


def name_another_tensor(found):
    for _, _, positions in found[2][1:]:
        if positions is not None:
            return positions.append(7)
    raise IndexError("all need all")


DAMAGES = {
    "another number of formats": ("BackwardFacts", lambda facts: facts[1].pop()),
    "a format of another type": ("BackwardFacts", lambda facts: facts[1].__setitem__(1, ["tuple", "float32", "cpu"])),
    "another number of sources": ("BackwardFacts", lambda facts: facts[2].append(0)),
    "a source that is no number": ("BackwardFacts", lambda facts: facts[2].__setitem__(1, "0")),
    "cases that are no flag": ("BackwardFacts", lambda facts: facts.__setitem__(3, 1)),
    "facts that are no facts": ("BackwardFacts", lambda facts: facts.__setitem__(slice(None), ["tuple"])),
    "no facts": ("StoredBackward", lambda found: found.__setitem__(slice(None), ["tuple"])),
    "a key of another length": ("VariantKey", lambda key: key[1].pop()),
    "a result that is not there": ("StoredVariant", lambda variant: variant.__setitem__(3, ["frozenset", 9])),
    "a saved tensor that is not there": ("StoredBackward", name_another_tensor),
    "another graph": ("StoredVariant", lambda variant: variant[2][3][2].pop()),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_facts(name, tmp_path):
    compiled = aotgrad.aot_function(saves_nothing, "eager")
    for use in (whole, partly, twice_where_nothing_is_saved):
        use(compiled)
    aotgrad.save(compiled, tmp_path / "plans")
    kind, damage = DAMAGES[name]

    def change(header, members):
        data = json.loads(members["plans/0.json"])
        damaged = False
        for found in items_of(data["entry"], kind):
            try:
                damage(found)
            except (AttributeError, IndexError, TypeError):
                continue  # one that lacks this part
            damaged = True
            break
        assert damaged
        members["plans/0.json"] = json.dumps(data).encode()

    loaded = aotgrad.load(changed(tmp_path / "plans", change))
    with pytest.raises(ShippingError, match="a plan of the file cannot be used here"):
        whole(loaded)
