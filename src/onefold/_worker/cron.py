"""When a recurring event is due: cron expressions in a time zone.

The expressions are those of Debian's cron, with seconds as a sixth field in front for those who need them. When clocks
go forward, times in the missing hour are due at its end; when they go back, a time that occurs twice is due the first
time. Expressions with `*` as minute or hour go by elapsed time instead: `0 * * * *` is due every hour, through both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from onefold._kernel.extras import missing_extra
from onefold._kernel.messages import Message

try:
    from cronsim import CronSim, CronSimError
except ModuleNotFoundError as error:
    raise missing_extra(error, "cron") from None

from onefold._outbox.schedules import Recurring
from onefold.errors import ConfigurationError


def recurring(name: str, cron: str, zone: str, make_event: Callable[..., Message]) -> Recurring:
    """An event that is due by a cron expression. An event that can never be published is refused now."""
    make_event(event_id="", time_ms=0)
    return Recurring(
        name=name,
        rule=f"{' '.join(cron.split())} {zone}",
        after=due_after(name, cron, zone),
        make_event=lambda event_id, due_ms: make_event(event_id=event_id, time_ms=due_ms),
    )


def due_after(name: str, cron: str, zone: str) -> Callable[[int], int | None]:
    """The function that finds the next due time after a time, both in milliseconds since 1970."""
    clock = _clock(name, zone)

    def after(ms: int) -> int | None:
        # Times before `ms` are of the first pass of an hour that occurs twice: it is over.
        times = (int(moment.timestamp() * 1000) for moment in CronSim(cron, datetime.fromtimestamp(ms / 1000, clock)))
        return next((due_ms for due_ms in times if due_ms > ms), None)

    try:
        first = after(0)
    except CronSimError as error:
        raise ConfigurationError(
            f"recurring event {name!r} has cron={cron!r}: {error}. Five fields are needed (minute, hour, day of month, "
            "month, day of week), as in '0 6 * * MON-FRI'; a sixth in front is seconds"
        ) from error
    if first is None:
        raise ConfigurationError(f"recurring event {name!r} has cron={cron!r}, which is never due")
    return after


def _clock(name: str, zone: str) -> tzinfo:
    if zone == "UTC":
        return UTC
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"recurring event {name!r} has zone={zone!r}, which is not a time zone here: name one as in "
            "'Europe/Berlin'; where the system has none, pip install tzdata"
        ) from error
