"""`onefold consumers pause|resume`: a consumer receives nothing, in all its processes, until it is resumed."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Annotated

import typer

from onefold._cli.options import ACTOR, DATABASE, JSON, NAME, actor_name
from onefold._cli.output import print_done
from onefold._cli.session import run_on_database, session
from onefold._inbox.consumer import check_name
from onefold._inbox.pausing import pause, pauses, resume
from onefold._inbox.registry import list_consumers
from onefold.errors import ConfigurationError


def pause_command(
    name: Annotated[str, NAME],
    database: Annotated[str, DATABASE] = "",
    actor: Annotated[str, ACTOR] = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Pause it even if this database has never seen such a consumer.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Pause a consumer in all its processes, also those started later: what it has in hand is finished, its messages
    wait at the broker."""
    check_name(name)
    with session(database) as db:
        if not yes:
            known = [
                *db.run(list_consumers(db.dialect)),
                *(each.consumer for each in db.run(pauses(db.dialect))),
            ]
            _refuse_unseen(name, known)
        is_paused = db.run(pause(db.dialect, name, actor_name(actor)))
    if not is_paused:
        raise ConfigurationError(f"consumer {name!r} is paused already; `onefold consumers resume {name}` ends that")
    hint = f"; its processes stop receiving within seconds, until: onefold consumers resume {name}"
    print_done("paused", name, hint, as_json=as_json)


def _refuse_unseen(name: str, known: Collection[str]) -> None:
    """Refuse an unknown name: a pause under a mistyped name would seem to work while the consumer goes on."""
    if name not in known:
        close = get_close_matches(name, known, 1)
        suggestion = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigurationError(
            f"no consumer {name!r} has been seen in this database; {suggestion}--yes pauses it before its first start"
        )


def resume_command(
    name: Annotated[str, NAME],
    database: Annotated[str, DATABASE] = "",
    actor: Annotated[str, ACTOR] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Resume a paused consumer."""
    if not run_on_database(database, lambda dialect: resume(dialect, name, actor_name(actor))):
        raise ConfigurationError(f"consumer {name!r} is not paused")
    print_done("resumed", name, as_json=as_json)
