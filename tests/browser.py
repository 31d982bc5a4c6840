"""A headless Chromium for the tests of pages.

Where a package or the browser is missing, these tests are skipped; with `AOTGRAD_TEST_BROWSER=1`, as CI sets it, they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1200",
)
LOAD_SECONDS = 120


def skip_without(missing: str) -> NoReturn:
    """Skip a test that needs what is missing here; in CI, fail."""
    assert os.environ.get("AOTGRAD_TEST_BROWSER") != "1", missing
    pytest.skip(missing)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A driver of selenium's."""
    browser, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if browser is None or driver is None:
        skip_without("chromium and chromedriver are not installed")
    try:
        from selenium import webdriver
    except ImportError:
        skip_without("selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


class Page:
    """An open page; elements are named by CSS selectors."""

    def __init__(self, chromium: Any, path: Path) -> None:
        self.chromium = chromium
        self.run("window.isLeft = true")
        chromium.get(path.as_uri())
        self.wait_until_loaded()

    def wait_until_loaded(self) -> None:
        """Wait for the scripts of the page, which end before its load event. On a busy machine, `get` returns earlier."""
        from selenium.webdriver.support.wait import WebDriverWait

        loaded = "return !window.isLeft && performance.getEntriesByType('navigation')[0]?.loadEventEnd > 0"
        WebDriverWait(self.chromium, LOAD_SECONDS).until(lambda _: self.run(loaded))

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.chromium.execute_script(script, *arguments)

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def type(self, selector: str, text: str) -> None:
        self.run(
            "const found = document.querySelector(arguments[0]); found.value = arguments[1];"
            "found.dispatchEvent(new Event(found.tagName === 'SELECT' ? 'change' : 'input'))",
            selector,
            text,
        )

    @property
    def count(self) -> str:
        """How many nodes are shown, in words."""
        return self.texts("#nodes [role=status]")[0]

    def messages(self) -> list[str]:
        """What the console shows; warnings count."""
        return [entry["message"] for entry in self.chromium.get_log("browser")]

    def loaded(self) -> list[str]:
        """What the page loaded from anywhere."""
        return self.run("return performance.getEntriesByType('resource').map((each) => each.name)")
