"""What a route promises about its keys. One frozen value per route, checked when it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from onefold.errors import ConfigurationError
from onefold.http.messages import Request
from onefold.idempotency.fingerprint import Strategy, canonical_json

Principal: TypeAlias = Callable[[Request], Awaitable[str | None] | str | None]

#: Methods a key means something for; the others are idempotent by themselves or change nothing.
METHODS = frozenset({"POST", "PATCH", "PUT", "DELETE"})


def single_principal(request: Request) -> str:
    """For applications that have one principal only, and say so: every caller shares one space of keys."""
    return "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a route treats its keys.

    Bounds: times in seconds, sizes in bytes. `expiry="refuse"` needs UUIDv7 keys and never runs a key twice, however
    late its retry; `"new"` forgets and runs again. `store_down="run"` gives up protection for availability.
    """

    principal: Principal
    required: bool = False
    strict: bool = False
    wait_s: float = 0.0
    lease_s: float = 60.0
    retention_s: float = 24 * 3600.0
    expiry: Literal["new", "refuse"] = "new"
    fingerprint: Strategy = canonical_json
    body_bytes_max: int = 1 << 20
    body_timeout_s: float = 30.0
    response_bytes_max: int = 1 << 20
    headers_kept: frozenset[str] = frozenset()
    store_down: Literal["refuse", "run"] = "refuse"
    writes: bool = True

    def __post_init__(self) -> None:
        _check("wait_s", self.wait_s, 0, 60)
        _check("lease_s", self.lease_s, 0.1, 24 * 3600)
        _check("retention_s", self.retention_s, 1, 366 * 24 * 3600)
        _check("body_bytes_max", self.body_bytes_max, 0, 1 << 30)
        _check("body_timeout_s", self.body_timeout_s, 0.01, 3600)
        _check("response_bytes_max", self.response_bytes_max, 0, 1 << 28)
        _one_of("expiry", self.expiry, ("new", "refuse"))
        _one_of("store_down", self.store_down, ("refuse", "run"))
        if self.lease_s > self.retention_s:
            raise ConfigurationError(
                f"lease_s={self.lease_s} is longer than retention_s={self.retention_s}: a running request would be "
                "forgotten; raise retention_s or lower lease_s"
            )
        # Answers are searched for these names in lower case, however the route spells them.
        object.__setattr__(self, "headers_kept", frozenset(name.lower() for name in self.headers_kept))
        for name in self.headers_kept & SECRET_HEADERS:
            raise ConfigurationError(
                f"headers_kept names {name!r}, which carries credentials; stored answers never hold it"
            )


#: Never stored, whatever a policy says.
SECRET_HEADERS = frozenset({"set-cookie", "www-authenticate", "proxy-authenticate", "authentication-info"})


class Settings(TypedDict, total=False):
    """What a route may say for itself; the rest comes from the application's defaults. See `Policy`."""

    principal: Principal
    required: bool
    strict: bool
    wait_s: float
    lease_s: float
    retention_s: float
    expiry: Literal["new", "refuse"]
    fingerprint: Strategy
    body_bytes_max: int
    body_timeout_s: float
    response_bytes_max: int
    headers_kept: frozenset[str]
    store_down: Literal["refuse", "run"]
    writes: bool


@dataclass(frozen=True, slots=True)
class Route:
    """An idempotent route: its template, and what it promises."""

    template: str
    policy: Policy


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{name}={value!r} is out of range: it must be a number from {low} to {high}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
