"""`onefold dlq discard`, `skip` and `resume`: going on without a letter. Each is asked for, and audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from onefold._kernel.effects import Flow
from onefold.cli.asking import desk
from onefold.cli.dlq.choosing import CONSUMER, consumer_of
from onefold.cli.options import ACTOR, DATABASE, JSON, YES, acting, confirmed
from onefold.cli.speaking import answer
from onefold.inbox.redrive import discard, resume_at, skip

_ID = typer.Argument(metavar="ID", show_default=False)


def discard_command(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    force: Annotated[bool, typer.Option("--force", help="Also those that wait to be tried again.")] = False,
    actor: Annotated[str, ACTOR] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Delete dead letters for good."""
    with desk(database) as place:
        whose = consumer_of(place, consumer)
        confirmed(f"Delete {len(ids)} letter(s) of {whose} for good?", yes=yes)
        count = place.ask(discard(place.dialect, whose, tuple(ids), actor=acting(actor), force=force))
    if as_json:
        answer({"consumer": whose, "discarded": count, "asked": len(ids)})
    else:
        typer.echo(f"discarded: {count} of {len(ids)}" + ("" if count == len(ids) else "; the others are not dead"))
    if count == 0:
        raise typer.Exit(1)


def skip_command(
    message_id: Annotated[str, _ID],
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    actor: Annotated[str, ACTOR] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Let a key that is handled in order go on without its dead letter, which stays to be looked at."""
    question = "Go on without {id} of {consumer}?"
    _move(skip, question, "skipped", message_id, database, consumer, actor=actor, yes=yes, as_json=as_json)


def resume_command(
    message_id: Annotated[str, _ID],
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    actor: Annotated[str, ACTOR] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Let a key that is handled in order go on with this waiting letter: what is missing before it is given up."""
    question = "Go on with {id} of {consumer}, and give up what is missing before it?"
    _move(resume_at, question, "resumed", message_id, database, consumer, actor=actor, yes=yes, as_json=as_json)


def _move(
    verb: Callable[..., Flow[Any]],
    question: str,
    done: str,
    message_id: str,
    database: str,
    consumer: str,
    *,
    actor: str,
    yes: bool,
    as_json: bool,
) -> None:
    with desk(database) as place:
        whose = consumer_of(place, consumer)
        confirmed(question.format(id=message_id, consumer=whose), yes=yes)
        place.ask(verb(place.dialect, whose, message_id, actor=acting(actor)))
    if as_json:
        answer({"consumer": whose, done: message_id})
    else:
        typer.echo(f"{done}: {message_id} of {whose}")
