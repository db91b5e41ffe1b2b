"""`onefold dlq`: failed messages, dead letters first, and what operators do with them. One file per kind of command."""

from __future__ import annotations

import typer

from onefold._cli.dlq import discard, redrive, show

app = typer.Typer(no_args_is_help=True, help="Failed messages: list dead letters, redrive, discard or skip them.")
app.command("list")(show.list_command)
app.command("show")(show.show_command)
app.command("redrive")(redrive.redrive_command)
app.command("jobs")(redrive.jobs_command)
app.command("cancel")(redrive.cancel_command)
app.command("discard")(discard.discard_command)
app.command("skip")(discard.skip_command)
app.command("resume")(discard.resume_command)
