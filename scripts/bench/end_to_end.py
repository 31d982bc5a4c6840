"""Compile training steps with Inductor on the CPU, and compare them with torch.compile's own.

    python scripts/bench/end_to_end.py
    python scripts/bench/end_to_end.py --only mlp8 hf_gpt2 --rounds 11 --markdown
    python scripts/bench/end_to_end.py --kept rows.json         resumes a stopped run

Cold: processor time (the C++ compiler's is part of it; there are no other processes) from `torch.compile` to the end of the
first step, forward and backward, with empty caches, one compilation a side. Step: medians of processor time, in turns.
Ratios are aotgrad over torch.compile, as is each *floor*, which no frontend can avoid: Inductor's part of
a cold compilation, and the compiled graphs of a step alone. Loss and gradients of a step from the same random seed: `equal`
to the bit, or their largest difference relative to the largest gradient.
"""

import argparse
import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from graph_calls import GraphCalls, processor_seconds, recorded
from memory import step
from step_models import STEPS
from tabulate import tabulate
from timing import ROUNDS, add_threads, environment, median_seconds
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

from aotgrad.backends import get

BACKENDS = {"inductor": "inductor", "aotgrad": "aotgrad"}


def cold_seconds(model: nn.Module, backend: str, inputs: tuple[Tensor, ...]) -> float:
    """Compile a model in place; the time of its first step."""
    with fresh_cache(), TemporaryDirectory() as folder, mock.patch.dict(os.environ, AOTGRAD_CACHE_DIR=folder):
        start = processor_seconds()
        model.compile(backend=backend)
        step(model, inputs)
        return processor_seconds() - start


def graphs_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> GraphCalls:
    """The graphs of a step, compiled with empty caches."""

    def compiled(graphs: GraphCalls) -> Callable[[], None]:
        model.compile(backend=graphs.for_dynamo())
        return partial(step, model, inputs)

    with fresh_cache():
        return recorded(get("inductor"), compiled)


def warm_up() -> None:
    """The first compilation in a process imports much; exclude that from all times."""
    for backend in BACKENDS.values():
        made = STEPS["mlp8"]()
        cold_seconds(made.model, backend, made.inputs)


def results(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Loss and gradients."""
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    loss = model(*inputs)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def difference(models: Mapping[str, nn.Module], inputs: tuple[Tensor, ...]) -> str:
    ours, theirs = (results(models[side], inputs) for side in ("aotgrad", "inductor"))
    if all(map(torch.equal, ours, theirs)):
        return "equal"
    largest = max(tensor.abs().max().item() for tensor in theirs)
    return f"{max((one - other).abs().max().item() for one, other in zip(ours, theirs, strict=True)) / largest:.0e}"


def row(name: str, rounds: int) -> list[str]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    made = STEPS[name]()
    models = {side: copy.deepcopy(made.model) for side in BACKENDS}
    cold = {side: cold_seconds(model, BACKENDS[side], made.inputs) for side, model in models.items()}
    graphs = graphs_of(copy.deepcopy(made.model), made.inputs)
    cold["floor"] = sum(graphs.compilations)
    differs = difference(models, made.inputs)
    steps = {side: partial(step, model, made.inputs) for side, model in {"eager": made.model, **models}.items()}
    seconds = median_seconds({**steps, "floor": graphs.replay}, rounds)
    cells = [f"{cold[side]:.1f}" for side in BACKENDS] + ratios(cold)
    cells += [f"{1000 * seconds[side]:.2f}" for side in steps] + ratios(seconds)
    return [name, *cells, differs]


def ratios(seconds: Mapping[str, float]) -> list[str]:
    """aotgrad's time and the floor, over Inductor's."""
    return [f"{seconds[side] / seconds['inductor']:.2f}" for side in ("aotgrad", "floor")]


def kept(file: Path | None) -> dict[str, list[str]]:
    """The rows of an earlier run, by model."""
    return {} if file is None or not file.exists() else json.loads(file.read_text())


def measured(names: Sequence[str], rounds: int, file: Path | None) -> list[list[str]]:
    """The rows of some models; rows in the file are not remeasured, new ones are stored there at once."""
    rows = kept(file)
    for name in names:
        if name not in rows:
            rows[name] = row(name, rounds)
            if file is not None:
                file.write_text(json.dumps(rows))
    return [rows[name] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="which models")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples per candidate (default: %(default)s)")
    add_threads(parser)
    parser.add_argument("--kept", type=Path, help="a file where rows are kept, and taken from")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    inductor_config.compile_threads = 1
    print(f"{environment()}\n", flush=True)
    warm_up()
    headers = ["", "inductor, cold (s)", "aotgrad, cold (s)", "ratio", "floor", "eager, step (ms)", "inductor, step (ms)"]
    headers += ["aotgrad, step (ms)", "ratio", "floor", "numbers"]
    tablefmt = "github" if arguments.markdown else "simple"
    rows = measured(arguments.only, arguments.rounds, arguments.kept)
    print(tabulate(rows, headers, tablefmt, disable_numparse=True, colalign=["left", *["right"] * 10]))


if __name__ == "__main__":
    main()
