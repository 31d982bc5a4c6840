"""The JSON of a report -> a page in one file, which loads nothing from elsewhere.

write_page(report.to_dict(), "page.html")
write_page(json.loads(stored), "page.html")
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from aotgrad.inspect.extras import import_for

PAGE_SCRIPTS = ("tables.js", "nodes.js", "charts.js", "main.js")


class NotAReport(ValueError):
    """The data is not what `to_dict()` of an explanation returns."""


def write_page(report: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the page of a report.

    Args:
        report: what `to_dict()` of an `Explanation` or a `DynamoExplanation` returns.
        path: the file.

    Raises:
        MissingPackage: plotly is not installed.
        NotAReport: the data is something else.
    """
    Path(path).write_text(page_text(report), encoding="utf-8")


def page_text(report: Mapping[str, Any]) -> str:
    """The page, in HTML."""
    check_report(report)
    plotly = import_for("a page", "plotly.offline").get_plotlyjs()
    program = "\n".join(map(text_of_file, PAGE_SCRIPTS))
    data = json.dumps(report).replace("<", "\\u003c")  # so that no text of the user ends the element
    return Template(text_of_file("page.html")).substitute(
        style=text_of_file("page.css"), plotly=plotly, data=data, program=program
    )


def check_report(report: Any) -> None:
    graphs = report.get("graphs") if isinstance(report, Mapping) and "breaks" in report else [report]
    for graph in graphs or ():
        if not isinstance(graph, Mapping) or not {"name", "nodes", "memory", "note"} <= graph.keys():
            raise NotAReport("this is not the JSON of an explanation; `python -m aotgrad explain ... --json` prints it")


def text_of_file(name: str) -> str:
    return resources.files("aotgrad.inspect.page").joinpath(name).read_text(encoding="utf-8")
