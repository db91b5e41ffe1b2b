"""The starter of `onefold init`: its files as text, each a whole program with lines that only some choices have.

A line that ends with `#? choices` is written where all of these choices were made.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from string import Template
from typing import Final

import onefold

_MARK: Final = " #? "


class StarterFramework(StrEnum):
    """What answers requests."""

    FASTAPI = "fastapi"
    FLASK = "flask"
    STARLETTE = "starlette"


class StarterDatabase(StrEnum):
    """Where the application keeps its rows."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


class StarterBroker(StrEnum):
    """What carries its events: none has no events, local is the database itself."""

    NONE = "none"
    LOCAL = "local"
    NATS = "nats"
    REDIS = "redis"
    RABBITMQ = "rabbitmq"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """The choices of one starter."""

    framework: StarterFramework
    database: StarterDatabase
    broker: StarterBroker
    title: str = "Orders"
    """Of its README."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that it needs, as `python -m onefold.testing.servers` names them."""
        database = ("postgres",) if self.database is StarterDatabase.POSTGRES else ()
        return database if self.broker in (StarterBroker.NONE, StarterBroker.LOCAL) else (*database, self.broker.value)

    @property
    def serve(self) -> str:
        """The command that starts it."""
        serve = "python app.py" if self.framework is StarterFramework.FLASK else "uvicorn app:app"
        servers = " ".join(self.servers)
        return f"python -m onefold.testing.servers {servers} -- {serve}" if servers else serve

    @property
    def commands(self) -> tuple[str, str, str]:
        """The commands from a new folder to a running application."""
        return "pip install -r requirements.txt", "pytest", self.serve

    def write(self) -> dict[str, str]:
        """Each file's text, by its name."""
        templates = {
            "app.py": f"{self.framework}.py.txt",
            "conftest.py": "conftest.py.txt",
            "test_app.py": "test_app.py.txt",
            "requirements.txt": "requirements.txt.txt",
            "README.md": "README.md.txt",
        }
        return {name: self._render(text) for name, text in templates.items()}

    def _render(self, name: str) -> str:
        text = choose_lines((files(__name__) / name).read_text(encoding="utf-8"), self._choices)
        if name.endswith(".py.txt"):
            return text
        return Template(text).substitute(
            title=self.title,
            framework=self.framework,
            database=self.database,
            broker=self.broker,
            serve=self.serve,
            extras=",".join(self._extras),
            version=onefold.__version__,
        )

    @property
    def _choices(self) -> Set[str]:
        choices = {self.framework.value, self.database.value}
        choices.add("flask" if self.framework is StarterFramework.FLASK else "asyncio")
        choices.add("silent" if self.broker is StarterBroker.NONE else "events")
        if self.broker is StarterBroker.LOCAL:
            choices.add("local")
        elif self.broker is not StarterBroker.NONE:
            choices.add("broker")
        return choices | ({"private"} if self.servers else set())

    @property
    def _extras(self) -> list[str]:
        extras = ["cli", self.framework.value]
        if self.database is StarterDatabase.POSTGRES:
            extras.append("psycopg" if self.framework is StarterFramework.FLASK else "asyncpg")
        if self.broker not in (StarterBroker.NONE, StarterBroker.LOCAL):
            extras.append(self.broker.value)
        return [*extras, *(["servers"] if self.servers else [])]


def choose_lines(text: str, choices: Set[str]) -> str:
    """The lines whose words were chosen, without their marks."""
    chosen: list[str] = []
    for line in text.splitlines():
        content, _, needed = line.partition(_MARK)
        if set(needed.split()) <= choices:
            chosen.append(content.rstrip())
    return "\n".join(chosen) + "\n"
