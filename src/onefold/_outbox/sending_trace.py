"""The spans of a relay: one for each event that is handed to the broker."""

from __future__ import annotations

from collections.abc import Sequence

from onefold._kernel.message_trace import begin_sending
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.tracing import Span, Tracer
from onefold._outbox.claimed_rows import ClaimedRow
from onefold._outbox.confirms import publish_rows


async def publish_traced(tracer: Tracer, system: str, rows: Sequence[ClaimedRow]) -> Sequence[Confirm]:
    """`publish_rows`, each in a span of its own: what was not taken has failed."""
    spans = [_begin(tracer, system, row) for row in rows]
    confirms: Sequence[Confirm] = ()
    try:
        confirms = await publish_rows(rows)
    finally:
        for index, span in enumerate(spans):
            if span is not None:
                if not confirms:
                    span.fail("interrupted")
                elif (refused := confirms[index]) is not None:
                    span.fail(refused)
                span.end()
    return confirms


def _begin(tracer: Tracer, system: str, row: ClaimedRow) -> Span | None:
    if not isinstance(row.message, Message):
        return None
    return begin_sending(tracer, row.message, system=system, attempt=row.finished + 1)
