"""The examples of the documentation run."""

from __future__ import annotations

import doctest
import re
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

OWN = {"aotgrad", "torch", *sys.stdlib_module_names}
DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTS = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("tutorials/*.md"))]
EXAMPLES = [
    pytest.param(block, id=f"{path.stem}-{k}")
    for path in DOCUMENTS
    for k, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.fixture
def no_process_group() -> Iterator[None]:
    """An example that fails may leave its process group open."""
    yield
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("no_process_group")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("source", EXAMPLES)
def test_an_example_runs(source):
    with warnings.catch_warnings():
        for package in packages_of(source) - OWN:
            warnings.simplefilter("ignore")  # warnings of frameworks about torch and themselves
            pytest.importorskip(package, reason=f"{package} is in scripts/workflows.txt")
        exec(compile(source, "example", "exec"), {})


def packages_of(source: str) -> set[str]:
    """The packages that an example imports."""
    return set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


def test_the_examples_of_gradients_run():
    failed, attempted = doctest.testfile(str(DOCS / "gradients.md"), module_relative=False)
    assert failed == 0 and attempted > 20


def test_every_point_of_gradients_has_an_example():
    _, *sections = re.split(r"^## (?=\d)", (DOCS / "gradients.md").read_text(), flags=re.MULTILINE)
    assert all(">>> " in section for section in sections)


def links_of(path: Path) -> list[str]:
    return re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    assert [link for link in links_of(path) if not (path.parent / link).exists()] == []


def anchor(heading: str) -> str:
    """The anchor of a heading: words in lower case, joined by hyphens."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_to_headings_lead_somewhere(path):
    for link, fragment in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text()):
        text = (path.parent / link).read_text() if link else path.read_text()
        assert fragment in map(anchor, re.findall(r"^#+ (.+)$", text, re.MULTILINE)), f"{link}#{fragment}"


def test_the_index_has_every_document():
    listed = {(DOCS / link).resolve() for link in links_of(DOCS / "index.md")}
    assert set(DOCUMENTS) - {DOCS / "index.md"} <= listed


def test_the_readme_is_short():
    assert len((DOCS.parent / "README.md").read_text().splitlines()) <= 200


def test_tables_of_a_document_are_made_again_one_by_one():
    document = runpy.run_path(str(DOCS.parent / "scripts" / "bench" / "document.py"))
    text = (
        "a\n<!-- made by: python one.py -->\nold\n<!-- end -->\nb\n<!-- made by: python two.py -->\nold\n<!-- end -->\nc\n"
    )
    assert list(document["commands"](text)) == ["python one.py", "python two.py"]
    assert list(document["commands"](text, ["two", "three"])) == ["python two.py"]
    made = document["with_output"](text, "python two.py", "new \\1\n")
    old, new = "python one.py -->\nold\n", "python two.py -->\n`python two.py`\n\nnew \\1\n\n<!-- end -->\nc\n"
    assert old in made and made.endswith(new) and document["with_output"](made, "python two.py", "new \\1") == made


def test_every_table_of_performance_is_made_by_a_program_that_is_there():
    document = runpy.run_path(str(DOCS.parent / "scripts" / "bench" / "document.py"))
    text = (DOCS / "performance.md").read_text()
    programs = [command.split()[1] for command in document["commands"](text)]
    assert len(programs) >= 7 and all((DOCS.parent / program).exists() for program in programs)
    assert not re.search(r"^\|[ -]*\|.*peer", document["SECTION"].sub("", text), re.MULTILINE), "a table that nothing makes"
