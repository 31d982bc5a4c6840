"""Packages that only pictures need: the extra `plot`."""

from __future__ import annotations

import importlib
from typing import Any


class MissingPackage(ImportError):
    """A package of an extra is not installed; the message says how to install it."""


def import_for(purpose: str, module: str) -> Any:
    """A module of the extra `plot`.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackage(f'{purpose} needs {package}: pip install "aotgrad[plot]"') from error
