"""`onefold capacity`: what a load needs of disks, WAL, connections and processes, and where one machine ends."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from onefold._cli.options import JSON
from onefold._cli.output import print_json, print_table
from onefold._cli.sizing import NAIVE_ROW_BYTES, CapacityNeed, ExpectedLoad, TableSpace, read_constants, size
from onefold._cli.times import seconds_of


def command(
    rps: Annotated[
        float, typer.Option("--rps", min=0.001, max=1e9, help="First requests per second; replays add none.")
    ],
    ttl: Annotated[str, typer.Option("--ttl", metavar="AGE", help="How long answers are kept (90m, 24h, 7d).")] = "24h",
    body: Annotated[int, typer.Option("--body", min=0, max=1 << 30, help="Bytes of an answer's body.")] = 600,
    events: Annotated[float, typer.Option("--events", min=0, max=1000, help="Events per request.")] = 0,
    event_body: Annotated[
        int, typer.Option("--event-body", min=0, max=1 << 30, help="Bytes of an event's data.")
    ] = 300,
    consumers: Annotated[int, typer.Option("--consumers", min=0, max=1000, help="Consumers of each event.")] = 1,
    ledger: Annotated[
        str, typer.Option("--ledger", metavar="AGE", help="How long consumers remember a message.")
    ] = "7d",
    outage: Annotated[
        str, typer.Option("--outage", metavar="AGE", help="How long the broker may be away while events pile up.")
    ] = "1h",
    held_ms: Annotated[
        float, typer.Option("--held-ms", min=0.1, max=60_000, help="How long a request has its connection.")
    ] = 5.0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compute what a load needs of Postgres, from measured sizes and speeds, beside a naive 512-byte row."""
    load = ExpectedLoad(
        requests_per_s=rps,
        retention_s=seconds_of(ttl, "--ttl"),
        body_bytes=body,
        events_per_request=events,
        event_bytes=event_body,
        consumers=consumers,
        ledger_s=seconds_of(ledger, "--ledger"),
        outage_s=seconds_of(outage, "--outage"),
        held_s=held_ms / 1000,
    )
    need = size(load)
    if as_json:
        print_json({"load": asdict(load), "need": asdict(need), "constants": read_constants()})
        return
    rows = [
        _line("records", need.records, f"one per first request, kept for {ttl}"),
        _line("naive", None, f"rows of {NAIVE_ROW_BYTES} bytes, without indexes", need.naive_bytes),
        _line("ledger", need.ledger, f"one per message and consumer, kept for {ledger}"),
        _line("outbox", need.outbox, f"when the broker was away for {outage}; else nearly empty"),
        _line("all", None, "a fifth of it for dead rows, until autovacuum runs", need.storage_bytes),
    ]
    print_table("Storage, GB", ("", "rows", "table", "indexes", "TOAST", "total", ""), rows)
    typer.echo()
    print_table("Per second, and at a time", ("", "", ""), list(_other_lines(need, held_ms)))
    typer.echo()
    if not need.limits:
        typer.echo("One Postgres is enough.")
    for limit in need.limits:
        typer.echo(f"- {limit}.")
    commands = ", ".join(f"`{group['command']}`" for group in read_constants().values())
    typer.echo(f"Measured by {commands}; your machine differs, and your handlers' own rows come on top.")


def _line(name: str, space: TableSpace | None, about: str, total_bytes: float = 0.0) -> tuple[str, ...]:
    if space is None:
        return (name, "", "", "", "", _gb(total_bytes), about)
    parts = (space.table_bytes, space.index_bytes, space.toast_bytes, space.total_bytes)
    return (name, f"{space.rows:,.0f}", *map(_gb, parts), about)


def _other_lines(need: CapacityNeed, held_ms: float) -> list[tuple[str, str, str]]:
    return [
        ("WAL", f"{need.wal_bytes_per_s / 1e6:,.1f} MB/s", "rows, indexes and commits"),
        ("WAL, page images", f"{need.wal_images_bytes_per_s / 1e6:,.1f} MB/s", "a checkpoint each 15 minutes"),
        ("connections", f"{need.connections:,}", f"each held for {held_ms:g} ms, twice as many as are busy"),
        ("cores of Postgres", f"{need.database_cores:,}", "busy at 60 %"),
        ("application processes", f"{need.application_processes:,}", "a core each, busy at 60 %"),
        ("relays", f"{need.relays:,}", "one of them to spare" if need.relays else "no events"),
        (
            "consumer processes",
            f"{need.consumer_processes:,}",
            "one of them to spare; a twentieth with batch handlers" if need.consumer_processes else "no events",
        ),
    ]


def _gb(number: float) -> str:
    gb = number / 1e9
    return f"{gb:,.0f}" if gb >= 10 else f"{gb:,.2f}"
