"""`onefold capacity`: sizes that are measured again, and sums that a reader can follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.sizes import compare, measure
from onefold._cli.sizing import ExpectedLoad, read_constants, size
from tests.cli.commands import onefold, told

DAY = ExpectedLoad(requests_per_s=10_000, retention_s=86_400, body_bytes=600, events_per_request=2)


def test_the_sizes_that_are_written_down_are_measured_again(postgres_dsn: str) -> None:
    kept = read_constants()["sizes"]["values"]
    for _ in range(3):  # what else the server does while a slow machine measures is in its log, too
        found = measure(postgres_dsn, rows=10_000, requests=60)
        if not compare(found, kept):
            break
    assert compare(found, kept) == []
    grown = kept | {"record_row_bytes": kept["record_row_bytes"] * 1.4}
    assert [line.partition(":")[0] for line in compare(found, grown)] == ["record_row_bytes"], "the control"
    assert len(compare({}, kept)) == len(kept), "the control: what is not measured is not a size"


def test_a_day_of_ten_thousand_requests_per_second_is_summed_up() -> None:
    need = size(DAY)
    assert need.records.rows == 864e6
    assert need.naive_bytes == pytest.approx(442e9, rel=0.01)
    assert need.ledger.rows == 2 * 10_000 * 7 * 86_400
    assert need.records.total_bytes > need.naive_bytes, "the answer and its index take more than a naive row"
    assert need.connections == 100
    said = " ".join(need.limits)
    for word in ("partitioned by hash", "Debezium", "Shard by principal"):
        assert word in said


def test_a_small_load_needs_one_machine_and_no_relay() -> None:
    need = size(replace(DAY, requests_per_s=20, events_per_request=0))
    assert (need.limits, need.relays, need.consumer_processes, need.ledger.rows) == ((), 0, 0, 0)
    assert need.application_processes == need.database_cores == need.connections == 1


def test_a_large_body_is_stored_out_of_line() -> None:
    small, large = (size(replace(DAY, body_bytes=body)).records for body in (600, 20_000))
    assert small.toast_bytes == 0 < large.toast_bytes
    assert large.table_bytes < small.table_bytes
    assert large.toast_bytes == pytest.approx(864e6 * 1.2 * 20_000, rel=0.1)


def test_everything_that_is_doubled_doubles() -> None:
    once, twice = size(DAY), size(replace(DAY, requests_per_s=20_000))
    for name in ("storage_bytes", "naive_bytes", "wal_bytes_per_s", "connections"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(once, name), rel=0.01), name


def test_the_command_speaks_to_people_and_to_programs() -> None:
    words = ("capacity", "--rps", "10000", "--ttl", "24h", "--body", "600", "--events", "2")
    people = onefold(*words).stdout
    for text in ("864,000,000", "naive", "TOAST", "WAL", "python -m benchmarks.sizes"):
        assert text in people
    found = told(onefold(*words, "--json"))
    assert found["need"]["records"]["rows"] == 864e6
    assert set(found["constants"]) == {"sizes", "log", "speeds"}
    refused = onefold("capacity", "--rps", "10", "--ttl", "soon")
    assert refused.returncode == 2
    assert "--ttl 'soon' is not an age" in " ".join(refused.stderr.split())
