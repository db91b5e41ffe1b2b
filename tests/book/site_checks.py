"""What must hold of the built site: each asset is its own, and each link leads to a page and a heading that exist."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a browser fetches by itself, by element and attribute. `link` is one unless it only names another page.
_ASSETS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("link", "href")}
_NAMES = {"canonical", "next", "prev", "alternate"}


class PageReader(HTMLParser):
    """Of a page: its anchors, what it links to, and what it fetches."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.assets: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if tag != "link" or given.get("rel") not in _NAMES:
            self.assets.update(value for name, value in given.items() if (tag, name) in _ASSETS)


def find_defects(site: Path) -> Iterator[str]:
    """One line for each, with its page."""
    pages = {path: PageReader(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        where = path.relative_to(site)
        yield from (f"{where} fetches {asset}" for asset in sorted(page.assets) if urlsplit(asset).netloc)
        own = {asset for asset in page.assets if not urlsplit(asset).netloc and not asset.startswith("data:")}
        for target in sorted(page.links | own):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = _find_target(site, path, unquote(parts.path))
            if not there.is_file():
                yield f"{where} leads to {target}, which does not exist"
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                yield f"{where} leads to {target}, and that page has no such anchor"
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        yield from (
            f"{style.relative_to(site)} has {part}" for part in ("url(http", "url(//", "@import") if part in text
        )


def _find_target(site: Path, page: Path, target: str) -> Path:
    if not target:
        return page
    found = site / target.lstrip("/") if target.startswith("/") else page.parent / target
    return (found / "index.html" if target.endswith("/") or found.is_dir() else found).resolve()
