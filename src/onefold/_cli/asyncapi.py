"""`onefold asyncapi`: print an application's AsyncAPI document."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from onefold._cli.options import TARGET_HELP
from onefold._cli.output import print_json
from onefold._cli.targets import close_onefold, load_target, open_target


def command(
    target: Annotated[str, typer.Argument(help=TARGET_HELP, show_default=False)],
    title: Annotated[str, typer.Option(help="The document's title; by default the application's source.")] = "",
    app_version: Annotated[str, typer.Option(help="The version of the application's interface.")] = "1.0.0",
) -> None:
    """Print an AsyncAPI 3 document, as JSON: what the application's consumers receive, what it says that it publishes
    (once.publishes), and the schemas of typed data."""
    asyncio.run(_main(target, load_target(target), title, app_version))


async def _main(target: str, value: object, title: str, version: str) -> None:
    once = await open_target(target, value)
    try:
        print_json(once.asyncapi(title=title or None, version=version))
    finally:
        await close_onefold(once)
