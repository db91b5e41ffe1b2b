"""The page of settings: names, defaults and ranges, from the code that checks them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from book.files import README, ROOT
from book.tables import code, write_table
from onefold import AsyncOnefold, Message
from onefold._inbox.consumer import Consumer
from onefold._worker.relay_loop import Relay
from onefold._worker.worker_settings import ConsumerSettings, RelaySettings
from onefold.clients import Backoff, BreakerConfig, BudgetConfig, LimiterConfig, RetryPolicy
from onefold.errors import OnefoldError
from onefold.policies import Policy, Quota
from onefold.shedding import Shedding, SheddingConfig

_HEAD = """\
# Settings

Every setting with its default, and the range that is checked when it is given. A value out of range, a name that
there is none of and settings that contradict each other are a `ConfigurationError` where they are written.

## Of a route

In `@once.idempotent(...)`, and for all routes in `Onefold(defaults={...})`.

"""

#: Settings that are values of their own, and what each is for.
_VALUES: tuple[tuple[type, str], ...] = (
    (Quota, "What one principal may have: `quota=Quota(...)`, see [principals](../principals.md)."),
    (Shedding, "`Onefold(shedding=Shedding(...))`, see [overload](../overload.md)."),
    (SheddingConfig, "`Shedding(wait=SheddingConfig(...))`."),
    (RetryPolicy, "`Retrying(policy=RetryPolicy(...))`, see [clients](../clients.md) and [policies](../policies.md)."),
    (Backoff, "`RetryPolicy(backoff=Backoff(...))`."),
    (BudgetConfig, "`RetryPolicy(budget=BudgetConfig(...))`."),
    (BreakerConfig, "`RetryPolicy(breaker=BreakerConfig(...))`."),
    (LimiterConfig, "`Shedding(limit=LimiterConfig(...))`, and of a client."),
)


#: Of an application; those of its constructor's docstring are shown from there.
_APPLICATION: Final = {
    "source": "the name of this application in its events; it is part of their identity",
    "broker": "`local`, an address, or a function that makes a broker: [brokers](../brokers.md)",
    "session_factory": "your sessionmaker, where the database is an engine: [SQLAlchemy](../sqlalchemy.md)",
    "principal": "of all routes: [principals](../principals.md)",
    "authorize": "of all routes: [principals](../principals.md)",
    "defaults": "settings of all routes, as above",
    "isolation": "of each transaction that onefold begins",
    "sealer": "encrypts what is stored of answers and steps, as a `Keyring` does: [encryption](../encryption.md)",
    "listener": "gets what happens, as [values](telemetry.md), or a list of such: [metrics](../metrics.md)",
    "pages": "below which path the status of keys is served; `None`: not at all",
    "development": "warnings and hints for those who write the application",
    "event_bytes_max": "the data of an event may have so many bytes",
    "shedding": "turns new work away under load: [overload](../overload.md)",
}


#: Of consumers and relays: where they are written, and the page whose table says what each is for.
_CONSUMER: Final = "In `@once.consumer(name, topic=..., ...)`: [consumers](../consumers.md#settings)."
_RELAY: Final = (
    "In `once.relaying(...)` and `once.relay(...)`; `onefold relay` has options: [events](../events.md#relay)."
)


def list_undescribed() -> list[str]:
    """Arguments of an application that neither the page nor the constructor says anything about."""
    said = inspect.getdoc(AsyncOnefold.__init__) or ""
    named = [name.strip("`") for name, *_ in _list_arguments(AsyncOnefold)]
    return [name for name in named if name not in _APPLICATION and f"`{name}`" not in said]


def make_page() -> str:
    meanings = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", README.partition("## Settings")[2], re.MULTILINE))
    text = _HEAD + write_table(
        ["setting", "default", "range", "meaning"],
        (
            (code(name), code(default), shown, meanings.get(name, "").replace("](docs/", "](../"))
            for name, default, shown in _list_fields(Policy, principal=_anyone)
        ),
    )
    text += "## Of an application\n\n`AsyncOnefold(database, ...)` and `Onefold(database, ...)`.\n\n"
    rows = [
        (name, default, _APPLICATION.get(name.strip("`"), "see below"))
        for name, default in _list_arguments(AsyncOnefold)
    ]
    text += write_table(["setting", "default", "meaning"], rows)
    text += f"{inspect.getdoc(AsyncOnefold.__init__)}\n\n"
    for title, where, page, rows_of in (
        ("a consumer", _CONSUMER, "consumers", list_consumer_settings()),
        ("a relay", _RELAY, "events", list_relay_settings()),
    ):
        meanings = read_meanings(page)
        text += f"## Of {title}\n\n{where}\n\n" + write_table(
            ["setting", "default", "range", "meaning"],
            ((code(name), code(default), shown, meanings.get(name, "")) for name, default, shown in rows_of),
        )
    for kind, where in _VALUES:
        text += f"## {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n{where}\n\n"
        text += write_table(
            ["setting", "default", "range"],
            ((code(name), code(default), shown) for name, default, shown in _list_fields(kind)),
        )
    return text


def list_consumer_settings() -> list[tuple[str, str, str]]:
    """Name, default and range of all that `@once.consumer(...)` takes beside the name and the topics."""
    taken = {"order", *ConsumerSettings.__annotations__}
    given = {"name": "any", "topics": ("any",), "handler": _ignore}
    return [row for row in _list_fields(Consumer, **given) if row[0] in taken]


def list_relay_settings() -> list[tuple[str, str, str]]:
    """Name, default and range of all that `once.relaying(...)` takes."""
    return [row for row in _list_fields(Relay, database=None, broker=None) if row[0] in RelaySettings.__annotations__]


def read_meanings(page: str) -> dict[str, str]:
    """What a page of docs/ says of each setting, in the last cells of the table that has settings."""
    return {name: cells[-1] for name, cells in read_table(page).items()}


def read_table(page: str) -> dict[str, list[str]]:
    """The lines of the table of settings of a page of docs/, by the setting, without it."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| setting.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    return {name.strip("`"): cells for name, *cells in lines}


def _ignore(message: Message) -> None:
    """A handler, for a consumer that is made to be refused."""


def _anyone() -> str:
    return "anyone"


def _list_arguments(kind: Callable[..., object]) -> Iterator[tuple[str, str]]:
    for each in inspect.signature(kind).parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY:
            yield code(each.name), code(repr(each.default))


def _list_fields(kind: Any, **required: object) -> Iterator[tuple[str, str, str]]:
    """Name, default, range."""
    made = (
        {each.name: each.default_factory for each in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    )
    for each in inspect.signature(kind).parameters.values():
        factory = made.get(each.name, dataclasses.MISSING)
        default = each.default if factory is dataclasses.MISSING else factory()
        yield each.name, _show(default), find_range(kind, each.name, **required)


def _show(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    shown = getattr(default, "__name__", None) or repr(default)
    return shown if len(shown) < 60 else shown.partition("(")[0] + "(...)"


#: As messages have them; one that is large is 3.16e+07 there.
_NUMBER: Final = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"


def find_range(kind: Any, name: str, /, **required: object) -> str:
    """As the error says it that a value far out of range gets; nothing where a setting is no number."""
    for low in (-(10**15), -1e15):
        try:
            kind(**{**required, name: low})
        except OnefoldError as error:
            said = re.search(rf"{name}=\S+ .*?(?:from|choose) ({_NUMBER})(?: to ({_NUMBER}))?", str(error))
            if said is not None:
                least, most = (shown and f"{float(shown):.15g}" for shown in said.groups())
                return f"{least} to {most}" if most else f"from {least}"
        except (TypeError, AttributeError):
            return ""
    return ""
