"""`onefold intents`: calls without a known end, and forgetting one on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer

from onefold._cli.options import JSON, YES, confirm
from onefold._cli.output import print_json, print_table
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
    journal = _journal(database)
    with session(journal) as db:
        listed = list(islice(_all(db, unresolved_only=not everything), limit))
        summary = db.run(counts(db.dialect))
    if as_json:
        print_json({**asdict(summary), "intents": [_describe(each) for each in listed]})
    else:
        _print(journal, listed, summary, everything=everything)


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
        intent = db.run(intent_of(db.dialect, name))
        if intent is None:
            raise ConfigurationError(f"there is no intent {name!r} in the journal; `onefold intents --all` lists them")
        ended = "never answered" if intent.status is None else f"answered with {intent.status}"
        confirm(
            harmless(
                f"{intent.target}, key {intent.key}, was claimed {age(intent.age_s)} ago and {ended}.\n"
                f"If it happened and is called again, it happens twice. Forget intent {name!r}?"
            ),
            yes=yes,
        )
        is_forgotten = db.run(forget(db.dialect, name))
    if as_json:
        print_json({"forgotten": int(is_forgotten), **_describe(intent)})
    else:
        typer.echo(harmless(f"forgotten: {name}, key {intent.key}"))


def _journal(database: str) -> str:
    """The journal of --database, or the file that clients use by default."""
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
    while page := db.run(intents(db.dialect, unresolved_only, _PAGE, after)):
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


def _print(journal: str, listed: list[IntentView], summary: IntentCounts, *, everything: bool) -> None:
    more = "at least " if summary.cut else ""
    typer.echo(f"key journal {redact(journal)}")
    if summary.oldest_s is None:
        typer.echo("nothing is unresolved")
    else:
        typer.echo(f"unresolved: {more}{summary.unresolved}, the oldest for {age(summary.oldest_s)}")
    if not listed:
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
        for each in listed
    ]
    print_table("", columns, rows)
    total = summary.unresolved + (summary.resolved if everything else 0)
    if len(listed) < total:
        typer.echo(f"{len(listed)} of {more}{total} are shown: raise --limit")
