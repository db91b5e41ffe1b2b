"""Recurring events: their declaration by an application, and the timetable of its relays."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from onefold._outbox.write import Outbox
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._outbox.schedules import Recurring, Timetable


class RecurringEvents:
    """The part of an app that has them."""

    _outbox: Outbox
    _recurring: list[Recurring]

    def recurring(
        self,
        name: str,
        *,
        cron: str,
        topic: str,
        data: object = None,
        key: str | int | UUID | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        zone: str = "UTC",
    ) -> None:
        """Publish an event again and again, whenever a cron expression says so in the time zone: `cron="0 6 * * *"`. It
        is done by the relays of this application, once per due time however many there are. `name` is its identity;
        `topic`, `data`, `key`, `headers` and `content_type` are those of `tx.publish`."""
        from onefold._worker.cron import recurring  # cron expressions are an extra

        if any(each.name == name for each in self._recurring):
            raise ConfigurationError(f"two recurring events are named {name!r}: give each a name of its own")
        make_event = functools.partial(
            self._outbox.make_event, topic, data, key=key, headers=headers or {}, content_type=content_type
        )
        self._recurring.append(recurring(name, cron, zone, make_event))

    def _timetable(self) -> Timetable | None:
        """For one relay."""
        if not self._recurring:
            return None
        from onefold._outbox.schedules import Timetable

        return Timetable(self._outbox.dialect, self._outbox.source or "", self._recurring)
