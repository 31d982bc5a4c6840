"""Writes to the state what a plan has returned; what plans change in place is written already."""

from __future__ import annotations

from typing import Any

from aotgrad.plan_cache.assigned_state import assign_state
from aotgrad.training_step.state import Snapshot, State
from aotgrad.training_step.trace import Results


def update(state: State, found: Snapshot, results: Results) -> Any:
    """Update gradients, the optimizers' entries, and what was assigned. Returns what the user's function returned."""
    for place, gradient in results["gradients"].items():
        found.tensors[place].grad = gradient
    for (optimizer, place, name), value in results["entries"].items():
        state.optimizers[optimizer].state[found.tensors[place]][name] = value
    for (owner, name), value in results["attributes"].items():
        setattr(state.with_attributes[owner], name, value)
    for (number, name), value in results["assigned"].items():
        assign_state(state.modules[number].module, name, value)
    return results["returned"]
