"""The page of a report, in a browser: what it shows, its filters, and texts of the user that look like HTML."""

from __future__ import annotations

import json
import linecache
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.inspect.command_line import main
from aotgrad.inspect.extras import MissingPackage
from aotgrad.inspect.page.write import NotAReport, write_page
from aotgrad.inspect.rows import INPUT_OPS
from tests.browser import Page, chromium
from tests.islands import ISLANDS

__all__ = ["chromium"]

pytest.importorskip("plotly", reason="plotly is not installed")


def layers(x, *weights):
    for w in weights:
        x = torch.tanh(x @ w)
    return x.sum()


def report_of_layers(**options):
    args = [torch.randn(64, 64, requires_grad=True) for _ in range(4)]
    return aotgrad.explain(layers, options=options)(*args)


@pytest.fixture
def opened(chromium, tmp_path):
    """Open the page of a report; at the end, nothing was loaded and the console is empty."""
    pages = []

    def open_page(report):
        write_page(report if isinstance(report, dict) else report.to_dict(), tmp_path / "page.html")
        pages.append(Page(chromium, tmp_path / "page.html"))
        return pages[-1]

    yield open_page
    assert [page.messages() for page in pages] == [[]] * len(pages)
    assert all(page.loaded() == [] for page in pages)


# --- What it shows ---------------------------------------------------------------------------------------------------


def test_the_nodes_and_figures_of_a_function(opened):
    report = report_of_layers(memory_budget=0.5)
    page = opened(report)
    assert page.texts("h1") == ["layers"] and page.run("return document.title") == "layers · aotgrad"
    assert page.count == f"{len(report.nodes)} of {len(report.nodes)} nodes"
    figures = dict(zip(page.texts(".tile span"), page.texts(".tile b"), strict=True))
    assert figures["saved for the backward"] == f"{report.saved_bytes / 1000:.4g} kB"
    assert figures["backward segments"] == "1" and report.recomputed
    assert page.run("return document.querySelectorAll('.chart .main-svg').length") >= 2
    assert "test_page.py" in page.texts(".row.group")[1]


def test_filters(opened):
    report = report_of_layers(memory_budget=0.5)
    page = opened(report)
    line = next(row.where.line for row in report.nodes if row.name == "sum_1")
    page.type("#nodes input", f"test_page.py:{line}")
    shown = [row for row in report.nodes if row.where and row.where.line == line]
    assert page.count == f"{len(shown)} of {len(report.nodes)} nodes" and 0 < len(shown) < len(report.nodes)
    page.type("#nodes input", "no such line")
    assert page.texts(".empty") == ["No node matches these filters."]
    page.type("#nodes input", "")
    for state in ("saved", "recomputed"):
        page.click(f"[data-state={state}]")
        (names,) = {frozenset(page.texts(".row.node > :first-child"))}
        assert names == {row.name for row in report.nodes if row.state == state} != set()
        page.click(f"[data-state={state}]")
    page.type("[aria-label=graph]", "backward")
    assert page.count.split()[0] == str(sum(row.graph == "backward" for row in report.nodes))


def test_a_group_closes(opened):
    page = opened(report_of_layers())
    before = len(page.texts(".row.node"))
    page.click(".row.group")
    assert len(page.texts(".row.node")) < before and len(page.texts(".row.group")) > 1


def test_a_click_on_the_curve_shows_the_line(opened):
    report = report_of_layers()
    page = opened(report)
    position, where = next((k, row.where) for k, row in enumerate(report.memory) if row.op == "tanh")
    page.run("document.querySelector('.chart').emit('plotly_click', {points: [{customdata: arguments[0]}]})", position)
    assert page.run("return document.querySelector('#nodes input').value") == f"test_page.py:{where.line}"
    assert page.count.split()[0] == str(sum(row.where == where for row in report.nodes))


def test_islands_have_their_reasons(opened):
    def many(x):
        return x.sin().cos().exp().tanh().sigmoid().sqrt().log().abs()

    report = aotgrad.explain(many, backend=ISLANDS)(torch.ones(3, requires_grad=True))
    page = opened(report)
    assert report.islands and {row.name for row in report.nodes if row.is_island} >= {row.name for row in report.islands}
    cells = page.texts(".card td")
    assert {row.reason for row in report.islands} <= set(cells)
    page.click("[data-state=island]")
    assert page.count.split()[0] == str(sum(row.is_island for row in report.nodes))


def test_segments_and_variants(opened):
    def two(x):
        return x.sin(), x.cos()

    compiled, x = aotgrad.aot_function(two, aotgrad.nop), torch.ones(3, requires_grad=True)
    compiled(x)[1].sum().backward()
    report = aotgrad.explain(compiled)(x)
    assert [(row.tangents, row.gradients) for row in report.segments] == [(("output[1]",), ("x",)), (("output[0]",), ("x",))]
    cells = opened(report).texts(".card td")
    assert "backward 0 (3 ops)" in cells and "none yet" in cells


def test_a_training_step(opened):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @aotgrad.train_step(state=[model, optimizer], keep_gradients=False, backend="eager")
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    report = aotgrad.explain(step)(torch.randn(4, 8))
    page = opened(report)
    assert page.texts("h1") == [report.name] and "Memory over the call" in page.texts("h2")
    assert {row.graph for row in report.nodes} == {"inference"} and report.nodes[0].name == "weight"
    page.type("#nodes input", "loss.backward()")
    assert page.count.split()[0] == str(sum(bool(row.where and row.where.code == "loss.backward()") for row in report.nodes))


def test_nothing_to_show(opened):
    assert opened(aotgrad.explain(lambda x: None)(torch.ones(2))).texts("h1") != []
    small = aotgrad.explain(torch.sin, options={"min_graph_ops": 5})(torch.ones(1))
    assert small.note in opened(small).texts("p.card")


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo reads it of every tensor
def test_each_graph_of_dynamo(opened):
    def broken(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    report = aotgrad.explain(broken, dynamo=True)(torch.ones(3, requires_grad=True))
    page = opened(report)
    assert page.texts("option[value='1']")[0] == report.graphs[1].name and "Graph breaks" in page.texts("h2")
    page.type("select.graphs", "1")
    assert any("cos" in name for name in page.texts(".row.node > :first-child"))


# --- Large, and hostile ----------------------------------------------------------------------------------------------


def test_ten_thousand_nodes(opened):
    data = report_of_layers().to_dict()
    node = next(row for row in data["nodes"] if row["where"])
    lines = [{**node["where"], "line": line} for line in range(1, 501)]
    data["nodes"] = [{**node, "name": f"node_{k}", "where": lines[k // 20]} for k in range(10_000)]
    data["memory"] = [{"half": "forward", "op": f"node_{k}", "bytes": k, "where": lines[k // 20]} for k in range(10_000)]
    page = opened(data)
    assert page.count == "10,000 of 10,000 nodes"
    assert 0 < len(page.texts(".row")) < 100, "only rows in view are in the document"
    page.run("document.querySelector('.view').scrollTop = 1e9")
    page.run("document.querySelector('.view').dispatchEvent(new Event('scroll'))")
    assert page.texts(".row.node > :first-child")[-1] == "node_9999"
    page.type("#nodes input", "test_page.py:7")
    assert page.count == "20 of 10,000 nodes" and page.texts(".row.node > :first-child")[0] == "node_120"


HOSTILE = "</script><script>document.body.dataset.broken = 1</script><img src=x onerror='document.body.dataset.broken = 1'>"


def test_text_of_the_user_is_only_text(opened):
    """The name of the function, of its file, its code, and a key of an argument."""
    file = f"{HOSTILE.replace('/', '')}.py"
    source = f"def f(batch):\n    y = batch[{HOSTILE!r}].sin()  # {HOSTILE}\n    return y.exp()\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict = {}
    exec(compile(source, file, "exec"), names)
    names["f"].__name__ = names["f"].__qualname__ = HOSTILE
    report = aotgrad.explain(names["f"])({HOSTILE: torch.ones(3, requires_grad=True)})
    assert report.name == HOSTILE and any(row.where and HOSTILE in row.where.code for row in report.nodes)
    page = opened(report)
    assert page.texts("h1") == [HOSTILE] and any(HOSTILE in text for text in page.texts(".row.group code"))
    assert page.run("return document.body.dataset.broken === undefined && document.images.length === 0")


# --- Python and the command line -------------------------------------------------------------------------------------


def test_a_page_of_stored_json_is_the_same(tmp_path):
    report = report_of_layers()
    report.html(tmp_path / "direct.html")
    (tmp_path / "report.json").write_text(report.to_json())
    assert main(["page", str(tmp_path / "report.json"), str(tmp_path / "stored.html")]) == 0
    assert (tmp_path / "stored.html").read_bytes() == (tmp_path / "direct.html").read_bytes()


def test_the_command_line_writes_a_page(tmp_path, capsys):
    path = tmp_path / "page.html"
    assert main(["explain", "torch.nn.functional:gelu", "--inputs", "f32[4] requires_grad", "--html", str(path)]) == 0
    assert "aten.gelu.default" in path.read_text() and capsys.readouterr().out.startswith("gelu with backend eager")


@pytest.mark.parametrize("text", ["[1, 2]", "{}", '{"breaks": [], "graphs": [1]}', "no JSON"])
def test_what_is_no_report_is_an_error(tmp_path, capsys, text):
    (tmp_path / "report.json").write_text(text)
    assert main(["page", str(tmp_path / "report.json"), str(tmp_path / "page.html")]) == 2
    assert "report" in capsys.readouterr().err.lower() and not (tmp_path / "page.html").exists()
    if text != "no JSON":
        with pytest.raises(NotAReport, match="not the JSON of an explanation"):
            write_page(json.loads(text), tmp_path / "page.html")


def test_without_plotly_a_page_is_an_error_that_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingPackage, match=r'a page needs plotly: pip install "aotgrad\[plot\]"'):
        report_of_layers().html(tmp_path / "page.html")


# --- The rows of nodes -----------------------------------------------------------------------------------------------


def test_the_states_of_nodes_are_those_of_the_other_rows():
    for options in ({"memory_budget": 0.3}, {"memory_budget": 0.0, "offload": True}):
        report = report_of_layers(**options)
        rows = {row.name: row for row in report.nodes}
        for state in ("saved", "offloaded", "recomputed"):
            others = {row.name: row for row in getattr(report, state)}
            assert {name for name, row in rows.items() if row.state == state} == set(others)
            assert all(rows[name].reason == row.reason and rows[name].where == row.where for name, row in others.items())
        assert {row.state for row in report.nodes if row.op in INPUT_OPS.values()} <= {"input", "saved", "offloaded"}
    assert (rows["tanh"].type, rows["tanh"].bytes, rows["tanh"].graph) == ("f32[64, 64]", 4 * 64 * 64, "forward")


def test_a_view_owns_no_memory():
    report = aotgrad.explain(lambda x: (x.t().sin(), x.max(0)[0]))(torch.ones(2, 3, requires_grad=True))
    sizes = {row.name: row.bytes for row in report.nodes}
    assert (sizes["x"], sizes["t"], sizes["sin"], sizes["max_1[0]"]) == (24, 0, 24, 12)
