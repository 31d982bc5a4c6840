"""Trains twice from equal beginnings, eagerly and with one graph a step, and compares all that is left behind.

    def make():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y): ...

        return Training(step, [model, optimizer])

    assert_trains_like_eager(make, batches(5), "eager")

With eager halves, all is compared bit for bit; with Inductor, numbers are close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

import aotgrad
from aotgrad.backends.base import AnyBackend
from aotgrad.backends.registry import as_backend
from aotgrad.subclasses.forms import form_of, is_wrapper, parts_of

Batches = Sequence[tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Training:
    """A step, its state, what runs after each step, and how the step is called with a batch."""

    step: Callable
    state: list[Any]
    between: Callable[[int], Any] = lambda k: None
    called: Callable[[Callable], Callable] = lambda step: step


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float | None = None) -> Callable:
    """A step of the usual kind, which returns the loss; with `max_norm`, it clips gradients."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        return loss

    return step


def batches(count: int, *, rows: int = 8, width: int = 4, classes: int = 2) -> Batches:
    """Random inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(rows, width + classes, generator=generator) for _ in range(count)]
    return [(each[:, :width].clone(), each[:, width:].clone()) for each in made]


def assert_trains_like_eager(
    make: Callable[[], Training],
    data: Batches,
    backend: AnyBackend = "eager",
    *,
    plans: int | None = None,
    options: dict[str, Any] | None = None,
    keep_gradients: bool = True,
) -> Callable:
    """Compare every result and, after each step, the whole state. Returns the compiled step."""
    (eager, compiled), exact = (build(make) for _ in range(2)), not as_backend(backend).fuses
    step = aotgrad.train_step(compiled.step, compiled.state, backend=backend, options=options, keep_gradients=keep_gradients)
    calls = eager.called(eager.step), compiled.called(step)
    for k, batch in enumerate(data):
        wanted, found = (run(call, *batch) for call in calls)
        if not keep_gradients:
            drop_gradients(eager.state)
        assert_same((wanted, contents(eager.state, exact)), (found, contents(compiled.state, exact)), exact)
        eager.between(k), compiled.between(k)
    assert step.plan_cache.fallbacks == {}
    if plans is not None:
        assert len(step.plans()) == plans
    return step


def build(make: Callable[[], Training]) -> Training:
    torch.manual_seed(0)
    return make()


def run(step: Callable, *batch: Any) -> Any:
    """The detached results of a step that draws its numbers from a known state."""
    torch.manual_seed(2)
    return pytree.tree_map_only(torch.Tensor, lambda each: each.detach().clone(), step(*batch))


def drop_gradients(state: Iterable[Any]) -> None:
    for module in state:
        if isinstance(module, nn.Module):
            module.zero_grad()


def contents(state: Iterable[Any], with_versions: bool = True) -> list[Any]:
    """All tensors and numbers of a state, copied; with the parameters' version counters."""
    found: list[Any] = []
    for value in state:
        if isinstance(value, nn.Module):
            found += [*value.state_dict().values(), *(each.grad for each in value.parameters())]
            found += [each._version for each in value.parameters() if with_versions]
        elif isinstance(value, (torch.optim.Optimizer, torch.amp.GradScaler)):
            found.append(value.state_dict())
        else:
            found.append(value)
    return pytree.tree_map_only(torch.Tensor, lambda each: each.detach().clone(), found)


def assert_same(wanted: Any, found: Any, exact: bool) -> None:
    """Compare nested values; tensors in dtype and strides, too."""
    wanted, spec = pytree.tree_flatten(wanted)
    found, found_spec = pytree.tree_flatten(found)
    assert found_spec == spec
    for one, other in pairs_of_parts(wanted, found):
        if not isinstance(one, torch.Tensor):
            assert type(one) is type(other) and repr(one) == repr(other)
        elif exact:
            torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True, check_stride=True)
        else:
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, equal_nan=True)


def pairs_of_parts(wanted: Iterable[Any], found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of values, with the parts of tensor subclasses in their place."""
    for one, other in zip(wanted, found, strict=True):
        if not is_wrapper(one):
            yield one, other
            continue
        form, found_form = form_of(one), form_of(other)
        assert found_form.key == form.key
        yield from zip(parts_of(form, one), parts_of(found_form, other), strict=True)
