"""`onefold relay`: publish what is in the outbox, in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Final

import typer

from onefold._app.base_app import run_flow
from onefold._cli.health import HOST, PORT, STALE_S, HealthPage, healthz
from onefold._cli.options import AS_JSON_LINES, BROKER, DATABASE, TARGET_HELP
from onefold._cli.output import LOG_FORMAT, LogFormat, echo_stderr, log_to_stderr, print_event
from onefold._cli.signals import stop_on_signals
from onefold._cli.targets import AnyOnefold, close_onefold, from_target_or_addresses, refuse_missing_tables
from onefold._kernel.foreign_cancellations import cancel_until_ended
from onefold._kernel.redaction import redact
from onefold._kernel.telemetry import join
from onefold._kernel.telemetry.every_event import Event
from onefold._kernel.telemetry.relay_events import BucketsHeld, Relayed, RelayPaused, RelayResumed
from onefold._outbox.schema import BUCKETS
from onefold._outbox.status_report import Report, report
from onefold._worker.relay_loop import Relay
from onefold._worker.worker_settings import RelaySettings
from onefold.brokers._adapters import broker_name
from onefold.errors import StoreError

#: How often --until-empty looks, and how long it waits for events queued behind a stopped one.
_LOOK_EVERY_S: Final = 0.1
_STUCK_S: Final = 2.0


def command(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help=f"{TARGET_HELP} It brings its own database and broker.")] = "",
    database: Annotated[str, DATABASE] = "",
    broker: Annotated[str, BROKER] = "",
    lease_s: Annotated[
        float, typer.Option("--lease", help="Seconds after which other relays take over from one that died.")
    ] = 30,
    batch: Annotated[int, typer.Option(help="At most this many events in hand at once.")] = 1000,
    keep_published_s: Annotated[
        float,
        typer.Option(
            "--keep-published", help="Seconds to keep published events, so that they can be looked at; 0: not at all."
        ),
    ] = 0,
    attempts: Annotated[int, typer.Option(help="Refusals after which an event is a dead letter.")] = 25,
    activity: Annotated[
        bool,
        typer.Option(
            "--activity",
            help="Keep counts per minute for the console. Not with a target: the application sets activity=True.",
        ),
    ] = False,
    until_empty: Annotated[
        bool,
        typer.Option("--until-empty", help="Stop when nothing is left to send; exit code 1 if events are stopped."),
    ] = False,
    health_host: Annotated[str, HOST] = "127.0.0.1",
    health_port: Annotated[int | None, PORT] = None,
    health_stale_s: Annotated[float, STALE_S] = 120,
    as_json: Annotated[bool, AS_JSON_LINES] = False,
    log_format: Annotated[LogFormat, LOG_FORMAT] = LogFormat.TEXT,
) -> None:
    """Publish what is in the outbox until SIGTERM or SIGINT. Run as many of them as you like."""
    if until_empty and health_port is not None:
        raise typer.BadParameter(
            "--health-port is for a relay that stays; --until-empty says by its exit code how it went"
        )
    settings = RelaySettings(lease_s=lease_s, batch_max=batch, keep_published_s=keep_published_s, attempts_max=attempts)
    log_to_stderr(log_format)
    make = from_target_or_addresses(context, target, database, broker, activity=activity)
    origin = target or redact(database)
    log_to_stderr(log_format)
    health = HealthPage(health_host, health_port, health_stale_s)
    if not asyncio.run(_relay(make, origin, settings, health, until_empty=until_empty, as_json=as_json)):
        raise typer.Exit(1)


async def _relay(
    make: Callable[[], Awaitable[AnyOnefold]],
    origin: str,
    settings: RelaySettings,
    health: HealthPage,
    *,
    until_empty: bool,
    as_json: bool,
) -> bool:
    """Run the relay; False: --until-empty has left stopped events."""
    once = await make()
    try:
        await refuse_missing_tables(once, report)
        progress = _RelayProgress(
            f"relaying from {origin} to {broker_name(once.broker)}", settings["lease_s"], as_json=as_json
        )
        with stop_on_signals() as stop:
            if until_empty:
                return await _drain(once, stop, settings, progress)
            running: list[Relay] = []
            async with healthz(health, lambda: {"relay": running[0].idle_s} if running else {}):
                await once.relay(stop, listener=join(progress.report, health.metrics), begun=running.append, **settings)
            return True
    finally:
        await close_onefold(once)


async def _drain(once: AnyOnefold, stop: asyncio.Event, settings: RelaySettings, progress: _RelayProgress) -> bool:
    watching = asyncio.create_task(_stop_when_empty(once, stop, progress))
    try:
        await once.relay(stop, listener=progress.report, **settings)
    finally:
        await cancel_until_ended(watching)
    if watching.cancelled() or watching.exception() is not None:  # stopped by a signal: a clean end, too
        return True
    last_report = watching.result()
    waiting = sum(topic.waiting for topic in last_report.pending)
    if last_report.stopped:
        echo_stderr(f"events that are stopped: {len(last_report.stopped)}; that wait: {waiting}. See `onefold outbox`")
    return not last_report.stopped


class _RelayProgress:
    """Prints the relay's events, and knows whether it still makes progress. Its pauses are in the log."""

    def __init__(self, banner: str, lease_s: float, *, as_json: bool) -> None:
        self._banner = banner
        self._lease_s = lease_s
        self._as_json = as_json
        self._paused = False
        self._moved_at = time.monotonic()

    def report(self, event: Event) -> None:
        if self._as_json:
            print_event(event)
        match event:
            case BucketsHeld():
                echo_stderr(f"{self._banner}: {event.buckets} of {BUCKETS} buckets{self._explain(event.buckets)}")
            case RelayPaused():
                self._paused = True
            case RelayResumed():
                self._paused, self._moved_at = False, time.monotonic()
            case Relayed() if event.published:
                self._moved_at = time.monotonic()
            case _:
                pass

    def _explain(self, buckets: int) -> str:
        """Why it has not all: after a kill -9 of the only other relay nothing is published for a time."""
        if buckets == BUCKETS:
            return ""
        ends = f"until its lease ends (--lease, here {self._lease_s:g} s)"
        return f"; other relays have the others, one that has died {ends}"

    @property
    def is_stalled(self) -> bool:
        return not self._paused and time.monotonic() - self._moved_at > _STUCK_S


async def _stop_when_empty(once: AnyOnefold, stop: asyncio.Event, progress: _RelayProgress) -> Report:
    while True:
        with suppress(StoreError):  # the relay itself logs that it pauses
            status = await run_flow(once, lambda dialect: report(dialect, count_max=1000))
            # Events queued behind a stopped one count as waiting, and are not sent.
            if not status.pending or (status.stopped and progress.is_stalled):
                stop.set()
                return status
        await asyncio.sleep(_LOOK_EVERY_S)
