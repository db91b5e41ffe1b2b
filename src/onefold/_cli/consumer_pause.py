"""`onefold consumers pause|resume`: a consumer receives nothing, in all its processes, until it is resumed."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold._cli.options import ACTOR, DATABASE, JSON, NAME, actor_name
from onefold._cli.output import print_done
from onefold._cli.seen_consumers import explain_unseen
from onefold._cli.session import CommandSession, run_on_database, session
from onefold._inbox.consumer import check_name
from onefold._inbox.pausing import pause, resume
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
            _refuse_unseen(db, name)
        is_paused = db.run(pause(db.dialect, name, actor_name(actor)))
    if not is_paused:
        raise ConfigurationError(f"consumer {name!r} is paused already; `onefold consumers resume {name}` ends that")
    hint = f"; its processes stop receiving within seconds, until: onefold consumers resume {name}"
    print_done("paused", name, hint, as_json=as_json)


def _refuse_unseen(db: CommandSession, name: str) -> None:
    """Refuse an unknown name: a pause under a mistyped name would seem to work while the consumer goes on."""
    if unseen := explain_unseen(db, name):
        raise ConfigurationError(f"{unseen} --yes pauses it before its first start")


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
