"""Where a message stands in its stream, and what follows from that. Pure: the flow reads, this decides.

A stream stands at (epoch, version), the last that was handled; version 0 says that none was. Version 1 begins an epoch
at once. A stream that is first seen in its middle waits a while for what may still come, and then begins with the
smallest version at hand: also one that is kept as a failed message and failed, so that nothing overtakes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far a stream is, as seen by one message."""

    epoch: int
    version: int
    settles_in_ms: int | None
    """When the wait for a beginning is over. None: it has not begun."""
    smallest_kept: int | None
    """Of the other messages of this message's epoch, as long as none of the stream was handled."""


@dataclass(frozen=True, slots=True)
class Turn:
    """It is this message's turn."""


@dataclass(frozen=True, slots=True)
class Early:
    """Something comes first. `begins`: the stream waits for its beginning, for at most `due_in_ms` from now on."""

    reason: str
    begins: bool
    due_in_ms: int | None


@dataclass(frozen=True, slots=True)
class Late:
    """What comes after it was handled already."""

    reason: str


Verdict: TypeAlias = Turn | Early | Late


def decide_turn(position: StreamPosition, epoch: int, version: int, *, wait_ms: int) -> Verdict:
    """Under `strict`."""
    if epoch < position.epoch:
        return Late(
            f"version {version} of epoch {epoch} came after epoch {position.epoch} of its key had begun; it was never "
            "handled"
        )
    if epoch > position.epoch:
        if version == 1:
            return Turn()
        return Early(f"epoch {epoch} begins with version {version}; waiting for an earlier one", True, wait_ms)
    if position.version == 0:
        return _beginning(position, version, wait_ms)
    if version == position.version + 1:
        return Turn()
    if version > position.version:
        return Early(f"version {version} waits for version {position.version + 1} of its key", False, None)
    return Late(
        f"version {version} came after version {position.version} of its key was handled; it was never handled itself"
    )


def _beginning(position: StreamPosition, version: int, wait_ms: int) -> Verdict:
    if version == 1:
        return Turn()
    if position.settles_in_ms is None or position.settles_in_ms > 0:
        due_in_ms = wait_ms if position.settles_in_ms is None else position.settles_in_ms
        return Early(f"version {version} is the first of its key; waiting for an earlier one", True, due_in_ms)
    if position.smallest_kept is None or version <= position.smallest_kept:
        return Turn()
    return Early(f"version {version} waits for version {position.smallest_kept} of its key", False, None)


def is_stale(position: StreamPosition, epoch: int, version: int) -> bool:
    """Under `latest`."""
    return (epoch, version) <= (position.epoch, position.version)
