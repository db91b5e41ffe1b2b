"""`python -m benchmarks.console`: how long the console's pages take with millions of rows in each table.

Fails when a page takes longer than it may: PAGE_S, the median of several looks, on SQLite and on Postgres. A page that
counts a table, or walks through it, takes seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from html import escape, unescape
from pathlib import Path
from typing import Final

import httpx

from benchmarks.console_fill import fill
from onefold import AsyncOnefold
from onefold.console import Role, console
from onefold.testing.servers import PrivatePostgres

PAGE_S: Final = 0.2
LOOKS: Final = 5

PAGES: Final = (
    "/overview", "/overview?window=day", "/overview?window=week",
    "/keys", "/outbox", "/outbox?after=1000000", "/outbox?topic=topic7", "/outbox/stuck",
    "/outbox/stuck?show=retrying", "/outbox/key?topic=orders&key=probe&source=shop", "/outbox/trace?id=probe",
    "/outbox/trace?id=c1000", "/outbox/trace?id=unknown", "/dead-letters", "/dead-letters?consumer=consumer1",
    "/works", "/works?parked=1", "/audit", "/health",
)  # fmt: skip
#: Of these the first link in a list is followed, too.
FOLLOWED: Final = (
    "/keys/", "/keys?after", "/works/", "/works?after", "/works?parked=1&after", "/dead-letters/letter",
    "/dead-letters?after", "/audit?after",
)  # fmt: skip


async def probe(once: AsyncOnefold) -> None:
    """Events of one key, as an application publishes them."""
    async with once.transaction() as tx:
        for _ in range(100):
            await tx.publish("orders", {}, key="probe", headers={"correlation-id": "probe"})


async def visit_pages(once: AsyncOnefold, looks: int = LOOKS) -> dict[str, float]:
    """Seconds of each page, the median of so many looks."""
    transport = httpx.ASGITransport(console(once, authorize=lambda _: Role.ACT))
    taken: dict[str, float] = {}
    async with httpx.AsyncClient(transport=transport, base_url="http://console", timeout=None) as client:
        left = list(PAGES)
        while left:
            path = left.pop(0)
            times = []
            for _ in range(looks):
                began = time.perf_counter()
                answer = await client.get(path)
                times.append(time.perf_counter() - began)
                if answer.status_code != 200:
                    raise SystemExit(f"{path}: {answer.status_code} {answer.text}")
            taken[path] = statistics.median(times)
            left += find_followed(answer.text, {*taken, *left})
    return taken


def find_followed(page: str, known: set[str]) -> Iterator[str]:
    """The first link of each kind that was not followed before."""
    for prefix in FOLLOWED:
        if any(path.startswith(prefix) for path in known):
            continue
        found = re.search(rf'href="({re.escape(escape(prefix))}[^"]*)"', page)
        if found is not None:
            yield unescape(found[1])


@contextmanager
def a_database(dialect: str) -> Iterator[str]:
    if dialect == "postgres":
        settings = {"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}
        with PrivatePostgres(version=18, settings=settings) as server:
            yield server.fresh_database()
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield str(Path(folder) / "console.db")


async def measure(dialect: str, rows: int) -> dict[str, float]:
    with a_database(dialect) as address:
        async with opened(address) as empty:
            await empty.migrate()
        print(f"{dialect}, {rows:,} rows in each table", flush=True)
        fill(address, rows, tell=lambda line: print(f"  {line}", flush=True))
        async with opened(address) as once:
            await probe(once)
            return await visit_pages(once)


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[AsyncOnefold]:
    """Closed before the tables are filled, which takes the whole file."""
    once = AsyncOnefold(address, source="shop")
    try:
        yield once
    finally:
        await once.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dialect", choices=["postgres", "sqlite", "both"], default="both")
    given = parser.parse_args()
    slow = 0
    for dialect in ("postgres", "sqlite") if given.dialect == "both" else (given.dialect,):
        for path, seconds in asyncio.run(measure(dialect, given.rows)).items():
            late = seconds > PAGE_S
            slow += late
            print(f"  {seconds * 1000:7.1f} ms{'  SLOW' if late else '      '}  {path}", flush=True)
    if slow:
        sys.exit(f"{slow} pages took longer than {PAGE_S * 1000:.0f} ms")


if __name__ == "__main__":
    main()
