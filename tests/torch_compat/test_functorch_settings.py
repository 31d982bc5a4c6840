"""Feature tests of `aotgrad/torch_compat/functorch_settings.py`."""

from __future__ import annotations

import functorch.compile as peer
from torch._functorch import aot_autograd

from aotgrad import torch_compat as compat


def test_settings_are_sorted_and_most_are_torchs() -> None:
    """Each torch has some of them."""
    assert list(compat.PEER_SETTINGS) == sorted(compat.PEER_SETTINGS)
    known = set(peer.config.get_config_copy())
    assert len(known & {*compat.PEER_SETTINGS}) >= len(compat.PEER_SETTINGS) - 5


def test_parameters_say_what_to_use() -> None:
    for function, parameters in compat.PEER_PARAMETERS.items():
        assert callable(getattr(peer if hasattr(peer, function) else aot_autograd, function))
        for parameter in parameters.values():
            assert isinstance(parameter, compat.PeerParameter) and parameter.instead
