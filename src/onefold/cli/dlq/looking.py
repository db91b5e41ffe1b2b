"""`onefold dlq list` and `onefold dlq show`: looking changes nothing."""

from __future__ import annotations

import base64
import json
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from onefold.cli.asking import Desk, desk
from onefold.cli.dlq.choosing import (
    CONSUMER,
    REASON,
    SINCE,
    UNTIL,
    consumers_with_letters,
    letter_of,
)
from onefold.cli.moments import moment_of
from onefold.cli.options import DATABASE, JSON, TOPIC
from onefold.cli.speaking import answer, harmless, moment, printed
from onefold.errors import ConfigurationError
from onefold.inbox.letters import LetterView, summed_up, tallied
from onefold.inbox.redrive import Filter


class State(StrEnum):
    """Which letters are listed."""

    DEAD = "dead"
    WAITING = "waiting"
    ALL = "all"


_STATES: dict[State, Literal["dead", "waiting"] | None] = {
    State.DEAD: "dead",
    State.WAITING: "waiting",
    State.ALL: None,
}


def list_command(
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    topic: Annotated[str, TOPIC] = "",
    reason: Annotated[str, REASON] = "",
    since: Annotated[str, SINCE] = "",
    until: Annotated[str, UNTIL] = "",
    state: Annotated[State, typer.Option(help="Dead ones, or those that wait to be tried again.")] = State.DEAD,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="So many, at the most.")] = 100,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List dead letters: messages that are not tried again until a person says so."""
    begin, end = moment_of(since, "--since"), moment_of(until, "--until")
    found: list[dict[str, Any]] = []
    with desk(database) as place:
        for name in [consumer] if consumer else consumers_with_letters(place):
            chosen = Filter(consumer=name, topic=topic or None, reason=reason or None, since=begin, until=end)
            if len(found) < limit:
                fit = place.ask(summed_up(place.dialect, chosen, state=_STATES[state], limit=limit - len(found)))
                found += [_summary(name, letter) for letter in fit]
        waiting = 0 if state is not State.DEAD or as_json else _waiting(place, consumer, topic)
    if as_json:
        answer(found)
        return
    columns = ("id", "consumer", "topic", "key", "state", "failed", "died", "reason")
    if found:
        printed("", columns, [[each[column] for column in columns] for each in found])
    typer.echo(f"letters: {len(found)}" + (", perhaps more: raise --limit" if len(found) == limit else ""))
    if waiting:
        typer.echo(f"waiting for their next try, or behind a letter of their key: {waiting}; see --state waiting")


def _waiting(place: Desk, consumer: str, topic: str) -> int:
    """Messages that failed and are not dead: they are tried again by themselves, or when their key goes on."""
    return sum(
        tally.letters
        for tally in place.ask(tallied(place.dialect))
        if tally.state == "waiting" and consumer in ("", tally.consumer) and topic in ("", tally.topic)
    )


def show_command(
    message_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show one letter: its headers, its data, and what became of it each time."""
    with desk(database) as place:
        names = [consumer] if consumer else consumers_with_letters(place)
        found = [(name, letter) for name in names if (letter := letter_of(place, name, message_id)) is not None]
    if not found:
        raise ConfigurationError(f"there is no letter {message_id!r}" + (f" of {consumer!r}" if consumer else ""))
    if len(found) > 1:
        owners = ", ".join(name for name, _ in found)
        raise ConfigurationError(f"several consumers have a letter {message_id!r} ({owners}): name one with --consumer")
    name, letter = found[0]
    if as_json:
        origin = {"broker": letter.origin.broker, "subject": letter.origin.subject, "id": letter.origin.id}
        found_there = {"origin": origin, "headers": letter.headers, **_data(letter), "history": letter.history}
        answer({**_summary(name, letter), **found_there})
    else:
        _print(name, letter)


def _summary(consumer: str, letter: LetterView) -> dict[str, Any]:
    message = letter.message
    return {
        "id": letter.id,
        "consumer": consumer,
        "state": letter.state,
        "source": message.source if message else None,
        "topic": letter.topic,
        "key": message.key if message else letter.origin.key,
        "version": message.version if message else None,
        "reason": letter.reason,
        "started": letter.started,
        "failed": letter.failed,
        "created": moment(letter.created_ms),
        "died": moment(letter.died_ms),
        "due_in_s": letter.due_in_s,
        "redrive": letter.redrive,
    }


def _data(letter: LetterView) -> dict[str, Any]:
    """The data as what it is: JSON, text, or bytes."""
    try:
        text = letter.data.decode()
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(letter.data).decode()}
    try:
        return {"data": json.loads(text)}
    except (ValueError, RecursionError):
        return {"data_text": text}


def _print(consumer: str, letter: LetterView) -> None:
    for name, value in _summary(consumer, letter).items():
        if value is not None:
            typer.echo(f"{name + ':':<10} {harmless(str(value))}")
    typer.echo("\norigin")
    for name, value in (("broker", letter.origin.broker), ("subject", letter.origin.subject), ("id", letter.origin.id)):
        typer.echo(f"  {name}: {harmless(value or '-')}")
    typer.echo("\nheaders")
    for name, value in sorted(letter.headers.items()):
        typer.echo(f"  {harmless(name)}: {harmless(value)}")
    [(kind, data)] = _data(letter).items()
    typer.echo(f"\n{kind}")
    typer.echo(harmless(data if isinstance(data, str) and kind != "data" else json.dumps(data, indent=2)))
    for failure in letter.history:
        typer.echo(f"\n{failure['at']} {harmless(failure['error'])}\n{harmless(failure['traceback'])}")
