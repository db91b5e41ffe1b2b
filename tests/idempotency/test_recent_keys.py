"""The bounded memory of keys that were seen done."""

from __future__ import annotations

from onefold._idempotency.locked_store import Recent


def digests(start: int, end: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(start, end)]


def test_the_last_ones_are_remembered_whatever_came_before() -> None:
    recent = Recent(size=10)
    for digest in digests(0, 1003):
        recent.add(digest)
    assert all(digest in recent for digest in digests(993, 1003))


def test_old_ones_are_forgotten() -> None:
    recent = Recent(size=10)
    for digest in digests(0, 1003):
        recent.add(digest)
    assert sum(digest in recent for digest in digests(0, 1003)) <= 20


def test_one_that_is_seen_again_and_again_fills_no_memory() -> None:
    recent = Recent(size=10)
    [old, again] = digests(0, 2)
    recent.add(old)
    for _ in range(1000):
        recent.add(again)
    assert old in recent
