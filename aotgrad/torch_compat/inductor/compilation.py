"""Inductor: its settings and decompositions, and how to compile, store and load a graph."""

from __future__ import annotations

import contextlib
import copy
import difflib
import enum
import functools
import inspect
import pickle
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aotgrad.torch_compat.inductor.vector_instructions import vector_instructions_by_one_probe
from aotgrad.torch_compat.random import draw_again, draw_and_note, draw_and_record, philox_draw


def compile_without_workers() -> None:
    """Make Inductor compile in this process only: a fork cannot reach the worker processes of its parent."""
    import torch._inductor.config as config

    config.compile_threads = 1


def inductor_decompositions() -> Mapping[Any, Callable]:
    """The decompositions that Inductor expects to be applied while tracing."""
    is_first = DECOMPOSITIONS not in sys.modules
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table()
    if is_first:
        _own_decompositions.update(table)
    import torch._inductor.lowering  # noqa: F401  # decompositions read it without importing it

    return table


DECOMPOSITIONS = "torch._inductor.decomposition"
_own_decompositions: dict[Any, Callable] = {}
"""Inductor's unchanged table, if it was imported here."""


def names_of_inductor_decompositions() -> list[tuple[str, str]] | None:
    """`names_of_decompositions` of Inductor's table; empty if unchanged, because the version of torch implies it."""
    if DECOMPOSITIONS not in sys.modules:
        return []
    table = inductor_decompositions()
    return [] if table == _own_decompositions else names_of_decompositions(table)


def names_of_decompositions(table: Mapping[Any, Callable]) -> list[tuple[str, str]] | None:
    """The names of operators and of their decompositions; `None` if one of these is a user's function."""
    names = [(str(op), name) for op, function in table.items() if (name := _decomposition_name(function)) is not None]
    return sorted(names) if len(names) == len(table) else None


def _decomposition_name(function: Any) -> str | None:
    if isinstance(function, functools.partial):
        name = _decomposition_name(function.func)
        return name and f"{name} {function.args} {function.keywords}"
    if isinstance(function, torch._ops.OpOverload):
        return str(function)
    module = getattr(function, "__module__", None) or ""
    return f"{module}.{function.__qualname__}" if module.partition(".")[0] in ("torch", "aotgrad") else None


def call_in_inductor(ops: Iterable[Any]) -> None:
    """Make Inductor call the kernels of ops, and of their backwards, that it has no lowering for and expects decomposed.

    It calls those that draw from a given state, too.
    """
    from torch._decomp import decomposition_table
    from torch._inductor.lowering import lowerings, make_fallback

    table = inductor_decompositions()
    for op in ops:
        if op in (draw_and_record, draw_again, draw_and_note, philox_draw) and op not in lowerings:
            make_fallback(op)
        if isinstance(op, torch._ops.OpOverload) and op not in lowerings and op not in table:
            forward = getattr(torch.ops.aten, op._opname.removesuffix("_backward"), None)
            if getattr(forward, op._overloadname, None) in decomposition_table:
                make_fallback(op, warn=False)


def inductor_joint_passes(module: fx.GraphModule) -> fx.GraphModule:
    """Run Inductor's passes on a joint graph, before partitioning."""
    from torch._inductor.compile_fx import _recursive_joint_graph_passes

    return _recursive_joint_graph_passes(module)


@contextlib.contextmanager
def around_post_grad_passes(around: Callable[[fx.Graph], AbstractContextManager]) -> Iterator[None]:
    """Inside, Inductor's last passes on a half run in the context `around(graph)`."""
    from torch._inductor import compile_fx

    passes = compile_fx._recursive_post_grad_passes

    def inside(module: fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        with around(module.graph):
            passes(module, *args, **kwargs)

    with mock.patch.object(compile_fx, "_recursive_post_grad_passes", inside):
        yield


@contextlib.contextmanager
def keep_factors_of_sums() -> Iterator[None]:
    """Inside, Inductor's last passes make no `addmm` of `torch.add(x, a @ b, alpha=factor)`, where they drop the factor."""
    from torch._inductor.fx_passes import post_grad

    prefers_no_addmm = post_grad.should_prefer_unfused_addmm

    def is_no_addmm(match: Any) -> bool:
        return match.output_node().kwargs.get("alpha", 1) != 1 or prefers_no_addmm(match)

    with mock.patch.object(post_grad, "should_prefer_unfused_addmm", is_no_addmm):
        yield


def tell_output_stride(end: fx.Node, position: int, stride: Sequence[Any]) -> None:
    """Tell Inductor the strides of a replaced output; it has noted those of the old one."""
    noted = end.meta.get("original_output_strides")
    if noted is not None:
        noted[position] = tuple(stride)


def inductor_compile(module: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Callable:
    """Compile one functional graph; the result takes a list, which it clears."""
    from torch._inductor.compile_fx import compile_fx_inner

    with _foreign_symbols_miss(), vector_instructions_by_one_probe():
        return compile_fx_inner(module, inputs, **settings)


def inductor_writes_over(inputs: Sequence[int]) -> contextlib.AbstractContextManager[Any]:
    """Inside, a backward may write over the memory of these inputs, by position."""
    from torch._inductor import graph

    return mock.patch.object(graph, "get_donated_idxs", lambda: list(inputs))


@contextlib.contextmanager
def _foreign_symbols_miss() -> Iterator[None]:
    """Inside, a cached graph is not found if its guards ask for a symbol that the graph does not take.

    Inductor caches a graph with the guards of its symbols. It may take a multiple of a symbol that only a wrapper has.
    """
    evaluate = ShapeEnv.evaluate_guards_expression

    def evaluate_or_miss(env: ShapeEnv, code: str, args: Sequence[object]) -> bool:
        try:
            return evaluate(env, code, args)
        except (KeyError, NameError):
            return False

    with mock.patch.object(ShapeEnv, "evaluate_guards_expression", evaluate_or_miss):
        yield


READ_ELSEWHERE = (
    "add_pre_grad_passes",
    "aot_inductor.",
    "aot_inductor_mode.",
    "bw_outputs_user_visible",
    "cpp_wrapper",
    "custom_partitioner_fn",
    "enable_autograd_for_aot",
    "freezing",
    "fx_wrapper",
    "keep_output_stride",
    "pre_grad",
    "remove_pre_grad_passes",
    "selective_decompose",
    "use_pre_grad_passes",
)
"""Prefixes of settings that Inductor's code generator does not read, only torch's own AOTAutograd or exports."""


def is_inductor_setting(name: Any) -> bool:
    """Whether Inductor has a setting with this name."""
    return isinstance(name, str) and name.replace("-", "_") in _inductor_settings()


def why_no_inductor_setting(name: Any, value: Any) -> str | None:
    """An error message for an invalid setting of Inductor; `None` if aotgrad can use the setting."""
    from torch._inductor import config

    settings = _inductor_settings()
    if not is_inductor_setting(name):
        close = difflib.get_close_matches(str(name), settings, 3)
        return f"Inductor has no option {name!r}" + (f"; close are {', '.join(close)}" if close else "")
    name = name.replace("-", "_")
    kind = config.get_type(name)
    if typing.get_origin(kind) is None and isinstance(kind, type) and not isinstance(value, kind):
        return f"Inductor's option {name!r} is {value!r}; it must be of type {kind.__name__}"
    if name.startswith(READ_ELSEWHERE) and value != settings[name]:
        return f"Inductor's option {name!r} is for torch's own AOTAutograd or an export, and does nothing here"
    return None


def _inductor_settings() -> dict[str, Any]:
    """The current value of each setting."""
    from torch._inductor import config

    return config.get_config_copy()


@contextlib.contextmanager
def inductor_context(fake_mode: FakeTensorMode, mode: str, /, **settings: Any) -> Iterator[None]:
    """The context that Inductor runs in: the fake mode, a tracing context, and its configuration.

    Its fallbacks run ops on fake tensors; the fake mode accepts the real constants of the graph. Its passes turn a scan into
    a loop with a counter, and read the counter as a symbolic number.
    """
    from torch._inductor import config, list_mode_options
    from torch._inductor.virtualized import V

    patches = {} if mode == "default" else list_mode_options(mode)
    context = TracingContext.try_get() or TracingContext(fake_mode)
    accepted = mock.patch.multiple(fake_mode, allow_non_fake_inputs=True, allow_scalar_outputs=True)
    with tracing(context), V.set_fake_mode(fake_mode), config.patch({**patches, **settings}), accepted:
        yield


@contextlib.contextmanager
def inductor_config(mode: str, /, **settings: Any) -> Iterator[None]:
    """Inside, Inductor is configured for a mode, with additional settings."""
    from torch._inductor import config, list_mode_options

    with config.patch({**({} if mode == "default" else list_mode_options(mode)), **settings}):
        yield


def fusions_that_save(count: int) -> dict[str, Any]:
    """Settings with which Inductor fuses kernels only where that saves so many bytes of traffic."""
    name = "score_fusion_memory_threshold"
    return {name: count} if is_inductor_setting(name) else {}


def inductor_cache_tag(text: str) -> dict[str, Any]:
    """Settings that make Inductor's cache distinguish equal graphs by `text`."""
    from torch._inductor import config

    return {"unsafe_marked_cacheable_functions": {**config.unsafe_marked_cacheable_functions, "aotgrad": text}}


INDUCTOR_PASSES = ("joint_custom", "pre_grad", "post_grad", "_fuse", "_pre_fusion", "_post_fusion", "cudagraph_policy")
"""Prefixes of settings that may be functions; Inductor omits them from its stored configuration."""


def inductor_key() -> str | None:
    """What Inductor's code depends on besides the graph, as text; `None` if this has no stable form."""
    from torch._inductor import config

    if inductor_has_users_lowerings():
        return None
    values = config.save_config_portable(ignore_private_configs=False)
    values |= {name: getattr(config, name) for name in config._save_config_ignore if name.startswith(INDUCTOR_PASSES)}
    if not all(map(is_stable, values.values())):
        return None
    return repr(sorted((name, stable_text(value)) for name, value in values.items()))


def inductor_has_users_lowerings() -> bool:
    """Whether Inductor has lowerings that are not torch's own."""
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None:
        return False
    plain = (inspect.unwrap(function) for function in lowering.lowerings.values())
    modules = {getattr(function, "func", function).__module__.partition(".")[0] for function in plain}
    return bool(getattr(lowering, "user_lowerings", ())) or not modules <= {"torch", "_operator"}


def is_stable(value: Any) -> bool:
    """Whether the text of a value is the same in every process."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_stable, value))
    if isinstance(value, dict):
        return all(is_stable(key) and is_stable(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device, enum.Enum))


def stable_text(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, (set, frozenset)) else repr(value)


def inductor_dump(compiled: Any) -> bytes | None:
    """A compiled graph of Inductor as bytes; `None` if Inductor cannot serialize it.

    A graph that Inductor has loaded from its own cache holds kernels ready to launch on a GPU, which have no bytes.
    """
    from torch._inductor.output_code import CompiledFxGraph

    if type(compiled) is not CompiledFxGraph or holds_launchers(compiled):
        return None
    stored = copy.copy(compiled)
    stored.prepare_for_serialization()
    return pickle.dumps(stored)


def holds_launchers(compiled: Any) -> bool:
    """Whether kernels stored with a compiled graph are loaded onto a GPU."""
    autotuners = getattr(getattr(compiled, "_triton_bundle", None), "static_autotuners", None) or ()
    return any(each.kernel.launchers for each in autotuners)


def inductor_module(compiled: Any) -> types.ModuleType | None:
    """The module of a compiled graph's wrapper code in this process; `None` if the code needs more than its text."""
    from torch._inductor.codecache import PyCodeCache

    bundle = getattr(compiled, "_triton_bundle", None)
    if bundle is not None and any(vars(bundle).values()):
        return None
    modules = (
        module
        for module in reversed(PyCodeCache.modules)
        if getattr(module, "key", None) == getattr(compiled, "cache_key", "")
    )
    return next(modules, None)


def inductor_load_module(content: bytes, module: types.ModuleType, is_backward: bool) -> Callable:
    """The compiled graph of `inductor_dump`, with its wrapper code as a module.

    Calling the graph itself would import Inductor's debugging tools.
    """
    from torch._inductor.output_code import CompiledFxGraphConstants
    from torch._inductor.utils import BoxedBool

    constants, compiled = CompiledFxGraphConstants(), pickle.loads(content)
    vars(module).update(constants.unwrap(compiled) or {})
    compiled.current_callable = module.call
    compiled.recursively_apply_fns = getattr(module, "recursively_apply_fns", None)
    compiled.compiled_fn_runner = getattr(module, "runner", None)
    compiled.post_compile([], constants, {"cudagraphs": BoxedBool(False), "is_backward": is_backward})

    def run(inputs: list) -> Any:
        return compiled.current_callable(inputs)

    run._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return run


def inductor_load(content: bytes, is_backward: bool) -> Callable:
    """The compiled graph of `inductor_dump`, ready to call, without CUDA graphs.

    Raises:
        Exception: of any kind, if it cannot be loaded.
    """
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraphConstants
    from torch._inductor.utils import BoxedBool

    constants = CompiledFxGraphConstants()
    compiled, _ = FxGraphCache.cache_hit_post_compile(pickle.loads(content), {}, constants)
    if compiled is None:
        raise FileNotFoundError("the code of a compiled graph")
    compiled.post_compile([], constants, {"cudagraphs": BoxedBool(False), "is_backward": is_backward})
    return compiled


def inductor_uses_cudagraphs() -> bool:
    from torch._inductor import config

    return bool(config.triton.cudagraphs)


@functools.cache
def inductor_takes_generators() -> bool:
    """Whether any op of Inductor's graphs may read a generator that is an input; torch 2.11 knows one such op."""
    from torch._inductor.graph import GraphLowering

    return "graphsafe_run_with_rng_state" not in inspect.getsource(GraphLowering.placeholder)


def inductor_graph_settings(cudagraphs: bool) -> dict[str, Any]:
    """Settings that the forward and the backward of one region share, so that CUDA graphs pair them."""
    from torch._inductor.compile_fx import _graph_counter
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.utils import BoxedBool

    return {
        "graph_id": next(_graph_counter),
        "boxed_forward_device_index": BoxedDeviceIndex(None),
        "cudagraphs": BoxedBool(cudagraphs),
    }


def disable_cudagraphs(settings: Mapping[str, Any]) -> None:
    """Compile the graphs that share `settings` without CUDA graphs, from now on."""
    settings["cudagraphs"].value = False


@contextlib.contextmanager
def reported_output_strides() -> Iterator[Any]:
    """Collects the output strides that Inductor chooses for graphs compiled inside; `None` where unknown."""
    with TracingContext.report_output_strides() as strides:
        yield strides


def as_symints(fake_mode: FakeTensorMode, strides: Sequence[Any]) -> tuple[Any, ...]:
    """Reported strides, which are ints or sympy expressions, as numbers of a trace."""
    return tuple(_as_symint(fake_mode.shape_env, stride) for stride in strides)


def _as_symint(shape_env: ShapeEnv, stride: Any) -> Any:
    if isinstance(stride, (int, torch.SymInt)):
        return stride
    if stride.is_number:
        return int(stride)
    return shape_env.create_symintnode(stride, hint=int(shape_env.size_hint(stride)))
