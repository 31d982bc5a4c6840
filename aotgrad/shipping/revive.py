"""An entry of a file -> a plan of this process, with its guards. Nothing is traced, and no source runs unchecked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from aotgrad import native, torch_compat
from aotgrad.backends.eager import EAGER
from aotgrad.cache.entry import GuardedTensor, ShippedPlan, StoredBackward, StoredGuard
from aotgrad.cache.graphs import Attributes, StoredHalf, decode_graph, functions_by_name
from aotgrad.cache.io import assume
from aotgrad.cache.restore import RestoredFunction, restore
from aotgrad.cache.serialize import DamagedEntry, Decoder
from aotgrad.capture.trace import FlatFunction
from aotgrad.convention import Dedupe
from aotgrad.errors import AOTGradError, ShippingError
from aotgrad.guards.data_dependent import ValueGuard
from aotgrad.guards.memory import MemoryGuard
from aotgrad.guards.plan import PlanGuards
from aotgrad.pipeline import CompiledGuard, Compiler
from aotgrad.plan_cache.arguments import FlatOutput, unflattener
from aotgrad.plan_cache.entry import CachedPlan
from aotgrad.runtime.backward import Backward
from aotgrad.shipping.fact_checks import check_facts
from aotgrad.shipping.record import spec_of_form
from aotgrad.shipping.source_checks import check_condition, check_plan
from aotgrad.torch_compat import FakeTensorMode


@dataclass(frozen=True)
class Revived:
    """A restored function and what guards its calls; `plan` makes the plan for the calls that share memory alike.

    `elapsed_ns`: the time that it took to restore it.
    """

    entry: ShippedPlan
    function: RestoredFunction
    values: ValueGuard | None
    output: FlatOutput
    elapsed_ns: int

    def plan(self, tensors: Sequence[torch.Tensor]) -> CachedPlan | None:
        """The plan, with guards for calls that share memory as `tensors` do; `None` if the plan is not for these."""
        dedupe, sharing = self.entry.dedupe, self.entry.plan.sharing
        if len(tensors) != len(dedupe.positions):
            return None
        distinct = dedupe.enter(tensors)
        if self.entry.changes and not sharing.matches(distinct):
            return None
        memory = MemoryGuard(distinct, sharing, [each.fake for each in self.entry.tensors]) if self.entry.changes else None
        return CachedPlan(cast(Any, self.function), self.guards(memory), self.output, self.elapsed_ns)

    def guards(self, memory: MemoryGuard | None) -> PlanGuards:
        """The guards. The global state is the current one, which the entry is for."""
        tensors = self.entry.tensors
        fakes: list[Any] = [each.fake for each in tensors]
        return PlanGuards(
            dedupe=self.entry.dedupe,
            global_state=torch_compat.GlobalState(native.lookup("settings_number", None)),
            tensors=torch_compat.TensorGuard(list(map(example, tensors)), fakes, native.lookup("tensor_check", None)),
            memory=memory,
            facts=self.entry.facts,
            shapes=torch_compat.shape_guards(fakes) if any(map(torch_compat.has_symbolic_shape, fakes)) else None,
            values=self.values,
        )

    def why_not(self, tensors: Sequence[torch.Tensor]) -> str:
        """Which guard a call does not fulfil."""
        if len(tensors) != len(self.entry.dedupe.positions):
            return f"{len(tensors)} tensors in place of {len(self.entry.dedupe.positions)}"
        return self.guards(None).why_not(tensors) or "arguments share memory in another way"

    def compile_variants(self) -> None:
        """Compile the variants of the backward that the first process has used."""
        for backward, stored in zip(self.function.backwards, self.entry.backwards, strict=True):
            for variant in stored.variants:
                backward.variants.get(variant.key)
            if stored.is_written_over:
                backward.variants.compile_over()


def revive(
    data: Mapping[str, Any],
    compiler: Compiler,
    function: Callable[[Dedupe], FlatFunction] | None,
    held: Attributes,
) -> Revived:
    """The function of a recorded plan.

    Args:
        data: see `record.recorded`.
        compiler: compiles its graphs, or has their code.
        function: makes the original function of the distinct tensors, if there is one.
        held: the tensors that the function has closed over.

    Raises:
        ShippingError: the data is not what `recorded` has made, or this process lacks something that it needs.
    """
    start_ns, mode = time.perf_counter_ns(), torch_compat.new_fake_mode()
    if data["backend"] != compiler.backend.name:  # a step that is taken once
        compiler = replace(compiler, backend=EAGER)
    try:
        with torch_compat.normal_mode():
            make_symbols(mode, data["symbols"])
            entry = Decoder(mode, data["storages"]).decode(data["entry"])
        if not isinstance(entry, ShippedPlan):
            raise DamagedEntry("an entry that is no plan")
        check_plan(entry.plan.source)
        assume(entry.plan.conditions)
        flat = None if function is None else function(entry.dedupe)
        check_facts(entry)
        restored = restore(entry.plan, flat, compiler, mode, (), held)
        for backward, stored in zip(restored.backwards, entry.backwards, strict=True):
            give_variants(backward, stored, compiler, mode, held)
        values = None if entry.values is None else value_guard(entry.values, compiler, mode, held)
        return Revived(entry, restored, values, output_of(entry.output), time.perf_counter_ns() - start_ns)
    except (AOTGradError, NotImplementedError):
        raise
    except Exception as error:
        raise ShippingError(f"a plan of the file cannot be used here, {type(error).__name__}: {error}") from error


def give_variants(
    backward: Backward, stored: StoredBackward, compiler: Compiler, mode: FakeTensorMode, held: Attributes
) -> None:
    """Give a backward what another process has found out about it."""
    variants, kept = backward.variants, functions_by_name(compiler.backend.keep)
    for each in stored.variants:
        half = variants.full if each.graph is None else StoredHalf(each.graph, mode, (), held, kept)
        variants.graphs[each.key] = half, each.undefined
    backward.needed_positions.update(stored.needed)


def make_symbols(mode: FakeTensorMode, symbols: Sequence[Mapping[str, Any]]) -> None:
    """Create the symbols of a trace: those of the sizes of some arguments, under the same names."""
    for each in symbols:
        example = torch.empty_strided(each["size"], each["stride"], dtype=torch.bool)
        torch_compat.dynamic_fake(mode, example, each["dims"], each["index"])


def example(each: GuardedTensor) -> torch.Tensor:
    """A tensor of the kind that a plan expects, without elements: only its type, keys and flags are read."""
    fake = each.fake
    with torch.inference_mode(each.is_inference):
        made = without_elements(fake)
        made = torch_compat.LazyBits(each.is_conj, each.is_neg).on(made)
        made = torch.nn.Parameter(made, each.requires_grad) if each.is_parameter else made
        return made.requires_grad_(each.requires_grad)


def without_elements(fake: torch.Tensor) -> torch.Tensor:
    """A tensor of the kind of a fake; a sparse one has no entries, but the size, which guards compare."""
    if fake.layout is torch.strided:
        return torch.empty([0] * fake.dim(), dtype=fake.dtype, device=fake.device)
    return torch_compat.SparseForm.of(fake).without_entries(fake.size(), fake.dtype, fake.device)


def value_guard(stored: StoredGuard, compiler: Compiler, mode: FakeTensorMode, held: Attributes) -> ValueGuard:
    """Raises ShippingError."""
    for condition in stored.conditions:
        check_condition(condition.text, stored.names)
    if not all(name.isidentifier() for name in stored.names):
        raise ShippingError("the file is not one that aotgrad has written: a value has no name")
    answers = decode_graph(stored.answers.text, mode, held=held)
    compute: Callable[..., tuple] = answers
    if stored.values is not None:
        values = StoredHalf(stored.values, mode, (), held)
        with torch_compat.compiler_context():
            compiled = compiler.backend.compile_forward(values.for_backend(frozenset()), stored.static_inputs, False)
        compute = CompiledGuard(values, stored.static_inputs, answers, compiled.forward)
    return ValueGuard(stored.level, compute, stored.names, stored.inputs, stored.conditions, stored.draws)


def output_of(form: Any) -> FlatOutput:
    """How results are nested."""
    output = FlatOutput()
    output.spec = spec_of_form(form)
    output.rebuild = unflattener(output.spec)
    return output
