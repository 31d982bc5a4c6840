"""The recorder of ordinary ops: what it writes is what the general recorder writes."""

import pytest
import torch
import torch._inductor.lowering  # its table of decompositions needs it
import torch.fx as fx
import torch.nn.functional as F
from torch import nn

import aotgrad
from aotgrad import torch_compat
from aotgrad.capture import fast_recorder


def joint_of(function, *args, decompositions=None) -> fx.Graph:
    found: list[fx.Graph] = []

    def keep(module, *rest, **options):
        found.append(module.graph)
        return aotgrad.default_partition(module, *rest, **options)

    aotgrad.aot_function(function, aotgrad.nop, partition_fn=keep, decompositions=decompositions)(*args)
    return found[0]


def attention(x, w):
    q, k, v = (x @ w).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
    mixed = F.dropout(torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1), 0.25) @ v
    return F.layer_norm(mixed.transpose(1, 2).flatten(2), (8,)).sum()


def pooled(x, w):
    values, indices = F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2, return_indices=True)
    return (values * indices.to(values.dtype)).mean((2, 3)).to(torch.bfloat16).float().sum()


def written(x, w):
    y = x.clone()
    y[0].mul_(w.sum())
    y.view(-1)[1:].add_(1)
    return torch.cat([y, y.t().contiguous().t()]).sum() + torch.arange(3.0).sum()


def constants(x, w):
    scale = torch.tensor([1.0, 2.0]) * torch.tensor(3.0)
    return (x * scale.max().item() * w.sum()).var() + torch.full((2,), 2).sum()


PROGRAMS = {
    attention: ((2, 5, 8), (8, 24)),
    pooled: ((2, 3, 8, 8), (4, 3, 3, 3)),
    written: ((3, 3), (3,)),
    constants: ((3, 2), (2,)),
}


def described(graph: fx.Graph) -> list[tuple]:
    """Every node with all that a compiler reads of it."""
    lines = []
    first = min(node.meta["seq_nr"] for node in graph.nodes if "seq_nr" in node.meta)
    for node in graph.nodes:
        values = [v for v in torch.utils._pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
        geometry = [(v.dtype, v.device, tuple(v.shape), v.stride(), v.storage_offset()) for v in values]
        fields = {key: str(value) for key, value in node.meta.items() if key not in ("val", "tensor_meta", "seq_nr")}
        fields["seq_nr"] = node.meta.get("seq_nr", first) - first
        described_by = str(node.meta.get("tensor_meta"))
        lines.append(
            (node.name, node.op, str(node.target), str(node.args), str(node.kwargs), geometry, fields, described_by)
        )
    return lines


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_nodes_are_those_of_the_general_recorder(program, decomposed, monkeypatch):
    args = [torch.randn(shape, requires_grad=True) for shape in PROGRAMS[program]]
    table = torch_compat.inductor_decompositions() if decomposed else None
    found = [described(joint_of(program, *args, decompositions=table)) for _ in range(2)]  # the second one remembers
    monkeypatch.setattr(fast_recorder.FastRecorder, "kind_of", lambda self, op: None)
    monkeypatch.setattr(torch_compat, "kind_of_op", lambda op: None)
    expected = described(joint_of(program, *args, decompositions=table))
    for nodes in found:
        for one, other in zip(nodes, expected, strict=True):
            assert one == other


def test_results_are_computed_once_for_equal_metadata(monkeypatch):
    fast_recorder.clear_results()
    computed = []
    recipe_of = fast_recorder.recipe_of
    monkeypatch.setattr(fast_recorder, "recipe_of", lambda *given: computed.append(given) or recipe_of(*given))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)))
    compiled = aotgrad.aot_module(model, aotgrad.nop)
    compiled(torch.ones(2, 3)).sum().backward()
    nodes = compiled.plans()[0].executable.joint.module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.tanh.default
    )
    assert len(nodes) == 4
    assert len({torch_compat.storage_id(node.meta["val"]) for node in nodes}) == 4
    assert len(computed) < 12


def test_numbers_that_are_equal_but_of_another_type_are_other_arguments():
    def f(x):
        return x * 2, x * 2.0, x * True, x.sum(0, False), x.sum(0, True)

    x = torch.arange(3)
    for one, other in zip(aotgrad.aot_function(f, aotgrad.nop)(x), f(x), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_the_default_dtype_is_part_of_the_key():
    def f(x):
        return x / 2, torch.ones(2)

    x = torch.arange(3)
    compiled = aotgrad.aot_function(f, aotgrad.nop)
    assert [y.dtype for y in compiled(x)] == [torch.float32] * 2
    try:
        torch.set_default_dtype(torch.float64)
        assert [y.dtype for y in compiled(x)] == [torch.float64] * 2
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_op_that_is_refused_is_refused_again():
    def f(x, y):
        return x @ y

    for _ in range(2):
        with pytest.raises(RuntimeError, match="same dtype"):
            aotgrad.aot_function(f, aotgrad.nop)(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64))


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(fast_recorder, "MAX_CACHED", 5)
    fast_recorder.clear_results()
    joint_of(attention, torch.ones(2, 5, 8), torch.ones(8, 24, requires_grad=True))
    assert 0 < fast_recorder.cached_count() <= 5
