"""Part 2: CUDA graphs, captures, streams, threads, memory that runs out, and memory that must come back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from case import Case, Need, Outcome
from torch import Tensor, nn

import aotgrad

CASES: list[Case] = []
GRAPHS = frozenset({Need.GPU, Need.TRITON})
GPU = frozenset({Need.GPU})
NOTHING: frozenset[Need] = frozenset()
STEPS, FIRST_STEPS = 20, 6


def runtime(
    name: str, needs: frozenset[Need] = NOTHING, seconds: int = 150, alone: bool = False, known: str | None = None
) -> Callable:
    """Add a case: the decorated function returns an `Outcome`, or what is wrong."""

    def add(find: Callable[[], Outcome | Sequence[str]]) -> Callable:
        def run() -> Outcome:
            found = find()
            return found if isinstance(found, Outcome) else Outcome(found)

        CASES.append(Case(name, run, seconds, needs, known, alone))
        return find

    return add


def close(what: str, expected: Tensor | None, found: Tensor | None, tolerance: float = 1e-4) -> list[str]:
    """One problem if two tensors differ, or only one is there."""
    if expected is None or found is None:
        return [] if expected is found else [f"{what} is there once only"]
    distance = (expected.double() - found.double()).abs().max().item() / max(1.0, expected.abs().max().item())
    return [] if distance <= tolerance else [f"{what} differs by {distance:.1e}"]


def losses_of(model: nn.Module, run: Callable, batches: Sequence[Tensor], accumulate: int = 1) -> Iterator[Tensor]:
    """The losses of SGD steps, each of `accumulate` batches."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step, batch in enumerate(batches):
        torch.manual_seed(step)
        loss = run(batch).square().mean()
        loss.backward()
        yield loss.detach().clone()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


def plain_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))


def layers_with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.3), nn.Linear(64, 32))


def layers_with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))


def recordings() -> int:
    """How many CUDA graphs Inductor's trees have recorded on this device."""
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    return 0 if manager is None else manager.new_graph_id().id


def one_recording(make: Callable[[], nn.Module], accumulate: int, options: Mapping[str, Any]) -> Outcome:
    """Train with `mode="reduce-overhead"`: eager's losses, and no recording after the first ones."""
    torch.manual_seed(0)
    batches = [torch.randn(16, 32, device="cuda") for _ in range(STEPS)]
    model = make().cuda()
    twin = make().cuda()
    twin.load_state_dict(model.state_dict())
    expected = list(losses_of(twin, twin, batches, accumulate))
    compiled = torch.compile(model, backend="aotgrad", options={"mode": "reduce-overhead", **options})
    losses = losses_of(model, compiled, batches, accumulate)
    found = list(itertools.islice(losses, FIRST_STEPS))
    before = recordings()
    found += losses
    later = recordings() - before - 1  # counting takes one number itself
    problems = [] if later <= 0 else [f"{later} recordings after step {FIRST_STEPS}"]
    for step, pair in enumerate(zip(expected, found, strict=True)):
        problems += close(f"the loss of step {step}", *pair, 1e-3)
    return Outcome(problems[:3], {"recordings": str(before)})


EAGERS_NUMBERS = {"inductor": {"fallback_random": True}}
"""With eager's own random ops, which give eager's numbers, backwards draw from clones of generators."""

for name, make, accumulate, options in (
    ("one recording in 20 steps", plain_layers, 1, {}),
    ("one recording, dropout", layers_with_dropout, 1, EAGERS_NUMBERS),
    ("one recording, dropout and a memory budget", layers_with_dropout, 1, {"memory_budget": 0.3, **EAGERS_NUMBERS}),
    ("one recording, dropout that is drawn again", layers_with_dropout, 1, {"memory_budget": 0.0, **EAGERS_NUMBERS}),
    ("one recording, batch norm", layers_with_batch_norm, 1, {}),
    ("one recording, accumulated gradients", plain_layers, 2, {}),
):
    CASES.append(Case(f"CUDA graphs: {name}", partial(one_recording, make, accumulate, options), 150, GRAPHS))


@runtime("CUDA graphs: misaligned and fresh inputs", GRAPHS)
def _() -> Sequence[str]:
    compiled = torch.compile(lambda x, w: (x * w).sin().sum(), backend="aotgrad", options={"mode": "reduce-overhead"})
    memory, problems = torch.randn(4097, device="cuda"), []
    for step in range(8):
        x = memory[step % 2 : 4096 + step % 2].view(64, 64)
        w = torch.randn(64, 64, device="cuda", requires_grad=True)
        compiled(x, w).backward()
        problems += close(f"the gradient of step {step}", (x * w.detach()).cos() * x, w.grad)
    return problems


def kept_of_steps(steps: Callable[[Callable, Sequence[Tensor], Tensor], list[Tensor]]) -> Sequence[str]:
    """What steps with CUDA graphs have kept at their end is what eager's have, also in a second round."""
    torch.manual_seed(0)
    layer, problems = (lambda x, w: (x @ w).sin().exp()), []
    compiled = torch.compile(layer, backend="aotgrad", options={"mode": "reduce-overhead", "min_graph_ops": 0})
    batches = [torch.randn(16, 32, device="cuda") for _ in range(STEPS)]
    weight = torch.randn(32, 8, device="cuda").requires_grad_()
    for round_ in range(2):
        both = zip(steps(layer, batches, weight), steps(compiled, batches, weight), strict=True)
        for k, pair in enumerate(both):
            problems += close(f"round {round_}, value {k}", *pair)
    return problems[:5]


def results_and_gradients(function: Callable, batches: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    kept = []
    for batch in batches:
        result = function(batch, weight)
        kept += [result.detach()[1:], *torch.autograd.grad(result.sum(), weight)]
    return kept


def retained_graph(function: Callable, batches: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    first = function(batches[0], weight).sum()
    kept = [*torch.autograd.grad(first, weight, retain_graph=True)]
    for batch in batches[1:]:
        kept += torch.autograd.grad(function(batch, weight).sum(), weight)
    return [*kept, *torch.autograd.grad(first, weight)]


@runtime("CUDA graphs: results and gradients of earlier steps", GRAPHS)
def _() -> Sequence[str]:
    return kept_of_steps(results_and_gradients)


@runtime("CUDA graphs: a retained graph", GRAPHS, known="torch raises: a replay must free what its recording freed")
def _() -> Sequence[str]:
    return kept_of_steps(retained_graph)


@runtime("make_graphed_callables of a compiled module", GRAPHS)
def _() -> Sequence[str]:
    torch.manual_seed(0)
    model = plain_layers().cuda()
    x = torch.randn(16, 32, device="cuda", requires_grad=True)
    compiled = aotgrad.aot_module(model, "eager")
    graphed: Any = torch.cuda.make_graphed_callables(compiled, (x,))
    problems = []
    for step in range(3):
        batch = torch.randn(16, 32, device="cuda")
        expected = torch.autograd.grad(model(batch).square().sum(), list(model.parameters()))
        found = torch.autograd.grad(graphed(batch).square().sum(), list(model.parameters()))
        for k, pair in enumerate(zip(expected, found, strict=True)):
            problems += close(f"step {step}, gradient {k}", *pair)
    return problems


def captured(options: Mapping[str, Any]) -> Sequence[str]:
    """A user's capture of a compiled forward and backward with dropout; each replay draws other numbers."""
    torch.manual_seed(0)
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    compiled = aotgrad.aot_function(lambda x: F.dropout(x.sin(), 0.5).cos().sin(), "eager", options=options)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.autograd.grad(compiled(x).sum(), x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = compiled(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
    problems, seen = [], []
    for _ in range(3):
        graph.replay()
        seen.append(y.detach().clone())
        dropped = y == torch.tensor(1.0, device="cuda").sin()  # cos(0) = 1
        problems += [] if bool((gradient[dropped] == 0).all()) else ["a dropped element has a gradient"]
    return problems + (["two replays draw the same numbers"] if torch.equal(seen[0], seen[1]) else [])


@runtime("a capture by the user, with dropout", GPU)
def _() -> Sequence[str]:
    return captured({})


@runtime("a capture by the user, with dropout that is recomputed", GPU, known="a capture cannot read a generator's state")
def _() -> Sequence[str]:
    return captured({"memory_budget": 0.1})


# --- Streams and threads ---------------------------------------------------------------------------------------------


@runtime("forward on one stream, backward on another", GPU)
def _() -> Sequence[str]:
    compiled, problems = aotgrad.aot_function(lambda x, w: (x @ w).sin(), "eager"), []
    for _ in range(10):
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        x, w = (torch.randn(256, 256, device="cuda", requires_grad=True) for _ in range(2))
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            torch.cuda._sleep(50_000_000)
            y = compiled(x, w)
        second.wait_stream(first)
        with torch.cuda.stream(second):
            found = torch.autograd.grad(y.sum(), (x, w))
        del y
        noise = [torch.full((256, 256), 7.0, device="cuda") for _ in range(8)]  # takes memory that is freed too early
        torch.cuda.synchronize()
        expected = torch.autograd.grad((x @ w).sin().sum(), (x, w))
        for what, pair in zip("xw", zip(expected, found, strict=True), strict=True):
            problems += close(f"the gradient of {what}", *pair)
        del noise
    return problems


@runtime("eight threads train eight models")
def _() -> Sequence[str]:
    torch.manual_seed(0)
    models = [plain_layers().cuda() for _ in range(8)]
    batches = [torch.randn(16, 32, device="cuda") for _ in range(3)]
    problems: list[str] = []

    def run(model: nn.Module) -> None:
        compiled = aotgrad.aot_module(model, "eager")
        for batch in batches:
            expected = torch.autograd.grad(model(batch).square().sum(), list(model.parameters()))
            found = torch.autograd.grad(compiled(batch).square().sum(), list(model.parameters()))
            for k, pair in enumerate(zip(expected, found, strict=True)):
                problems.extend(close(f"gradient {k}", *pair))

    threads = [threading.Thread(target=run, args=(model,), daemon=True) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return [*problems, *(["a thread has not ended"] if any(thread.is_alive() for thread in threads) else [])]


@runtime("GradScaler skips a step with infinite gradients")
def _() -> Sequence[str]:
    def run(compile: Callable[[nn.Module], Callable]) -> list[Tensor]:
        torch.manual_seed(0)
        model = plain_layers().cuda()
        step, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20)
        for scale in (1.0, 1e30, 1.0):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = step(torch.ones(4, 32, device="cuda")).float().square().mean() * scale
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    expected, found = run(lambda model: model), run(lambda model: aotgrad.aot_module(model, "eager"))
    return [problem for pair in zip(expected, found, strict=True) for problem in close("a parameter", *pair, 1e-3)]


# --- Memory ----------------------------------------------------------------------------------------------------------


@runtime("memory runs out in the forward, and in the backward; the next step is right", GPU, alone=True)
def _() -> Sequence[str]:
    def f(x: Tensor) -> Tensor:
        return (x.sin() * x.cos()).exp().sum()

    compiled, problems = aotgrad.aot_function(f, "eager", options={"dynamic": False}), []
    small, large = (torch.ones(size, device="cuda", requires_grad=True) for size in (1 << 10, 1 << 28))
    compiled(small).backward()
    compiled(large)  # has a plan; all that it allocates is freed
    small.grad = None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    free, _ = torch.cuda.mem_get_info()
    for what, spare in (("forward", 1 << 28), ("backward", (1 << 30) * 4)):
        filler = torch.empty(max(0, free - spare), dtype=torch.uint8, device="cuda")
        try:
            compiled(large).backward()
            if what == "forward":
                problems.append("the forward fits, so nothing was tested")
        except torch.OutOfMemoryError:
            pass
        large.grad = None
        del filler
        torch.cuda.empty_cache()
        problems += [] if torch.cuda.memory_allocated() <= before else [f"memory is held after an error in the {what}"]
        small.grad = None
        compiled(small).backward()
        expected = torch.autograd.grad(f(small), small)[0]
        problems += close(f"the gradient after an error in the {what}", expected, small.grad)
        del expected
        small.grad = None
    return problems


@runtime("200 steps leave no memory behind", alone=True)
def _() -> Outcome:
    model = layers_with_batch_norm().cuda()
    compiled = aotgrad.aot_module(model, "eager")
    batch, sizes = torch.randn(16, 32, device="cuda"), []
    for step in range(200):
        compiled(batch).square().mean().backward()
        model.zero_grad()
        if step >= 10:
            sizes.append(torch.cuda.memory_allocated())
    problems = [] if max(sizes) == min(sizes) else [f"memory grows from {min(sizes)} to {max(sizes)} bytes"]
    return Outcome(problems, {"bytes": str(sizes[-1])})
