"""What one principal may have of a service at most: requests in flight, and records per hour.

Theory of operation. A request that enters gets a slot and gives it back with its outcome. Requests in flight are
counted by principal, and those with none are not known: the table is as large as what runs. Records are counted in
spans of five minutes, thirteen numbers for a principal, so that no hour, wherever it begins, has more than the limit; a
request that may still become a record counts as one until it has left. At most `principals_max` principals are
remembered for their records: with more of them within an hour, the one without a record for the longest time is
forgotten, and begins anew.

Told the time. Shared by threads; its lock is held for a few lines, and never while anything is waited for.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from onefold._kernel.arguments import named_arguments
from onefold.errors import ConfigurationError

SPAN_S: Final = 300.0
_SPANS: Final = 13  # an hour, and the span that is not over yet


class QuotaSlot:
    """One request in flight. To be left once; leaving again does nothing."""

    __slots__ = ("_at", "_principal", "_quota", "may_record", "recorded")

    def __init__(self, quota: Quota, principal: str, at: float, may_record: bool) -> None:
        self._quota: Quota | None = quota
        self._principal = principal
        self._at = at
        self.may_record = may_record
        #: Whether a record was stored: set before it is left.
        self.recorded = False

    def leave(self) -> None:
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.leave(self._principal, self._at, may_record=self.may_record, recorded=self.recorded)


class _Records:
    """The records of one principal, by span."""

    __slots__ = ("_counts", "_span")

    def __init__(self, span: int) -> None:
        self._span = span
        self._counts = [0] * _SPANS

    def add(self, span: int) -> None:
        self._move(span)
        if span > self._span - _SPANS:  # else its request took longer than an hour
            self._counts[span % _SPANS] += 1

    def total(self, span: int) -> int:
        self._move(span)
        return sum(self._counts)

    def oldest(self) -> int:
        """The oldest span with a record; the newest there is, if none has."""
        spans = range(self._span - _SPANS + 1, self._span + 1)
        return next((span for span in spans if self._counts[span % _SPANS]), self._span)

    def _move(self, span: int) -> None:
        for passed in range(max(self._span + 1, span - _SPANS + 1), span + 1):
            self._counts[passed % _SPANS] = 0
        self._span = max(self._span, span)


class Quota:
    """Counts per principal: what shares a quota is counted together, and each process counts for itself.

    `in_flight` requests at once; `records_per_hour` answers stored, of which replays are none. None: no limit. At most
    `principals_max` principals are remembered for their records; with more of them, the one whose last record is the
    oldest begins anew.
    """

    @named_arguments()
    def __init__(
        self, *, in_flight: int | None = None, records_per_hour: int | None = None, principals_max: int = 10_000
    ) -> None:
        if in_flight is None and records_per_hour is None:
            raise ConfigurationError("a Quota limits something: give it in_flight=..., records_per_hour=... or both")
        given = {"in_flight": in_flight, "records_per_hour": records_per_hour, "principals_max": principals_max}
        for name, value in given.items():
            if value is not None and not _is_count(value):
                raise ConfigurationError(f"{name}={value!r} of a Quota must be a whole number from 1")
        self._in_flight_max = in_flight
        self._records_max = records_per_hour
        self._principals_max = principals_max
        self._lock = Lock()
        #: By principal: how many requests it has, and how many of them may become a record.
        self._running: dict[str, tuple[int, int]] = {}
        #: In the order of their last records.
        self._records: OrderedDict[str, _Records] = OrderedDict()

    def __repr__(self) -> str:
        return f"Quota(in_flight={self._in_flight_max}, records_per_hour={self._records_max})"

    def enter(self, principal: str, now: float, *, may_record: bool) -> QuotaSlot | float | None:
        """A slot for a request of the `principal`, at the time `now`, that may become a record or not (`may_record`).
        Or why there is none: a number is the seconds until there may be room for a record, None means that the
        limit of requests in flight is reached."""
        with self._lock:
            running, pending = self._running.get(principal, (0, 0))
            if self._in_flight_max is not None and running >= self._in_flight_max:
                return None
            if may_record and self._records_max is not None:
                records = self._records.get(principal)
                made = 0 if records is None else records.total(_span(now))
                if made + pending >= self._records_max:
                    # Only requests that run: one of them may leave no record.
                    return 1.0 if records is None or not made else (records.oldest() + _SPANS) * SPAN_S - now
            self._running[principal] = running + 1, pending + may_record
        return QuotaSlot(self, principal, now, may_record)

    def leave(self, principal: str, entered_at: float, *, may_record: bool, recorded: bool) -> None:
        """For `QuotaSlot`: the request of the `principal` that entered at `entered_at`, as one that may become a record
        or not (`may_record`), is over, and has become one or not (`recorded`)."""
        with self._lock:
            running, pending = self._running.pop(principal)
            if running > 1:
                self._running[principal] = running - 1, pending - may_record
            if recorded and self._records_max is not None:
                span = _span(entered_at)
                found = self._records.setdefault(principal, _Records(span))
                self._records.move_to_end(principal)
                found.add(span)
                if len(self._records) > self._principals_max:
                    self._records.popitem(last=False)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _span(at: float) -> int:
    return int(at // SPAN_S)
