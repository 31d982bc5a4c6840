"""The state of a `GradScaler`: its tensors, and what else a trace of a step depends on.

state = ScalerState(scaler)
state.tensors                   the scale and the growth tracker, once the first step has made them
state.structure(places)         its settings; hashable
state.is_current()              whether a new read would find the same
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

from aotgrad.guards.python_values import hashable_key
from aotgrad.plan_cache.module_state import Unchanged, Watched

OF_ONE_UPDATE = "_per_optimizer_states"
"""What a scaler has found since its last update."""

INITIAL = {"_scale": "_init_scale", "_growth_tracker": "_init_growth_tracker"}
"""The tensors, and the settings that their first values come from."""


class ScalerState:
    """What a read of a scaler has found."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self.scaler = scaler
        self.tensors = [value for value in vars(scaler).values() if isinstance(value, torch.Tensor)]
        self.unchanged = Unchanged(Watched.of(scaler, scaler_settings(scaler).values()), hashable_key)

    def is_current(self) -> bool:
        return self.unchanged.holds() and not pending_updates(self.scaler)

    def structure(self, places: Mapping[int, int]) -> Hashable:
        """What a trace of a step depends on besides values of tensors; tensors by their place."""
        unused = {INITIAL[name] for name, value in vars(self.scaler).items() if isinstance(value, torch.Tensor)}
        known = [(name, value) for name, value in scaler_settings(self.scaler).items() if name not in unused]
        parts = [(name, places[id(value)] if isinstance(value, torch.Tensor) else value) for name, value in known]
        return (type(self.scaler), bool(pending_updates(self.scaler)), hashable_key(parts))


def scaler_settings(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    return {name: value for name, value in vars(scaler).items() if name != OF_ONE_UPDATE}


def pending_updates(scaler: torch.amp.GradScaler) -> dict:
    """What the scaler has found since its last update, by optimizer: it has unscaled gradients, or taken a step."""
    return vars(scaler).get(OF_ONE_UPDATE, {})
