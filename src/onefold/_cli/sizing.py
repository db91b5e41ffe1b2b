"""What a load needs: rows, bytes, WAL, connections and processes, from constants that the benchmarks measure.

The constants are in one file, with the command that measured each group; a test measures their sizes again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

CONSTANTS_FILE: Final = Path(__file__).with_name("measured_constants.json")

#: A row of key, status and a short answer, as a back-of-the-envelope estimate has it: no index, event or ledger.
NAIVE_ROW_BYTES: Final = 512

#: Postgres keeps a row within a quarter of its page, and moves the body out of larger ones.
_ROW_BYTES_MAX: Final = 2000
_PAGE_BYTES: Final = 8192

#: Autovacuum begins when a fifth of a table is dead rows (autovacuum_vacuum_scale_factor); that much is kept for them.
_DEAD_SHARE: Final = 0.2

#: A processor that is busier than this has queues: what is needed is divided by it.
_BUSY_AT_MOST: Final = 0.6

#: Between two checkpoints a page is written to the WAL whole, once.
_CHECKPOINT_S: Final = 900.0

#: Where one server of Postgres, as it can be rented, ends.
_DATABASE_CORES_MAX: Final = 64
_STORAGE_BYTES_MAX: Final = 4e12
_WAL_BYTES_PER_S_MAX: Final = 200e6
_CONNECTIONS_MAX: Final = 500
_POLLED_EVENTS_PER_S_MAX: Final = 10_000
_PARTITIONED_ROWS: Final = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLoad:
    """The load that an application has to serve."""

    requests_per_s: float
    retention_s: float
    body_bytes: int
    events_per_request: float
    event_bytes: int = 300
    consumers: int = 1
    ledger_s: float = 7 * 86_400.0
    outage_s: float = 3600.0
    held_s: float = 0.005

    @property
    def events_per_s(self) -> float:
        return self.requests_per_s * self.events_per_request

    @property
    def messages_per_s(self) -> float:
        """Each event, for each consumer of it."""
        return self.events_per_s * self.consumers


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpace:
    """What a table holds, and takes: itself, its indexes, and what is stored out of line."""

    rows: float
    table_bytes: float
    index_bytes: float
    toast_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        return self.table_bytes + self.index_bytes + self.toast_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityNeed:
    """What a load needs. `outbox` is what waits after an outage of the broker; else it is nearly empty."""

    records: TableSpace
    outbox: TableSpace
    ledger: TableSpace
    naive_bytes: float
    wal_bytes_per_s: float
    wal_images_bytes_per_s: float
    connections: int
    database_cores: int
    application_processes: int
    relays: int
    consumer_processes: int
    limits: tuple[str, ...]

    @property
    def storage_bytes(self) -> float:
        return self.records.total_bytes + self.outbox.total_bytes + self.ledger.total_bytes


def read_constants() -> dict[str, Any]:
    """The groups of constants: each with its command, what it is about, and its values."""
    groups: dict[str, Any] = json.loads(CONSTANTS_FILE.read_text(encoding="utf-8"))
    return groups


def size(load: ExpectedLoad) -> CapacityNeed:
    """What the load needs."""
    measured: dict[str, float] = {}
    for group in read_constants().values():
        measured |= group["values"]
    records = _size_records(load, measured)
    waiting = load.events_per_s * load.outage_s
    outbox = _space(waiting, measured["event_row_bytes"] + load.event_bytes, measured["event_index_bytes"])
    handled = load.messages_per_s * load.ledger_s
    ledger = _space(handled, measured["ledger_row_bytes"], measured["ledger_index_bytes"])
    log = load.requests_per_s * (measured["request_wal_bytes"] + load.body_bytes * measured["body_wal_factor"])
    log += load.events_per_s * (measured["event_wal_bytes"] + load.event_bytes + measured["relay_wal_bytes"])
    log += load.messages_per_s * measured["ledger_wal_bytes"]
    images = _image_bytes_per_s(load.requests_per_s, records) + _image_bytes_per_s(load.messages_per_s, ledger)
    # A message is a transaction of its handler's, as a request is; another service's is in its own database.
    processor_s = (load.requests_per_s + load.messages_per_s) * measured["request_database_us"] / 1e6
    need = CapacityNeed(
        records=records,
        outbox=outbox,
        ledger=ledger,
        naive_bytes=load.requests_per_s * load.retention_s * NAIVE_ROW_BYTES,
        wal_bytes_per_s=log,
        wal_images_bytes_per_s=images,
        connections=_at_least_one(load.requests_per_s * load.held_s * 2),
        database_cores=_at_least_one(processor_s / _BUSY_AT_MOST),
        application_processes=_at_least_one(load.requests_per_s * measured["request_app_us"] / 1e6 / _BUSY_AT_MOST),
        # One more than is needed, so that one may die.
        relays=_at_least_one(load.events_per_s / (measured["relay_events_per_s"] * _BUSY_AT_MOST)) + 1
        if load.events_per_s
        else 0,
        consumer_processes=_at_least_one(load.messages_per_s / (measured["consumer_messages_per_s"] * _BUSY_AT_MOST))
        + 1
        if load.messages_per_s
        else 0,
        limits=(),
    )
    return _with_limits(load, need)


def _size_records(load: ExpectedLoad, measured: dict[str, float]) -> TableSpace:
    rows = load.requests_per_s * load.retention_s
    inline = measured["record_row_bytes"] + load.body_bytes
    if inline <= _ROW_BYTES_MAX:
        return _space(rows, inline, measured["record_index_bytes"])
    out_of_line = load.body_bytes * measured["out_of_line_factor"]
    return _space(rows, measured["large_record_row_bytes"], measured["record_index_bytes"], out_of_line)


def _space(rows: float, row_bytes: float, index_bytes: float, toast_bytes: float = 0.0) -> TableSpace:
    each = rows * (1 + _DEAD_SHARE)
    return TableSpace(
        rows=rows, table_bytes=each * row_bytes, index_bytes=each * index_bytes, toast_bytes=each * toast_bytes
    )


def _image_bytes_per_s(inserts_per_s: float, space: TableSpace) -> float:
    """Keys are random, so that each insert meets another leaf of the index: the first to meet a page since the last
    checkpoint logs the whole of it."""
    pages = space.index_bytes / _PAGE_BYTES
    if not pages:
        return 0.0
    met = pages * (1 - math.exp(-inserts_per_s * _CHECKPOINT_S / pages))
    return met * _PAGE_BYTES * 0.7 / _CHECKPOINT_S  # a third of such a page is empty, and is left out


def _with_limits(load: ExpectedLoad, need: CapacityNeed) -> CapacityNeed:
    return replace(need, limits=tuple(_find_limits(load, need)))


def _find_limits(load: ExpectedLoad, need: CapacityNeed) -> Iterator[str]:
    """The limits of one machine that the load exceeds, each with the way out."""
    if need.connections > _CONNECTIONS_MAX:
        yield (
            f"{need.connections} connections are more than one Postgres serves well ({_CONNECTIONS_MAX}): put "
            "PgBouncer between (pool_mode = transaction), and shorten what a handler does while it has its connection"
        )
    if need.records.rows > _PARTITIONED_ROWS:
        yield (
            f"{need.records.rows:,.0f} records take autovacuum hours at a time: shorten retention_s where clients "
            "retry for less, or make onefold_record partitioned by hash of digest, its primary key, before it has rows"
        )
    if load.events_per_s > _POLLED_EVENTS_PER_S_MAX:
        yield (
            f"{load.events_per_s:,.0f} events/s are more than relays should poll out of one table "
            f"({_POLLED_EVENTS_PER_S_MAX:,}): have Debezium read the outbox from the WAL (onefold docs debezium)"
        )
    exceeded = [
        text
        for text, is_over in (
            (f"{need.database_cores} cores", need.database_cores > _DATABASE_CORES_MAX),
            (f"{need.storage_bytes / 1e12:.1f} TB", need.storage_bytes > _STORAGE_BYTES_MAX),
            (
                f"{(need.wal_bytes_per_s + need.wal_images_bytes_per_s) / 1e6:,.0f} MB of WAL per second",
                need.wal_bytes_per_s + need.wal_images_bytes_per_s > _WAL_BYTES_PER_S_MAX,
            ),
        )
        if is_over
    ]
    if exceeded:
        yield (
            f"{', '.join(exceeded)}: one Postgres ends here ({_DATABASE_CORES_MAX} cores, "
            f"{_STORAGE_BYTES_MAX / 1e12:.0f} TB, {_WAL_BYTES_PER_S_MAX / 1e6:.0f} MB/s). Shard by principal: a key "
            "belongs to one principal, so each shard is a database with a Onefold of its own, and no request needs two"
        )


def _at_least_one(number: float) -> int:
    return max(1, math.ceil(number))
