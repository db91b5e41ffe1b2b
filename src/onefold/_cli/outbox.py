"""`onefold outbox`: what waits and why; and what to do with what is stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated
from urllib.parse import unquote, urlsplit
from uuid import UUID

import typer

from onefold._cli.options import DATABASE, JSON, TOPIC, YES, confirm
from onefold._cli.output import print_json, print_table
from onefold._cli.session import run_on_database, session
from onefold._cli.times import moment_of
from onefold._kernel.effects import Flow
from onefold._kernel.readable import age, write_count
from onefold._kernel.redaction import redact
from onefold._outbox.debezium import connector
from onefold._outbox.status_report import Chosen, Report, Stopped, cancel, discard_all, list_stopped, report, retry_all
from onefold.db._drivers import dialect_of

app = typer.Typer(help="What waits in the outbox and why; and what to do with what is stopped.")

_IDS = typer.Argument(help="Ids of stopped events; without any, all that match the filters.", show_default=False)
_REASON = typer.Option("--reason", help="Only those whose error contains this.")
_DESTINATION = typer.Option("--destination", help="Only for this endpoint.")
_SINCE = typer.Option(
    "--since", help="Only those dead since this time or later: 2026-07-01T12:00Z, or an age such as 90m, 2h, 7d."
)
_DEAD = typer.Option("--dead", help="Dead letters only, not what is tried again by itself.")


@app.callback(invoke_without_command=True)
def look(
    context: typer.Context,
    database: Annotated[str, DATABASE] = "",
    stopped_max: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Stopped events to list.")] = 100,
    as_json: Annotated[bool, JSON] = False,
    print_debezium: Annotated[
        bool, typer.Option("--print-debezium", help="Print a Debezium connector that publishes in place of a relay.")
    ] = False,
    schema: Annotated[str, typer.Option(help="For --print-debezium: the schema of onefold's tables.")] = "public",
) -> None:
    """Look at the outbox: what waits, what is stopped and why, which relays are at work."""
    context.obj = database
    if context.invoked_subcommand is not None:
        return
    if print_debezium:
        print_json(_connector(database, schema))
        return
    status = run_on_database(database, lambda dialect: report(dialect, stopped_max=stopped_max))
    if as_json:
        print_json({**asdict(status), "waiting": _count_waiting(status)})
    else:
        _print(redact(database), status)


@app.command("list")
def list_command(
    context: typer.Context,
    database: Annotated[str, DATABASE] = "",
    topic: Annotated[str, TOPIC] = "",
    reason: Annotated[str, _REASON] = "",
    destination: Annotated[str, _DESTINATION] = "",
    since: Annotated[str, _SINCE] = "",
    dead: Annotated[bool, _DEAD] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List stopped events: dead letters, and those that are tried again."""
    chosen = _chosen([], topic, reason, destination, since, dead=dead)
    events = run_on_database(
        _database_of(context, database), lambda dialect: list_stopped(dialect, chosen, limit=limit)
    )
    if as_json:
        print_json([asdict(each) for each in events])
        return
    if events:
        _print_stopped("", events)
    typer.echo(f"stopped events: {len(events)}" + (", perhaps more: raise --limit" if len(events) == limit else ""))


@app.command("retry")
def retry_command(
    context: typer.Context,
    ids: Annotated[list[str] | None, _IDS] = None,
    database: Annotated[str, DATABASE] = "",
    topic: Annotated[str, TOPIC] = "",
    reason: Annotated[str, _REASON] = "",
    destination: Annotated[str, _DESTINATION] = "",
    since: Annotated[str, _SINCE] = "",
    dead: Annotated[bool, _DEAD] = False,
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Try stopped events now, instead of when their time comes. Their attempts begin anew."""
    chosen = _chosen(ids or [], topic, reason, destination, since, dead=dead)
    confirm(f"Try {_how_many(ids)} now?", yes=yes)
    _act(_database_of(context, database), retry_all, chosen, "retried", as_json=as_json)


@app.command("discard")
def discard_command(
    context: typer.Context,
    ids: Annotated[list[str] | None, _IDS] = None,
    database: Annotated[str, DATABASE] = "",
    topic: Annotated[str, TOPIC] = "",
    reason: Annotated[str, _REASON] = "",
    destination: Annotated[str, _DESTINATION] = "",
    since: Annotated[str, _SINCE] = "",
    dead: Annotated[bool, _DEAD] = False,
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Delete stopped events: they are never published, and their keys go on with a gap."""
    chosen = _chosen(ids or [], topic, reason, destination, since, dead=dead)
    if chosen == Chosen():
        raise typer.BadParameter(
            "say which: name ids, or filter with --dead, --topic, --reason, --destination, --since"
        )
    confirm(f"Delete {_how_many(ids)}, never to be published?", yes=yes)
    _act(_database_of(context, database), discard_all, chosen, "discarded", as_json=as_json)


@app.command("cancel")
def cancel_command(
    context: typer.Context,
    ids: Annotated[list[str], typer.Argument(help="Ids of events that wait for their time.", show_default=False)],
    database: Annotated[str, DATABASE] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Take back delayed events before their time has come: they are never published."""
    for each in ids:
        _check_id(each)
    confirm(f"Take back {write_count(len(ids), 'delayed event')}, never to be published?", yes=yes)
    count = run_on_database(_database_of(context, database), lambda dialect: cancel(dialect, ids))
    if as_json:
        print_json({"cancelled": count, "asked": len(ids)})
    else:
        others = "" if count == len(ids) else "; the others have left, are leaving or were never there"
        typer.echo(f"cancelled: {count} of {len(ids)}{others}")
    if count == 0:
        raise typer.Exit(1)


def _connector(database: str, schema: str) -> dict[str, object]:
    """A connector with host, port, user and database of the address, if there is one, and never its password."""
    if not database:
        return connector(schema=schema)
    if dialect_of(database) != "postgres":
        raise typer.BadParameter("Debezium reads the log of Postgres: give the address of one, or none")
    address = urlsplit(database)
    identity = {"host": address.hostname, "user": address.username, "database": address.path.lstrip("/")}
    return connector(
        schema=schema, port=address.port or 5432, **{name: unquote(value) for name, value in identity.items() if value}
    )


def _chosen(ids: list[str], topic: str, reason: str, destination: str, since: str, *, dead: bool) -> Chosen:
    return Chosen(
        ids=tuple(ids) or None,
        topic=topic or None,
        reason=reason or None,
        destination=destination or None,
        since=moment_of(since, "--since"),
        dead=dead,
    )


def _check_id(text: str) -> None:
    try:
        UUID(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r:.100} is not the id of an event: tx.publish returns one, as 01980c5e-7b1a-7c3e-9d5f-3a1b2c4d5e6f"
        ) from None


def _how_many(ids: list[str] | None) -> str:
    return write_count(len(ids), "stopped event") if ids else "all matching stopped events"


def _database_of(context: typer.Context, database: str) -> str:
    """The database of a subcommand. One that is named before the subcommand takes precedence over the environment."""
    source = context.get_parameter_source("database")
    return database if source is not None and source.name == "COMMANDLINE" else context.obj


def _act(
    database: str, make_flow: Callable[[str, Chosen], Flow[int]], chosen: Chosen, outcome: str, *, as_json: bool
) -> None:
    with session(database) as db:
        count = db.run(make_flow(db.dialect, chosen))
    requested = None if chosen.ids is None else len(chosen.ids)
    if as_json:
        print_json({outcome: count, "asked": requested})
    elif requested is None:
        typer.echo(f"{outcome}: {count}")
    else:
        typer.echo(
            f"{outcome}: {count} of {requested}" + ("" if count == requested else "; the others are not stopped")
        )
    if count == 0:
        raise typer.Exit(1)


def _count_waiting(status: Report) -> int:
    return sum(topic.waiting for topic in status.pending)


def _print(database: str, status: Report) -> None:
    more = "at least " if status.pending_cut else ""
    typer.echo(f"outbox of {database}")
    waits = (
        "nothing waits"
        if status.oldest_s is None
        else f"waiting: {more}{_count_waiting(status)}, the oldest for {age(status.oldest_s)}"
    )
    typer.echo(f"{waits}; delayed: {status.delayed}")
    if status.pending:
        waiting = [(each.topic, each.destination, each.waiting) for each in status.pending]
        print_table("\nWaiting", ("topic", "endpoint", "events"), waiting)
    if status.stopped:
        _print_stopped("\nStopped", status.stopped)
    relays = [
        (each.relay, each.buckets, f"{each.lease_left_s:.0f} s" if each.lease_left_s > 0 else "dead")
        for each in status.relays
    ]
    if relays:
        print_table("\nRelays", ("relay", "buckets", "lease"), relays)
    else:
        typer.echo("no relay is at work")


def _print_stopped(title: str, found: Sequence[Stopped]) -> None:
    rows = [
        (each.id, each.destination or each.topic, each.key, each.attempts, _next(each.next_try_s), each.error)
        for each in found
    ]
    print_table(title, ("id", "destination", "key", "attempts", "next try", "error"), rows)


def _next(seconds: float | None) -> str:
    return "dead" if seconds is None else f"in {age(seconds)}"
