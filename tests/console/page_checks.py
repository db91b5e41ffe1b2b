"""What is wrong with a page of the console, as far as its text tells: markup that a stranger wrote, inline script and
style, addresses of other hosts, and headers that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html.parser import HTMLParser

from onefold._console.headers import HEADERS

#: What a stranger writes into every field. The name of the tag is found again if it becomes one.
HOSTILE = "\"'><stranger onload=alert(1)>&{{7*7}}</stranger>"

_LOADS = frozenset({"src", "href", "action", "formaction", "data", "poster", "srcset", "data-live"})


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.links: list[str] = []
        self.forms: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "stranger":
            self.found.append("a stranger's text became a tag")
        for name, value in given.items():
            if name.startswith("on"):
                self.found.append(f"<{tag}> has a handler: {name}")
            if name == "style":
                self.found.append(f"<{tag}> has a style of its own, which the policy forbids")
            if name in _LOADS and not value.startswith(("/", "#", "data:,", "?")):
                self.found.append(f"<{tag}> leads elsewhere: {name}={value!r}")
            if name in _LOADS and value.startswith("//"):
                self.found.append(f"<{tag}> leads to another host: {name}={value!r}")
        if tag == "script" and not given.get("src"):
            self.found.append("inline script")
        if tag in ("iframe", "object", "embed", "base", "style"):
            self.found.append(f"<{tag}>")
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "form":
            self.forms.append(given.get("action", ""))


def find_faults(page: str) -> list[str]:
    """In the text of a page."""
    reader = _Reader()
    reader.feed(page)
    faults = list(reader.found)
    if "49}" in page.replace(" ", "") or ">49<" in page:
        faults.append("a stranger's text was taken for a template")
    return faults


def find_links(page: str) -> list[str]:
    reader = _Reader()
    reader.feed(page)
    return reader.links


def missing_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """Of an answer, whatever it is."""
    for name, value in HEADERS.items():
        if headers.get(name) != value:
            yield f"{name}: {headers.get(name)!r}"
