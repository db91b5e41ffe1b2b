"""What strangers write (keys, topics, principals, error texts, names) is text on every page, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiosqlite
import pytest
from jinja2 import DictLoader

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._kernel.audit import write_audit
from onefold.console import Console
from tests.console.browsing import Visitor
from tests.console.page_checks import HOSTILE, find_faults, find_links, missing_headers

_PAGES_MAX = 200


async def write_everywhere(path: Path) -> set[str]:
    """A row in every table, with the hostile text in every column of text; the tables that have one."""
    written = set()
    async with aiosqlite.connect(path) as db:
        await db.execute("PRAGMA ignore_check_constraints = ON")
        tables = await db.execute_fetchall(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'onefold*'"
        )
        for (table,) in tables:
            if table == "onefold_migration":
                continue
            columns = list(await db.execute_fetchall(f"PRAGMA table_info({table})"))
            values = [_value(table, name, kind) for _, name, kind, *_ in columns]
            names, marks = ", ".join(name for _, name, *_ in columns), ", ".join("?" * len(columns))
            await db.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", values)
            written.add(table)
        await db.commit()
    return written


def _value(table: str, name: str, kind: str) -> object:
    """Something that fits a column: what is read as JSON has the text inside."""
    if kind == "TEXT":
        known = {
            "state": {"onefold_letter": "dead", "onefold_effect": "applied"}.get(table, "told"),
            "details": json.dumps({"why": HOSTILE, HOSTILE: HOSTILE}),
            "history": json.dumps([{"at": "2030-01-01T00:00:00+00:00", "error": HOSTILE, "traceback": HOSTILE}]),
            "envelope": json.dumps(
                {
                    **dict.fromkeys(("id", "content_type", "time"), HOSTILE),
                    "epoch": 1,
                    "headers": {HOSTILE: HOSTILE},
                    "origin": {"subject": HOSTILE},
                }
            ),
            "headers": json.dumps({HOSTILE: HOSTILE, "correlation-id": HOSTILE, "onefold-request": f"{HOSTILE} x"}),
            "topics": json.dumps([HOSTILE]),
            "kind": "request",
        }
        return known.get(name, HOSTILE)
    if kind == "BLOB":
        return bytes(16) if name == "digest" else b"\x00" + HOSTILE.encode()
    if name in ("finished_at_ms", "published_at_ms", "confirmed_at_ms"):
        return None
    if name.endswith("_ms"):
        return 1_900_000_000_000  # in the years to come: nothing has expired
    return 1


async def crawl(visitor: Visitor) -> AsyncIterator[tuple[str, int, str]]:
    """Every page that links lead to, from the beginning on: its address, its status and what is wrong with it."""
    seen, waiting = {"/"}, ["/"]
    while waiting and len(seen) < _PAGES_MAX:
        address = waiting.pop()
        answer = await visitor.client.get(address, follow_redirects=True)
        faults = [*find_faults(answer.text), *missing_headers(answer.headers)]
        yield address, answer.status_code, "; ".join(faults)
        for link in find_links(answer.text):
            parts = urlsplit(link)
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            if target.startswith("/") and target not in seen:
                seen.add(target)
                waiting.append(target)


@pytest.fixture
async def hostile(once: AsyncOnefold, sqlite_path: Path) -> set[str]:
    return await write_everywhere(sqlite_path)


async def test_no_page_takes_a_strangers_text_for_anything_but_text(hostile: set[str], actor: Visitor) -> None:
    pages = [page async for page in crawl(actor)]
    assert [(address, wrong) for address, _, wrong in pages if wrong] == []
    assert [(address, status) for address, status, _ in pages if status >= 500] == []
    assert len(pages) > 10


async def test_the_text_is_on_the_pages(hostile: set[str], actor: Visitor) -> None:
    """The control: what is escaped is there."""
    assert {"onefold_audit", "onefold_letter", "onefold_record", "onefold_work", "onefold_outbox"} <= hostile
    for address in ("/audit", "/keys", "/dead-letters", "/works", "/outbox"):
        assert "stranger onload" in (await actor.get(address)).text, address


async def test_a_template_that_does_not_escape_is_found(hostile: set[str], app: Console, actor: Visitor) -> None:
    """The control: the crawl finds what it is to find."""
    loader = app._parts.templates.loader
    assert loader is not None
    source, *_ = loader.get_source(app._parts.templates, "audit.html")
    planted = source.replace("{{ line.actor }}", "{{ line.actor | safe }}")
    assert planted != source
    mixed = DictLoader(
        {name: loader.get_source(app._parts.templates, name)[0] for name in app._parts.templates.list_templates()}
        | {"audit.html": planted}
    )
    app._parts.templates.loader = mixed
    wrong = [found async for _, _, found in crawl(actor) if found]
    assert any("a stranger's text became a tag" in found for found in wrong)


@pytest.mark.parametrize(
    "page",
    [
        '<p onclick="x">',
        "<script>alert(1)</script>",
        '<a href="https://evil.test/">',
        '<a href="//evil.test/">',
        '<a href="javascript:alert(1)">',
        '<p style="color: red">',
        "<iframe></iframe>",
        "<base>",
        "<td>49</td>",
    ],
)
def test_each_fault_of_a_page_is_found(page: str) -> None:
    assert find_faults(page)
    assert not find_faults('<a href="/audit">x</a><script src="/static/console.js" defer></script>')


async def test_what_cannot_be_seen_is_written_out(once: AsyncOnefold, actor: Visitor) -> None:
    """A right-to-left override would make a reason read as another one."""
    hidden = "paid\u202e\u0000tsop"

    def note(dialect: str) -> object:
        return write_audit(dialect, actor="ada", action="control", details={"text": hidden})

    await run_flow(once, note)  # type: ignore[arg-type]
    page = (await actor.get("/audit")).text
    assert "\u202e" not in page
    assert "tsop" in page


async def test_what_is_typed_is_given_back_as_text(actor: Visitor) -> None:
    page = await actor.submit("/keys", "/keys/find", principal=HOSTILE, route=HOSTILE, key=HOSTILE)
    assert page.status_code == 400
    assert find_faults(page.text) == []
    assert "stranger onload" in page.text


async def test_what_an_address_has_is_given_back_as_text(actor: Visitor, visitor: Visitor) -> None:
    for address in (f"/keys?after={HOSTILE}", f"/audit?after={HOSTILE}", f"/keys/{HOSTILE}", f"/works/{HOSTILE}"):
        page = await actor.get(address)
        assert 400 <= page.status_code < 500
        assert find_faults(page.text) == []
    page = await visitor.get(f"/login?token={HOSTILE}&next=/{HOSTILE}")
    assert page.status_code == 200
    assert find_faults(page.text) == []
