"""The path from a call to the first stage, as docs/architecture.md describes it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import aotgrad
from aotgrad import pipeline

PACKAGE = Path(aotgrad.__file__).parent
DOCUMENT = PACKAGE.parent / "docs" / "architecture.md"


def documented_hops(heading: str) -> list[tuple[str, str]]:
    """File and function of each row, in order, of the table after `heading`."""
    table = DOCUMENT.read_text().split(heading, 1)[1].split("\n\n")[1]
    rows = re.findall(r"^\| ?\d? \| `([\w/.]+)` `([\w.]+)`", table, re.MULTILINE)
    return [(file, name.rsplit(".", 1)[-1]) for file, name in rows]


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The functions of aotgrad on the stack when the first stage runs, and that stage."""
    found: list[tuple[str, str]] = []
    capture = pipeline.capture_function

    def capture_and_look(*args, **kwargs):
        frames = [frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(PACKAGE)]
        found[:] = [(str(Path(frame.filename).relative_to(PACKAGE)), frame.name) for frame in frames]
        found.append(("capture/trace.py", "capture_function"))
        return capture(*args, **kwargs)

    monkeypatch.setattr(pipeline, "capture_function", capture_and_look)
    return found


def through_dynamo(function: Callable) -> Callable:
    torch._dynamo.reset()
    return torch.compile(function, backend="aotgrad_eager", options={"cache": False})


@pytest.mark.parametrize(
    ("heading", "compiled", "most"),
    [
        ('`torch.compile(model, backend="aotgrad")` has Dynamo in front', through_dynamo, 3),
        ("`aot_function(f, ...)` finds and guards its plans itself", lambda f: aotgrad.aot_function(f, aotgrad.nop), 5),
    ],
    ids=["torch.compile", "aot_function"],
)
def test_the_document_names_every_hop(heading, compiled, most, hops) -> None:
    compiled(lambda x: x.sin().cos())(torch.ones(2))
    assert hops == documented_hops(heading)
    assert len(hops) - 1 <= most


def test_the_files_of_the_page_have_what_it_names() -> None:
    page = DOCUMENT.read_text().split("## A first hour")[1].split("## The stages")[0]
    for file, name in re.findall(r"`([\w/]+\.py)`[,)]? `([\w.]+)`", page):
        assert re.search(rf"(def|class) {name.rsplit('.', 1)[-1]}\b", (PACKAGE / file).read_text()), (file, name)
