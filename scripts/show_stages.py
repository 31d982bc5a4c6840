"""Print what every stage of the pipeline makes of a function.

    python scripts/show_stages.py model.py:loss --inputs "f32[8, 4] requires_grad" "i64[8]"
    python scripts/show_stages.py torch.nn.functional:gelu --inputs "bf16[4]" --stage joint
    python scripts/show_stages.py model.py:net                     the file defines example_inputs()
    python scripts/show_stages.py --example views_of_intermediate
    python scripts/show_stages.py --list                           the examples, and what each of them shows

A name may be dotted (`model.py:Net.step`); a module instance is compiled with its parameters. An input is written as
the stages print it: `f32[3, 4]`, with strides `f32[4, 3][1, 4]`, then `requires_grad`, or `nonleaf` for a tensor with a
history; `same 0` is input 0 again; anything else is a Python literal.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import aotgrad
from aotgrad.inspect.specs import SpecError, make_arguments
from aotgrad.observe import LAST_STAGE, Stage, recorded

REPOSITORY = Path(__file__).resolve().parents[1]
STAGES = ("capture", "analysis", "joint", "partition", "compiled", LAST_STAGE)
PARTITIONERS = {
    "min_cut": aotgrad.min_cut_rematerialization_partition,
    "recompute_all": aotgrad.recompute_all_partition,
    "save_all": aotgrad.default_partition,
}


class UsageError(Exception):
    """What the user asked for is not there; the message says what is."""


def load_module(name: str) -> ModuleType:
    """The module in a Python file, or an importable one."""
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"there is no module {name!r}; for a file write its path, with .py: {error}") from error
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def find_function(target: str) -> tuple[Callable[..., Any], ModuleType]:
    """The callable that `module:name` or `file.py:name` means, and its module."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UsageError(f"{target!r} names no function; write file.py:function or module:function")
    module = load_module(place)
    try:
        function = functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        own = ", ".join(functions_of(module)) or "none"
        raise UsageError(f"{place} has no {name!r}; its functions are {own}") from None
    if not callable(function):
        raise UsageError(f"{target} is a {type(function).__name__}, which cannot be called")
    return function, module


def functions_of(module: ModuleType) -> list[str]:
    own = inspect.getmembers(module, inspect.isfunction)
    return [name for name, function in own if function.__module__ == module.__name__]


def inputs_for(function: Callable[..., Any], module: ModuleType, specs: Sequence[str] | None) -> tuple[Any, ...]:
    """The arguments of the command line, or those that the module's `example_inputs()` returns."""
    if specs is not None:
        return make_arguments(specs)
    if not hasattr(module, "example_inputs"):
        raise UsageError('say what it takes, --inputs "f32[3, 4] requires_grad" ..., or define example_inputs() there')
    inputs = module.example_inputs()
    return tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)


def compiled(function: Callable[..., Any], backend: str, partitioner: str, dynamic: bool) -> Callable[..., Any]:
    """`function` compiled without Dynamo, so that the graphs are those of the function as it stands."""
    compile_it = aotgrad.aot_module if isinstance(function, torch.nn.Module) else aotgrad.aot_function
    if backend == "inductor":
        options = {"partitioner": partitioner}
        return torch.compile(function, backend="aotgrad", fullgraph=True, dynamic=dynamic, options=options)
    compiler = aotgrad.backends.get(backend).fw_compiler
    return compile_it(function, compiler, partition_fn=PARTITIONERS[partitioner], dynamic=dynamic)


def show(run: Callable[[], Any], wanted: Sequence[str]) -> Iterator[str]:
    """The text of every wanted stage of everything that `run` compiles."""
    with recorded() as stages:
        run()
    for stage in stages:
        if stage.name in wanted:
            yield stage_text(stage)


def stage_text(stage: Stage) -> str:
    return f"--- {stage.name} ---\n\n{stage.text}\n"


# --- The examples: the cases of the golden files ---------------------------------------------------------------------


def examples() -> dict[str, Any]:
    sys.path.insert(0, str(REPOSITORY))
    from tests.golden.test_golden import CASES

    return CASES


def find_example(name: str) -> Any:
    cases = examples()
    if name not in cases:
        raise UsageError(f"there is no example {name!r}; the examples are {', '.join(sorted(cases))}")
    return cases[name]


def example_list() -> Iterator[str]:
    for name, case in sorted(examples().items()):
        yield f"{name:28} {inspect.getdoc(case.function).splitlines()[0]}"


# --- The command line ------------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", nargs="?", help="file.py:function or module:function")
    parser.add_argument("--inputs", nargs="*", metavar="INPUT", help='such as "f32[3, 4] requires_grad"')
    parser.add_argument("--example", metavar="NAME", help="one of the examples instead of a function")
    parser.add_argument("--list", action="store_true", help="list the examples")
    parser.add_argument("--stage", action="append", choices=STAGES, help="print this stage only; may be repeated")
    parser.add_argument("--backend", default="eager", choices=aotgrad.backends.names())
    parser.add_argument("--partitioner", default="min_cut", choices=sorted(PARTITIONERS))
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes")
    parser.add_argument("--no-grad", action="store_true", help="call it under torch.no_grad()")
    return parser


def lines_for(arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.list:
        yield from example_list()
        return
    wanted = arguments.stage or STAGES
    if arguments.example:
        case = find_example(arguments.example)
        yield f"{case.header()}\n\n{case.source()}\n"
        yield from show(case.run, wanted)
        return
    if not arguments.function:
        raise UsageError("name a function (file.py:function), --example NAME or --list; --help says more")
    function, module = find_function(arguments.function)
    inputs = inputs_for(function, module, arguments.inputs)
    target = compiled(function, arguments.backend, arguments.partitioner, arguments.dynamic)
    with torch.no_grad() if arguments.no_grad else contextlib.nullcontext():
        yield from show(lambda: target(*inputs), wanted)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        for line in lines_for(arguments):
            print(line)
    except (UsageError, SpecError, aotgrad.errors.AOTGradError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
