"""Variants of a backward: they omit unneeded work, and compile on first use."""

from __future__ import annotations

import torch

import aotgrad
from aotgrad.backends.eager import compile_eager
from aotgrad.runtime import variants
from aotgrad.runtime.backward_facts import BackwardFacts
from aotgrad.runtime.variants import VariantCache, VariantKey, specialize
from aotgrad.slots import Gradient, Primal
from tests.executables import executable_of


class ProductAndSquare(torch.autograd.Function):
    """One autograd node with two outputs: a backward of one segment with two tangents."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w, (x * x).sum()

    @staticmethod
    def backward(ctx, product, square):
        x, w = ctx.saved_tensors
        return product @ w.t() + 2 * x * square, x.t() @ product


def matmul_with_two_results(x, w):
    return ProductAndSquare.apply(x, w)


GRADIENTS = (Gradient(Primal(0)), Gradient(Primal(1)))


SPECS = ["f32[2, 3] requires_grad", "f32[3, 4] requires_grad"]


def targets(half) -> list[str]:
    return [str(node.target) for node in half.module.graph.nodes if node.op == "call_function"]


def backward_of_example():
    return executable_of(matmul_with_two_results, *SPECS).partition.backward


def cache_of(half, compile):
    return VariantCache(half, compile, GRADIENTS, BackwardFacts.of(half, GRADIENTS))


def test_the_full_key_keeps_everything():
    half = backward_of_example()
    full = specialize(half, VariantKey((True, True), (True, True)), GRADIENTS)
    assert targets(full) == targets(half)
    assert full.signature == half.signature


def test_an_unwanted_gradient_is_not_computed():
    half = specialize(backward_of_example(), VariantKey((True, True), (True, False)), GRADIENTS)
    assert targets(half).count("aten.mm.default") == 1


def test_an_undefined_tangent_leaves_the_graph_with_all_that_only_it_needed():
    half = specialize(backward_of_example(), VariantKey((False, True), (True, True)), GRADIENTS)
    assert "aten.mm.default" not in targets(half)
    assert "tangents_1" not in [node.name for node in half.module.graph.find_nodes(op="placeholder")]


def test_each_variant_is_compiled_once():
    compiled = []
    cache = cache_of(backward_of_example(), lambda half: compiled.append(targets(half)) or print)
    key = VariantKey((True, True), (False, True))
    assert cache.get(key) is cache.get(key)
    cache.get(cache.full_key())
    assert len(compiled) == 2


def test_the_variants_that_were_used_last_are_kept(monkeypatch):
    compiled = []

    def compile(half):
        compiled.append(half)
        return compile_eager(half.module, [])

    monkeypatch.setattr(variants, "VARIANT_LIMIT", 2)
    cache = cache_of(backward_of_example(), compile)
    full, *others = [VariantKey((True, True), wanted) for wanted in ((True, True), (True, False), (False, True))]
    for key in (full, *others, others[0], VariantKey((False, True), (True, True)), others[0], full):
        cache.get(key)
    assert len(compiled) == 4 and set(cache.variants) == {others[0], VariantKey((False, True), (True, True))}
    cache.get(others[1])
    assert len(compiled) == 5
    assert cache.whole is cache.get(full)


def test_backward_graphs_are_compiled_when_they_are_needed():
    compiled = []

    def compiler(module, inputs):
        compiled.append(module)
        return compile_eager(module, inputs)

    x, w = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    product, square = aotgrad.aot_function(matmul_with_two_results, compiler)(x, w)
    assert len(compiled) == 1
    product.sum().backward(retain_graph=True)
    assert len(compiled) == 2
    (gradient,) = torch.autograd.grad(square, x)
    assert len(compiled) == 3
    torch.testing.assert_close(gradient, 2 * x)
    torch.testing.assert_close(w.grad, x.detach().t() @ torch.ones(3, 3))
