"""Backends that are checked: a correct one, and others with one mistake each."""

from __future__ import annotations

import os
import time

import torch
import torch.fx as fx

import aotgrad

aten = torch.ops.aten


class Correct(aotgrad.backends.Backend):
    name = "correct"
    mistake: tuple = ()

    def compile(self, graph, inputs, role):
        for node in graph.graph.nodes:
            if node.target in self.mistake:
                self.spoil(node)
        graph.recompile()
        return graph.forward

    def spoil(self, node: fx.Node) -> None:
        raise NotImplementedError


class CosForSin(Correct):
    name, mistake = "cos for sin", (aten.sin.default,)

    def spoil(self, node):
        node.target = aten.cos.default


class SlightlyOff(Correct):
    name, mistake = "slightly off", (aten.exp.default,)

    def spoil(self, node):
        with node.graph.inserting_after(node):
            off = node.graph.call_function(aten.mul.Tensor, (node, 1.00005))
        node.replace_all_uses_with(off, lambda user: user is not off)


class Doubling(Correct):
    """Keeps `layer_norm`, and returns twice its gradients."""

    name, keep = "doubling", frozenset({torch.nn.functional.layer_norm})

    def compile(self, graph, inputs, role):
        for node in graph.graph.nodes:
            if isinstance(target := node.target, aotgrad.backends.KeptBackward):
                node.target = lambda *values, target=target: tuple(2 * each for each in target(*values))
        return fx.Interpreter(graph).run


class ReturnsInput(Correct):
    """Returns its first input in place of the first result."""

    def compile(self, graph, inputs, role):
        return lambda *args: [args[0], *graph(*args)[1:]]


class ChangesInput(Correct):
    """Writes to its first input."""

    def compile(self, graph, inputs, role):
        def run(*args):
            results = graph(*args)
            args[0].add_(1)
            return results

        return run


class OtherLayout(Correct):
    """Returns results in another order of dimensions."""

    def compile(self, graph, inputs, role):
        return lambda *args: [each.detach().mT.contiguous().mT if each.dim() > 1 else each for each in graph(*args)]


class FailsLater(Correct):
    """Raises in every call but the first."""

    def compile(self, graph, inputs, role):
        calls = iter([graph.forward])
        return lambda *args: next(calls)(*args)


class ReturnsFirstResult(Correct):
    """Returns copies of one result of the first call in every call."""

    def compile(self, graph, inputs, role):
        first = []

        def run(*args):
            result, *others = graph(*args)
            first[:] = first or [result]
            return [first[0].clone(), *others]

        return run


class ChangesEarlierInput(Correct):
    """Writes to the first input of the call before."""

    def compile(self, graph, inputs, role):
        before = []

        def run(*args):
            for each in before:
                each.add_(1)
            before[:] = [args[0].detach()]
            return graph(*args)

        return run


class Draws(Correct):
    """Draws a random number that nothing needs, beside a hyperbolic sine."""

    name, mistake = "draws", (aten.sinh.default,)

    def spoil(self, node):
        with node.graph.inserting_after(node):
            node.graph.call_function(torch.rand, (1,))


class OtherDtype(Correct):
    name, mistake = "other dtype", (aten.floor.default,)

    def spoil(self, node):
        with node.graph.inserting_after(node):
            cast = node.graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.float64})
        node.replace_all_uses_with(cast, lambda user: user is not cast)


class Raises(Correct):
    name, mistake = "raises", (aten.tan.default,)

    def spoil(self, node):
        raise ValueError("no tan")


class RaisesForProducts(Correct):
    name, mistake = "raises for products", (aten.addmm.default,)

    def spoil(self, node):
        raise ValueError("no addmm")


class AbortsOrHangs(Correct):
    name, mistake = "aborts or hangs", (aten.erfinv.default, aten.ceil.default)

    def spoil(self, node):
        if node.target is aten.erfinv.default:
            os.abort()
        time.sleep(1000)


class SupportsNothing(Correct):
    name = "supports nothing"

    def supports(self, node):
        return False


correct = Correct()
number = 3


def compile_graph(graph, example_inputs):
    return graph.forward
