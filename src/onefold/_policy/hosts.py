"""One machine per host, for budgets and breakers alike.

Shared by threads. Invariant: never more than `hosts_max` machines; when there are more hosts, the quietest are
forgotten, and begin anew should they come back. A call that still holds a forgotten machine reports to it in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from threading import Lock
from typing import Generic, TypeVar

from onefold._policy.ranges import require

M = TypeVar("M")


class _HostEntry(Generic[M]):
    __slots__ = ("machine", "used_at")

    def __init__(self, machine: M, now: float) -> None:
        self.machine = machine
        self.used_at = now


class Hosts(Generic[M]):
    """Machines by host, made from its name on first use."""

    def __init__(self, make: Callable[[str], M], *, hosts_max: int = 1024) -> None:
        require("hosts_max", hosts_max, least=1)
        self._make = make
        self._hosts_max = hosts_max
        self._entries: dict[str, _HostEntry[M]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, host: str, now: float) -> M:
        """The host's machine."""
        entry = self._entries.get(host)  # without the lock: one look into a dict is whole by itself
        if entry is None:
            return self._entry(host, now).machine
        entry.used_at = now
        return entry.machine

    def _entry(self, host: str, now: float) -> _HostEntry[M]:
        with self._lock:
            entry = self._entries.get(host)
            if entry is None:
                if len(self._entries) >= self._hosts_max:
                    self._forget()
                entry = self._entries[host] = _HostEntry(self._make(host), now)
            return entry

    def _forget(self) -> None:
        # Several at a time, so that a client of ever new hosts does not search all of them for each.
        for host in nsmallest(1 + self._hosts_max // 8, self._entries, key=lambda host: self._entries[host].used_at):
            del self._entries[host]
