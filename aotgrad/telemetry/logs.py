"""Selects the artifacts to print: `AOTGRAD_LOGS`, or `aotgrad.set_logs`.

    AOTGRAD_LOGS=joint,partition,plan,guards python train.py
    aotgrad.set_logs("joint", "guards")

Each artifact is a logger of `logging`, whose handlers and formatters may be set as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from aotgrad.errors import OptionError
from aotgrad.telemetry.observer import STAGE_LOGGERS

ARTIFACTS: dict[str, tuple[str, int]] = {
    "analysis": (STAGE_LOGGERS["analysis"], logging.DEBUG),
    "capture": (STAGE_LOGGERS["capture"], logging.DEBUG),
    "guards": ("aotgrad.guards.plan", logging.DEBUG),
    "joint": (STAGE_LOGGERS["joint"], logging.DEBUG),
    "minify": ("aotgrad.debug", logging.INFO),
    "partition": (STAGE_LOGGERS["partition"], logging.DEBUG),
    "passes": ("aotgrad.passes", logging.DEBUG),
    "plan": (STAGE_LOGGERS["executable"], logging.DEBUG),
}
"""The logger of each artifact, and the level from which it is printed."""

FORMAT = "[%(name)s] %(message)s"


class Printer(logging.StreamHandler):
    """Prints an artifact to the standard error stream. `before` is the original level of the logger."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.before = before
        self.setFormatter(logging.Formatter(FORMAT))


def set_logs(*artifacts: str) -> None:
    """Print these artifacts from now on, and no others.

    Args:
        *artifacts: `"capture"`, `"analysis"`, `"joint"`, `"partition"` and `"plan"` print the results of these stages, with
            their time; `"guards"` why no plan fits, and the conditions of each new plan; `"passes"` the graph after each
            pass; `"minify"` the progress of `aotgrad.debug.minify`.

    Raises:
        OptionError: there is no such artifact; the message lists all.
    """
    for unknown in [name for name in artifacts if name not in ARTIFACTS]:
        raise OptionError(f"there is no log {unknown!r}; the logs are {', '.join(sorted(ARTIFACTS))}")
    for name, (logger_name, level) in ARTIFACTS.items():
        logger = logging.getLogger(logger_name)
        for handler in printers(logger):
            logger.removeHandler(handler)
            logger.setLevel(handler.before)
        if name in artifacts:
            logger.addHandler(Printer(logger.level))
            logger.setLevel(level)


def printers(logger: logging.Logger) -> Iterator[Printer]:
    yield from [handler for handler in logger.handlers if isinstance(handler, Printer)]


def configure(wanted: str) -> None:
    """`set_logs` for a comma-separated list; does nothing for the empty string."""
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if names:
        set_logs(*names)
