"""`aot_function`, `aot_module` and `aot_module_simplified`: compile without Dynamo in front.

    >>> import torch, aotgrad
    >>> f = aotgrad.aot_function(lambda x: x.sin().cos(), fw_compiler=aotgrad.nop)
    >>> x = torch.ones(2, requires_grad=True)
    >>> f(x).sum().backward()
    >>> torch.equal(x.grad, -x.sin().sin() * x.cos())
    True

Source of the design: torch's AOTAutograd (functorch, 2022), whose names and signatures these are.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
import torch.fx as fx
from torch import nn
from torch.nn.parameter import is_lazy

from aotgrad import native, pipeline, torch_compat
from aotgrad.backends import registry
from aotgrad.backends.base import AnyBackend, GraphCompiler, PartitionCompiler
from aotgrad.backends.kit import FunctionBackend
from aotgrad.cache import Missing, RestoredFunction, StoredSmallGraph, look_up, lower_through_cache
from aotgrad.convention import Dedupe
from aotgrad.errors import BackendError, CaptureError, NotPicklable
from aotgrad.guards.memory import MemoryGuard
from aotgrad.guards.module_slots import slots_of
from aotgrad.guards.tensor_properties import Fact, facts_hold, facts_of
from aotgrad.inspect.debug_state import debug_state
from aotgrad.ir import InputHint, MemberInput, SymInput
from aotgrad.joint.failures import WrappedGradient
from aotgrad.options import Options, reject_parameters
from aotgrad.partition import min_cut_rematerialization_partition
from aotgrad.pipeline import Compiler, Executable, SmallGraph, Source, TracedJoint
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.assigned_state import AssignedResult, reject_assigned_state
from aotgrad.plan_cache.binding import BoundModule, PlainFunction, module_call
from aotgrad.plan_cache.cache import PlanCache, tensors_to_copy
from aotgrad.plan_cache.call import AmbientState, Call
from aotgrad.plan_cache.compile import facts_needed, reject_unknown_parts, wrapped_gradient_form
from aotgrad.plan_cache.compiler import make_compiler
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.plan_cache.module_state import LiftedModule
from aotgrad.subclasses.bridge import OtherGradientForm
from aotgrad.subclasses.forms import is_wrapper
from aotgrad.subclasses.layout import USUAL, GradientForms, WrapperLayout
from aotgrad.subclasses.passages import running_call
from aotgrad.telemetry.graph_names import qualified_name
from aotgrad.training_step.step import train_step
from aotgrad.transforms.dispatch import Dispatch


def aot_function(
    fn: Callable,
    fw_compiler: AnyBackend,
    bw_compiler: GraphCompiler | None = None,
    partition_fn: Callable = min_cut_rematerialization_partition,
    decompositions: Mapping[Any, Callable] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: GraphCompiler | None = None,
    *,
    dynamic: bool | None = False,
    options: Mapping[str, Any] | None = None,
    state: Iterable[Any] | None = None,
    **of_peer: Any,
) -> Callable:
    """Compile `fn` ahead of time, forward and backward.

    Args:
        fn: takes and returns pytrees of tensors; other leaves are constants of the plan. A module with parameters or buffers
            is compiled as by `aot_module`.
        fw_compiler: `(fx.GraphModule, example_inputs) -> callable` for the forward graph; or a backend for all graphs: its
            name (`"inductor"`) or the backend itself.
        bw_compiler: the same for the backward graph; `fw_compiler` if `None`.
        partition_fn: splits the joint graph, `(joint_module, joint_inputs, *, num_fwd_outputs) -> (forward, backward)`.
        decompositions: op overload -> function, applied while tracing.
        num_params_buffers: how many leading tensor arguments are parameters or buffers.
        keep_inference_input_mutations: graphs without a backward write mutated inputs themselves.
        inference_compiler: for graphs without a backward; `fw_compiler` if `None`.
        dynamic: `True`: symbolic sizes; `None`: symbolic where they change between calls; `False`: never.
        options: see `aotgrad.Options`.
        state: the modules, optimizers and tensors that `fn` changes by a `backward()` or an update inside. The function is
            then a `train_step`, whose results have no history.
        **of_peer: parameters that torch's function has, with its default values.

    Returns:
        A function with the signature, name and docstring of `fn`. Arguments of another kind (shape, dtype,
        `requires_grad`, a Python value, ...) compile another plan; so do other values of the variables, globals and
        attributes that `fn` reads. Its method `plans()` lists the plans; `debug_state()` returns them with their graphs,
        guards and source, to print.

    Raises:
        CaptureError, BackendError, OptionError: at the first call that needs a plan (options: at once).
    """
    reject_parameters("aot_function", of_peer)
    backend = users_backend(fw_compiler, bw_compiler, inference_compiler, decompositions)
    if state is not None:
        return train_step(fn, state, backend=backend, options={"dynamic": dynamic, **(options or {})})
    given = {"dynamic": dynamic, "keep_input_mutations": keep_inference_input_mutations, **(options or {})}
    if isinstance(fn, nn.Module) and num_params_buffers == 0 and [*fn.parameters(), *fn.buffers()]:
        compilers = {"inference_compiler": inference_compiler, "options": given}
        return aot_module(fn, fw_compiler, bw_compiler, partition_fn, decompositions, **compilers)
    cache = PlanCache(compiler_of(backend, partition_fn, Options.from_mapping(given)), qualified_name(fn))
    return function_with(cache, fn, num_params_buffers)


def function_with(cache: PlanCache, fn: Callable, num_params_buffers: int = 0) -> Callable:
    """The function whose calls find their plans in `cache`; see `aot_function`."""
    transformed = Dispatch(cache)
    calls = PlainFunction.of(cache, fn, num_params_buffers)
    plain, read_state = cache.plain, calls.state.read

    @functools.wraps(fn)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return fn(*args, **kwargs)
        if not kwargs and (paths := plain.get(len(args))):
            state = read_state()
            for usual in paths:
                if (usual.state is state or usual.state == state) and usual.admits(args):
                    tensors = list(args)
                    del args  # only the list holds them now, so each is freed at its last use
                    return usual.run(tensors)
        arguments = Arguments.of(args, kwargs)
        if cache.runs_eagerly(arguments.tensors):
            return transformed.call(fn, arguments, calls.ambient_state())
        return cache.run(cache.plan_for(calls.call_with(arguments)))

    function: Any = compiled
    function.plan_cache, function.plans, function.calls, function.transformed = cache, cache.plans, calls, transformed
    function.debug_state = functools.partial(debug_state, cache)
    return function


def users_backend(
    fw_compiler: AnyBackend,
    bw_compiler: GraphCompiler | None,
    inference_compiler: GraphCompiler | None,
    decompositions: Mapping[Any, Callable] | None,
) -> PartitionCompiler:
    """The backend that is given, by name or itself; or a backend of a user's compilers, whose results are not stored on
    disk.

    Raises:
        BackendError: there is no backend of that name, or there are other compilers or decompositions beside it.
    """
    if not registry.is_backend(fw_compiler):
        compiler = cast(GraphCompiler, fw_compiler)
        return FunctionBackend("user", compiler, bw_compiler, inference_compiler, decompositions or {}, key="")
    backend = registry.as_backend(fw_compiler)
    others = {"bw_compiler": bw_compiler, "inference_compiler": inference_compiler, "decompositions": decompositions}
    if given := [name for name, value in others.items() if value is not None]:
        raise BackendError(
            f"fw_compiler is the backend {backend.name!r}, which compiles all graphs and has decompositions of its own; "
            f"leave out {', '.join(given)}, or register a backend of your own with aotgrad.backends.register"
        )
    return backend


def compiler_of(backend: PartitionCompiler, partition_fn: Callable, options: Options) -> Compiler:
    """The compiler of plans; with the option `cache`, it stores the halves of their graphs on disk."""
    compiler = make_compiler(backend, options, partition_fn)
    return replace(compiler, lower=lower_through_cache) if options.cache else compiler


def clear_cache(compiled: Callable) -> None:
    """Free all plans of a function or module from `aot_function`, `aot_module` or `train_step`."""
    compiled.plan_cache.clear()
    if hasattr(compiled, "transformed"):  # a step has no derivatives
        compiled.transformed.clear()


def aot_module(mod: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Compile the forward of a module; its parameters and buffers become inputs of the graph.

    Args:
        mod: the module; it is not changed.
        *args, **kwargs: as for `aot_function`, without `fn`, `num_params_buffers` and `state`.

    Returns:
        A module that shares everything with `mod` (parameters, buffers, hooks, `training`, `state_dict`) and is an
        instance of its class; only its `forward` is compiled. It can be copied, pickled and saved like `mod`, if the
        compilers can be pickled; a copy compiles its own plans. If layers are lazy (`nn.LazyLinear`), the first call runs
        eagerly, and gives their parameters shapes.

    Examples:
        >>> model = aot_module(nn.Linear(2, 1), fw_compiler=nop)
        >>> list(model.state_dict())
        ['weight', 'bias']
    """
    if "state" in kwargs:
        raise TypeError("aot_module compiles a forward and takes no state; for a function with a backward: train_step")
    cache = aot_function(mod.forward, *args, **kwargs).plan_cache
    cache.name = type(mod).__qualname__

    def reduce() -> tuple:
        check_picklable(args, kwargs)
        return recreate_module, (mod, args, kwargs)

    return module_with(cache, mod, lambda copied: aot_module(copied, *args, **kwargs), reduce)


def module_with(
    cache: PlanCache,
    mod: nn.Module,
    compile_copy: Callable[[nn.Module], nn.Module],
    reduced: Callable[[], tuple],
    assigned: Sequence[str] = (),
) -> nn.Module:
    """The module whose calls find their plans in `cache`; see `aot_module`.

    Args:
        compile_copy: makes the same of a copy of `mod`.
        reduced: what it is pickled as.
        assigned: the buffers and attributes that calls are known to assign.
    """
    lifted, transformed = LiftedModule(mod, owns_attributes=True), Dispatch(cache)
    lifted.note_assigned(assigned)
    eager, began_lazy = functools.partial(type(mod).forward, mod), has_lazy_parameters(mod)

    def forward(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return eager(*inputs, **options)
        if not options and (known := lifted.known(inputs, cache.plain)):
            tensors, state = known
            if usual := cache.fast_path(tensors, state):
                del inputs, known
                result = usual.run(tensors)
                return lifted.finish(result) if type(result) is AssignedResult else result
        runs_eagerly = cache.runs_eagerly(inputs)
        if runs_eagerly and not (torch_compat.forward_mode_is_open() or torch_compat.transform_is_open()):
            return eager(*inputs, **options)
        if began_lazy and has_lazy_parameters(mod):
            return eager(*inputs, **options)  # which gives them shapes
        arguments, state = module_call(lifted, eager, inputs, options)
        if runs_eagerly:
            return transformed.call(lifted.forward, arguments, state)
        call = Call(lifted.forward, arguments, arguments.count, state, assigned=lifted.moving, paths=lifted.paths)
        return lifted.finish(cache.run(cache.plan_for(call)))

    def deepcopy(self: nn.Module, memo: dict) -> nn.Module:
        return compile_copy(copy.deepcopy(mod, memo))

    def reduce(self: nn.Module, protocol: Any) -> tuple:
        return reduced()

    members = {
        "forward": functools.wraps(type(mod).forward)(forward),
        "__deepcopy__": deepcopy,
        "__reduce_ex__": reduce,
        "__wrapped__": mod,
        "plan_cache": cache,
        "transformed": transformed,
        "calls": BoundModule(cache, mod, lifted),
        "plans": staticmethod(cache.plans),
        "debug_state": staticmethod(functools.partial(debug_state, cache)),
    }
    module = object.__new__(compiled_class(type(mod), members))  # its class may have a __new__ that makes another object
    module.__dict__ = mod.__dict__
    return module


def compiled_class(base: type, members: Mapping[str, Any]) -> type:
    """A subclass with `members`. A lazy layer has the class that it becomes in its first call, which is then one, too."""
    becomes = getattr(base, "cls_to_become", None)
    own = {**members, "cls_to_become": compiled_class(becomes, members)} if becomes is not None else dict(members)
    return type(f"AOT{base.__name__}", (base,), own)


def has_lazy_parameters(mod: nn.Module) -> bool:
    """Whether a parameter has no shape before the first call, as those of `nn.LazyLinear`."""
    return any(map(is_lazy, mod.parameters()))


def recreate_module(mod: nn.Module, args: tuple, kwargs: dict[str, Any]) -> nn.Module:
    """Load a pickled `aot_module`, which compiles on its next call."""
    return aot_module(mod, *args, **kwargs)


def check_picklable(args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise if an argument of `aot_module` cannot be pickled.

    Raises:
        NotPicklable
    """
    names = list(inspect.signature(aot_function).parameters)[1:]
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        try:
            pickle.dumps(value)
        except Exception as error:
            raise NotPicklable(
                f"a compiled module is saved with the arguments of aot_module, and {name!r} cannot be pickled. Make it a "
                "function that can be imported, or save the module's state_dict(), or the module given to aot_module"
            ) from error


def aot_module_simplified(
    mod: nn.Module,
    args: Sequence[Any],
    fw_compiler: AnyBackend,
    bw_compiler: GraphCompiler | None = None,
    partition_fn: Callable = min_cut_rematerialization_partition,
    decompositions: Mapping[Any, Callable] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: GraphCompiler | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    **of_peer: Any,
) -> Callable:
    """Compile a module for one set of flat inputs: for graph modules of a frontend, which guards their sizes and dtypes.

    A call compiles another plan if an input comes to require grad, or if two inputs are no longer one tensor.

    Args:
        mod: takes and returns flat tensors; its parameters and buffers become the first inputs of the graph.
        args: flat example inputs, tensors and symbolic ints.
        fw_compiler, bw_compiler, ...: as for `aot_function`.
        **of_peer: parameters that torch's function has, with its default values.

    Returns:
        A function of the flat inputs that returns a list of the flat outputs. It has the module's `named_parameters`,
        `named_buffers` and `zero_grad`.
    """
    reject_parameters("aot_module_simplified", of_peer)
    given = {"keep_input_mutations": keep_inference_input_mutations, **(options or {})}
    backend = users_backend(fw_compiler, bw_compiler, inference_compiler, decompositions)
    compiler = compiler_of(backend, partition_fn, Options.from_mapping(given))
    compiled = compile_module(mod, args, compiler, stored=bool(compiler.options.cache))
    return compiled if isinstance(compiled, EagerModule) else compiled.guarding_gradients(args)


def compile_module(
    mod: nn.Module, args: Sequence[Any], compiler: Compiler, stored: bool = False
) -> FlatCallable | EagerModule:
    """Compile the flat forward of a module, for inputs that a frontend guards; `stored`: with the cache on disk."""
    flat = FlatModule.of(mod, args)
    reject_unknown_parts(flat.everything)
    while True:
        source, compiler = flat.source(), compiler.for_call(flat.distinct)
        try:
            with COMPILING:
                graph = mod if stored and isinstance(mod, fx.GraphModule) else None
                found = Missing(compiler) if graph is None else look_up(graph, flat.layout, flat.dedupe, source, compiler)
                if not isinstance(found, Missing):
                    executable = found
                    break
                stages = pipeline.compile(source, found.compiler)
                executable = stages if flat.layout.wrappers.needed else found.keep(stages)
                break
        except (OtherGradientForm, WrappedGradient) as error:
            flat = flat.after(error)
    if isinstance(executable, SmallGraph | StoredSmallGraph):
        return EagerModule(mod)
    assert not isinstance(executable, TracedJoint), "it was compiled"
    return flat_callable(flat, executable, compiler)


@dataclass(frozen=True)
class FlatModule:
    """A module with a flat forward, taken apart for a compilation.

    Attributes:
        lifted: the module.
        tensors: its own tensors.
        args: example inputs.
        gradients: the forms of gradients that traces have found.
        layout: where the wrapper subclasses are among all inputs.
        fakes: Dynamo's fakes of the wrapper subclasses, by position, if there are any.
        everything: the inputs, with parts in place of wrappers.
    """

    lifted: LiftedModule
    tensors: Sequence[torch.Tensor]
    args: Sequence[Any]
    gradients: GradientForms
    layout: WrapperLayout
    fakes: Mapping[int, torch.Tensor]
    everything: Sequence[Any]

    @classmethod
    def of(cls, mod: nn.Module, args: Sequence[Any], gradients: GradientForms = USUAL) -> FlatModule:
        tensors = [slot.table[slot.key] for slot in slots_of(mod)]
        values = [*tensors, *args]
        found = ((k, torch_compat.fake_of_dynamo(value)) for k, value in enumerate(values) if is_wrapper(value))
        fakes = {k: fake for k, fake in found if fake is not None}
        layout = WrapperLayout.of(values, gradients, fakes)
        return cls(LiftedModule(mod), tensors, args, gradients, layout, fakes, layout.take_apart(values)[0])

    @functools.cached_property
    def dedupe(self) -> Dedupe:
        return Dedupe.of(self.everything)

    @functools.cached_property
    def distinct(self) -> list[Any]:
        return self.dedupe.enter(self.everything)

    def source(self) -> Source:
        """The forward as a function of the distinct inputs."""
        lifted, layout, dedupe = self.lifted, self.layout, self.dedupe

        def run_flat(*distinct: Any) -> Sequence[Any]:
            arguments = layout.enter(dedupe.exit(distinct))
            result = reject_assigned_state(lifted.forward(*arguments), "a module of flat inputs")
            if not isinstance(result, (list, tuple)):
                kind = "tensor" if isinstance(result, torch.Tensor) else type(result).__name__
                raise CaptureError(f"the module returned a {kind}; a flat list or tuple is needed")
            return layout.wrappers.take_apart(result, arguments)

        static = [*[True] * len(self.tensors), *map(is_static, self.args)]
        fakes = layout.parts_of(self.fakes)
        flat = zip(layout.origins, fakes, layout.parts_by_argument(), strict=True)
        paths = [*lifted.paths(), *torch_compat.paths_of_placeholders(lifted.module), *[None] * len(self.args)]
        used = self.used()
        hints = [InputHint(bool(static[k]), fake=fake, part=part, path=paths[k], is_used=used[k]) for k, fake, part in flat]
        return Source(run_flat, self.distinct, dedupe.enter(hints))

    def used(self) -> list[bool]:
        """Whether each input is used for more than its size. Placeholders of one tensor are one; `*args` is several."""
        placeholders = torch_compat.used_placeholders(self.lifted.module)
        known = placeholders if len(placeholders) == len(self.args) else [True] * len(self.args)
        used = {*map(id, self.tensors), *(id(arg) for arg, is_used in zip(self.args, known, strict=True) if is_used)}
        return [id(value) in used for value in (*self.tensors, *self.args)]

    def after(self, error: OtherGradientForm | WrappedGradient) -> FlatModule:
        """The module for another trace, with the form of a gradient that the last trace has found.

        Raises:
            OtherGradientForm: it was found before.
        """
        if isinstance(error, WrappedGradient):
            error = wrapped_gradient_form(error, self.dedupe, self.layout)
        place = None if error.of_result else self.layout.places[error.index]
        numbers = () if place is None else self.layout.ends[place].numbers
        return FlatModule.of(self.lifted.module, self.args, self.gradients.after(error, set(map(str, numbers))))


def flat_callable(flat: FlatModule, executable: Executable | RestoredFunction, compiler: Compiler) -> FlatCallable:
    """The compiled forward of a module, with the guards that frontends lack."""
    distinct, layout = flat.distinct, flat.layout
    layout.expect_gradients(layout.wrappers)
    if layout.wrappers.needed and isinstance(executable, Executable):
        layout.wrappers.finish(executable.results_of_saved)
    sharing = executable.sharing(distinct)
    memory = MemoryGuard(distinct, sharing, counters=False) if sharing.mutated else None
    name = type(flat.lifted.module).__qualname__
    others = PlanCache(compiler.with_options(dynamic=None) if is_symbolic(executable) else compiler, name)
    facts = facts_of(distinct, facts_needed(executable.depends_on_offsets, distinct, [*written_with_gradients(executable)]))
    of_plan = (executable, flat.dedupe, layout, tuple(flat.tensors), memory, facts)
    return FlatCallable(*of_plan, flat.lifted, others, Dispatch(others), symbolic=symbolic_sizes(flat, executable))


def written_with_gradients(executable: Executable | RestoredFunction) -> Iterator[int]:
    """The inputs that require grad, and that the function writes itself or through memory that they share."""
    for k, (spec, info) in enumerate(executable.arguments):
        is_written = isinstance(spec, MemberInput) or (info is not None and info.version_bumps > 0)
        if is_written and not isinstance(spec, SymInput) and spec.requires_grad:
            yield k


def is_symbolic(executable: Executable | RestoredFunction) -> bool:
    """Whether a function was traced with symbolic sizes or numbers."""
    specs = (spec for spec, _ in executable.arguments)
    return any(isinstance(spec, SymInput) or torch_compat.has_symbolic_shape(spec.fake) for spec in specs)


def symbolic_sizes(flat: FlatModule, executable: Executable | RestoredFunction) -> dict[int, frozenset[int]]:
    """The dimensions of plain tensors that were traced with symbolic sizes, by position among the tensors."""
    dims: dict[int, frozenset[int]] = {}
    for k, (spec, _) in zip(flat.dedupe.kept, executable.arguments, strict=False):
        sizes = () if isinstance(spec, SymInput) else spec.fake.shape
        dims[flat.layout.origins[k]] = frozenset(n for n, size in enumerate(sizes) if isinstance(size, torch.SymInt))
    tensors = (k for k, value in enumerate([*flat.tensors, *flat.args]) if isinstance(value, torch.Tensor))
    return {n: dims[k] for n, k in enumerate(tensors) if flat.layout.places[k] is None and dims.get(k)}


class ModuleCallable:
    """The parameters and buffers of the original module."""

    @property
    def original(self) -> nn.Module:
        raise NotImplementedError

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.original.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.original.named_buffers(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.original.zero_grad(set_to_none)


@dataclass(frozen=True)
class EagerModule(ModuleCallable):
    """A module that is not worth compiling, with the calling convention of a compiled one."""

    module: nn.Module

    @property
    def original(self) -> nn.Module:
        return self.module

    @property
    def fastest(self) -> Callable:
        """The fastest equivalent callable."""
        return self

    def __call__(self, *args: Any) -> list[Any]:
        return list(self.module(*args))


@dataclass(frozen=True)
class FlatCallable(ModuleCallable):
    """An executable with its module's own tensors bound.

    `memory` guards which inputs share memory, if the function changes one of them, and `facts` are properties of changed
    inputs, and storage offsets. No frontend guards these, and a check of every pair of inputs would be slow there. A call
    that differs finds its plan among `others`. `layout`: where the wrapper subclasses are. `undifferentiated`: the inputs
    that get no gradient, if no frontend guards it. `symbolic`: symbolic sizes of plain tensors, by position among tensors.
    """

    executable: Executable | RestoredFunction
    dedupe: Dedupe
    layout: WrapperLayout
    tensors: tuple[torch.Tensor, ...]
    memory: MemoryGuard | None
    facts: Sequence[Fact]
    module: LiftedModule
    others: PlanCache
    transformed: Dispatch
    undifferentiated: Sequence[int] = ()
    symbolic: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @property
    def original(self) -> nn.Module:
        return self.module.module

    def guarding_gradients(self, args: Sequence[Any]) -> FlatCallable:
        """The callable that finds another plan if one of its inputs, unlike the example `args`, needs a gradient."""
        values = [*self.tensors, *args]
        tensors = (k for k, value in enumerate(values) if isinstance(value, torch.Tensor))
        return replace(self, undifferentiated=tuple(k for k in tensors if not needs_gradient(values[k])))

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether no argument or result is a wrapper subclass."""
        return self.layout.is_plain

    @property
    def fastest(self) -> Callable:
        """The fastest equivalent callable: usually one that only checks whether values are transformed."""
        if self.tensors or self.memory is not None or self.facts or not self.dedupe.is_identity or not self.is_plain:
            return self
        in_vmap_mode = native.lookup("in_vmap_mode", torch_compat.in_vmap_mode)
        return torch_compat.dispatch_transformed(self.executable.call, self, in_vmap_mode)

    def __call__(self, *args: Any) -> Sequence[Any]:
        values = [*self.tensors, *args]
        if torch_compat.is_transformed(values):
            forward = self.module.forward
            return self.transformed.call(forward, self.arguments(values), AmbientState(forward))
        del args  # only the list holds them now, so each is freed at its last use
        if any(needs_gradient(values[k]) for k in self.undifferentiated):
            return self.call_another_plan(values)
        if not self.is_plain:
            return self.call_with_wrappers(values)
        if not self.dedupe.is_identity:
            if not self.dedupe.merges(values):
                return self.call_another_plan(values)
            values = self.dedupe.enter(values)
        if not self.admits(values):
            return self.call_another_plan(self.dedupe.exit(values))
        return self.executable.call(values)

    def call_with_wrappers(self, values: list) -> Sequence[Any]:
        """The results of a call with wrapper subclasses among its arguments or results."""
        if self.others.gradient_forms.known:  # a gradient has arrived that this one does not expect
            return self.call_another_plan(values)
        flat, objects = self.layout.take_apart(values)
        merged = self.dedupe.merges(flat)
        flat = self.dedupe.enter(flat)
        if not merged or not self.admits(flat):
            return self.call_another_plan(values)
        assert isinstance(self.executable, Executable), "functions of wrapper subclasses are not restored from disk"
        wrappers, places = self.layout.wrappers, [self.layout.origins[k] for k in self.dedupe.kept]
        changed = tensors_to_copy(self.executable, wrappers, values, places)
        detour = self.others.detour_of(self.call_of(values), self.executable, wrappers, changed)
        with running_call(detour, functools.partial(wrappers.make_early, objects)):
            return wrappers.assemble(self.executable.call(flat), objects)

    def admits(self, values: Sequence[Any]) -> bool:
        """Whether the guards that no frontend has hold for the distinct inputs."""
        return (self.memory is None or self.memory(values)) and facts_hold(self.facts, values)

    def call_another_plan(self, values: Sequence[Any]) -> Sequence[Any]:
        return list(self.others.run(self.others.plan_for(self.call_of(values))))

    def call_of(self, values: Sequence[Any]) -> Call:
        return Call(self.module.forward, self.arguments(values), len(self.tensors), AmbientState(self.module.forward))

    def arguments(self, values: Sequence[Any]) -> Arguments:
        """Arguments for other plans: numbers and sizes that are symbolic here stay symbolic there."""
        arguments = Arguments.of(tuple(values), {})
        return arguments.with_symbols(self.symbolic) if arguments.constants or self.symbolic else arguments


def needs_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def is_static(arg: Any) -> bool:
    return isinstance(arg, nn.Parameter) or getattr(arg, "_dynamo_static_input_type", None) is not None
