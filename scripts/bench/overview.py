"""Measure aotgrad beside its peer, torch's own AOTAutograd, and print the numbers side by side.

    python scripts/bench/overview.py
    python scripts/bench/overview.py --only overhead saved

The peer is `functorch.compile.aot_function` and `aot_module` with pass-through compilers, and `torch.compile` with
`aot_eager` and `inductor`. Both sides run the same public API on the same models in one process, in turns. Ratios are
peer over aotgrad: above 1, aotgrad is faster or smaller. The floor is what is left if one part takes nothing:

    from capture to plan    the function on fake tensors alone; Dynamo alone
    one call                a node in C++ that cannot be hooked, retained or differentiated (`bare_node.cpp`)
    saved                   everything that can be is recomputed (`memory_budget` 0)
    a step                  the compiled graphs alone
    first step, Inductor    Inductor's compilation of the graphs
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import functorch.compile
import torch
from capture import run_on_fakes
from graph_calls import GraphCalls, recorded
from models import Workload, workloads
from native import extension
from saved_bytes import saved_bytes
from tabulate import tabulate
from timing import add_threads, environment, first_call_seconds, median_seconds
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

import aotgrad
from aotgrad.backends import get

Function = Callable[..., Tensor]
Compiler = Callable[[nn.Module], Function]
Measured = Mapping[str, float]  # By candidate: "peer", "aotgrad", "floor" and, where it is informative, "eager".

CAPTURE_ROUNDS = 3
INDUCTOR_ROUNDS = 1  # A cold compilation takes ten seconds and more.

SECONDS, MILLISECONDS, MICROSECONDS = 1.0, 1e-3, 1e-6
KILOBYTES = 1e3


@dataclass
class Table:
    """Lines of eager's number, the peer's, aotgrad's, the ratio of the last two, and the floor."""

    title: str
    rows: list[list[str]] = field(default_factory=list)

    def add(self, name: str, measured: Measured, unit: float) -> None:
        cells = [f"{measured[side] / unit:.2f}" if side in measured else "" for side in ("eager", "peer", "aotgrad")]
        self.rows.append([name, *cells, f"{measured['peer'] / measured['aotgrad']:.2f}", f"{measured['floor'] / unit:.2f}"])

    def markdown(self) -> str:
        headers = ["", "eager", "peer", "aotgrad", "ratio", "floor"]
        align = ("left", *["right"] * 5)
        body = tabulate(self.rows, headers, tablefmt="github", disable_numparse=True, colalign=align)
        return f"**{self.title}**\n\n{body}"


def aot_modules(peer_partition: Callable, our_partition: Callable) -> dict[str, Compiler]:
    """The two `aot_module`s with pass-through compilers."""
    peer_nop, our_nop = functorch.compile.nop, aotgrad.nop
    return {
        "peer": lambda model: functorch.compile.aot_module(model, peer_nop, peer_nop, partition_fn=peer_partition),
        "aotgrad": lambda model: aotgrad.aot_module(model, our_nop, our_nop, partition_fn=our_partition),
    }


def dynamo(peer: str, ours: str) -> dict[str, Compiler]:
    return {"peer": partial(torch.compile, backend=peer), "aotgrad": partial(torch.compile, backend=ours)}


SAVE_ALL = aot_modules(functorch.compile.default_partition, aotgrad.default_partition)
MIN_CUT = aot_modules(functorch.compile.min_cut_rematerialization_partition, aotgrad.min_cut_rematerialization_partition)
DYNAMO_EAGER = dynamo("aot_eager", "aotgrad_eager")
DYNAMO_INDUCTOR = dynamo("inductor", "aotgrad")
DYNAMO_ALONE = partial(torch.compile, backend="eager")


def saving_least(model: nn.Module) -> Function:
    return aotgrad.aot_module(model, aotgrad.nop, options={"memory_budget": 0.0})


def module_through(backend: Any, model: nn.Module) -> Function:
    return aotgrad.aot_module(model, backend)


def dynamo_through(backend: GraphCalls, model: nn.Module) -> Function:
    return torch.compile(model, backend=backend.for_dynamo())


def train_step(model: Function, inputs: Sequence[Tensor]) -> None:
    model(*inputs).backward()


def first_step_seconds(workload: Workload, compilers: Mapping[str, Compiler], rounds: int) -> Measured:
    """The first training step of a freshly compiled model: everything up to the plan, and one run of it."""

    def fresh_step(compiler: Compiler) -> Callable[[], None]:
        torch._dynamo.reset()
        return partial(train_step, compiler(workload.fresh_model()), workload.inputs)

    return first_call_seconds({side: partial(fresh_step, compiler) for side, compiler in compilers.items()}, rounds)


def step_seconds(models: Mapping[str, Function], inputs: Sequence[Tensor], graphs: GraphCalls) -> Measured:
    steps = {side: partial(train_step, model, inputs) for side, model in models.items()}
    return median_seconds({**steps, "floor": graphs.replay})


def saved_by_models(models: Mapping[str, Function], workload: Workload) -> Measured:
    parameters = [parameter for model in models.values() for parameter in model.parameters()]
    return {side: saved_bytes(partial(model, *workload.inputs), parameters) for side, model in models.items()}


def trained_once(workload: Workload, compilers: Mapping[str, Compiler]) -> dict[str, Function]:
    """Eager's model and the compiled ones, after a step that made them compile."""
    torch._dynamo.reset()
    models = {"eager": workload.fresh_model()}
    models |= {side: compiler(workload.fresh_model()) for side, compiler in compilers.items()}
    for model in models.values():
        train_step(model, workload.inputs)
    return models


def measure_capture() -> Table:
    table = Table("From capture to plan: the first step with eager halves (s)")
    for workload in workloads():
        seconds = first_step_seconds(workload, MIN_CUT, CAPTURE_ROUNDS)
        floor = median_seconds({"floor": partial(run_on_fakes, workload.model, workload.inputs)}, CAPTURE_ROUNDS)
        table.add(f"{workload.name}, aot_module", {**seconds, **floor}, SECONDS)
        seconds = first_step_seconds(workload, {**DYNAMO_EAGER, "floor": DYNAMO_ALONE}, CAPTURE_ROUNDS)
        table.add(f"{workload.name}, torch.compile", seconds, SECONDS)
    return table


def three_tensors(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * b + c


def many_parameters(x: Tensor, *parameters: Tensor) -> Tensor:
    return torch.stack(parameters).sum(0) * x


def call_without_grad(function: Function, inputs: Sequence[Tensor]) -> None:
    with torch.no_grad():
        function(*inputs)


def call_forward(function: Function, inputs: Sequence[Tensor]) -> None:
    function(*inputs)


def call_and_backward(function: Function, inputs: Sequence[Tensor]) -> None:
    function(*inputs).backward(torch.ones_like(inputs[0]))


def call_and_grad(function: Function, inputs: Sequence[Tensor]) -> None:
    torch.autograd.grad(function(*inputs), inputs, torch.ones_like(inputs[0]))


OVERHEAD_FUNCTIONS = {"3 tensors": (three_tensors, 3), "100 parameters": (many_parameters, 101)}
OVERHEAD_CALLS = {
    "no_grad": call_without_grad,
    "forward": call_forward,
    "forward + backward()": call_and_backward,
    "forward + autograd.grad()": call_and_grad,
}


def call_seconds(function: Function, inputs: Sequence[Tensor], call: Callable) -> Measured:
    # Recompiled for each kind of call: the peer keeps the graph of its first call under any later grad mode.
    candidates = {
        "eager": function,
        "peer": functorch.compile.aot_function(function, functorch.compile.nop),
        "aotgrad": aotgrad.aot_function(function, aotgrad.nop),
        "floor": by_hand(function, inputs),
    }
    return median_seconds({side: partial(call, candidate, inputs) for side, candidate in candidates.items()})


def by_hand(function: Function, inputs: Sequence[Tensor]) -> Function:
    """The graphs of a function in a bare node."""

    def compiled(graphs: GraphCalls) -> Callable[[], None]:
        return partial(call_and_backward, aotgrad.aot_function(function, graphs), inputs)

    (forward, _), (backward, _) = recorded(get("eager"), compiled).calls

    def call(*args: Tensor) -> Tensor:
        values = extension("bare_node").call(forward, backward, 1, args) if torch.is_grad_enabled() else forward([*args])
        return values[0]

    return call


def measure_overhead() -> Table:
    table = Table("One call of a tiny function through aot_function (µs)")
    for name, (function, count) in OVERHEAD_FUNCTIONS.items():
        inputs = [torch.randn(4, requires_grad=True) for _ in range(count)]
        for kind, call in OVERHEAD_CALLS.items():
            table.add(f"{name}, {kind}", call_seconds(function, inputs, call), MICROSECONDS)
    return table


def measure_steps() -> Table:
    table = Table("A training step, forward + backward, with eager halves (ms)")
    ways = {"aot_module": (MIN_CUT, module_through), "torch.compile": (DYNAMO_EAGER, dynamo_through)}
    for workload in workloads():
        for name, (compilers, through) in ways.items():
            models = trained_once(workload, compilers)
            graphs = graphs_of(workload, "eager", through)
            table.add(f"{workload.name}, {name}", step_seconds(models, workload.inputs, graphs), MILLISECONDS)
    return table


def graphs_of(workload: Workload, backend: str, through: Callable[[GraphCalls, nn.Module], Function]) -> GraphCalls:
    """The graphs of a step of a model that is compiled `through` a frontend."""

    def compiled(graphs: GraphCalls) -> Callable[[], None]:
        return partial(train_step, through(graphs, workload.fresh_model()), workload.inputs)

    return recorded(get(backend), compiled)


def measure_saved() -> Table:
    table = Table("Saved for the backward (kB)")
    for workload in workloads():
        for name, compilers in {"save all": SAVE_ALL, "min cut": MIN_CUT, "torch.compile": DYNAMO_EAGER}.items():
            models = trained_once(workload, {**compilers, "floor": saving_least})
            table.add(f"{workload.name}, {name}", saved_by_models(models, workload), KILOBYTES)
    return table


def load_inductor() -> None:
    """The first compilation in a process imports much; exclude that from all times."""
    for compiler in DYNAMO_INDUCTOR.values():
        train_step(compiler(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))), [torch.ones(1, 2)])


def cold_step_seconds(workload: Workload) -> Measured:
    seconds: dict[str, float] = {}
    for side, compiler in DYNAMO_INDUCTOR.items():
        with fresh_cache():
            seconds |= first_step_seconds(workload, {side: compiler}, INDUCTOR_ROUNDS)
    return seconds


def measure_inductor() -> Table:
    table = Table("torch.compile with Inductor")
    load_inductor()
    for workload in workloads():
        cold = cold_step_seconds(workload)
        with fresh_cache():
            graphs = graphs_of(workload, "inductor", dynamo_through)
        name = f"{workload.name}, first step with cold caches (s)"
        table.add(name, {**cold, "floor": sum(graphs.compilations)}, SECONDS)
        models = trained_once(workload, DYNAMO_INDUCTOR)
        table.add(f"{workload.name}, step (ms)", step_seconds(models, workload.inputs, graphs), MILLISECONDS)
        models["floor"] = saving_least(workload.fresh_model())
        table.add(f"{workload.name}, saved (kB)", saved_by_models(models, workload), KILOBYTES)
    return table


SECTIONS: dict[str, Callable[[], Table]] = {
    "capture": measure_capture,
    "overhead": measure_overhead,
    "saved": measure_saved,
    "step": measure_steps,
    "inductor": measure_inductor,
}


def header() -> str:
    return f"{environment()}; medians; ratio = peer / aotgrad"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="the tables to make")
    add_threads(parser)
    return parser.parse_args()


def main() -> None:
    aotgrad.config.cache = False  # first steps are measured as if nothing had been compiled before
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    print(header())
    for section in arguments.only:
        print(f"\n{SECTIONS[section]().markdown()}", flush=True)


if __name__ == "__main__":
    main()
