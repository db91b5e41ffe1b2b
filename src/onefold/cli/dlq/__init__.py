"""`onefold dlq`: dead letters, and what people do with them. One file per kind of command."""

from __future__ import annotations

import typer

from onefold.cli.dlq import looking, redriving, settling

app = typer.Typer(no_args_is_help=True, help="Dead letters: look at them, try them again, go on without them.")
app.command("list")(looking.list_command)
app.command("show")(looking.show_command)
app.command("redrive")(redriving.redrive_command)
app.command("jobs")(redriving.jobs_command)
app.command("cancel")(redriving.cancel_command)
app.command("discard")(settling.discard_command)
app.command("skip")(settling.skip_command)
app.command("resume")(settling.resume_command)
