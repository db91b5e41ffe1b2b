"""Which letters: the filters the commands share, and whose letters are meant where nobody said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import typer

from onefold.cli.asking import Desk
from onefold.errors import ConfigurationError
from onefold.inbox.letters import LetterView, listed, tallied

CONSUMER = typer.Option("--consumer", "-c", help="Whose letters. May be left out where only one consumer has any.")
REASON = typer.Option("--reason", help="Whose reason contains this.")
SINCE = typer.Option("--since", help="Died at this time or later: 2026-07-01T12:00Z, or an age such as 90m, 2h, 7d.")
UNTIL = typer.Option("--until", help="Died before this time.")

#: Letters that are looked at in one go: each may have half a megabyte of data.
PAGE: Final = 100


def consumers_with_letters(desk: Desk) -> list[str]:
    return sorted({tally.consumer for tally in desk.ask(tallied(desk.dialect))})


def consumer_of(desk: Desk, given: str) -> str:
    """The consumer that was named, or the only one that can be meant."""
    if given:
        return given
    names = consumers_with_letters(desk)
    if not names:
        raise ConfigurationError("there are no letters")
    if len(names) > 1:
        raise ConfigurationError(f"several consumers have letters ({', '.join(names)}): name one with --consumer")
    return names[0]


def letters(
    desk: Desk,
    consumer: str,
    *,
    state: Literal["waiting", "dead"] | None = None,
    topic: str | None = None,
    after: str | None = None,
) -> Iterator[LetterView]:
    """All letters of a consumer, page by page, in the order of their ids."""
    while True:
        page = desk.ask(listed(desk.dialect, consumer, state=state, topic=topic, after=after, limit=PAGE))
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].id


def letter_of(desk: Desk, consumer: str, message_id: str) -> LetterView | None:
    """One letter. Its id without the last character comes before it in every collation, and not long before."""
    for letter in letters(desk, consumer, after=message_id[:-1]):
        if letter.id == message_id:
            return letter
    return None
