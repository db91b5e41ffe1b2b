"""`onefold endpoints`: where webhooks go, how each endpoint fares; adding, disabling and removing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from onefold._cli.options import DATABASE, JSON, NAME, YES, actor_name, confirm
from onefold._cli.output import print_done, print_json, print_table
from onefold._cli.session import run_on_database
from onefold._kernel.effects import Flow
from onefold._kernel.readable import moment
from onefold._kernel.redaction import redact
from onefold.brokers._endpoints import EndpointSeen, add, disable, enable, endpoints, remove
from onefold.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Endpoints of webhooks: list, add, disable, enable and remove them.")


@app.command("list")
def list_command(database: Annotated[str, DATABASE] = "", as_json: Annotated[bool, JSON] = False) -> None:
    """List the endpoints and how deliveries to them end. Paths may be secret, and are not shown."""
    rows = [_describe(each) for each in run_on_database(database, endpoints)]
    if as_json:
        print_json(rows)
    elif rows:
        print_table("", tuple(rows[0]), [tuple(each.values()) for each in rows])
    else:
        typer.echo("there are no endpoints")


@app.command("add")
def add_command(
    name: Annotated[str, NAME],
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False)],
    topic: Annotated[
        list[str], typer.Option("--topic", "-t", help="Its topics, or patterns (order.*, order.>); '*' is every topic.")
    ],
    database: Annotated[str, DATABASE] = "",
    secret: Annotated[
        str,
        typer.Option(
            envvar="ONEFOLD_ENDPOINT_SECRET", help="whsec_...; without one, the broker's own.", show_default=False
        ),
    ] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Add an endpoint, or change one. Relays have it within a second."""
    run_on_database(database, lambda dialect: add(dialect, name, url, topic, secret=secret or None))
    print_done("added", name, as_json=as_json)


@app.command("disable")
def disable_command(
    name: Annotated[str, NAME], database: Annotated[str, DATABASE] = "", as_json: Annotated[bool, JSON] = False
) -> None:
    """Send nothing to an endpoint. What waits for it stays in the outbox; new events are not kept for it."""
    by = f"disabled by {actor_name('')}"
    _act(database, name, lambda dialect: disable(dialect, name, by), "disabled", as_json=as_json)


@app.command("enable")
def enable_command(
    name: Annotated[str, NAME], database: Annotated[str, DATABASE] = "", as_json: Annotated[bool, JSON] = False
) -> None:
    """Send to an endpoint again. For what became a dead letter meanwhile: onefold outbox retry --destination NAME."""
    _act(database, name, lambda dialect: enable(dialect, name), "enabled", as_json=as_json)


@app.command("remove")
def remove_command(
    name: Annotated[str, NAME],
    database: Annotated[str, DATABASE] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Remove an endpoint. For what still waits for it: onefold outbox discard --destination NAME."""
    confirm(f"Remove the endpoint {name}?", yes=yes)
    _act(database, name, lambda dialect: remove(dialect, name), "removed", as_json=as_json)


def _act(database: str, name: str, make_flow: Callable[[str], Flow[int]], verb: str, *, as_json: bool) -> None:
    if run_on_database(database, make_flow) == 0:
        raise ConfigurationError(f"there is no endpoint {name!r} that could be {verb}; see `onefold endpoints list`")
    print_done(verb, name, as_json=as_json)


def _describe(each: EndpointSeen) -> dict[str, object]:
    return {
        "name": each.name,
        "url": redact(each.url),
        "topics": ", ".join(each.topics),
        "failures": each.failures,
        "failing since": moment(each.failing_since_ms),
        "disabled": moment(each.disabled_at_ms),
        "error": each.last_error,
    }
