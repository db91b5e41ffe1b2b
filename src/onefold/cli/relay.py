"""`onefold relay`: publish what is in the outbox, in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from onefold._kernel.events import BucketsHeld, Event, Relayed, RelayPaused, RelayResumed
from onefold.cli.options import AS_JSON_LINES, BROKER, DATABASE, TARGET_HELP, existing
from onefold.cli.speaking import address, broker_name, log_to_stderr, say, tell_as_json
from onefold.cli.stopping import stopped_by_signals
from onefold.cli.targets import AnyOnefold, closed, loaded, opened, refuse_missing_tables
from onefold.db.connect import dialect_of
from onefold.errors import StoreError
from onefold.face import AsyncOnefold
from onefold.outbox.report import Report, report
from onefold.outbox.schema import BUCKETS
from onefold.worker.settings import RelaySettings

#: How often --until-empty looks, and how long it waits for what stands behind a stopped event.
_LOOK_EVERY_S: Final = 0.1
_STUCK_S: Final = 2.0


def command(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help=f"{TARGET_HELP} It brings its own database and broker.")] = "",
    database: Annotated[str, DATABASE] = "",
    broker: Annotated[str, BROKER] = "",
    lease_s: Annotated[float, typer.Option("--lease", help="Seconds until others take over from one that died.")] = 30,
    batch: Annotated[int, typer.Option(help="Events at hand at once, at the most.")] = 1000,
    keep_published_s: Annotated[
        float,
        typer.Option("--keep-published", help="Seconds to keep published events, to look at them. 0: not at all."),
    ] = 0,
    until_empty: Annotated[
        bool,
        typer.Option("--until-empty", help="Stop when nothing is left to send; exit code 1 if events are stopped."),
    ] = False,
    as_json: Annotated[bool, AS_JSON_LINES] = False,
) -> None:
    """Publish what is in the outbox until SIGTERM or SIGINT. Run as many of them as you like."""
    settings = RelaySettings(lease_s=lease_s, batch_max=batch, keep_published_s=keep_published_s)
    make = _from_target(context, target) if target else _from_addresses(database, broker)
    whose = target or address(database)
    log_to_stderr()
    if not asyncio.run(_relay(make, whose, settings, until_empty=until_empty, as_json=as_json)):
        raise typer.Exit(1)


def _from_target(context: typer.Context, target: str) -> Callable[[], Awaitable[AnyOnefold]]:
    for name in ("database", "broker"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{target} brings its own {name}: leave out --{name}, or the target")
    value = loaded(target)
    return lambda: opened(target, value)


def _from_addresses(database: str, broker: str) -> Callable[[], Awaitable[AnyOnefold]]:
    if not database:
        raise typer.BadParameter("give a target, or --database (or set ONEFOLD_DATABASE)")
    if not broker and dialect_of(database) != "sqlite":
        raise typer.BadParameter("give --broker or set ONEFOLD_BROKER: an address, or 'local' for the database itself")
    existing(database)
    try:
        urlsplit(broker)
    except ValueError:
        raise typer.BadParameter("--broker is no address: is there a '[' in its password? Write it as %5B") from None

    async def make() -> AnyOnefold:
        return AsyncOnefold(database, broker=broker or None)

    return make


async def _relay(
    make: Callable[[], Awaitable[AnyOnefold]], whose: str, settings: RelaySettings, *, until_empty: bool, as_json: bool
) -> bool:
    """Whether the end was a good one."""
    once = await make()
    try:
        await refuse_missing_tables(once, report)
        pulse = _Pulse(f"relaying from {whose} to {broker_name(once.broker)}", as_json=as_json)
        with stopped_by_signals() as stop:
            if until_empty:
                return await _drain(once, stop, settings, pulse)
            await once.relay(stop, listener=pulse.hear, **settings)
            return True
    finally:
        await closed(once)


async def _drain(once: AnyOnefold, stop: asyncio.Event, settings: RelaySettings, pulse: _Pulse) -> bool:
    watching = asyncio.create_task(_stop_when_empty(once, stop, pulse))
    try:
        await once.relay(stop, listener=pulse.hear, **settings)
    finally:
        watching.cancel()
        [left] = await asyncio.gather(watching, return_exceptions=True)
    if isinstance(left, BaseException):  # stopped by a signal before, which is as good an end
        return True
    waiting = sum(topic.waiting for topic in left.pending)
    if left.stopped:
        say(f"events that are stopped: {len(left.stopped)}; that wait: {waiting}. See `onefold outbox`")
    return not left.stopped


class _Pulse:
    """Says what the relay does, and knows whether it still gets somewhere. That it pauses is in the log."""

    def __init__(self, what: str, *, as_json: bool) -> None:
        self._what = what
        self._as_json = as_json
        self._paused = False
        self._moved_at = time.monotonic()

    def hear(self, event: Event) -> None:
        if self._as_json:
            tell_as_json(event)
        match event:
            case BucketsHeld():
                say(f"{self._what}: {event.buckets} of {BUCKETS} buckets")
            case RelayPaused():
                self._paused = True
            case RelayResumed():
                self._paused, self._moved_at = False, time.monotonic()
            case Relayed() if event.published:
                self._moved_at = time.monotonic()
            case _:
                pass

    @property
    def stands_still(self) -> bool:
        return not self._paused and time.monotonic() - self._moved_at > _STUCK_S


async def _stop_when_empty(once: AnyOnefold, stop: asyncio.Event, pulse: _Pulse) -> Report:
    while True:
        with suppress(StoreError):  # the relay itself says that it pauses
            found = await once.ask(lambda dialect: report(dialect, count_max=1000))
            # What waits behind a stopped event is counted as waiting, and is not sent.
            if not found.pending or (found.stopped and pulse.stands_still):
                stop.set()
                return found
        await asyncio.sleep(_LOOK_EVERY_S)
