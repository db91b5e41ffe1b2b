"""`onefold dlq list` and `onefold dlq show`: read failed messages, and change nothing."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import typer

from onefold._app.operator_actions import find_message_work
from onefold._cli.dlq.selection import CONSUMER, REASON, SINCE, UNTIL, not_there
from onefold._cli.options import DATABASE, JSON, TOPIC
from onefold._cli.output import echo_stderr, print_json, print_table
from onefold._cli.seen_consumers import explain_unseen
from onefold._cli.session import CommandSession, session
from onefold._cli.times import moment_of
from onefold._inbox.failed_lists import find_failed, list_failed_consumers
from onefold._inbox.failed_messages import count_failed, list_summaries
from onefold._inbox.redrive import Filter
from onefold._inbox.stored_message import UNKNOWN_TOPIC, FailedMessage
from onefold._kernel.readable import harmless, moment, write_count
from onefold._steps.unfinished_works import WORKS_MAX, WorkView, list_works
from onefold.errors import ConfigurationError

#: Frames of onefold's inner modules with their lines of source: a handler is never among them.
_OWN_FRAMES: Final = re.compile(
    r'(?:^  File "[^"\n]*[/\\]onefold[/\\](?:_\w+|db|brokers)[/\\][^\n]*\n(?:    [^\n]*\n)*)+', re.M
)
_FRAME: Final = re.compile(r"^  File ", re.M)


class State(StrEnum):
    """Which failed messages are listed."""

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
    state: Annotated[
        State, typer.Option(help="Dead letters; or those that wait, for an attempt or an earlier message; or all.")
    ] = State.DEAD,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List dead letters: messages that are not tried again until a person says so."""
    begin, end = moment_of(since, "--since"), moment_of(until, "--until")
    letters: list[dict[str, Any]] = []
    with session(database) as db:
        for name in [consumer] if consumer else db.run(list_failed_consumers(db.dialect)):
            chosen = Filter(consumer=name, topic=topic or None, reason=reason or None, since=begin, until=end)
            if len(letters) < limit:
                fit = db.run(list_summaries(db.dialect, chosen, state=_STATES[state], limit=limit - len(letters)))
                letters += [_summary(name, failed_message) for failed_message in fit]
        unseen = explain_unseen(db, consumer) if consumer and not letters else ""
        hints = [] if state is not State.DEAD or as_json else list(_hints(db, consumer, topic))
    if unseen:
        echo_stderr(unseen)
        if as_json:
            print_json(letters)
        raise typer.Exit(1)
    if as_json:
        print_json(letters)
        return
    columns = ("id", "consumer", "topic", "key", "state", "failed", "died", "reason")
    if letters:
        print_table("", columns, [[each[column] for column in columns] for each in letters])
    label = "dead letters" if state is State.DEAD else "failed messages"
    typer.echo(f"{label}: {len(letters)}" + (", perhaps more: raise --limit" if len(letters) == limit else ""))
    for hint in hints:
        typer.echo(hint)


def _hints(db: CommandSession, consumer: str, topic: str) -> Iterator[str]:
    """Where else to look: waiting messages, and parked works."""
    if waiting := _count_waiting(db, consumer, topic):
        yield (
            "waiting for their next try, for a process that has their topic, or behind an earlier message of their "
            f"key: {waiting}; see --state waiting"
        )
    if consumer or topic:
        return
    works = db.run(list_works(db.dialect, parked_only=True, limit=WORKS_MAX))
    # A message that is parked at its steps is a dead letter, too.
    if parked := sum(work.kind != "message" for work in works):
        yield f"requests and works that wait for a person: {parked}; see `onefold keys list --parked`"


def _count_waiting(db: CommandSession, consumer: str, topic: str) -> int:
    """Messages that failed and are not dead: they are tried again by themselves, or when their key goes on."""
    return sum(
        tally.failed_messages
        for tally in db.run(count_failed(db.dialect))
        if tally.state == "waiting" and consumer in ("", tally.consumer) and topic in ("", tally.topic)
    )


def show_command(
    message_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show one failed message: its headers, its data, and the error of each attempt."""
    with session(database) as db:
        name, failed_message = _find(db, message_id, consumer)
        work = db.run(find_message_work(db.dialect, name, failed_message))
    if as_json:
        origin = {
            "broker": failed_message.origin.broker,
            "subject": failed_message.origin.subject,
            "id": failed_message.origin.id,
        }
        content = {
            "origin": origin,
            "headers": failed_message.headers,
            **_data(failed_message),
            "history": failed_message.history,
        }
        recorded = None if work is None else {"id": work.id, "state": work.state, "steps": work.steps}
        print_json({**_summary(name, failed_message), "work": recorded, **content})
    else:
        _print(name, failed_message, work)


def _find(db: CommandSession, message_id: str, consumer: str) -> tuple[str, FailedMessage]:
    """The one failed message of this id, with the name of its consumer."""
    names = [consumer] if consumer else db.run(list_failed_consumers(db.dialect))
    matches = [
        (name, failed_message)
        for name in names
        if (failed_message := db.run(find_failed(db.dialect, name, message_id))) is not None
    ]
    if not matches:
        raise not_there(message_id, consumer=consumer)
    if len(matches) > 1:
        owners = ", ".join(name for name, _ in matches)
        raise ConfigurationError(
            f"several consumers have a failed message {message_id!r} ({owners}): name one with --consumer"
        )
    return matches[0]


def _summary(consumer: str, failed_message: FailedMessage) -> dict[str, Any]:
    message = failed_message.message
    return {
        "id": failed_message.id,
        "consumer": consumer,
        "state": failed_message.state,
        "source": message.source if message else None,
        "topic": None if failed_message.topic == UNKNOWN_TOPIC else failed_message.topic,
        "key": message.key if message else failed_message.origin.key,
        "version": message.version if message else None,
        "reason": failed_message.reason,
        "started": failed_message.started,
        "failed": failed_message.failed,
        "created": moment(failed_message.created_ms),
        "died": moment(failed_message.died_ms),
        "due_in_s": failed_message.due_in_s,
        "redrive": failed_message.redrive,
    }


def _data(failed_message: FailedMessage) -> dict[str, Any]:
    """The data, decoded as far as possible: JSON, text, or bytes in Base64."""
    try:
        text = failed_message.data.decode()
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(failed_message.data).decode()}
    try:
        return {"data": json.loads(text)}
    except (ValueError, RecursionError):
        return {"data_text": text}


def _explain_work(work: WorkView) -> str:
    """What is recorded of the message's steps, and what that means for its next attempt."""
    recorded = f"{write_count(work.steps, 'step is', 'steps are')} recorded"
    line = f"{recorded if work.steps else 'nothing is recorded of its steps'} (work {work.id})"
    show, release = f"`onefold keys show {work.id}`", f"`onefold keys release {work.id}` to begin from the start"
    if work.state == "running":
        return f"{line}, and a process is handling the message; see {show}"
    if work.waits_for_person:
        problem = work.reason or "outcome unknown"
        return (
            f"{line}, and wait for a person: {problem}; see {show}, then `onefold keys resume {work.id}`, or {release}"
        )
    if not work.steps:
        return f"{line}: a redrive begins from the start; see {show}"
    return f"{line}: a redrive goes on behind them; see {show}, or {release}"


def _fold(traceback: str) -> str:
    """The traceback with onefold's own frames counted, one line for those that follow each other."""

    def count(run: re.Match[str]) -> str:
        return f"  ... {write_count(len(_FRAME.findall(run[0])), 'frame')} of onefold, which --json has\n"

    return _OWN_FRAMES.sub(count, traceback)


def _print(consumer: str, failed_message: FailedMessage, work: WorkView | None) -> None:
    counts = {
        "started": f"{write_count(failed_message.started, 'attempt')} since it came or was last redriven",
        "failed": f"{failed_message.failed} of these attempts",
    }
    for name, value in {**_summary(consumer, failed_message), **counts}.items():
        if value is not None:
            typer.echo(f"{name + ':':<10} {harmless(str(value))}")
    if work is not None:
        typer.echo(harmless(_explain_work(work)))
    typer.echo("\norigin")
    for name, value in (
        ("broker", failed_message.origin.broker),
        ("subject", failed_message.origin.subject),
        ("id", failed_message.origin.id),
    ):
        typer.echo(f"  {name}: {harmless(value or '-')}")
    typer.echo("\nheaders")
    for name, value in sorted(failed_message.headers.items()):
        typer.echo(f"  {harmless(name)}: {harmless(value)}")
    [(kind, data)] = _data(failed_message).items()
    typer.echo(f"\n{kind}")
    typer.echo(harmless(data if isinstance(data, str) and kind != "data" else json.dumps(data, indent=2)))
    for failure in failed_message.history:
        typer.echo(f"\n{failure['at']} {harmless(failure['error'])}\n{harmless(_fold(failure['traceback']))}")
