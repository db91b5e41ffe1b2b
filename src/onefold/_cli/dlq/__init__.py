"""`onefold dlq`: dead letters, and what people do with them. One file per kind of command."""

from __future__ import annotations

import typer

from onefold._cli.dlq import discard, inspect, redrive

app = typer.Typer(no_args_is_help=True, help="Dead letters: look at them, try them again, go on without them.")
app.command("list")(inspect.list_command)
app.command("show")(inspect.show_command)
app.command("redrive")(redrive.redrive_command)
app.command("jobs")(redrive.jobs_command)
app.command("cancel")(redrive.cancel_command)
app.command("discard")(discard.discard_command)
app.command("skip")(discard.skip_command)
app.command("resume")(discard.resume_command)
