"""Feature tests of `aotgrad/torch_compat/inductor/backend_name.py`."""

from __future__ import annotations

import copy
import pickle

import torch

from aotgrad import torch_compat as compat


def test_another_compiler_for_the_name():
    seen = []

    def compile(graph, inputs, settings):
        seen.append(settings)
        return graph.forward

    asked: compat.Compile = compile
    undo = compat.take_inductors_name(lambda: asked)
    try:
        torch._dynamo.reset()
        by_default = torch.compile(lambda x: x + 1)
        assert by_default(torch.ones(1)).item() == 2
        assert torch.compile(lambda x: x + 2, backend="inductor", mode="max-autotune")(torch.ones(1)).item() == 3
        assert torch._dynamo.optimize("inductor")(lambda x: x + 3)(torch.ones(1)).item() == 4
    finally:
        undo()
    assert seen[0] == seen[2] == {} and seen[1]["max_autotune"] is True
    assert torch._dynamo.lookup_backend("inductor").__module__ == "torch._dynamo.backends.inductor"


def test_what_it_compiled_is_not_taken_for_inductors():
    undo = compat.take_inductors_name(lambda: lambda graph, inputs, settings: graph.forward)
    try:
        one, same = (torch._TorchCompileInductorWrapper("default", None, None) for _ in range(2))
    finally:
        undo()
    usual = torch._TorchCompileInductorWrapper("default", None, None)
    assert copy.deepcopy(one) is one and pickle.loads(pickle.dumps(one)) == usual == compat.named_inductor({}, None)
    assert one == one and usual == torch._TorchCompileInductorWrapper("default", None, None)
    assert usual != one and one != usual and isinstance(one, type(usual))
    assert one != same, "each asked for a compiler of its own"
