"""A customer that is killed at an exact point of one call, and one that takes up what it left.

point        what is done by then
-----------  --------------------------------------------------------------------
journalled   the key is on disk; nothing was sent
first-byte   the head of the request has left, its body has not
committed    the bank has paid and answered; nothing of the answer was read
half-read    the head of the answer was read, its body was not
answered     the answer is there; the journal has not been told
resolved     the journal has been told; the application never heard of it
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any, Final

import httpx

import onefold
from onefold.clients import report_of
from onefold.telemetry import AttemptEnded, CallEnded
from tests.client.chaos.bank import figures
from tests.support.patience import PATIENCE_S

#: By the name that httpcore has for where it is, or that of our own event.
POINTS: Final = {
    "journalled": "http11.send_request_headers.started",
    "first-byte": "http11.send_request_headers.complete",
    "committed": "http11.receive_response_headers.started",
    "half-read": "http11.receive_response_headers.complete",
    "answered": "AttemptEnded",
    "resolved": "CallEnded",
}
COMMIT_S_MAX = 120.0


class KillPoint:
    """Kills its own process at one point."""

    def __init__(self, point: str, url: str) -> None:
        self._at = POINTS[point]
        self._commits = point == "committed"
        self._url = url
        self._answered_before = figures(url)["answered"]

    def pass_by(self, name: str) -> None:
        if name == self._at:
            if self._commits:
                self._await_the_answer()
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(self, event: Any) -> None:
        if isinstance(event, AttemptEnded | CallEnded):
            self.pass_by(type(event).__name__)

    def trace(self, name: str, _: object) -> None:
        self.pass_by(name)

    async def trace_async(self, name: str, _: object) -> None:
        self.pass_by(name)

    def _await_the_answer(self) -> None:
        give_up_at = time.monotonic() + COMMIT_S_MAX
        while figures(self._url)["answered"] == self._answered_before:
            assert time.monotonic() < give_up_at, "the bank never answered"
            time.sleep(0.01)


def pay(url: str, journal: str, intent: str, kill: KillPoint | None = None) -> httpx.Response:
    """One payment on a thread."""
    extensions: dict[str, Any] = {"intent": intent} | ({"trace": kill.trace} if kill else {})
    transport = onefold.retrying(httpx.HTTPTransport(), journal=journal, listener=kill.hear if kill else None)
    with httpx.Client(transport=transport, base_url=url, timeout=PATIENCE_S) as client:
        return client.post("/payments", json={"intent": intent}, extensions=extensions)


async def pay_async(url: str, journal: str, intent: str, kill: KillPoint | None = None) -> httpx.Response:
    """The same on a loop."""
    extensions: dict[str, Any] = {"intent": intent} | ({"trace": kill.trace_async} if kill else {})
    transport = onefold.retrying(httpx.AsyncHTTPTransport(), journal=journal, listener=kill.hear if kill else None)
    async with httpx.AsyncClient(transport=transport, base_url=url, timeout=PATIENCE_S) as client:
        return await client.post("/payments", json={"intent": intent}, extensions=extensions)


def paid_by(kind: str, url: str, journal: str, intent: str, point: str | None) -> tuple[int, str, str, bool]:
    """Status, body and key of a payment, and whether it was a replay; where a point is named, nobody lives to tell."""
    kill = KillPoint(point, url) if point else None
    answer = (
        pay(url, journal, intent, kill) if kind == "threads" else asyncio.run(pay_async(url, journal, intent, kill))
    )
    report = report_of(answer)
    assert report is not None
    return answer.status_code, answer.text, report.key or "", "idempotent-replayed" in answer.headers
