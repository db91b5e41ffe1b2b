"""What a record, an event and a ledger row take in Postgres: bytes on disk and bytes of WAL, for `onefold capacity`.

    python -m benchmarks.sizes            # measures, and compares with the file
    python -m benchmarks.sizes --write    # measures, and writes the file

One request, event and message are made by onefold itself; then their rows are copied, under digests and ids as random
as theirs, because an index that is filled at random places is a third empty. WAL is that of real requests, one after
the other, on pages whose first images were paid for in the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from statistics import median
from typing import Final

import asyncpg
import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.guards import wal_position
from benchmarks.stores import private_postgres
from onefold import AsyncOnefold, Message, Transaction, single_principal
from onefold._cli.sizing import CONSTANTS_FILE, read_constants
from onefold.starlette import transaction_of
from onefold.testing.memory_broker import AsyncMemoryBroker

Sizes = dict[str, float]

ROWS: Final = 100_000
REQUESTS: Final = 500
#: A checkpoint or an autovacuum may write into the log of one of them, and the median does not see it.
BLOCKS: Final = 3
BODY: Final = 600
LARGE_BODY: Final = 16_000
EVENT: Final = 300

#: A row that was really made, under new names, so that nothing but its name differs.
_COPIES: Final = {
    "onefold_record": """
        INSERT INTO onefold_record
        SELECT sha256((random()::text || n)::bytea), fingerprint, operation, schema_version, status, headers, body,
               expires_at + n * interval '1 ms'
        FROM onefold_record, generate_series(1, $1) AS n
    """,
    "onefold_outbox": """
        INSERT INTO onefold_outbox
            (bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data)
        SELECT bucket, sha256(n::text::bytea), gen_random_uuid()::text, source, topic, key, epoch, version, time,
               content_type, headers, data
        FROM onefold_outbox, generate_series(1, $1) AS n
    """,
    "onefold_inbox": """
        INSERT INTO onefold_inbox (consumer, message_id, source, handled_at)
        SELECT consumer, gen_random_uuid()::text, source, handled_at + n * interval '1 ms'
        FROM onefold_inbox, generate_series(1, $1) AS n
    """,
}  # fmt: skip


def measure(dsn: str, *, rows: int = ROWS, requests: int = REQUESTS) -> Sizes:
    """Every size, of an empty database."""
    return asyncio.run(_measure(dsn, rows, requests))


async def _measure(dsn: str, rows: int, requests: int) -> Sizes:
    async with AsyncExitStack() as stack:
        watcher = await asyncpg.connect(dsn)
        stack.push_async_callback(watcher.close)
        once = AsyncOnefold(dsn, principal=single_principal, source="shop", broker="local")
        stack.push_async_callback(once.close)
        await once.migrate()
        app = _application(once)
        once.install(app)
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
        )
        found = await _measure_log(watcher, client, requests)
        return found | await _measure_rows(watcher, client, once, rows)


def _application(once: AsyncOnefold) -> Starlette:
    @once.idempotent(required=True, writes=False)
    async def order(request: Request) -> JSONResponse:
        tx: Transaction[asyncpg.Connection[asyncpg.Record]] = transaction_of(request)
        wanted = await request.json()
        for _ in range(wanted["events"]):
            await tx.publish("order.placed", {"order": secrets.token_hex(EVENT // 2)}, key=secrets.token_hex(8))
        return JSONResponse({"order": secrets.token_hex(wanted["body"] // 2)})

    @once.consumer("shipping", topic="order.placed")
    async def ship(message: Message) -> None:
        """Its ledger row is what is measured."""

    return Starlette(routes=[Route("/orders", order, methods=["POST"])])


async def _post(client: httpx.AsyncClient, body: int, events: int = 0) -> None:
    headers = {"Idempotency-Key": f'"{secrets.token_hex(16)}"'}
    answer = await client.post("/orders", json={"body": body, "events": events}, headers=headers)
    assert answer.status_code == 200, answer.text


async def _measure_log(watcher: asyncpg.Connection[asyncpg.Record], client: httpx.AsyncClient, requests: int) -> Sizes:
    async def log_of(body: int, events: int) -> float:
        await watcher.execute("CHECKPOINT")
        for _ in range(requests // 2):
            await _post(client, body, events)
        blocks = []
        for _ in range(BLOCKS):
            before, _ = await wal_position(watcher)
            for _ in range(requests // BLOCKS):
                await _post(client, body, events)
            after, _ = await wal_position(watcher)
            blocks.append((after - before) / (requests // BLOCKS))
        return median(blocks)

    small, large, event = await log_of(BODY, 0), await log_of(2 * BODY, 0), await log_of(BODY, 1)
    per_body_byte = (large - small) / BODY
    return {
        "request_wal_bytes": small - BODY * per_body_byte,
        "body_wal_factor": per_body_byte,
        "event_wal_bytes": event - small - EVENT,
    }


async def _measure_rows(
    watcher: asyncpg.Connection[asyncpg.Record], client: httpx.AsyncClient, once: AsyncOnefold, rows: int
) -> Sizes:
    async def space_of(table: str) -> tuple[float, float, float]:
        """Bytes per row: of the table, of its indexes, of what is stored out of line."""
        await watcher.execute(_COPIES[table], rows)
        await watcher.execute(f"VACUUM {table}")
        row = await watcher.fetchrow(
            "SELECT pg_relation_size(oid), pg_indexes_size(oid),"
            " coalesce(pg_total_relation_size(nullif(reltoastrelid, 0)), 0)"
            " FROM pg_class WHERE oid = $1::text::regclass",
            table,
        )
        assert row is not None
        heap, index, toast = (float(row[part]) / rows for part in range(3))
        return heap, index, toast

    async def empty() -> None:
        await watcher.execute("TRUNCATE onefold_record, onefold_outbox, onefold_inbox")

    await empty()
    await _post(client, BODY, 1)
    record, record_index, _ = await space_of("onefold_record")
    event, event_index, _ = await space_of("onefold_outbox")
    await empty()  # the memory broker would deliver what waits
    await AsyncMemoryBroker(once).publish("order.placed", {"order": 1}, message_id="m-1")
    ledger, ledger_index, _ = await space_of("onefold_inbox")
    await empty()
    rows //= 20  # a row of them is large, and the share of a chunk in a page the same from the first page on
    await _post(client, LARGE_BODY)
    large_record, _, out_of_line = await space_of("onefold_record")
    await empty()
    return {
        "record_row_bytes": record - BODY,
        "record_index_bytes": record_index,
        "large_record_row_bytes": large_record,
        "out_of_line_factor": out_of_line / LARGE_BODY,
        "event_row_bytes": event - EVENT,
        "event_index_bytes": event_index,
        "ledger_row_bytes": ledger,
        "ledger_index_bytes": ledger_index,
    }


def compare(found: Mapping[str, float], kept: Mapping[str, float]) -> list[str]:
    """Which of the sizes differ by more than a quarter from what is written down."""
    return [
        f"{name}: {found.get(name, 0):.1f} measured, {size:.1f} written down"
        for name, size in kept.items()
        if not 0.75 * size <= found.get(name, 0) <= 1.25 * size
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write what was measured into the file")
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    with private_postgres() as server:
        found = measure(f"{server.fresh_database()}?sslmode=disable", rows=arguments.rows)
    for name, size in found.items():
        print(f"{name:<24} {size:10.2f}")
    if arguments.write:
        constants = json.loads(CONSTANTS_FILE.read_text(encoding="utf-8"))
        constants["sizes"]["values"] = {name: round(size, 2) for name, size in found.items()}
        CONSTANTS_FILE.write_text(json.dumps(constants, indent=2) + "\n", encoding="utf-8")
        return
    for line in compare(found, read_constants()["sizes"]["values"]):
        print(line)


if __name__ == "__main__":
    main()
