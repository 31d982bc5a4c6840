"""`save` and `load`: the plans of a compiled function, module or training step, in a file."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import nn

from aotgrad import passes, torch_compat
from aotgrad.api import function_with, module_with
from aotgrad.backends import registry
from aotgrad.backends.base import AnyBackend
from aotgrad.backends.kit import backend_of_steps
from aotgrad.cache.graphs import functions_by_name, kept_function
from aotgrad.cache.serialize import LIKE_NUMBERS
from aotgrad.errors import NoPlanError, ShippingError
from aotgrad.guards.module_slots import slots_of
from aotgrad.ir import SymInput
from aotgrad.options import Options
from aotgrad.pipeline import Compiler, Executable
from aotgrad.plan_cache.binding import BoundFunction, BoundModule, PlainFunction
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.compiler import make_compiler
from aotgrad.shipping.archive import Archive, read_archive, write_archive
from aotgrad.shipping.closed_over import LoadedTensors, SavedTensors, closed_over
from aotgrad.shipping.code import ShippedCode
from aotgrad.shipping.key_form import NoForm, call_form
from aotgrad.shipping.loaded import FiledPlan, LoadedPlans
from aotgrad.shipping.record import kept_functions, recorded, with_graphs
from aotgrad.shipping.revive import revive
from aotgrad.telemetry.code_version import code_version
from aotgrad.telemetry.counters import counters
from aotgrad.training_step.state import State
from aotgrad.training_step.step import TrainStep, step_with


def save(compiled: Callable, path: str | os.PathLike[str], *, constants: bool = False) -> None:
    """Save the plans that a compiled function, module or training step has, for `aotgrad.load` in another process.

    Args:
        compiled: from `aot_function`, `aot_module` or `train_step`; it was called for every kind of arguments that the other
            process needs, and its backwards ran.
        path: of the file, which is replaced. It has no parameters, buffers or optimizer state: save their `state_dict()`.
        constants: save tensors that the function has closed over with the values that they have now. A loaded function reads
            these, whatever becomes of the tensors. `False`: such a function raises.

    Raises:
        ShippingError: there are no plans yet, or one cannot be saved; the message says why.
        OSError: the file cannot be written.

    Examples:
        >>> import tempfile, torch, aotgrad
        >>> f = aotgrad.aot_function(lambda x: x.sin().cos(), "eager")
        >>> path = tempfile.mktemp()
        >>> expected = f(torch.ones(2))
        >>> aotgrad.save(f, path)
        >>> torch.equal(aotgrad.load(path)(torch.ones(2)), expected)
        True
    """
    calls = getattr(compiled, "calls", None)
    if not isinstance(calls, (PlainFunction, BoundModule, TrainStep)):
        raise ShippingError("save takes what aot_function, aot_module or train_step has returned")
    cache, code, tensors = calls.cache, ShippedCode(), SavedTensors()
    plans = [(key, plan) for key, found in list(cache.entries.items()) for plan in found if is_present(calls, key)]
    if not plans:
        advice = f"its calls ran eagerly, {next(iter(cache.fallbacks))}" if cache.fallbacks else "call it first"
        raise ShippingError(f"{cache.name} has no plans yet, so there is nothing to save: {advice}")
    options = plain_options(cache)
    compiler = shipping_compiler(cache.compiler.backend, Options.from_mapping(options), code)
    members, saved = {}, []
    for number, (key, plan) in enumerate(plans):
        try:
            saved.append(plan := with_graphs(plan))
            data = {"key": form_of_key(key), **recorded(plan, tensors if constants else None)}
            assert isinstance(plan.executable, Executable), "it was recorded"
            graphs = counters["graphs"]
            revive(data, compiler, None, closed_over(plan.executable)).compile_variants()
            counters["graphs"] = graphs
        except ShippingError as error:
            raise ShippingError(f"plan {number} of {cache.name} cannot be saved: {error}") from error
        members[f"plans/{number}.json"] = json.dumps(data, separators=(",", ":")).encode()
    members |= {**dict(code.members()), **dict(tensors.members())}
    write_archive(path, header_of(calls, options, saved, bool(code.content)), members)


def load(
    path: str | os.PathLike[str],
    original: Callable | None = None,
    *,
    state: Iterable[Any] | None = None,
    trust: bool = False,
    recompile: bool = False,
    backend: AnyBackend | None = None,
) -> Callable:
    """Load what `aotgrad.save` has saved: a callable with its plans. Nothing is traced or partitioned.

    Args:
        path: of the file.
        original: of a module, the module that the plans are bound to: its parameters and buffers have the names and shapes
            of the saved one. Of a function or step, the function itself; needed for `recompile` only.
        state: of a training step, what `train_step` took: modules, optimizers, ... of the same structure.
        trust: run the compiled code in the file, if there is some (Inductor's kernels); only for files from a source that
            you trust. `False`: the backend compiles the graphs in the file, at their first use.
        recompile: a call that no plan fits, and gradients of gradients, trace and compile `original`.
        backend: compiles the graphs, if the plans were compiled by compilers of your own, which no file contains.

    Returns:
        For a function or step, a function; for a module, a module that shares everything with `original`.

    Raises:
        ShippingError: the file is damaged, of another version, or not for this machine, module or state.
        NoPlanError: at a call: no plan fits it. The message names the guard that does not hold.
    """
    archive = read_archive(path)
    header = archive.header
    check_versions(header)
    kind = header["kind"]
    if recompile and original is None:
        raise ShippingError("recompile=True needs the original function: load(path, function, recompile=True)")
    if trust and header["code"]:
        check_machine(header)
    code = ShippedCode.of_members(archive.members) if trust and header["code"] else None
    compiler = shipping_compiler(backend_of(header, backend), options_in_file(header, trust), code)
    check_kept(header["kept"], compiler)
    plans = LoadedPlans(compiler, header["name"], filed=filed_plans(archive), recompiles=recompile)
    if (kind == "step") != (state is not None):
        raise ShippingError(f"{path} has the plans of a {kind}: state=[...] is for training steps, and needed for them")
    function = missing_function(header["name"]) if original is None else original
    if kind == "step":
        given = State.of(state or ())
        check_structure(header["structure"], structure_of([each.module for each in given.modules]))
        for lifted, names in zip(given.modules, header["assigned"], strict=True):
            lifted.note_assigned(names)
        return step_with(plans, function, given, header["keep_gradients"])
    if kind == "function":
        return function_with(plans, function, header["static_count"])
    if not isinstance(original, nn.Module):
        raise ShippingError(f"{path} has the plans of a module, which has its parameters: load(path, module)")
    check_structure(header["structure"], structure_of([original]))
    return bound_module(plans, original, *header["assigned"])


def bound_module(plans: LoadedPlans, module: nn.Module, assigned: Sequence[str]) -> nn.Module:
    """The module with these plans, which assign the named buffers and attributes. A copy has the same ones."""

    def compile_copy(copied: nn.Module) -> nn.Module:
        fresh = LoadedPlans(plans.compiler, plans.name, filed=plans.filed, recompiles=plans.recompiles)
        return bound_module(fresh, copied, assigned)

    return module_with(plans, module, compile_copy, reject_pickle, assigned)


def reject_pickle() -> NoReturn:
    """Raises ShippingError."""
    raise ShippingError("a loaded module is not pickled: pickle the module that it was bound to, and load the file again")


def missing_function(name: str) -> Callable:
    """Stands for the function of loaded plans, which is not in the file."""

    def loaded(*args: Any, **kwargs: Any) -> NoReturn:
        raise NoPlanError(f"{name} was loaded from a file, without the function itself; load it with recompile=True")

    loaded.__name__ = loaded.__qualname__ = name.rpartition(".")[2]
    return loaded


def filed_plans(archive: Archive) -> Sequence[FiledPlan]:
    names = sorted((name for name in archive.members if name.startswith("plans/")), key=lambda name: (len(name), name))
    found, tensors = [archive.json(name) for name in names], LoadedTensors(archive.members)
    return [FiledPlan(data["key"], data, tensors.tensors(data["closed_over"])) for data in found]


def is_present(calls: BoundFunction, key: tuple) -> bool:
    """Whether a plan is for what the function captures now. One of no key, which serves one call, is refused later."""
    return len(key) != 3 or calls.captures(key[2][0])


def form_of_key(key: tuple) -> Mapping[str, Any]:
    """Raises ShippingError."""
    if len(key) != 3:
        raise ShippingError("the function changes what its plan depends on (an attribute, an object) at each call")
    try:
        return call_form(key)
    except NoForm as error:
        raise ShippingError(str(error)) from None


# --- The header ------------------------------------------------------------------------------------------------------


def header_of(calls: Any, options: Mapping[str, Any], plans: Sequence[Any], has_code: bool) -> dict[str, Any]:
    """What a reader checks first."""
    kinds = {PlainFunction: "function", BoundModule: "module", TrainStep: "step"}
    devices = {
        spec.fake.device.type for plan in plans for spec, _ in plan.executable.arguments if not isinstance(spec, SymInput)
    }
    owned = [calls.lifted] if isinstance(calls, BoundModule) else []
    owned += calls.state.modules if isinstance(calls, TrainStep) else []
    backend = calls.cache.compiler.backend.name
    return {
        "aotgrad": code_version(),
        "torch": list(torch_compat.torch_build()[:2]),
        "python": platform.python_version(),
        "machine": list(torch_compat.torch_build()[2:]),
        "devices": sorted(devices),
        "kind": kinds[type(calls)],
        "name": calls.cache.name,
        "backend": backend,
        "options": dict(options),
        "code": has_code,
        "kept": sorted(set().union(*(kept_functions(plan.executable) for plan in plans))),
        "warning": "members in code/ and libraries/ are programs that trust=True runs" if has_code else "no code",
        "static_count": getattr(calls, "static_count", 0),
        "keep_gradients": getattr(calls, "keep_gradients", True),
        "structure": structure_of([each.module for each in owned]),
        "assigned": [sorted(each.assigned) for each in owned],
    }


def structure_of(modules: Sequence[nn.Module]) -> list[list[Any]]:
    """The parameters and buffers of modules: names and shapes."""
    found = [(k, slot) for k, module in enumerate(modules) for slot in slots_of(module)]
    several = len(modules) > 1
    return [[f"{k}: {s.name}" if several else s.name, list(s.table[s.key].shape)] for k, s in found]


def check_structure(wanted: Sequence[Any], found: Sequence[Any]) -> None:
    """Raises ShippingError: names the first parameter or buffer that differs."""
    if wanted == found:
        return
    before, now = dict(wanted), dict(found)
    for name in (*before, *now):
        if before.get(name) != now.get(name):
            had, has = (f"has shape {each[name]}" if name in each else "is missing" for each in (before, now))
            raise ShippingError(
                f"the module has other parameters or buffers than the saved one: {name!r} {has}; saved: {had}"
            )
    raise ShippingError("the module has its parameters and buffers in another order than the saved one")


def check_versions(header: Mapping[str, Any]) -> None:
    """Raises ShippingError."""
    if (digest := header["aotgrad"]) != code_version():
        raise ShippingError(
            f"the file was saved by another version of aotgrad, whose code has the digest {digest[:8]}; here it is "
            f"{code_version()[:8]}: save it again"
        )
    build = list(torch_compat.torch_build()[:2])
    if header["torch"] != build:
        raise ShippingError(f"the file was saved with torch {header['torch'][0]}; this is {build[0]}: save it again")
    if "cuda" in header["devices"] and not torch.cuda.is_available():
        raise ShippingError("the plans of the file run on a CUDA device, and this process has none")


def check_machine(header: Mapping[str, Any]) -> None:
    """Whether compiled code of the file may run here.

    Raises:
        ShippingError: it was compiled for another Python or processor.
    """
    advice = "load it with trust=False, so that its graphs are compiled here"
    version = [text.split(".")[:2] for text in (header["python"], platform.python_version())]
    if version[0] != version[1]:
        raise ShippingError(
            f"the code in the file is for Python {header['python']}; this is {platform.python_version()}: {advice}"
        )
    features, here = (set(" ".join(machine).split()) for machine in (header["machine"][3:], torch_compat.torch_build()[5:]))
    same = header["machine"][:2] == list(torch_compat.torch_build()[2:4])
    if not same or {each for each in features - here if each.islower()}:
        raise ShippingError(f"the code in the file is for another processor ({header['machine'][0]}): {advice}")


# --- The compiler ----------------------------------------------------------------------------------------------------


NUMBER_TYPES = (bool, int, float)


def plain_options(cache: PlanCache) -> dict[str, Any]:
    """The options that are not the default, without passes, which have run.

    Raises:
        ShippingError: passes over backwards, which run when a variant is compiled.
    """
    options = cache.compiler.options
    if options.backward_passes or passes.registered("backward"):
        raise ShippingError(f"{cache.name} has passes over backward graphs (option backward_passes), which no file contains")
    named = {
        each.name: getattr(options, each.name) for each in dataclasses.fields(options) if not each.name.endswith("passes")
    }
    changed = {name: value for name, value in named.items() if value != getattr(Options(), name)}
    return {name: plain_option(value) for name, value in changed.items() if name not in ("cache", "verify")}


def plain_option(value: Any) -> Any:
    """An option in JSON; settings of Inductor as a mapping."""
    if isinstance(value, (tuple, list, Mapping)):
        return {name: item for name, item in dict(value).items() if type(item) in LIKE_NUMBERS}
    return value


def options_in_file(header: Mapping[str, Any], trust: bool) -> Options:
    """The options of a file.

    Raises:
        ShippingError: a setting of Inductor is no number, so that it may name a program that Inductor runs (`cpp.cxx`).
    """
    named = [name for name, value in dict(header["options"].get("inductor", {})).items() if type(value) not in NUMBER_TYPES]
    if named and not trust:
        raise ShippingError(
            f"the file sets {named[0]!r} of Inductor, which may be a program to run: load it with trust=True"
        )
    return Options.from_mapping(header["options"])


def shipping_compiler(backend: Any, options: Options, code: ShippedCode | None) -> Compiler:
    """The compiler of loaded plans; its backend has their code, or collects it."""
    compiler = make_compiler(backend, options)
    return compiler if code is None else replace(compiler, backend=compiler.backend.storing(code))


def check_kept(names: Sequence[str], compiler: Compiler) -> None:
    """Raises ShippingError: the backend does not keep a function whose calls are nodes of a graph in the file."""
    kept = functions_by_name(compiler.backend.keep)
    for name in names:
        kept_function(name, kept)


def backend_of(header: Mapping[str, Any], given: AnyBackend | None) -> Any:
    """The backend that compiles the graphs of a file.

    Raises:
        ShippingError: it is not registered here, or the given one has another name.
    """
    name = header["backend"]
    if given is not None and registry.is_backend(given) and registry.as_backend(given).name != name and name != "user":
        raise ShippingError(f"the graphs of the file were made for the backend {name!r}; compile them with that")
    if given is None and name not in registry.names():
        raise ShippingError(
            f"the plans were compiled by {name!r}, which is no registered backend: load(path, ..., backend=...) with a "
            "backend or compiler for their graphs"
        )
    found = registry.as_backend(name if given is None else given)
    return backend_of_steps(found) if header["kind"] == "step" else found
