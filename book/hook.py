"""What mkdocs calls: pages from outside of docs/ join the site, and links that lead out of docs/ lead to them.

A link to a file that has no page (a test, a module) becomes its name: the site stands by itself, and a reader of the
checkout has the link in the file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from book import api_pages, cli_page, problem_pages, settings_page, state_diagrams, tables_page, telemetry_page
from book.files import ROOT

#: Files of the checkout that are pages, by their path from its root.
OUTSIDE: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "tests/README.md": "tests.md",
}
_SOURCE_OF: Final = {page: source for source, page in OUTSIDE.items()}

#: The theme has pages that are opened as files load this from elsewhere; `worker.js` does the same.
_FOREIGN_WORKER: Final = "https://unpkg.com/iframe-worker/shim"
_WORKER: Final = "worker.js"

_DOORS: Final = """\
<div class="grid cards" markdown>

- **[Tutorial](docs/tutorial.md)**

    One hour, from an empty folder to payments on Postgres, with events, a client and a crash.

- **[How-to](docs/principals.md)**

    A task at a time: FastAPI, Flask, SQLAlchemy, brokers, clients, deployment. Every program runs.

- **[Reference](docs/http-contract.md)**

    What holds: the HTTP contract, problems, API, commands, settings, telemetry, tables.

- **[Why](docs/why/one-transaction.md)**

    The arguments, what each guarantee is not, and how onefold compares.

</div>"""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def make_pages() -> dict[str, str]:
    """Pages that are made from the code, by their address."""
    return {
        **api_pages.make_pages(),
        **problem_pages.make_pages(),
        "reference/command-line.md": cli_page.make_page(),
        "reference/settings.md": settings_page.make_page(),
        "reference/states.md": state_diagrams.make_page(),
        "reference/tables.md": tables_page.make_page(),
        "reference/telemetry.md": telemetry_page.make_page(),
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation names a generated section once; its pages are filled in."""
    config.nav = _fill(config.nav)
    return config


def _fill(entry: Any) -> Any:
    match entry:
        case list():
            return list(map(_fill, entry))
        case dict():
            return {title: _fill(below) for title, below in entry.items()}
        case "reference/api/index.md":
            names = api_pages.list_modules()
            return [entry, *({name: f"reference/api/{name}.md"} for name in names)]
        case "problems.md":
            return [entry, *({name: f"problems/{name}.md"} for name in problem_pages.read_sections())]
        case _:
            return entry


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    made = make_pages()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for asset in ("site.css", _WORKER):
        files.append(File.generated(config, f"assets/{asset}", abs_src_path=str(ROOT / "book" / asset)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    if page.file.src_uri == "problems.md":
        markdown = problem_pages.make_index()
    if page.file.src_uri.startswith(("reference/", "problems/")):
        return markdown
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
        head, mark, rest = markdown.partition("\n\nOn a machine with")
        assert mark, "the README begins otherwise: the doors of the site have no place"
        markdown = f"{head}\n\n{_DOORS}{mark}{rest}"
    source = _SOURCE_OF.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return state_diagrams.place_diagrams(lead_links(markdown, source, page.file.src_uri))


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    return output.replace(_FOREIGN_WORKER, get_relative_url(f"assets/{_WORKER}", page.url))


def on_post_template(output_content: str, **_: Any) -> str:
    return output_content.replace(_FOREIGN_WORKER, f"/assets/{_WORKER}")


def lead_links(markdown: str, source: str, page: str) -> str:
    """The text of the file `source`, as a page of the site at `page`: its links lead to pages. Code stays as it is."""

    def lead(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        file, mark, heading = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        if path == "docs/problems.md" and heading:
            there, mark, heading = f"problems/{heading}.md", "", ""
        elif path in OUTSIDE:
            there = OUTSIDE[path]
        elif path.startswith("docs/"):
            there = path.removeprefix("docs/")
        else:
            return text if text.startswith("`") else f"`{path}`" if text == path else text
        return f"{image}[{text}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{mark}{heading})"

    parts = _FENCED.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(lead, part) for number, part in enumerate(parts))
