"""`onefold dlq discard`, `skip` and `resume`: go on without a failed message, after confirmation; audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from onefold._app.operator_actions import discard_fitting, discard_letters
from onefold._cli.dlq.selection import CONSUMER, REASON, SINCE, UNTIL, consumer_of
from onefold._cli.options import ACTOR, DATABASE, JSON, TOPIC, WHY, YES, actor_name, confirm
from onefold._cli.output import print_json
from onefold._cli.session import session
from onefold._cli.times import moment_of
from onefold._inbox.discard_and_skip import resume_at, skip
from onefold._inbox.redrive import Filter
from onefold._kernel.effects import Flow

_ID = typer.Argument(metavar="ID", show_default=False)


def discard_command(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Only these; without any, all that match the filters.")
    ] = None,
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    topic: Annotated[str, TOPIC] = "",
    reason: Annotated[str, REASON] = "",
    since: Annotated[str, SINCE] = "",
    until: Annotated[str, UNTIL] = "",
    force: Annotated[bool, typer.Option("--force", help="With ids: also those that wait to be tried again.")] = False,
    actor: Annotated[str, ACTOR] = "",
    why: Annotated[str, WHY] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Delete dead letters for good: by their ids, or all that match the filters of `dlq list`."""
    filtered = any((topic, reason, since, until))
    if bool(ids) == filtered or (force and filtered):
        raise typer.BadParameter("say which: either ids, or --topic, --reason, --since, --until (without --force)")
    begin, end = moment_of(since, "--since"), moment_of(until, "--until")
    with session(database) as db:
        owner = consumer_of(db, consumer)
        confirm(f"Delete {len(ids) if ids else 'all fitting'} failed message(s) of {owner} for good?", yes=yes)
        if ids:
            chosen_ids, by = tuple(ids), actor_name(actor)
            count = db.run(discard_letters(db.dialect, owner, chosen_ids, actor=by, why=why, force=force))
        else:
            chosen = Filter(consumer=owner, topic=topic or None, reason=reason or None, since=begin, until=end)
            count = db.run(discard_fitting(db.dialect, chosen, actor=actor_name(actor), why=why))
    _print_discarded(owner, count, len(ids) if ids else None, as_json=as_json)
    if count == 0:
        raise typer.Exit(1)


def _print_discarded(consumer: str, count: int, requested: int | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"consumer": consumer, "discarded": count, "asked": requested})
    elif requested is None:
        hint = f": no dead letter of {consumer} matches; --reason looks into errors, what the audit notes is --why"
        typer.echo(f"discarded: {count}{'' if count else hint}")
    else:
        typer.echo(f"discarded: {count} of {requested}" + ("" if count == requested else "; the others are not dead"))


def skip_command(
    message_id: Annotated[str, _ID],
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    actor: Annotated[str, ACTOR] = "",
    why: Annotated[str, WHY] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Skip a dead letter: its key, which is handled in order, goes on without it. The dead letter stays."""
    question = "Go on without {id} of {consumer}?"
    _move(skip, question, "skipped", message_id, database, consumer, actor=actor, why=why, yes=yes, as_json=as_json)


def resume_command(
    message_id: Annotated[str, _ID],
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    actor: Annotated[str, ACTOR] = "",
    why: Annotated[str, WHY] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Let a key that is handled in order continue with this waiting message; the versions missing before it are given
    up."""
    question = "Go on with {id} of {consumer}, and give up what is missing before it?"
    _move(
        resume_at, question, "resumed", message_id, database, consumer, actor=actor, why=why, yes=yes, as_json=as_json
    )


def _move(
    verb: Callable[..., Flow[Any]],
    question: str,
    outcome: str,
    message_id: str,
    database: str,
    consumer: str,
    *,
    actor: str,
    why: str,
    yes: bool,
    as_json: bool,
) -> None:
    with session(database) as db:
        owner = consumer_of(db, consumer)
        confirm(question.format(id=message_id, consumer=owner), yes=yes)
        db.run(verb(db.dialect, owner, message_id, actor=actor_name(actor), why=why))
    if as_json:
        print_json({"consumer": owner, outcome: message_id})
    else:
        typer.echo(f"{outcome}: {message_id} of {owner}")
