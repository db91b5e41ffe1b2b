"""`onefold intents`: calls without a known end, and forgetting one on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer

from onefold._cli.options import JSON, YES, confirm
from onefold._cli.output import answer, print_table
from onefold._cli.session import CommandSession, session
from onefold._client.journal.location import default_journal
from onefold._client.journal.queries import counts, forget, intent_of, intents
from onefold._client.journal.records import IntentCounts, IntentView
from onefold._kernel.readable import age, harmless, moment
from onefold._kernel.redaction import redact
from onefold.errors import ConfigurationError

app = typer.Typer(
    help="List the intents whose calls ended without an answer, or still run, the oldest first; forget one on purpose. "
    "The column tries is how often a call was begun under its key, by any process; the attempts of one call, which the "
    "client makes by itself, count once."
)

_PAGE = 500
_HELP = "The key journal: the path of a SQLite file, or postgresql://...; by default this user's own."

#: For all of `intents`. The variable is read here only: a command's own option would hide what is given before it.
_JOURNAL = typer.Option("--database", "-d", envvar="ONEFOLD_JOURNAL", help=_HELP, show_default=False)
_JOURNAL_AFTER = typer.Option("--database", "-d", help=_HELP, show_default=False)


@app.callback(invoke_without_command=True)
def look(
    context: typer.Context,
    database: Annotated[str, _JOURNAL] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that were answered.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List the intents whose calls ended without an answer, or still run; the oldest first."""
    context.obj = database
    if context.invoked_subcommand is not None:
        return
    whose = _journal(database)
    with session(whose) as db:
        found = list(islice(_all(db, unresolved_only=not everything), limit))
        summary = db.ask(counts(db.dialect))
    if as_json:
        answer({**asdict(summary), "intents": [_describe(each) for each in found]})
    else:
        _print(whose, found, summary, everything=everything)


@app.command("forget")
def forget_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    database: Annotated[str, _JOURNAL_AFTER] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Forget an intent and its key. Its name is free then: the next call under it gets a new key."""
    with session(_journal(database or context.obj)) as db:
        found = db.ask(intent_of(db.dialect, name))
        if found is None:
            raise ConfigurationError(f"there is no intent {name!r} in the journal; `onefold intents --all` lists them")
        ended = "never answered" if found.status is None else f"answered with {found.status}"
        confirm(
            harmless(
                f"{found.target}, key {found.key}, was claimed {age(found.age_s)} ago and {ended}.\n"
                f"If it happened and is called again, it happens twice. Forget intent {name!r}?"
            ),
            yes=yes,
        )
        gone = db.ask(forget(db.dialect, name))
    if as_json:
        answer({"forgotten": int(gone), **_describe(found)})
    else:
        typer.echo(harmless(f"forgotten: {name}, key {found.key}"))


def _journal(database: str) -> str:
    """What was given, or the file that clients use by themselves."""
    if database:
        return database
    file = default_journal()
    if not file.exists():
        raise ConfigurationError(
            f"there is no key journal {str(file)!r}: no client of this user has named an intent yet; name another "
            "journal with --database or ONEFOLD_JOURNAL"
        )
    return f"sqlite:///{file}"


def _all(db: CommandSession, *, unresolved_only: bool) -> Iterator[IntentView]:
    after: int | None = None
    while page := db.ask(intents(db.dialect, unresolved_only, _PAGE, after)):
        yield from page
        after = page[-1].position


def _describe(each: IntentView) -> dict[str, Any]:
    return {
        "intent": each.intent,
        "target": each.target,
        "key": each.key,
        "age_s": each.age_s,
        "tries": each.tries,
        "reason": each.reason,
        "status": each.status,
        "claimed": moment(each.created_ms),
        "resolved": moment(each.resolved_ms),
    }


def _print(whose: str, found: list[IntentView], summary: IntentCounts, *, everything: bool) -> None:
    more = "at least " if summary.cut else ""
    typer.echo(f"key journal {redact(whose)}")
    typer.echo(f"unresolved: {more}{summary.unresolved}, the oldest for {age(summary.oldest_s)}")
    if not found:
        return
    columns = ("intent", "target", "age", "key", "tries", *(("status",) if everything else ()), "reason")
    rows = [
        (
            each.intent,
            each.target,
            age(each.age_s),
            each.key,
            each.tries,
            *((each.status,) if everything else ()),
            each.reason,
        )
        for each in found
    ]
    print_table("", columns, rows)
    total = summary.unresolved + (summary.resolved if everything else 0)
    if len(found) < total:
        typer.echo(f"{len(found)} of {more}{total} are shown: raise --limit")
