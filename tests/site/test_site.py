"""The documents as a site: it builds without a warning, its links lead somewhere, it has every public name, and it works."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import aotgrad
from tests.browser import chromium, skip_without

__all__ = ["chromium"]

ROOT = Path(__file__).parents[2]

PUBLIC = sorted(
    {f"aotgrad.{name}" for name in aotgrad.__all__}
    | {f"aotgrad.{module}.{name}" for module in ("backends", "debug", "passes") for name in getattr(aotgrad, module).__all__}
    | {f"aotgrad.errors.{name}" for name, each in vars(aotgrad.errors).items() if isinstance(each, type)}
    | {f"aotgrad.Options.{name}" for name in aotgrad.Options.__dataclass_fields__}
)
"""What CHANGELOG.md calls public."""


class Links(HTMLParser):
    """Of a page: the ids, what its links lead to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.ids.update(found[name] for name in ("id", "name") if name in found)
        if tag in ("a", "area") and "href" in found:
            self.links.append(found["href"])
        elif "src" in found or (tag == "link" and found.get("rel") != "canonical"):
            self.loaded.append(found.get("src") or found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    found = subprocess.run(
        [sys.executable, "-c", "import mkdocs, material, mkdocstrings_handlers.python"], capture_output=True, text=True
    )
    if found.returncode != 0:
        skip_without("the docs extra is not installed")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    """The pages, but for that of a wrong address, whose links are those of a server."""
    return {path: Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_links_lead_somewhere(pages: dict[Path, Links]) -> None:
    missing, checked = [], 0
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            checked += 1
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in pages[target].ids):
                missing.append((str(page), link))
    assert missing == [] and checked > 1000


def test_pages_load_nothing_from_other_hosts(site: Path, pages: dict[Path, Links]) -> None:
    for page, found in pages.items():
        for each in found.loaded:
            parts = urlsplit(each)
            assert not parts.netloc and (page.parent / parts.path).exists(), f"{page}: {each}"
    for sheet in (site / "assets").rglob("*.css"):
        assert "@import" not in sheet.read_text()


def test_every_public_name_is_in_the_reference(pages: dict[Path, Links]) -> None:
    ids = {each for page, found in pages.items() if page.parent.name == "reference" for each in found.ids}
    assert [name for name in PUBLIC if name not in ids] == []


def test_files_of_the_repository_have_pages(site: Path) -> None:
    for name in ("expect/explain/gpt.expect", "examples/toy_backend.py", "aotgrad/native/library.cpp"):
        assert (site / "repository" / f"{name}.html").exists(), name


@pytest.mark.parametrize("name", ["doctests", "repository"])
def test_the_examples_of_an_extension_run(name: str, site: Path) -> None:
    command = [sys.executable, "-m", "doctest", str(ROOT / "scripts" / "site" / f"{name}.py")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def messages(chromium: Any) -> list[str]:
    """What the console has shown since it was last asked; warnings count."""
    return [entry["message"] for entry in chromium.get_log("browser")]


def loaded(chromium: Any) -> list[str]:
    script = "return performance.getEntriesByType('resource').map((each) => each.name)"
    return [each for each in chromium.execute_script(script) if not each.startswith(("file:", "data:"))]


@pytest.mark.parametrize("page", ["index", "tutorials/forces", "reference/options", "repository/expect/explain/gpt.expect"])
def test_a_page_opens_from_the_file_system(page: str, site: Path, chromium: Any, tmp_path: Path) -> None:
    chromium.get((site / f"{page}.html").as_uri())
    assert chromium.execute_script("return document.querySelector('article').offsetHeight") > 200
    assert chromium.save_screenshot(str(tmp_path / "page.png")) and (tmp_path / "page.png").stat().st_size > 10_000
    assert messages(chromium) == [] and loaded(chromium) == []


def test_the_search_finds_an_option(site: Path, chromium: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    chromium.get((site / "index.html").as_uri())
    field = chromium.find_element(By.CSS_SELECTOR, ".md-search__input")
    field.click()
    field.send_keys("memory_budget")
    results = WebDriverWait(chromium, 60).until(
        lambda driver: driver.execute_script(
            "return [...document.querySelectorAll('a.md-search-result__link')].map((each) => each.href)"
        )
    )
    assert any("reference/options" in link for link in results)
    assert any("tutorials/fit_in_memory" in link for link in results)
    assert messages(chromium) == [] and loaded(chromium) == []


def test_the_palette_changes(site: Path, chromium: Any) -> None:
    chromium.get((site / "index.html").as_uri())
    scheme = "return document.body.dataset.mdColorScheme"
    before = chromium.execute_script(scheme)
    chromium.execute_script("document.querySelector('.md-header__option label:not([hidden])').click()")
    assert {before, chromium.execute_script(scheme)} == {"default", "slate"}
