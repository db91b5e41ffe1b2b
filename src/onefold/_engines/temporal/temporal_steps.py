"""The Temporal activity that makes one attempt at a step.

It sends a heartbeat every few seconds, so that Temporal soon notices a dead process. On a cancellation it ends what it
has begun: a step that is cut off in the middle is neither done nor undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from onefold._engines.temporal.recorded_saga import run_recorded
from onefold._engines.temporal.temporal_workflow import ServedSagas, TemporalTaskFailed
from onefold._kernel.extras import missing_extra
from onefold._saga.definition import Start
from onefold._saga.saga_errors import EngineFault
from onefold._saga.saga_telemetry import report_stop
from onefold._saga.saga_values import Json

try:
    from temporalio import activity
    from temporalio.common import RawValue
except ModuleNotFoundError as error:
    raise missing_extra(error, "temporal") from None

_log = logging.getLogger("onefold.saga")

_BEATS: Final = 3
_MESSAGE_CHARACTERS_MAX: Final = 1000


class StepActivity:
    """The activities of one worker."""

    def __init__(self, serving: ServedSagas) -> None:
        self._serving = serving

    @activity.defn(dynamic=True)
    async def run(self, args: Sequence[RawValue]) -> Any:
        """Make the requested attempt."""
        request = activity.payload_converter().from_payload(args[0].payload)
        attempt = asyncio.create_task(self._attempt(request))
        beat_s = self._serving.dead_after.total_seconds() / _BEATS
        try:
            while not attempt.done():
                activity.heartbeat()
                try:
                    await asyncio.wait({attempt}, timeout=beat_s)
                except asyncio.CancelledError:
                    why = activity.cancellation_details()
                    if why is None or not why.cancel_requested:
                        raise  # This process ends, or another makes the attempt by now.
            return attempt.result()
        finally:
            attempt.cancel()

    async def _attempt(self, request: Json) -> Json:
        start = Start.from_json(request["start"])
        answers = [(name, answer) for name, answer in request["answers"]]
        try:
            definition = self._serving.find(start)
            return await run_recorded(definition, start, answers, request["wanted"], self._serving.listener)
        except EngineFault as fault:
            report_stop(self._serving.listener, start, fault)
            _log.error("saga %s stops: %s; Temporal tries it again, at most 30 s apart", start.saga_id, fault)
            # Without the traceback: Temporal truncates failures beyond 2 KB, and would lose the message.
            raise TemporalTaskFailed(str(fault)[:_MESSAGE_CHARACTERS_MAX]) from None
