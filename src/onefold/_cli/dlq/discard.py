"""`onefold dlq discard`, `skip` and `resume`: go on without a failed message, after confirmation; audited.

What is not there is refused before a person is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from onefold._app.operator_actions import discard_fitting, discard_letters
from onefold._cli.dlq.selection import CONSUMER, REASON, SINCE, UNTIL, consumer_of, not_there
from onefold._cli.options import ACTOR, DATABASE, JSON, TOPIC, WHY, YES, actor_name, confirm
from onefold._cli.output import print_json
from onefold._cli.session import CommandSession, session
from onefold._cli.times import moment_of
from onefold._inbox.discard_and_skip import resume_at, skip
from onefold._inbox.failed_lists import find_failed
from onefold._inbox.failed_messages import list_summaries
from onefold._inbox.redrive import Filter
from onefold._kernel.audit import check_actor
from onefold._kernel.effects import Flow
from onefold._kernel.readable import write_count

#: Matches are counted up to this for the question.
_COUNT_MAX: Final = 10_000

_ID = typer.Argument(metavar="ID", show_default=False)


def discard_command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID...", help="Only these; without any, all that match the filters, at least one."),
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
    """Delete dead letters for good: by their ids, or all that match at least one of --topic, --reason, --since and
    --until."""
    filtered = any((topic, reason, since, until))
    if bool(ids) == filtered or (force and filtered):
        raise typer.BadParameter(
            "say which: either ids, or at least one of --topic, --reason, --since and --until (without --force)"
        )
    begin, end = moment_of(since, "--since"), moment_of(until, "--until")
    by = check_actor(actor_name(actor))
    with session(database) as db:
        owner = consumer_of(db, consumer)
        if ids:
            _confirm_ids(db, owner, tuple(ids), force=force, yes=yes)
            count = db.run(discard_letters(db.dialect, owner, tuple(ids), actor=by, why=why, force=force))
        else:
            chosen = Filter(consumer=owner, topic=topic or None, reason=reason or None, since=begin, until=end)
            _confirm_matches(db, chosen, yes=yes)
            count = db.run(discard_fitting(db.dialect, chosen, actor=by, why=why))
    _print_discarded(owner, count, len(ids) if ids else None, as_json=as_json)
    if count == 0:
        raise typer.Exit(1)


def _confirm_ids(db: CommandSession, consumer: str, ids: tuple[str, ...], *, force: bool, yes: bool) -> None:
    """Ask before these are deleted; not where none is dead. Raises ConfigurationError: there is none of them."""
    kept = db.run(list_summaries(db.dialect, Filter(consumer=consumer, ids=ids), state=None, limit=len(ids)))
    if not kept:
        raise not_there(*ids, consumer=consumer)
    count = sum(force or each.state == "dead" for each in kept)
    if count:
        confirm(f"Delete {write_count(count, 'failed message')} of {consumer} for good?", yes=yes)


def _confirm_matches(db: CommandSession, chosen: Filter, *, yes: bool) -> None:
    """Ask before those that match are deleted; not where none does."""
    if yes:
        return
    count = len(db.run(list_summaries(db.dialect, chosen, limit=_COUNT_MAX)))
    if count:
        number = "all matching dead letters" if count == _COUNT_MAX else write_count(count, "dead letter")
        confirm(f"Delete {number} of {chosen.consumer} for good?", yes=yes)


def _print_discarded(consumer: str, count: int, requested: int | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"consumer": consumer, "discarded": count, "asked": requested})
    elif requested is None:
        hint = f": no dead letter of {consumer} matches; --reason looks into errors, what the audit notes is --why"
        typer.echo(f"discarded: {count}{'' if count else hint}")
    else:
        typer.echo(
            f"discarded: {count} of {requested}"
            + ("" if count == requested else "; the others are not dead, or not there")
        )


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
        if db.run(find_failed(db.dialect, owner, message_id)) is None:
            raise not_there(message_id, consumer=owner)
        confirm(question.format(id=message_id, consumer=owner), yes=yes)
        db.run(verb(db.dialect, owner, message_id, actor=actor_name(actor), why=why))
    if as_json:
        print_json({"consumer": owner, outcome: message_id})
    else:
        typer.echo(f"{outcome}: {message_id} of {owner}")
