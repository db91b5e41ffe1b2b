"""`onefold consumers pause|resume`: a consumer receives nothing, in all its processes, until it is resumed."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.asking import asked
from onefold.cli.options import ACTOR, DATABASE, NAME, acting
from onefold.errors import ConfigurationError
from onefold.inbox.pausing import pause, resume


def pause_command(
    name: Annotated[str, NAME], database: Annotated[str, DATABASE] = "", actor: Annotated[str, ACTOR] = ""
) -> None:
    """Pause a consumer, wherever it runs and whenever it is started: what it has in hand is finished, its messages wait
    at the broker."""
    if not asked(database, lambda dialect: pause(dialect, name, acting(actor))):
        raise ConfigurationError(f"consumer {name!r} is paused already; `onefold consumers resume {name}` ends that")
    typer.echo(f"paused: {name}; its processes stop receiving within seconds, until: onefold consumers resume {name}")


def resume_command(
    name: Annotated[str, NAME], database: Annotated[str, DATABASE] = "", actor: Annotated[str, ACTOR] = ""
) -> None:
    """Have a consumer go on that was paused."""
    if not asked(database, lambda dialect: resume(dialect, name, acting(actor))):
        raise ConfigurationError(f"consumer {name!r} is not paused")
    typer.echo(f"resumed: {name}")
