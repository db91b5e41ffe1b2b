"""Which destinations (topics, endpoints) take nothing at present, and when each is tried again. A machine: it takes the
time and returns what to do.

A destination is paused when a round sent something there and none of it was confirmed. While it pauses nothing of it is
claimed; then a few of its events go as probes, other ones each time, because the first may be what it does not take.
The first that is confirmed ends the pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from onefold._outbox.claimed_rows import ClaimedRow
from onefold._policy.backoff import PAUSES, Draw

#: A destination that took nothing is tried with so many events.
PROBE_ROWS: Final = 10


@dataclass(slots=True)
class _DestinationPause:
    until: float
    probes: int


class Destinations:
    """The destinations of one relay. What is not known of takes everything."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._paused: dict[str, _DestinationPause] = {}
        self._not_subscribed: set[str] = set()

    def paused_at(self, now: float) -> list[str]:
        """Nothing is to be claimed for these."""
        return [name for name, pause in self._paused.items() if pause.until > now]

    def select(self, ready: Sequence[ClaimedRow], *, first: bool) -> Sequence[ClaimedRow]:
        """What of a round may be sent: of a destination that is on trial a few, and only in the first round."""
        if not self._paused or not any(row.destination in self._paused for row in ready):
            return ready
        on_trial: dict[str, list[ClaimedRow]] = {}
        going: list[ClaimedRow] = []
        for row in ready:
            if row.destination in self._paused:
                on_trial.setdefault(row.destination, []).append(row)
            else:
                going.append(row)
        if first:
            for name, rows in on_trial.items():
                start = self._paused[name].probes * PROBE_ROWS % len(rows)
                going += (rows[start:] + rows[:start])[:PROBE_ROWS]
        return going

    def note_confirmed(self, name: str) -> bool:
        """It took something; whether that ends a pause."""
        self._not_subscribed.discard(name)
        return self._paused.pop(name, None) is not None

    def note_not_subscribed(self, name: str) -> bool:
        """No consumer has subscribed to it; whether that was not noted yet."""
        was_noted = name in self._not_subscribed
        self._not_subscribed.add(name)
        return not was_noted

    @property
    def any_paused(self) -> bool:
        return bool(self._paused)

    def forget(self) -> list[str]:
        """Nothing waits for any of them; those that were paused."""
        names = list(self._paused)
        self._paused.clear()
        return names

    def note_refused_all(self, name: str, now: float) -> bool:
        """It took nothing of a round; whether that is news."""
        pause = self._paused.get(name)
        probes = 0 if pause is None else pause.probes + 1
        self._paused[name] = _DestinationPause(now + PAUSES.pause_s(probes + 1, draw=self._draw), probes)
        return pause is None
