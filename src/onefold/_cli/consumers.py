"""`onefold consumers`: list the consumers of a database and its broker; pause, resume or remove one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from onefold._app.base_app import with_broker
from onefold._cli.consumer_pause import pause_command, resume_command
from onefold._cli.options import ACTOR, BROKER, DATABASE, JSON, NAME, TARGET_HELP, YES, actor_name, confirm
from onefold._cli.output import echo_stderr, print_json, print_table
from onefold._cli.session import session
from onefold._cli.targets import close_onefold, from_target_or_addresses
from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._kernel.readable import age, write_count
from onefold._worker.consumer_admin import ConsumerSeen, Removed, read_stored, remove, survey
from onefold.db._drivers import dialect_of

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Consumers: list, pause, resume or remove them.")
app.command("pause")(pause_command)
app.command("resume")(resume_command)

_BRINGS = f"{TARGET_HELP} It brings its own database and broker."
_TARGET = typer.Option("--target", "-t", help=_BRINGS, show_default=False)


@app.command("list")
def list_command(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help=_BRINGS, show_default=False)] = "",
    target_option: Annotated[str, _TARGET] = "",
    database: Annotated[str, DATABASE] = "",
    broker: Annotated[str, BROKER] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List consumers: their topics, what waits for them, how many processes run them and when one was last seen."""
    target = target or target_option
    if target or broker or not database or dialect_of(database) == "sqlite":
        consumers = _managed(context, target, database, broker, survey)
    else:
        consumers = _survey_database(database)
        echo_stderr("the broker was not asked what waits there: give --broker or set ONEFOLD_BROKER")
    if as_json:
        print_json([asdict(each) for each in consumers])
    elif consumers:
        print_table("", ("consumer", "topics", "waiting", "running", "last seen", "paused"), map(_row, consumers))
    else:
        typer.echo("there are no consumers")


@app.command("remove")
def remove_command(
    context: typer.Context,
    name: Annotated[str, NAME],
    target: Annotated[str, _TARGET] = "",
    database: Annotated[str, DATABASE] = "",
    broker: Annotated[str, BROKER] = "",
    actor: Annotated[str, ACTOR] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """End a consumer for good: its subscription and what waits there, its ledger and its failed messages. Refused while
    it runs."""
    confirm(f"Remove the consumer {name}, what waits for it, its ledger and its failed messages?", yes=yes)

    async def work(opened: AsyncDatabase[Any], at: Broker) -> Removed:
        return await remove(opened, at, name, actor_name(actor))

    removed = _managed(context, target, database, broker, work)
    if as_json:
        print_json(asdict(removed))
        return
    waiting = (
        "nothing kept at the broker" if removed.waiting is None else write_count(removed.waiting, "waiting message")
    )
    typer.echo(
        f"removed: {name}; dropped: {waiting}, {write_count(removed.failed_messages, 'failed message')}, "
        f"{write_count(removed.handled, 'row')} of its ledger"
    )


def _survey_database(database: str) -> list[ConsumerSeen]:
    """What the database knows without its broker."""
    with session(database) as db:
        return db.run(read_stored(db.dialect)).describe({})


def _managed(
    context: typer.Context,
    target: str,
    database: str,
    broker: str,
    work: Callable[[AsyncDatabase[Any], Broker], Awaitable[T]],
) -> T:
    make = from_target_or_addresses(context, target, database, broker)

    async def run() -> T:
        once = await make()
        try:
            return await with_broker(once, work)
        finally:
            await close_onefold(once)

    return asyncio.run(run())


def _row(each: ConsumerSeen) -> tuple[object, ...]:
    last_seen = None if each.seen_s is None else f"{age(each.seen_s)} ago"
    return (each.name, ", ".join(each.topics) or None, each.waiting, each.running, last_seen, each.paused_by)
