"""Programs whose plans one process saves and another one loads, and what they compute.

python -m tests.shipping.programs save|load NAMES BACKEND PLANS OUTCOME         one of the two; the second has no tracer
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import aotgrad
from aotgrad import pipeline
from aotgrad.cache import graphs

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Program:
    """A function, and the arguments of each of its calls. `options`: for `aot_function`."""

    function: Callable
    calls: Sequence[Sequence[Any]]
    options: dict[str, Any]

    def compiled(self, backend: str) -> Callable:
        return aotgrad.aot_function(self.function, backend, **{"options": {"min_graph_ops": 0}, **self.options})

    def outcome(self, call: Callable) -> list[Any]:
        """Results, arguments and gradients of all calls, and what can be seen of the results."""
        torch.manual_seed(0)
        return [value for arguments in self.calls for value in outcome_of(call, arguments)]


def outcome_of(call: Callable, arguments: Sequence[Any]) -> list[Any]:
    given = [fresh(value) for value in arguments]
    results = call(*given)
    results = results if isinstance(results, tuple) else (results,)
    losses = [result.abs().sum() if result.is_complex() else result.sum() for result in results if result.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    seen = [(*described(r), shares(r, tensors)) for r in results]
    return [*map(dense, (*results, *tensors, *(t.grad for t in tensors))), *seen]


def dense(value: torch.Tensor | None) -> torch.Tensor | None:
    """A copy that can be compared, and saved by the process that it is in."""
    return None if value is None else value.detach().to_dense().clone()


def described(value: torch.Tensor) -> tuple[Any, ...]:
    bits = value.is_conj(), value.is_neg()
    layout = value.stride() if value.layout is torch.strided else (value.layout, type(value), tuple(value.shape))
    return value.dtype, layout, *bits, value.requires_grad, value._is_view(), value._version


def fresh(value: Any) -> Any:
    """A copy of an argument; of a leaf that requires grad, a leaf."""
    if not isinstance(value, torch.Tensor):
        return value
    copied = value.detach().resolve_conj().resolve_neg().clone()
    copied = copied.conj() if value.is_conj() else copied
    copied = torch._neg_view(copied) if value.is_neg() else copied
    return copied.requires_grad_(value.requires_grad)


def shares(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Which arguments a result shares its memory with."""
    tensors = [each for each in tensors if each.layout is result.layout is torch.strided]
    return [result.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in tensors]


def leaf(*size: int) -> torch.Tensor:
    return torch.linspace(-1, 1, int(torch.Size(size).numel())).reshape(size).requires_grad_()


def kinds() -> Program:
    """Several shapes, constants and kinds of arguments."""
    calls = [(leaf(3, 4), 2.0), (leaf(2, 4), 2.0), (leaf(3, 4), 3.0), (leaf(3, 4).detach(), 2.0)]
    return Program(lambda x, scale: (x * scale).sin().cos(), calls, {})


def dynamic() -> Program:
    return Program(
        lambda x: (x * 2).sin().sum(0) + x.size(0), [(leaf(3, 4),), (leaf(5, 4),), (leaf(9, 4),)], {"dynamic": None}
    )


def writes() -> Program:
    """Changes an argument; returns views of an argument and of an intermediate."""

    def function(x, w):
        x.mul_(2)
        hidden = (x @ w).sin()
        return x[1:], hidden.t(), hidden.exp().sum()

    return Program(function, [(leaf(4, 4).detach(), leaf(4, 4))], {})


def dropout() -> Program:
    return Program(lambda x: F.dropout(x.sin(), 0.5) * 2, [(leaf(8, 8),), (leaf(8, 8),)], {})


def branches() -> Program:
    return Program(lambda x: x.sin() + 1 if x.sum() > 0 else x.cos() * 3, [(leaf(4) + 1,), (leaf(4) - 1,)], {})


def constants() -> Program:
    return Program(lambda x: {"y": x * torch.tensor([1.0, 2.0, 3.0])}["y"].exp() + 1, [(leaf(3).double(),)], {})


def closes_over() -> Program:
    """Reads tensors that it has closed over, of which two share memory and one is large; in the backward, too."""
    table, large = torch.arange(4.0), torch.linspace(0, 1, 2**19).double()
    row, by_column = table[1:], torch.arange(6).reshape(2, 3).t()

    def function(x):
        y = (x * row).sin() * x + large[:3]
        return y * 2 + by_column.sum(1), y.exp() + 1

    return Program(function, [(leaf(3),), (leaf(2, 3),)], {})


def masked() -> Program:
    return Program(lambda x: x[x > 0.25].sin() * 2, [(leaf(10),), (leaf(12),)], {})


def lone() -> Program:
    """So small that the function itself runs where it was compiled."""

    def function(x, y):
        y.mul_(2)
        return x.t(), x.t().as_strided((2,), (1,), 1)

    inside = torch.linspace(0, 1, 24).reshape(4, 6)[1:, 2:].requires_grad_()
    calls = [(leaf(3, 4), leaf(2).detach()), (inside, leaf(2).detach())]
    return Program(function, calls, {"options": {"min_graph_ops": 9}})


def lazily() -> Program:
    """Takes, saves and returns lazily conjugated and negated tensors."""
    z = leaf(3, 4).detach() * (1 + 2j)
    table = z[0].conj()

    def function(z, x, w):
        hidden = (w * 2j).conj()
        return hidden.imag * x, (z.mH @ z).abs() * 2, z.conj(), (w.conj() * table).imag

    weight = (z * 3).requires_grad_()
    return Program(function, [(z.conj(), z.conj().imag, weight), (z, z.real, weight)], {"dynamic": None})


def sparse() -> Program:
    """Takes, saves and returns sparse tensors of several layouts."""
    x = torch.eye(4) + torch.linspace(0, 1, 16).reshape(4, 4).relu().round()

    def function(matrix, rows, y):
        weighted = torch.sparse.mm(matrix * 2, y.sin())
        return weighted.exp(), -rows, (y.detach() * 2).to_sparse()

    coo, twice = x.to_sparse(), torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (4, 4))
    calls = [(each.requires_grad_(), x.to_sparse_csr(), leaf(4, 4)) for each in (coo, twice)]
    return Program(function, calls, {})


PROGRAMS = {
    each.__name__: each
    for each in (kinds, dynamic, writes, dropout, branches, constants, closes_over, masked, lone, lazily, sparse)
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def net_outcome(module: nn.Module) -> list[Any]:
    """Results, gradients and buffers of a training and an evaluation call."""
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 24).reshape(6, 4)
    module.train()
    trained = module(x)
    trained.sum().backward()
    module.eval()
    with torch.no_grad():
        evaluated = module(x)
    return [trained.detach(), evaluated, *(p.grad for p in module.parameters()), *module.buffers()]


def make_step() -> tuple[Callable, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, [model, optimizer]


def train(step: Callable, state: list[Any], steps: range) -> list[torch.Tensor]:
    """The losses of some steps, then the parameters. The first step has no gradients yet, as after a restart."""
    losses = []
    for parameter in state[0].parameters():
        parameter.grad = None
    for k in steps:
        torch.manual_seed(k)
        state[1].param_groups[0]["lr"] = 0.01 / (k + 1)
        losses.append(step(torch.randn(6, 4)).detach().clone())
    return [*losses, *(p.detach().clone() for p in state[0].parameters())]


def in_a_fresh_process(way: str, names: str, backend: str, path: Path) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """What programs compute in a fresh process that saves or loads their plans, and the counters there."""
    command = [
        sys.executable,
        "-m",
        "tests.shipping.programs",
        way,
        names,
        backend,
        str(path),
        str(path.parent / "outcome.pt"),
    ]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=600)
    return torch.load(path.parent / "outcome.pt", weights_only=False)


def save_plans(names: list[str], backend: str, path: str) -> Iterator[tuple[str, list[Any]]]:
    """Compile and run programs, and save their plans."""
    for name in names:
        if name == "net":
            torch.manual_seed(0)
            compiled: Any = aotgrad.aot_module(Net(), backend)
            yield name, net_outcome(compiled)
        elif name == "step":
            step, state = make_step()
            compiled = aotgrad.train_step(step, state, backend=backend)
            train(compiled, state, range(3))
            torch.save([each.state_dict() for each in state], f"{path}.state")
            yield name, train(compiled, state, range(3, 6))
        else:
            program = PROGRAMS[name]()
            compiled = program.compiled(backend)
            yield name, program.outcome(compiled)
        aotgrad.save(compiled, f"{path}.{name}", constants=name in ("closes_over", "lazily"))


def load_plans(names: list[str], path: str) -> Iterator[tuple[str, list[Any]]]:
    """Load plans, without a tracer, a partitioner or Dynamo, and run them. The parsed graphs of each program are counted."""
    pipeline.capture_function = pipeline.partition_joint = pipeline.build_joint = refuse
    parse = graphs.decode_graph
    for name in names:
        file = f"{path}.{name}"
        graphs.decode_graph = counting_calls(parse, f"parsed for {name}")
        if name == "net":
            torch.manual_seed(0)
            yield name, net_outcome(aotgrad.load(file, Net(), trust=True))
        elif name == "step":
            _, state = make_step()
            loaded = aotgrad.load(file, state=state, trust=True)
            for each, values in zip(state, torch.load(f"{path}.state"), strict=True):
                each.load_state_dict(values)
            yield name, train(loaded, state, range(3, 6))
        else:
            yield name, PROGRAMS[name]().outcome(aotgrad.load(file, trust=True))


def counting_calls(function: Callable, counter: str) -> Callable:
    def counted(*args: Any) -> Any:
        aotgrad.counters[counter] += 1
        return function(*args)

    return counted


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a loaded function was traced")


def main(way: str, names: str, backend: str, path: str, outcome: str) -> None:
    torch.set_num_threads(1)
    chosen = names.split(",")
    found = dict(save_plans(chosen, backend, path) if way == "save" else load_plans(chosen, path))
    torch.save((found, dict(aotgrad.counters)), outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])
