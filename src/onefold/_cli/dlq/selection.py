"""Which failed messages: the filters the commands share, and of which consumer where none is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import typer

from onefold._cli.session import CommandSession
from onefold._inbox.failed_messages import count_failed, list_failed
from onefold._inbox.stored_message import FailedMessage
from onefold.errors import ConfigurationError

CONSUMER = typer.Option("--consumer", "-c", help="Consumer. May be left out where only one has failed messages.")
REASON = typer.Option("--reason", help="Only those whose reason contains this.")
SINCE = typer.Option(
    "--since", help="Only those that died at this time or later: 2026-07-01T12:00Z, or an age such as 90m, 2h, 7d."
)
UNTIL = typer.Option("--until", help="Only those that died before this time.")

#: Failed messages that are read in one go: each may have half a megabyte of data.
PAGE: Final = 100


def consumers_with_failed_messages(session: CommandSession) -> list[str]:
    return sorted({tally.consumer for tally in session.ask(count_failed(session.dialect))})


def consumer_of(session: CommandSession, given: str) -> str:
    """The consumer that was named, or the only one that can be meant."""
    if given:
        return given
    names = consumers_with_failed_messages(session)
    if not names:
        raise ConfigurationError("there are no failed messages")
    if len(names) > 1:
        raise ConfigurationError(
            f"several consumers have failed messages ({', '.join(names)}): name one with --consumer"
        )
    return names[0]


def failed_messages(
    session: CommandSession,
    consumer: str,
    *,
    state: Literal["waiting", "dead"] | None = None,
    topic: str | None = None,
    after: str | None = None,
) -> Iterator[FailedMessage]:
    """All failed messages of a consumer, page by page, in the order of their ids."""
    while True:
        page = session.ask(list_failed(session.dialect, consumer, state=state, topic=topic, after=after, limit=PAGE))
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].id


def failed_message_of(session: CommandSession, consumer: str, message_id: str) -> FailedMessage | None:
    """One failed message. Its id without the last character comes before it in every collation, and not long before."""
    for failed_message in failed_messages(session, consumer, after=message_id[:-1]):
        if failed_message.id == message_id:
            return failed_message
    return None
