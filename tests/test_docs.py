"""The examples of the documentation run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = [
    pytest.param(block, id=f"{path.stem}-{k}")
    for path in sorted(DOCS.glob("*.md"))
    for k, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("source", EXAMPLES)
def test_an_example_runs(source):
    exec(compile(source, "example", "exec"), {})


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


def test_the_examples_of_gradients_run():
    failed, attempted = doctest.testfile(str(DOCS / "gradients.md"), module_relative=False)
    assert failed == 0 and attempted > 20


def test_every_point_of_gradients_has_an_example():
    _, *sections = re.split(r"^## (?=\d)", (DOCS / "gradients.md").read_text(), flags=re.MULTILINE)
    assert all(">>> " in section for section in sections)


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []
