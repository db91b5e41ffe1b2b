"""The page of settings: names, defaults and ranges, from the code that checks them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from book.files import README
from book.tables import code, write_table
from onefold import AsyncOnefold
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
    for kind, where in _VALUES:
        text += f"## {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n{where}\n\n"
        text += write_table(
            ["setting", "default", "range"],
            ((code(name), code(default), shown) for name, default, shown in _list_fields(kind)),
        )
    return text


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


def find_range(kind: Any, name: str, **required: object) -> str:
    """As the error says it that a value far out of range gets; nothing where a setting is no number."""
    for low in (-(10**15), -1e15):
        try:
            kind(**{**required, name: low})
        except OnefoldError as error:
            said = re.search(rf"{name}=\S+ .*?(?:from|choose) ([\d.]+)(?: to ([\d.]+))?", str(error))
            if said is not None:
                return f"{said[1]} to {said[2].rstrip('.')}" if said[2] else f"from {said[1]}"
        except (TypeError, AttributeError):
            return ""
    return ""
