"""The manual of the command line: groups, examples and exit codes, in one place. The help prints it, docs/commands.md
repeats it, and a test compares both with the existing commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import typer

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Begin": ("init", "migrate", "docs"),
    "Long-running processes": ("relay", "consume", "complete", "console"),
    "Cron": ("reap",),
    "Inspect and repair": ("doctor", "outbox", "dlq", "keys", "consumers", "recurring", "endpoints", "intents", "saga"),
    "Plan and test": ("capacity", "storm", "verify", "metrics", "asyncapi"),
}

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "init": ("onefold init orders --framework fastapi --database postgres --broker nats",),
    "migrate": ("onefold migrate -d postgresql://shop@localhost/shop", "onefold migrate -d app.db --print"),
    "docs": ("onefold docs deployment", "onefold docs metrics OnefoldNoRelay"),
    "relay": ("onefold relay shop:once --health-port 8081", "onefold relay -d $DATABASE_URL -b nats://localhost"),
    "consume": ("onefold consume shop:once --health-port 8082",),
    "complete": ("onefold complete shop:app", "onefold complete shop:app --once --json"),
    "console": ("onefold console -d postgresql://shop@localhost/shop",),
    "reap": ("onefold reap -d app.db", "onefold reap --print-cron"),
    "doctor": ("onefold doctor -d app.db", "onefold doctor shop:once --json"),
    "outbox": ("onefold outbox -d app.db", "onefold outbox -d app.db retry --topic order.placed"),
    "outbox list": ("onefold outbox -d app.db list --dead",),
    "outbox retry": ("onefold outbox -d app.db retry --topic order.placed",),
    "outbox discard": ("onefold outbox -d app.db discard --topic order.placed --reason refused",),
    "outbox cancel": ("onefold outbox -d app.db cancel 01980c5e-7b1a-7c3e-9d5f-3a1b2c4d5e6f",),
    "dlq": ("onefold dlq list -d app.db", "onefold dlq redrive -d app.db --consumer shipping --wait"),
    "dlq list": ("onefold dlq list -d app.db --consumer shipping --json",),
    "dlq show": ("onefold dlq show m-42 -d app.db",),
    "dlq redrive": ("onefold dlq redrive -d app.db --reason TimeoutError --rate 50 --wait",),
    "dlq jobs": ("onefold dlq jobs -d app.db",),
    "dlq cancel": ("onefold dlq cancel 01980c5e-7b1a-7c3e-9d5f-3a1b2c4d5e6f -d app.db",),
    "dlq discard": ("onefold dlq discard m-42 -d app.db --why 'a test order'",),
    "dlq skip": ("onefold dlq skip m-42 -d app.db",),
    "dlq resume": ("onefold dlq resume m-42 -d app.db",),
    "keys": (
        "onefold keys show 7c1f-order-42 --principal acme --app shop:once",
        "onefold keys list -d app.db --parked",
    ),
    "keys list": ("onefold keys list -d app.db --parked --json", "onefold keys list -d app.db --stored"),
    "keys show": (
        "onefold keys show 7c1f-order-42 --principal acme --route 'POST /orders' -d app.db",
        "onefold keys show 3f9c0d6a51e84b7f9d2c6be10a7745d1 -d app.db",
    ),
    "keys erase": ("onefold keys erase 7c1f-order-42 --principal acme --app shop:once --why 'refunded by hand'",),
    "keys release": ("onefold keys release 3f9c0d6a51e84b7f9d2c6be10a7745d1 -d app.db --why 'refunded by hand'",),
    "keys resume": ("onefold keys resume 3f9c0d6a51e84b7f9d2c6be10a7745d1 -d app.db",),
    "consumers": ("onefold consumers list shop:once",),
    "consumers list": ("onefold consumers list shop:once",),
    "consumers pause": ("onefold consumers pause shipping -d app.db",),
    "consumers resume": ("onefold consumers resume shipping -d app.db",),
    "consumers remove": ("onefold consumers remove shipping -d app.db",),
    "recurring": ("onefold recurring list -d app.db",),
    "recurring list": ("onefold recurring list -d app.db --json",),
    "endpoints": ("onefold endpoints list -d app.db",),
    "endpoints list": ("onefold endpoints list -d app.db --json",),
    "endpoints add": ("onefold endpoints add acme https://acme.example/hooks --topic order.paid -d app.db",),
    "endpoints disable": ("onefold endpoints disable acme -d app.db",),
    "endpoints enable": ("onefold endpoints enable acme -d app.db",),
    "endpoints remove": ("onefold endpoints remove acme -d app.db",),
    "intents": ("onefold intents -d intents.db",),
    "intents forget": ("onefold intents -d intents.db forget pay:ord-42",),
    "saga": ("onefold saga list shop:sagas",),
    "saga list": ("onefold saga list shop:sagas --json",),
    "saga show": ("onefold saga show shop:sagas order-42",),
    "saga retry": ("onefold saga retry shop:sagas order-42",),
    "saga cancel": ("onefold saga cancel shop:sagas order-42",),
    "capacity": ("onefold capacity --rps 10000 --ttl 24h --body 600 --events 2",),
    "storm": ("onefold storm --quick", "onefold storm --policy shop.clients:POLICY"),
    "verify": ("onefold verify http://localhost:8000/orders --body '@order.json'",),
    "metrics": ("onefold metrics --alerts > onefold.yml",),
    "asyncapi": ("onefold asyncapi shop:once > asyncapi.json",),
}

EXIT_CODES: Final[Mapping[str, str]] = {
    "0": "Done, and nothing needs a look.",
    "1": "It could not be done, and the line on stderr says why; or something needs a look: doctor, verify or storm "
    "has found something, a redrive that was waited for has left dead letters, relay --until-empty has left stopped "
    "events, nothing fits what was named. Also the answer No to a question.",
    "2": "Wrong options, or a database file that is not there. For verify also: the target cannot be tested.",
    "130, 143": "Ended by a second SIGINT or SIGTERM. The first one ends a process that stays in good order, with 0.",
}


def panel_of(name: str) -> str:
    """The group of a command."""
    [panel] = [group for group, names in GROUPS.items() if name in names]
    return panel


def epilog_of(path: str) -> str | None:
    """The examples of a command, as typer wants them: a paragraph each."""
    examples = EXAMPLES.get(path)
    if examples is None:
        return None
    return "\n\n".join(("Examples:" if len(examples) > 1 else "Example:", *(f"  $ {each}" for each in examples)))


def root_epilog() -> str:
    """What stands below the list of all commands."""
    lines = ["Examples:"]
    lines += [f"  $ {EXAMPLES[name][0]}" for name in ("init", "migrate", "relay", "doctor", "capacity")]
    lines += ["Exit codes:", *(f"  {code}  {meaning}" for code, meaning in EXIT_CODES.items())]
    lines += [
        "Environment:",
        "  ONEFOLD_DATABASE and ONEFOLD_BROKER stand in for --database and --broker.",
        "  DATABASE_URL, in examples, is your application's own variable: onefold does not read it.",
        "Each command has --help with an example; `onefold docs` has the pages of this version.",
    ]
    return "\n\n".join(lines)


def describe(name: str, app: typer.Typer) -> None:
    """Give the commands of a group their examples."""
    for command in app.registered_commands:
        callback: Any = command.callback
        command_name = command.name or callback.__name__
        command.epilog = epilog_of(f"{name} {command_name}")


@dataclass(frozen=True, slots=True)
class ManualRow:
    """A command and what it does, for the page of commands."""

    path: str
    about: str


def rows_of(command: Any, path: str = "") -> list[ManualRow]:
    """All commands below one of click's, in the order of the help."""
    below = getattr(command, "commands", {})
    if not below:
        return [ManualRow(path, " ".join((command.help or "").split()))]
    return [row for name, each in below.items() for row in rows_of(each, f"{path} {name}".strip())]
