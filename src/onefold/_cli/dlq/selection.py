"""The filters that the dlq commands share, and the consumer where none is named."""

from __future__ import annotations

import typer

from onefold._cli.session import CommandSession
from onefold._inbox.failed_lists import list_failed_consumers
from onefold.errors import ConfigurationError

CONSUMER = typer.Option("--consumer", "-c", help="Consumer. May be left out where only one has failed messages.")
REASON = typer.Option("--reason", help="Only those whose reason contains this.")
SINCE = typer.Option(
    "--since", help="Only those that died at this time or later: 2026-07-01T12:00Z, or an age such as 90m, 2h, 7d."
)
UNTIL = typer.Option("--until", help="Only those that died before this time.")


def not_there(*ids: str, consumer: str) -> ConfigurationError:
    """No failed message has any of these ids. Without a consumer, in none of them."""
    owner = f" of consumer {consumer!r}" if consumer else ""
    return ConfigurationError(f"there is no failed message {' or '.join(map(repr, ids))}{owner}")


def consumer_of(session: CommandSession, name: str) -> str:
    """The named consumer, or the only one that has failed messages."""
    if name:
        return name
    names = session.run(list_failed_consumers(session.dialect))
    if not names:
        raise ConfigurationError("there are no failed messages")
    if len(names) > 1:
        raise ConfigurationError(
            f"several consumers have failed messages ({', '.join(names)}): name one with --consumer"
        )
    return names[0]
