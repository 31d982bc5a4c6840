"""The function mode of a trace: which handlers see a call, and in which order."""

from __future__ import annotations

import torch

from aotgrad.capture.function_mode import FunctionHandlers


class Recording:
    """Records the calls that it handles, and reads a property of the argument, as handlers do."""

    def __init__(self, name, functions, seen):
        self.name, self.functions, self.seen = name, functions, seen

    def handle(self, function, call, /, *args, **kwargs):
        self.seen.append((self.name, function.__name__, args[0]._version))
        return call(*args, **kwargs)


def test_the_last_handler_is_the_innermost_and_sees_a_call_first():
    seen = []
    handlers = [
        Recording("outer", {torch.Tensor.add_}, seen),
        Recording("all", None, seen),
        Recording("inner", {torch.Tensor.add_}, seen),
    ]
    x = torch.zeros(2)
    with FunctionHandlers(handlers):
        assert x.add_(1, alpha=2) is x
        x.sin()
    assert seen == [("inner", "add_", 0), ("all", "add_", 0), ("outer", "add_", 0), ("all", "sin", 1)]
    assert x.tolist() == [2, 2]


def test_a_handler_may_replace_a_call():
    class Negated:
        functions = (torch.Tensor.sin,)

        def handle(self, _, call, /, tensor):
            return -call(tensor)

    x = torch.ones(2)
    with FunctionHandlers([Negated()]):
        negated = x.sin()
    assert torch.equal(negated, -x.sin())


def test_a_handler_gets_the_first_argument_of_a_call_by_keywords():
    seen = []
    x = torch.zeros(2)
    with FunctionHandlers([Recording("named", {torch.as_strided_}, seen)]):
        torch.as_strided_(input=x, size=(1,), stride=(1,))
    assert seen == [("named", "as_strided_", 0)]
    assert x.shape == (1,)
