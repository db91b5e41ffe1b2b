"""What is read of a history that Temporal keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import PayloadConverter

from onefold._engines.server_context import PAUSE, SLEEP
from onefold._engines.temporal.temporal_history import read_events


async def test_a_timer_of_the_sagas_own_code_is_passed_over() -> None:
    """An `asyncio.sleep` in the function is a timer that has no summary: it must not hide the saga, and all others that
    are listed with it."""
    converter = PayloadConverter.default

    async def events() -> AsyncIterator[HistoryEvent]:
        for number, summary in enumerate((None, SLEEP, PAUSE), start=1):
            event = HistoryEvent(event_id=number, event_type=EventType.EVENT_TYPE_TIMER_STARTED)
            if summary is not None:
                event.user_metadata.summary.CopyFrom(converter.to_payload(summary))
            yield event

    found = await read_events(events(), converter)
    assert [entry.kind for entry in found.history] == ["sleep"]
