"""`onefold consume`: run the consumers of an application, in a process of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from onefold._cli.health import HOST, PORT, STALE_S, HealthPage, healthz
from onefold._cli.options import AS_JSON_LINES, TARGET_HELP
from onefold._cli.output import (
    LOG_FORMAT,
    LogFormat,
    echo_stderr,
    log_to_stderr,
    print_event,
    print_json,
    print_table,
)
from onefold._cli.signals import stop_on_signals
from onefold._cli.targets import AnyOnefold, close_onefold, load_target, open_target, refuse_missing_tables
from onefold._inbox.consumer import Consumer
from onefold._inbox.failed_messages import count_failed
from onefold._kernel.telemetry import Listener, join
from onefold._worker.consumer_runner import ConsumerRunner
from onefold._worker.worker_settings import select_consumers
from onefold.brokers._adapters import broker_name
from onefold.errors import ConfigurationError


def command(
    target: Annotated[str, typer.Argument(help=TARGET_HELP, show_default=False)],
    only: Annotated[list[str] | None, typer.Option(help="Run only this consumer; may be repeated.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Print the consumers and stop.")] = False,
    health_host: Annotated[str, HOST] = "127.0.0.1",
    health_port: Annotated[int | None, PORT] = None,
    health_stale_s: Annotated[float, STALE_S] = 120,
    as_json: Annotated[bool, AS_JSON_LINES] = False,
    log_format: Annotated[LogFormat, LOG_FORMAT] = LogFormat.TEXT,
) -> None:
    """Run the consumers until SIGTERM or SIGINT; messages that are being handled then are finished, the rest given
    back."""
    log_to_stderr(log_format)
    value = load_target(target)
    log_to_stderr(log_format)
    health = HealthPage(health_host, health_port, health_stale_s)
    asyncio.run(_main(target, value, only or [], check=check, health=health, as_json=as_json))


async def _main(
    target: str, value: object, only: Sequence[str], *, check: bool, health: HealthPage, as_json: bool
) -> None:
    once = await open_target(target, value)
    try:
        if not once.consumers:
            raise ConfigurationError(
                f"{target!r} has no consumer to run: mark a handler with @once.consumer('name', topic='...'), in that "
                "module or in one that it imports"
            )
        consumers = select_consumers(once.consumers, only)
        if check:
            _print(consumers, as_json=as_json)
            return
        await refuse_missing_tables(once, count_failed)
        banner = f"consuming from {broker_name(once.broker)}: {', '.join(consumer.name for consumer in consumers)}"
        await _consume(once, only, banner, health, print_event if as_json else None)
    finally:
        await close_onefold(once)


async def _consume(
    once: AnyOnefold, only: Sequence[str], banner: str, health: HealthPage, listener: Listener | None
) -> None:
    running: list[ConsumerRunner] = []

    def on_begun(consuming: ConsumerRunner) -> None:
        echo_stderr(banner)
        running.append(consuming)

    def alive() -> Mapping[str, float]:
        return running[0].alive() if running else {}

    with stop_on_signals() as stop:
        async with healthz(health, alive):
            await once.consume(stop, only=only, begun=on_begun, listener=join(listener, health.metrics))


def _print(consumers: Sequence[Consumer], *, as_json: bool) -> None:
    if as_json:
        print_json([{"consumer": each.name, "topics": each.topics, "order": each.order} for each in consumers])
        return
    rows = [
        (each.name, ", ".join(each.topics), each.order, f"{each.handler.__module__}.{_name(each)}")
        for each in consumers
    ]
    print_table("", ("consumer", "topics", "order", "handler"), rows)


def _name(consumer: Consumer) -> str:
    return getattr(consumer.handler, "__qualname__", type(consumer.handler).__qualname__)
