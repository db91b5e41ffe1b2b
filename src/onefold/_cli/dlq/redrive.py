"""`onefold dlq redrive`, `jobs` and `cancel`: try dead letters again, at a rate, as a job."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress

from onefold._cli.dlq.selection import CONSUMER, REASON, SINCE, UNTIL, consumer_of
from onefold._cli.options import ACTOR, DATABASE, JSON, TOPIC, WHY, actor_name
from onefold._cli.output import echo_stderr, print_json, print_table
from onefold._cli.seen_consumers import explain_unseen
from onefold._cli.session import CommandSession, run_on_database, session
from onefold._cli.times import moment_of
from onefold._inbox.consumer import DAY_S
from onefold._inbox.failed_lists import list_jobs
from onefold._inbox.redrive import REDRIVE_MAX, Filter, Job, Preview, cancel, job_of, preview, redrive
from onefold._kernel.readable import moment, write_count

_LOOK_EVERY_S: Final = 0.25


def redrive_command(
    ids: Annotated[list[str] | None, typer.Argument(help="Only these; without any, all that match.")] = None,
    database: Annotated[str, DATABASE] = "",
    consumer: Annotated[str, CONSUMER] = "",
    topic: Annotated[str, TOPIC] = "",
    reason: Annotated[str, REASON] = "",
    since: Annotated[str, SINCE] = "",
    until: Annotated[str, UNTIL] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and stop.")] = False,
    rate: Annotated[float, typer.Option(help="Dead letters per second.")] = 10,
    limit: Annotated[int, typer.Option(min=1, max=REDRIVE_MAX, help="At most this many.")] = 10_000,
    days_max: Annotated[
        float,
        typer.Option("--days", min=0, help="Only those that died within so many days: the consumer's dead_letter_s."),
    ] = 7,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit code 1 if some are dead again.")] = False,
    actor: Annotated[str, ACTOR] = "",
    why: Annotated[str, WHY] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Redrive dead letters: try them again, in the order of their keys."""
    begin, end = moment_of(since, "--since"), moment_of(until, "--until")
    with session(database) as db:
        chosen = Filter(
            consumer=consumer_of(db, consumer),
            topic=topic or None,
            reason=reason or None,
            since=begin,
            until=end,
            ids=tuple(ids) if ids else None,
        )
        age_s = days_max * DAY_S
        if dry_run:
            _print_preview(chosen.consumer, db.run(preview(db.dialect, chosen, dead_letter_s=age_s)), as_json)
            _warn_of_unseen(unseen := explain_unseen(db, chosen.consumer))
            raise typer.Exit(1 if unseen else 0)
        started = redrive(
            db.dialect, chosen, actor=actor_name(actor), per_second=rate, limit=limit, dead_letter_s=age_s, why=why
        )
        job = db.run(started)
        unseen = "" if job.failed_messages else explain_unseen(db, chosen.consumer)
        unfit = 0 if job.failed_messages else db.run(preview(db.dialect, chosen, dead_letter_s=age_s)).unfit
        if wait and job.failed_messages:
            job = _wait_for(db, job)
    hint = f"; {unfit} died more than {days_max:g} days ago: see --days" if unfit else ""
    _print_job(job, as_json=as_json, hint=hint)
    _warn_of_unseen(unseen)
    if not job.failed_messages or (wait and job.dead):
        raise typer.Exit(1)


def _warn_of_unseen(unseen: str) -> None:
    if unseen:
        echo_stderr(unseen)


def jobs_command(
    database: Annotated[str, DATABASE] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List redrives, the newest first, and how they stand."""
    with session(database) as db:
        jobs = [
            {**_job(each.job), "actor": each.actor, "started": moment(each.started_ms)}
            for each in db.run(list_jobs(db.dialect, limit=limit))
        ]
    if as_json:
        print_json(jobs)
        return
    columns = ("id", "consumer", "actor", "started", "failed_messages", "gone", "waiting", "dead", "cancelled")
    if jobs:
        titles = ["messages" if column == "failed_messages" else column for column in columns]
        print_table("", titles, [[each[column] for column in columns] for each in jobs])
        typer.echo("gone: handled, discarded, or taken by a later redrive")
    else:
        typer.echo("there are no redrives")


def cancel_command(
    job_id: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    database: Annotated[str, DATABASE] = "",
    actor: Annotated[str, ACTOR] = "",
    why: Annotated[str, WHY] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Cancel a redrive: what was not tried yet is dead again."""
    job = run_on_database(database, lambda dialect: cancel(dialect, job_id, actor=actor_name(actor), why=why))
    _print_job(job, as_json=as_json)


def _wait_for(db: CommandSession, job: Job) -> Job:
    echo_stderr(
        f"redrive {job.id} of {write_count(job.failed_messages, 'message')}; stop waiting with Ctrl-C, stop it with "
        "`onefold dlq cancel`"
    )
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("redriven", total=job.failed_messages)
        while True:
            job = db.run(job_of(db.dialect, job.id))
            progress.update(bar, completed=job.failed_messages - job.waiting)
            if job.cancelled or not job.waiting:
                return job
            time.sleep(_LOOK_EVERY_S)


def _job(job: Job) -> dict[str, Any]:
    return {**asdict(job), "gone": job.gone}


def _print_job(job: Job, *, as_json: bool, hint: str = "") -> None:
    if as_json:
        print_json(_job(job))
    elif not job.failed_messages:
        typer.echo(f"no dead letter of {job.consumer} fits{hint}")
    else:
        action = "cancelled" if job.cancelled else "redrive"
        typer.echo(
            f"{action} {job.id}: {write_count(job.failed_messages, 'failed message')} of {job.consumer}; "
            f"{job.waiting} waiting, {job.dead} dead again"
        )


def _print_preview(consumer: str, summary: Preview, as_json: bool) -> None:
    if as_json:
        print_json({"consumer": consumer, "failed_messages": summary.failed_messages, **asdict(summary)})
        return
    typer.echo(f"would redrive {write_count(summary.failed_messages, 'dead letter')} of {consumer}")
    if summary.groups:
        rows = [(group.topic, group.failed_messages, group.unfit, group.reason) for group in summary.groups]
        print_table("", ("topic", "messages", "too old", "reason"), rows)
    if summary.first:
        typer.echo("first: " + ", ".join(summary.first))
