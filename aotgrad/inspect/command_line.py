"""Inspect what aotgrad compiles for a function or module, or for Dynamo's graphs of it.

    python -m aotgrad explain model.py:net --inputs "f32[8, 4]"       what happens to inputs, what is saved, and why
    python -m aotgrad explain model.py:net --json                     the same for programs
    python -m aotgrad explain model.py:net --plot memory.svg          its memory over one call
    python -m aotgrad explain model.py:net --html page.html           a page for a browser, with every node
    python -m aotgrad page report.json page.html                      the same of what --json printed
    python -m aotgrad explain model.py:net --dynamo                   each of Dynamo's graphs, and the graph breaks
    python -m aotgrad stages torch.nn.functional:gelu --inputs "bf16[4]" --stage joint
    python -m aotgrad frontier model.py:net --plot front.svg          how it can trade memory for time
    python -m aotgrad check mypackage:backend                         compare a backend with eager on torch's databases
    python -m aotgrad cache info                                      what is stored on disk for later processes
    python -m aotgrad cache clear                                     remove it
    python -m aotgrad native build                                    compile C++ functions that make calls cheaper
    python -m aotgrad native info                                     whether they exist; `clear` removes them

A name may be dotted (`model.py:Net.step`); a module instance is compiled with its parameters. Inputs have the format of the
report: `f32[3, 4]`, with strides `f32[4, 3][1, 4]`, then `requires_grad`, or `nonleaf` for a tensor with a history. `same 0`
is the same tensor as input 0. Anything else is a Python literal. Without --inputs, `example_inputs()` of the file supplies
the inputs.

The exit status is 0; 1 if the function or the C++ cannot be compiled, the cache is not used or a checked backend fails; 2
for a wrong command line.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from aotgrad import native
from aotgrad.backends import registry
from aotgrad.cache import plan_store
from aotgrad.cache.store import Store
from aotgrad.conformance.command import DESCRIPTION, add_check_arguments, check_backend_named
from aotgrad.errors import AOTGradError, OptionError
from aotgrad.inspect.explain import explain
from aotgrad.inspect.explanation import Explanation
from aotgrad.inspect.extras import MissingPackage
from aotgrad.inspect.memory_frontier import memory_frontier
from aotgrad.inspect.page.write import NotAReport, write_page
from aotgrad.inspect.plots import MEGABYTE, plot_frontier, plot_memory
from aotgrad.inspect.specs import SpecError
from aotgrad.inspect.targets import Target, UsageError
from aotgrad.native import build as native_build
from aotgrad.native.background import key_of_failure
from aotgrad.options import Options, native_wanted
from aotgrad.pipeline import Compiler
from aotgrad.plan_cache.binding import bind
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.compiler import make_compiler
from aotgrad.plan_cache.entry import NoPlan
from aotgrad.telemetry.observer import LAST_STAGE, record_stages

STAGES = ("capture", "analysis", "joint", "partition", "compiled", LAST_STAGE)
OK, CANNOT_COMPILE, WRONG_USAGE = 0, 1, 2
UNUSABLE = DOES_NOT_CONFORM = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = make_parser().parse_args(argv)
    try:
        with torch.no_grad() if arguments.no_grad else contextlib.nullcontext():
            status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except (UsageError, SpecError, OptionError, MissingPackage, NotAReport) as error:
        return report_error(error, WRONG_USAGE)
    except AOTGradError as error:
        return report_error(error, CANNOT_COMPILE)
    except BrokenPipeError:  # the reader of the output closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def report_error(error: Exception, status: int) -> int:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return status


# --- The command line ------------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m aotgrad", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    shared = shared_parser()
    command = add_command(commands, "explain", run_explain, shared, "report what is compiled, what is saved, and why")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--dynamo", action="store_true", help="each of the graphs that torch.compile makes; runs it once")
    command.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the memory of a call; needs matplotlib")
    command.add_argument("--html", type=Path, metavar="FILE.html", help="write a page for a browser; needs plotly")
    command = add_command(commands, "stages", run_stages, shared, "print the result of every stage of the pipeline")
    command.add_argument("--stage", action="append", choices=STAGES, help="print this stage only; may be repeated")
    command = add_command(commands, "frontier", run_frontier, shared, "print how it can trade memory for time")
    command.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw it to this file; needs matplotlib")
    text = "write the page of a report that explain --json printed"
    command = commands.add_parser("page", help=text, description=f"{text[0].upper()}{text[1:]}.")
    command.add_argument("report", type=Path, metavar="REPORT.json", help="what explain --json printed")
    command.add_argument("page", type=Path, metavar="PAGE.html", help="the file to write")
    command.set_defaults(run=run_page, no_grad=False)
    command = commands.add_parser("check", help="compare a backend of your own with eager", description=DESCRIPTION)
    add_check_arguments(command)
    command.set_defaults(run=run_check, no_grad=False)
    add_command_on_files(commands, "cache", run_cache, "show or clear the files of the cache", ("info", "clear"))
    add_command_on_files(commands, "native", run_native, "build, show or clear C++ functions", ("build", "info", "clear"))
    return parser


def add_command_on_files(commands: Any, name: str, run: Callable, text: str, actions: Sequence[str]) -> None:
    command = commands.add_parser(name, help=text, description=f"{text.capitalize()}: see docs/{name}.md.")
    command.add_argument("action", choices=actions)
    command.set_defaults(run=run, no_grad=False)


def add_command(commands: Any, name: str, run: Callable, shared: argparse.ArgumentParser, text: str) -> Any:
    command = commands.add_parser(name, parents=[shared], help=text, description=f"{text[0].upper()}{text[1:]}.")
    command.set_defaults(run=run)
    return command


def shared_parser() -> argparse.ArgumentParser:
    """The arguments of every command on a function."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("function", help="file.py:function or module:function")
    parser.add_argument("--inputs", nargs="*", metavar="INPUT", help='such as "f32[3, 4] requires_grad"')
    parser.add_argument("--backend", default="eager", choices=registry.names(), help="default: eager")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="see aotgrad.Options")
    parser.add_argument("--no-grad", action="store_true", help="as under torch.no_grad()")
    return parser


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the command line; a value that is not a Python literal is a string."""
    options = {}
    for text in arguments.option:
        name, found, value = text.partition("=")
        if not found:
            raise UsageError(f"--option {text!r} has no value; write NAME=VALUE, such as memory_budget=0.5")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


# --- The commands ----------------------------------------------------------------------------------------------------


def run_explain(arguments: argparse.Namespace) -> int:
    options = options_of(arguments)
    if arguments.plot and arguments.dynamo:
        raise UsageError("--plot draws one graph; --dynamo may report on several")
    target = Target.of(arguments.function, arguments.inputs)
    explainer = explain(target.function, backend=arguments.backend, options=options, dynamo=arguments.dynamo)
    with contextlib.redirect_stdout(sys.stderr):  # keep the function's own output out of the report
        explanation = explainer(*target.inputs)
    print(explanation.to_json() if arguments.json else explanation)
    if isinstance(explanation, Explanation) and arguments.plot:
        plot_memory(explanation, arguments.plot)
    if arguments.html:
        explanation.html(arguments.html)
    return OK


def run_page(arguments: argparse.Namespace) -> int:
    try:
        report = json.loads(arguments.report.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{arguments.report} cannot be read as a report: {error}") from error
    write_page(report, arguments.page)
    return OK


def run_stages(arguments: argparse.Namespace) -> int:
    options = Options.from_mapping(options_of(arguments))
    target = Target.of(arguments.function, arguments.inputs)
    for title, text in stages(target, make_compiler(arguments.backend, options), arguments.stage or STAGES):
        print(f"--- {title} ---\n\n{text}\n")
    return OK


def stages(target: Target, compiler: Compiler, wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The name and text of every wanted stage.

    Raises:
        UsageError: the function itself raises.
    """
    with record_stages() as found:
        plan = bind(target.function, PlanCache(compiler, "stages")).plan_for(*target.inputs)
    if isinstance(plan, NoPlan):
        cause = "" if plan.error is None else f": {type(plan.error).__name__}: {plan.error}"
        raise UsageError(f"there are no stages, since {plan.reason}{cause}") from plan.error
    yield from ((stage.name, stage.text) for stage in found if stage.name in wanted)


def run_frontier(arguments: argparse.Namespace) -> int:
    options = options_of(arguments)
    if options.keys() - {"offload"}:
        raise UsageError("frontier takes no --option but offload: it shows all budgets")
    target = Target.of(arguments.function, arguments.inputs)
    frontier = memory_frontier(target.function, *target.inputs, backend=arguments.backend, **options)
    print(frontier)
    if arguments.plot:
        plot_frontier(frontier, arguments.plot, arguments.function)
    return OK


def run_check(arguments: argparse.Namespace) -> int:
    report = check_backend_named(arguments)
    print(report)
    return OK if report.conforms else DOES_NOT_CONFORM


def run_cache(arguments: argparse.Namespace) -> int:
    store = plan_store()
    return run_on_files(store, clear if arguments.action == "clear" else text_of_store)


def run_native(arguments: argparse.Namespace) -> int:
    actions = {
        "build": lambda store: f"built in {native_build.build_library().folder}",
        "info": text_of_native,
        "clear": clear,
    }
    return run_on_files(native_build.native_store(), actions[arguments.action])


def run_on_files(store: Store, action: Callable[[Store], str]) -> int:
    """Print the result of an action on a folder."""
    try:
        print(action(store))
    except OSError as error:
        print(f"the cache in {store.folder} is not used: {error}", file=sys.stderr)
        return UNUSABLE
    return OK


def clear(store: Store) -> str:
    return f"removed {store.clear()} files from {store.folder}"


def text_of_native(store: Store) -> str:
    """The folder, its size, and whether its files are used. Raises OSError if the folder is not used."""
    files = text_of_store(store)
    if not native_wanted():
        return f"{files}\nnot used: AOTGRAD_NATIVE=0"
    missing = f"not used: there is none for torch {torch.__version__} and this Python; python -m aotgrad native build"
    if (failure := store.read(key_of_failure())) is not None:
        missing += f"\nin the background, {failure.decode()}"
    return f"{files}\n{missing if native.library() is None else f'used with torch {torch.__version__}'}"


def text_of_store(store: Store) -> str:
    """The folder, its size and the limit. Raises OSError if the folder is not used."""
    files = store.files()
    size, limit = sum(file.nbytes for file in files) / MEGABYTE, store.limit_bytes / MEGABYTE
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    return f"{store.folder}\n{count}, {size:.1f} MB of at most {limit:.0f} MB"
