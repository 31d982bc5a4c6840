"""Fixtures of the feature tests."""

from __future__ import annotations

import pytest

from aotgrad import torch_compat as compat


@pytest.fixture
def fake_mode():
    return compat.new_fake_mode()
