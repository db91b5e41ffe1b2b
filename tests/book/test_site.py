"""The site is built strictly, fetches nothing from another host, and none of its links is broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from book.api_pages import list_modules
from book.headings import slugify
from book.hook import lead_links
from tests.book.site_building import build_site
from tests.book.site_checks import find_defects


def test_every_link_of_the_site_resolves_and_no_asset_is_foreign(tmp_path: Path) -> None:
    check(build_site(tmp_path, api=False))


@pytest.mark.soak
def test_the_pages_of_the_api_are_filled(tmp_path: Path) -> None:
    site = build_site(tmp_path, api=True)
    check(site)
    empty = [name for name in list_modules() if "doc-object" not in (site / f"reference/api/{name}.html").read_text()]
    assert empty == []


def check(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert list(find_defects(site)) == []
    assert [page.name for page in pages if has_broken_list(page.read_text(encoding="utf-8"))] == []


def has_broken_list(html: str) -> bool:
    """Forges read a list without an empty line before it; Python's Markdown shows its hyphens, and so with tables."""
    return re.search(r"<p>(?:(?!</p>)[^\n])*\n(?:[-*]|\d\.) |<p>\|", html) is not None


def test_a_list_that_is_shown_as_a_paragraph_is_found() -> None:
    assert has_broken_list("<p>Three:\n- one</p>")
    assert has_broken_list("<p>| a | b |</p>")
    assert not has_broken_list("<p>One - two</p>\n<ul><li>1. one</li></ul>")


def test_planted_defects_are_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("a { background: url(https://cdn.example/a.png) }")
    (tmp_path / "there.html").write_text('<h2 id="heading">')
    (tmp_path / "page.html").write_text(
        '<script src="https://cdn.example/a.js"></script><link rel="stylesheet" href="//cdn.example/a.css">'
        '<link rel="canonical" href="https://site.example/page.html"><img src="missing.png">'
        '<a href="there.html#heading"><a href="there.html#other"><a href="gone.html"><a href="#mine" id="mine">'
        '<a href="https://elsewhere.example/"><a href="/there.html">'
    )
    assert sorted(find_defects(tmp_path)) == [
        "page.html fetches //cdn.example/a.css",
        "page.html fetches https://cdn.example/a.js",
        "page.html leads to gone.html, which does not exist",
        "page.html leads to missing.png, which does not exist",
        "page.html leads to there.html#other, and that page has no such anchor",
        "style.css has url(http",
    ]


def test_links_out_of_docs_lead_to_their_page_or_become_text() -> None:
    text = "[a](../README.md#speed) [b](../tests/book/test_site.py) [c](brokers.md) [d](https://a.example) `[e](x)`\n"
    code = "```python\n[f](../README.md)\n```\n"
    assert lead_links(text + code, "docs/events.md", "events.md") == (
        "[a](index.md#speed) b [c](brokers.md) [d](https://a.example) `[e](x)`\n" + code
    )
    assert lead_links("[a](problems.md#key-reused)", "docs/a.md", "a.md") == "[a](problems/key-reused.md)"
    assert lead_links("[a](docs/why/b.md)", "README.md", "index.md") == "[a](why/b.md)"


@pytest.mark.parametrize(
    ("title", "address"),
    [("Two words", "two-words"), ("`tx.publish`, and `key`", "txpublish-and-key"), ("A & B", "a--b")],
)
def test_headings_have_the_addresses_that_forges_give_them(title: str, address: str) -> None:
    assert slugify(title) == address
