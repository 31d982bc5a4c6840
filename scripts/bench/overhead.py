"""Measure the overhead of a call over its graphs, beside torch's own AOTAutograd.

    python scripts/bench/overhead.py
    python scripts/bench/overhead.py --only "3 tensors" --markdown
    python scripts/bench/overhead.py --parts            where the time of a call goes

Overhead is the time of the compiled call less that of its graph callables alone, on the inputs that they had in that call.
All sides get the same pass-through compiler. `aot_function` finds its plan by guards, which the peer does not have. aotgrad
is measured with its functions in Python, and with those in C++, which are built if they are missing. Each has a *floor*, a
hand-written node around the same callables (without gradients: the callable alone), so the distance to it is the removable
part: a `torch.autograd.Function`, and `bare_node.cpp`, which cannot be retained, hooked or differentiated. For an alias, the
floor makes the graph's inputs, runs it, and copies the changed value; for 50 views, it makes them. Behind Dynamo, only the
backend's result is called: this excludes Dynamo's own cost and that of `torch._dynamo.disable`, which Dynamo puts around
each result, in place of an existing one. Candidates take turns; medians of processor time.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import functorch.compile
import torch
from native import extension, libraries, using
from tabulate import tabulate
from timing import add_threads, environment, least_seconds, median_seconds
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import innermost_fn

import aotgrad
from aotgrad.frontends.dynamo import DynamoBackend
from aotgrad.torch_compat import node_class, plain_apply

Function = Callable[..., Any]
ROUNDS = 21


@dataclass
class Recorder:
    """A pass-through compiler that records the callable of each graph that runs, and the inputs of its first call."""

    runs: list[Function] = field(default_factory=list)
    inputs: list[list[Any]] = field(default_factory=list)

    def __call__(self, module: torch.fx.GraphModule, _: Sequence[Any]) -> Function:
        plain = aotgrad.make_boxed_func(module.forward)

        def run(args: list) -> Any:
            if run not in self.runs:
                self.inputs.append([value.detach() if isinstance(value, Tensor) else value for value in args])
                self.runs.append(run)
            return plain(args)

        run._boxed_call = True
        return run

    def alone(self, runs: Sequence[Function]) -> None:
        """The bare recorded graphs; `runs` replace their callables."""
        with torch._C._AutoDispatchBelowADInplaceOrView():
            for run, inputs in zip(runs, self.inputs, strict=True):
                run(list(inputs))

    def candidates(self) -> dict[str, Callable[[], None]]:
        """The time to subtract from a call, and the cost of measuring it, to add back."""
        return {"graphs": partial(self.alone, self.runs), "nothing": partial(self.alone, [bool] * len(self.runs))}


def three_tensors(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * b + c


def mutation_and_views(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Mutates its last argument, and returns three views of another one."""
    c.add_(1)
    return a * b, b.t(), b[0], b.view(-1)


def change_an_alias(a: Tensor, b: Tensor) -> Tensor:
    """Mutates its first argument, which shares memory with the second one."""
    a.mul_(2)
    return a + b


def fifty_views(a: Tensor) -> tuple[Tensor, ...]:
    return tuple(a[k % 4] for k in range(50))


def many_parameters(x: Tensor, *parameters: Tensor) -> Tensor:
    return torch.stack(parameters).sum(0) * x


@dataclass(frozen=True)
class Case:
    """One kind of call.

    `differentiable`: number of inputs that require grad; `backward`, `gradients`: whether it includes a backward, or asks
    `autograd.grad` for the gradients of all inputs; `overlap`: the inputs are overlapping slices of one tensor.
    """

    name: str
    function: Function
    count: int
    differentiable: int
    mode: Callable[[], AbstractContextManager] = nullcontext
    backward: bool = False
    gradients: bool = False
    overlap: bool = False

    def inputs(self) -> list[Tensor]:
        if self.overlap:
            return list(torch.randn(self.count + 3, 4).unfold(0, 4, 1).transpose(1, 2))
        return [torch.randn(4, 4, requires_grad=k < self.differentiable) for k in range(self.count)]

    def step(self, function: Function, inputs: Sequence[Tensor]) -> None:
        result = function(*inputs)
        if self.backward:
            torch.autograd.backward(result if isinstance(result, Tensor) else result[0], TANGENT)
        if self.gradients:
            torch.autograd.grad(result, inputs, TANGENT)


TANGENT = torch.ones(4, 4)


def cases() -> Iterator[Case]:
    yield Case("3 tensors, forward", three_tensors, 3, 3)
    yield Case("3 tensors, forward + backward", three_tensors, 3, 3, backward=True)
    yield Case("3 tensors, forward + autograd.grad", three_tensors, 3, 3, gradients=True)
    yield Case("3 tensors, no_grad", three_tensors, 3, 3, torch.no_grad)
    yield Case("3 tensors, inference_mode", three_tensors, 3, 3, torch.inference_mode)
    yield Case("mutation + 3 views, forward", mutation_and_views, 3, 2)
    yield Case("mutation + 3 views, no_grad", mutation_and_views, 3, 2, torch.no_grad)
    yield Case("mutation of an alias", change_an_alias, 2, 0, overlap=True)
    yield Case("50 views", fifty_views, 1, 1)
    for count in (100, 1000):
        yield Case(f"{count} parameters, forward", many_parameters, count + 1, count + 1)
        yield Case(f"{count} parameters, forward + backward", many_parameters, count + 1, count + 1, backward=True)


@dataclass(frozen=True)
class Compiled:
    """A function to time, its graphs, and the order of its inputs."""

    call: Function
    graphs: Recorder
    order: Sequence[int]


def through_aot_function(make: Callable[..., Function], case: Case, inputs: Sequence[Tensor]) -> Compiled:
    recorder = Recorder()
    return Compiled(make(case.function, recorder, recorder), recorder, range(case.count))


def peers_backend(recorder: Recorder) -> Function:
    return aot_autograd(fw_compiler=recorder, bw_compiler=recorder)


def our_backend(recorder: Recorder) -> Function:
    aotgrad.backends.register("recorder", fw_compiler=recorder)
    return DynamoBackend("recorder")


def through_dynamo(backend: Callable[[Recorder], Function], case: Case, inputs: Sequence[Tensor]) -> Compiled:
    """The backend's result for Dynamo, called with Dynamo's arguments in Dynamo's order."""
    torch._dynamo.reset()
    recorder, found, order = Recorder(), [], []

    def remember(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Function:
        found.append(innermost_fn(backend(recorder)(module, examples)))
        return torch._dynamo.disable(call_and_note)

    def call_and_note(*args: Tensor) -> Any:
        order[:] = [next(k for k, tensor in enumerate(inputs) if tensor is arg) for arg in args]
        return found[0](*args)

    case.step(torch.compile(case.function, backend=remember), inputs)
    return Compiled(found[0], recorder, order)


FRONTENDS = {
    "aot_function": (
        partial(through_aot_function, functorch.compile.aot_function),
        partial(through_aot_function, aotgrad.aot_function),
    ),
    "torch.compile": (partial(through_dynamo, peers_backend), partial(through_dynamo, our_backend)),
}


class Node(torch.autograd.Function):
    """A hand-written function: the graph, its saved values, its outputs."""

    @staticmethod
    def forward(ctx: Any, run: Function, backward: Function, results: int, *inputs: Tensor) -> Any:
        values = run(list(inputs))
        ctx.save_for_backward(*values[results:])
        ctx.run = backward
        return tuple(values[:results])

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> Any:
        return (None, None, None, *ctx.run([*ctx.saved_tensors, tangents[0]]))


class InPython:
    """What `bare_node.cpp` does, in Python."""

    @staticmethod
    def call(forward: Function, backward: Function, results: int, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return Node.apply(forward, backward, results, *inputs)

    @staticmethod
    def change(forward: Function, changed: Tensor, places: Sequence[Tensor]) -> Tensor:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            inputs = [changed.as_strided(place.size(), place.stride(), place.storage_offset()) for place in places]
            values = forward(inputs)
        changed.copy_(values[0])
        return values[-1]

    @staticmethod
    def rows(tensor: Tensor, indices: Sequence[int]) -> Sequence[Tensor]:
        return [tensor[k] for k in indices]


def by_hand(case: Case, ours: Compiled, bare: Any) -> Function:
    """`case.function` around its graphs from aotgrad, and an autograd node if there are gradients."""
    if case.function is fifty_views:
        indices = [k % 4 for k in range(50)]
        return lambda tensor: bare.rows(tensor, indices)
    forward, backward = ours.graphs.runs[0], ours.graphs.runs[-1]
    if case.function is change_an_alias:
        return lambda changed, _: bare.change(forward, changed, ours.graphs.inputs[0])
    results = 2 if case.function is mutation_and_views else 1

    def call(*inputs: Tensor) -> Any:
        ordered = [inputs[k] for k in ours.order]
        outputs = bare.call(forward, backward, results, ordered) if torch.is_grad_enabled() else forward(ordered)
        if case.function is not mutation_and_views:
            return outputs[0]
        updated, product = outputs
        with torch.no_grad():
            inputs[2].copy_(updated)
        return product, inputs[1].t(), inputs[1][0], inputs[1].view(-1)

    return call


@dataclass(frozen=True)
class Overheads:
    """Microseconds of overhead."""

    peer: float
    ours: float
    native: float
    floor: float
    native_floor: float

    def row(self, name: str) -> list[str]:
        sides = ((self.ours, self.floor), (self.native, self.native_floor))
        columns = [[f"{time:.1f}", f"{time / self.peer:.2f}", f"{floor:.1f}"] for time, floor in sides]
        return [name, f"{self.peer:.1f}", *columns[0], *columns[1]]


def measure(case: Case, frontend: str, rounds: int) -> Overheads:
    peer, ours = FRONTENDS[frontend]
    with case.mode():
        inputs = case.inputs()
        sides, steps = {}, {}
        python, cpp = libraries().values()
        for name, make, library in (("peer", peer, python), ("ours", ours, python), ("native", ours, cpp)):
            with using(library):
                sides[name] = make(case, inputs)
                steps[name] = partial(case.step, sides[name].call, [inputs[k] for k in sides[name].order])
                steps[name]()
        floors = {"floor": InPython, "native_floor": extension("bare_node")}
        for floor, bare in floors.items():
            steps[floor] = partial(case.step, by_hand(case, sides["ours"], bare), inputs)
        for name, side in sides.items():
            steps |= {f"{what} of {name}": run for what, run in side.graphs.candidates().items()}
        seconds = median_seconds(steps, rounds)
    graphs = {name: seconds[f"graphs of {name}"] - seconds[f"nothing of {name}"] for name in sides}
    graphs |= dict.fromkeys(floors, graphs["ours"])
    return Overheads(**{side: 1e6 * (seconds[side] - alone) for side, alone in graphs.items()})


def parts() -> dict[str, Callable[[], object]]:
    """The parts of a call through `aot_function` without gradients, each by itself."""
    inputs, function = (
        [torch.randn(4, 4, requires_grad=True) for _ in range(3)],
        aotgrad.aot_function(three_tensors, aotgrad.nop),
    )
    function(*inputs)
    (plan,), ((usual,),) = function.plans(), function.plan_cache.plain.values()
    tensors, generated = plan.guards.tensors, plan.executable.call.__globals__
    forward, graph = plan.executable.compiled.forward, plan.executable.partition.forward.module.forward
    check = eval(f"lambda tensors: check({tensors.argument})", {"check": tensors.fastest})
    return {
        "nothing": list,
        "the whole call": lambda: function(*inputs),
        "the conditions of its plan": lambda: usual.admits(inputs),
        "of these, the arguments": lambda: check(inputs),
        "entering and leaving the guard below autograd": lambda: generated["below_autograd"](bool, inputs),
        "the compiled graph": lambda: forward(list(inputs)),
        "of this, the graph's own code": lambda: graph(*inputs),
    }


def table_of_parts() -> str:
    times: list[list[str]] = []
    for library in libraries().values():
        with using(library), torch.no_grad():
            seconds = least_seconds(parts())
        times.append([f"{1e6 * (time - seconds['nothing']):.2f}" for name, time in seconds.items() if name != "nothing"])
    rows = zip([name for name in seconds if name != "nothing"], *times, strict=True)
    headers = ["3 tensors, no_grad (us)", *libraries()]
    return tabulate(rows, headers, "github", disable_numparse=True, colalign=["left", "right", "right"])


class Ready(torch.autograd.Function):
    """An autograd node that computes nothing: its result and its gradients exist already."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor | None], results: tuple, *others: Any) -> tuple[Tensor, ...]:
        return results

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> Any:
        return (*(None,) * 5, *ctx.gradients)


def parts_of_many(count: int) -> dict[str, Callable[[], object]]:
    """The time that torch itself needs for an autograd node with many inputs."""
    sentinel, *inputs = (torch.randn(4, 4, requires_grad=True) for _ in range(count + 1))
    library = libraries()["with C++"]
    assert library is not None, "it was built"
    gradients, kind = (None, *(TANGENT.clone() for _ in inputs)), node_class(Ready)
    kind.gradients, attach = gradients, library.attaching(plain_apply(Ready), 5, ((gradients, kind, False),))

    def arguments() -> tuple[Any, ...]:
        return (gradients, (TANGENT.clone(),), (), None, None, sentinel, *inputs)

    return {
        "nothing": list,
        "`apply` of an autograd function": lambda: Ready.apply(*arguments()),
        "the same with C++": lambda: attach(*arguments()),
        "that, and a backward with gradients that are there already": lambda: torch.autograd.backward(
            attach(*arguments()), (TANGENT,)
        ),
        "the engine alone, which accumulates as many gradients": lambda: run_engine(inputs),
        "the engine with one of them": lambda: run_engine(inputs[:1]),
        "`torch.autograd.backward` with one of them": lambda: torch.autograd.backward(inputs[:1], (TANGENT,)),
    }


def run_engine(leaves: Sequence[Tensor]) -> None:
    """A backward whose results are leaves: nothing but accumulation."""
    tangents = (TANGENT,) * len(leaves)
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(tuple(leaves), tangents, False, False, (), allow_unreachable=True, accumulate_grad=True)


def table_of_many(counts: Sequence[int] = (3, 100, 1000)) -> str:
    times: list[list[str]] = []
    for count in counts:
        seconds = least_seconds(parts_of_many(count))
        names = [name for name in seconds if name != "nothing"]
        times.append([f"{1e6 * (seconds[name] - seconds['nothing']):.1f}" for name in names])
    headers = ["an autograd node (us)", *(f"{count} parameters" for count in counts)]
    return tabulate(zip(names, *times, strict=True), headers, "github", colalign=["left", "right", "right"])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only cases with one of these in the name")
    parser.add_argument("--frontends", nargs="+", choices=FRONTENDS, default=list(FRONTENDS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples per candidate (default: %(default)s)")
    add_threads(parser)
    parser.add_argument("--parts", action="store_true", help="the parts of a call, and nothing else")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.parts:
        print(f"{environment()}; the least of many samples\n\n{table_of_parts()}\n\n{table_of_many()}")
        return
    print(f"{environment()}; us a call; ratio = aotgrad / peer\n")
    chosen = [case for case in cases() if not arguments.only or any(text in case.name for text in arguments.only)]
    headers = ["peer", "aotgrad", "ratio", "floor", "with C++", "ratio", "floor"]
    tablefmt = "github" if arguments.markdown else "simple"
    for frontend in arguments.frontends:
        rows = [measure(case, frontend, arguments.rounds).row(case.name) for case in chosen]
        table = tabulate(rows, [frontend, *headers], tablefmt, disable_numparse=True, colalign=["left", *["right"] * 7])
        print(f"{table}\n", flush=True)


if __name__ == "__main__":
    main()
