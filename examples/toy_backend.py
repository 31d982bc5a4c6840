"""A training backend for a toy device: python examples/toy_backend.py

The device runs programs of instructions on numbered registers. The compiler knows a few ops; the others run in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx, nn

import aotgrad
from aotgrad.backends import GraphInput

aten = torch.ops.aten
INSTRUCTIONS = {
    **{aten.mm.default: torch.mm, aten.addmm.default: torch.addmm, aten.tanh.default: torch.tanh},
    **{aten.t.default: torch.t, aten.sum.dim_IntList: torch.sum, aten.view.default: torch.Tensor.view},
}


class ToyBackend(aotgrad.backends.Backend):
    name = "toy"

    def supports(self, node: fx.Node) -> bool:
        return node.target in INSTRUCTIONS

    def compile(self, graph: fx.GraphModule, inputs: Sequence[GraphInput], role: str) -> Callable:
        *nodes, output = graph.graph.nodes
        register, program = {node: k for k, node in enumerate(nodes)}, nodes[len(inputs) :]
        print(f"{role}: {len(program)} instructions")
        for k, value in enumerate([*inputs, *(node.target for node in program)]):
            print(f"  r{k} = {value}")

        def run(*arguments: torch.Tensor) -> list[torch.Tensor | None]:
            registers = dict(enumerate(arguments))
            for node in program:
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda each: registers[register[each]])
                registers[register[node]] = INSTRUCTIONS[node.target](*args, **kwargs)
            return [each if each is None else registers[register[each]] for each in output.args[0]]

        return run


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, backend=ToyBackend())
    for x in torch.randn(100, 8, 4):
        optimizer.zero_grad()
        loss = (compiled(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss:.4f}")


if __name__ == "__main__":
    main()
