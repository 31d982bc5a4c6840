"""A hook of MkDocs: files of the repository that documents link to -> pages of the site.

A document links to `../expect/explain/gpt.expect` as it lies in the repository. The site has a page for each such file, and
for those that these pages link to. Links between documents stay as they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)")
LANGUAGES = {".cpp": "cpp", ".py": "python", ".sh": "bash"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of linked files."""
    waiting = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    while waiting:
        source, text = waiting.pop()
        for target in targets_of(source, text):
            if files.get_file_from_path(uri_of(target)) is None:
                files.append(File.generated(config, uri_of(target), content=page_of(target)))
                waiting.append((target, page_of(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages. The start page has no navigation beside it."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    source, folder = source_of(page.file.src_uri), posixpath.dirname(page.file.src_uri)

    def on_site(link: re.Match[str]) -> str:
        target = target_of(source, link[0])
        return link[0] if target is None else posixpath.relpath(uri_of(target), folder or ".")

    return LINK.sub(on_site, markdown)


def targets_of(source: str, text: str) -> Iterator[str]:
    """The files, outside of docs/ too, that a file of the repository links to."""
    found = (target_of(source, link) for link in LINK.findall(text))
    return (target for target in found if target is not None)


def target_of(source: str, link: str) -> str | None:
    """The path in the repository of what a file links to; a folder is its README, if any. `None` where nothing is there."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if (ROOT / path / "README.md").is_file():
        path = f"{path}/README.md"
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def uri_of(path: str) -> str:
    """Where the site has a file of the repository.

    >>> uri_of("docs/guide.md"), uri_of("README.md"), uri_of("expect/README.md"), uri_of("examples/gpt.py")
    ('guide.md', 'readme.md', 'repository/expect/README.md', 'repository/examples/gpt.py.md')
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if not path.endswith(".md"):
        return f"repository/{path}.md"
    return f"repository/{path}" if "/" in path else path.lower()


def source_of(uri: str) -> str:
    """The file of the repository that a page of the site shows.

    >>> [source_of(uri_of(path)) for path in ("docs/guide.md", "README.md", "expect/README.md", "examples/gpt.py")]
    ['docs/guide.md', 'README.md', 'expect/README.md', 'examples/gpt.py']
    """
    if uri.startswith("repository/"):
        path = uri.removeprefix("repository/")
        return path if (ROOT / path).exists() else path.removesuffix(".md")
    top = next((path.name for path in ROOT.glob("*.md") if path.name.lower() == uri), None)
    return top or f"docs/{uri}"


def page_of(path: str) -> str:
    """The text of a page that shows a file, or lists a folder. Only documents are searched."""
    file = ROOT / path
    text = "\n".join(sorted(each.name for each in file.iterdir())) if file.is_dir() else file.read_text()
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\ntitle: {path}\nsearch: {{exclude: true}}\n---\n\n# `{path}`\n\n`````{language}\n{text.rstrip()}\n`````\n"
