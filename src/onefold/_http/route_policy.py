"""What a route promises about its keys. One frozen value per route, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypedDict

from onefold._http.authentication import RequestFunction, read_request_function
from onefold._http.bare_header_check import TRUSTED
from onefold._http.request import Request
from onefold._idempotency.fingerprint import Strategy, canonical_json
from onefold._kernel.effects import Isolation, check_isolation
from onefold._kernel.typos import Elsewhere, refuse_unknown
from onefold._policy.quota import Quota
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._http.conditional import Conditional

#: Takes the request (onefold's, or one of the framework: its annotation says which) or nothing.
Principal: TypeAlias = (
    Callable[[Any], Awaitable[str | None] | str | None] | Callable[[], Awaitable[str | None] | str | None]
)

#: Takes the same. Refuses by raising the framework's HTTPException, or by returning False.
Authorize: TypeAlias = (
    Callable[[Any], Awaitable[bool | None] | bool | None] | Callable[[], Awaitable[bool | None] | bool | None]
)

_OPERATION = re.compile(r"[!-~]{1,200}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")

#: Methods a key means something for; the others are idempotent by themselves or change nothing.
METHODS = frozenset({"POST", "PATCH", "PUT", "DELETE"})


def single_principal(request: Request) -> str:
    """For applications that have one principal only, and say so: every caller shares one space of keys."""
    return "single"


def trusted_header(name: str) -> Callable[[Request], str | None]:
    """The principal in a header, for applications behind a gateway that authenticates its callers, sets the header
    itself and removes what a client sent under its name. A caller that reaches the application past the gateway can
    name any principal."""
    given: object = name
    if not isinstance(given, str) or not _HEADER.fullmatch(name):
        raise ConfigurationError(
            f"trusted_header({given!r}) names no header; write one as in 'x-authenticated-account'"
        )

    def principal(request: Request) -> str | None:
        return request.header(name)

    setattr(principal, TRUSTED, True)
    return principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a route treats its keys.

    Bounds: times in seconds, sizes in bytes. `expiry="refuse"` needs UUIDv7 keys and never runs a key twice, however
    late its retry; `"new"` forgets and runs again. `store_down="run"` gives up protection for availability.
    `operation` names a route that may move: its keys belong to this name instead of its template. A route whose
    `fingerprint` strategy changed lists its own earlier ones in `fingerprint_before`, until one retention later;
    onefold's need not be listed.
    `lease_s` is how long a transaction of it may take; `work_lease_s` how long the process that does a request in
    recorded steps may be silent before a retry goes on with it (None: 15, or `lease_s` where that is less).
    `isolation` is the level of the route's transaction; None keeps what the engine or the database has by default.
    `quota` is what a principal may have at most; routes with the same one are counted together.
    `conditional` says what its requests may depend on (If-Match, If-None-Match), and that its handler has it judged.
    With `cached` false its answers stay out of the application's answer cache, if there is one.
    """

    principal: Principal
    authorize: Authorize | None = None
    required: bool = False
    strict: bool = False
    wait_s: float = 0.0
    lease_s: float = 60.0
    work_lease_s: float | None = None
    retention_s: float = 24 * 3600.0
    expiry: Literal["new", "refuse"] = "new"
    fingerprint: Strategy = canonical_json
    fingerprint_before: tuple[Strategy, ...] = ()
    operation: str | None = None
    body_bytes_max: int = 1 << 20
    body_timeout_s: float = 30.0
    response_bytes_max: int = 1 << 20
    headers_kept: frozenset[str] = frozenset()
    store_down: Literal["refuse", "run"] = "refuse"
    writes: bool = True
    isolation: Isolation | None = None
    quota: Quota | None = None
    conditional: Conditional | None = None
    cached: bool = True
    steps: ClassVar[bool] = False
    """Whether its handler works in recorded steps: read from the handler's own parameters."""
    principal_function: RequestFunction = field(init=False, repr=False, compare=False)
    authorize_function: RequestFunction | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("required", "strict", "writes", "cached"):
            is_bool(name, getattr(self, name))
        _is_fingerprint(self.fingerprint)
        _are_names("headers_kept", self.headers_kept)
        object.__setattr__(self, "principal_function", read_request_function("principal", self.principal))
        function = None if self.authorize is None else read_request_function("authorize", self.authorize)
        object.__setattr__(self, "authorize_function", function)
        _check("wait_s", self.wait_s, 0, 60)
        _check("lease_s", self.lease_s, 0.1, 24 * 3600)
        if self.work_lease_s is not None:
            _check("work_lease_s", self.work_lease_s, 0.1, 24 * 3600)
        _check("retention_s", self.retention_s, 1, 366 * 24 * 3600)
        _check("body_bytes_max", self.body_bytes_max, 0, 1 << 30, whole=True)
        _check("body_timeout_s", self.body_timeout_s, 0.01, 3600)
        _check("response_bytes_max", self.response_bytes_max, 0, 1 << 28, whole=True)
        _one_of("expiry", self.expiry, ("new", "refuse"))
        check_isolation(self.isolation)
        _is_quota(self.quota)
        _is_conditional(self.conditional, self.store_down)
        _one_of("store_down", self.store_down, ("refuse", "run"))
        if self.lease_s > self.retention_s:
            raise ConfigurationError(
                f"lease_s={self.lease_s} is longer than retention_s={self.retention_s}: answers would be kept for "
                "less time than a request may take; raise retention_s or lower lease_s"
            )
        named: object = self.operation
        if named is not None and not (isinstance(named, str) and _OPERATION.fullmatch(named)):
            raise ConfigurationError(
                f"operation={self.operation!r} must be 1 to 200 printable characters without a space, for example "
                "'refund-payment'; the method is added by itself. To keep the keys a route has by its template, write "
                "that: '/payments/{}/refunds'"
            )
        before: object = self.fingerprint_before
        if not isinstance(before, tuple) or not all(map(callable, before)):
            raise ConfigurationError(
                f"fingerprint_before={self.fingerprint_before!r} must be a tuple of strategies: (old_strategy,)"
            )
        # Answers are searched for these names in lower case, however the route spells them.
        object.__setattr__(self, "headers_kept", frozenset(name.lower() for name in self.headers_kept))
        for name in sorted(self.headers_kept):
            _may_be_kept(name)


class SteppedPolicy(Policy):
    """How a route treats its keys whose handler works in recorded steps."""

    __slots__ = ()
    steps = True

    @classmethod
    def of(cls, policy: Policy) -> SteppedPolicy:
        return cls(**{each.name: getattr(policy, each.name) for each in fields(policy) if each.init})


#: Never stored, whatever a policy says, and why.
_NEVER_KEPT = {
    **dict.fromkeys(
        ("set-cookie", "www-authenticate", "proxy-authenticate", "authentication-info", "proxy-authentication-info"),
        "it carries credentials, which reach the first client only",
    ),
    "content-length": "each answer, also a replay, has the length of its own body",
    "idempotent-replayed": "onefold sets it, on replays and on nothing else",
    **dict.fromkeys(
        ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        "it is about one connection, and means nothing on another",
    ),
}

#: What HTTP calls a token.
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Settings(TypedDict, total=False):
    """The settings of a route; the rest comes from the application's defaults. See `Policy`."""

    principal: Principal
    authorize: Authorize | None
    required: bool
    strict: bool
    wait_s: float
    lease_s: float
    work_lease_s: float | None
    retention_s: float
    expiry: Literal["new", "refuse"]
    fingerprint: Strategy
    fingerprint_before: tuple[Strategy, ...]
    operation: str | None
    body_bytes_max: int
    body_timeout_s: float
    response_bytes_max: int
    headers_kept: frozenset[str]
    store_down: Literal["refuse", "run"]
    writes: bool
    isolation: Isolation | None
    quota: Quota | None
    conditional: Conditional | None
    cached: bool


#: The hint for a setting of routes that was given to the application instead.
SETTINGS_OF_ROUTES: Final = Elsewhere(
    Settings.__annotations__,
    "it is one of routes: defaults={{'{0}': ...}} sets it for all, @once.idempotent({0}=...) for one",
)


PARAMETER_GROUP = "onefold_"


def mount_template(mount: str, template: str) -> str:
    """A template below the mount of its application. A host of its own stands before both."""
    if mount and template.startswith("//") and not mount.startswith("//"):
        host, _, path = template[2:].partition("/")
        return f"//{host}{mount}/{path}"
    return mount + template


@dataclass(frozen=True, slots=True)
class Route:
    """An idempotent route: its template, what it promises, and how the values in a path are found."""

    template: str
    policy: Policy
    pattern: re.Pattern[str] | None = None
    """With a group named PARAMETER_GROUP and a number for each parameter."""
    values: tuple[str, ...] | None = None
    """Of the path at hand, where they are known already: a framework has found them, or there are none."""
    mount: str = ""
    """Where the application is that has the route: the prefix of its mount, after its host, if it is mounted at one."""
    earlier: str | None = None
    """The template as onefold 0.1 had it, where that had no host in it."""

    name: str = field(init=False)
    """What people and operations call it: `//host/prefix/template`."""
    unmounted: str | None = field(init=False)
    """The template as onefold 0.1 had it, if it had the same one for routes of other mounts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", mount_template(self.mount, self.template))
        object.__setattr__(self, "unmounted", self.earlier or (self.template if self.mount else None))

    def parameters(self, request: Request) -> tuple[str, ...] | None:
        """The values in its path, in their order. None: they are not known, the path stands for them."""
        if self.pattern is None:
            return self.values
        found = self.pattern.fullmatch(request.path_below_root)
        # A converter may have groups of its own.
        ours = (name for name in self.pattern.groupindex if name.startswith(PARAMETER_GROUP))
        return None if found is None else tuple([found[name] for name in ours])


def policy_of_settings(settings: Settings) -> Policy:
    """The policy these settings make; a name that is none is refused with the one it may have been meant to be."""
    refuse_unknown(settings, Settings.__annotations__, "an idempotent route")
    return Policy(**settings)


def _check(name: str, value: object, low: float, high: float, *, whole: bool = False) -> None:
    number = "whole number" if whole else "number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigurationError(f"{name}={value!r} is not a {number}: write one from {low} to {high}")
    if not low <= value <= high:
        raise ConfigurationError(f"{name}={value!r} is out of range: it must be a {number} from {low} to {high}")


def is_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r} must be True or False")


def _is_quota(value: object) -> None:
    if value is not None and not isinstance(value, Quota):
        raise ConfigurationError(
            f"quota={value!r} must be a Quota, as in quota=onefold.policies.Quota(in_flight=10), or None"
        )


def _is_conditional(value: object, store_down: object) -> None:
    if value is None:
        return
    from onefold._http.conditional import Conditional

    if not isinstance(value, Conditional):
        raise ConfigurationError(
            f"conditional={value!r} must be a Conditional, as in conditional=onefold.policies.Conditional("
            "etag='version'), or None"
        )
    if store_down == "run":
        raise ConfigurationError(
            "a conditional route has store_down='run': without its database no condition can be judged. Leave it out"
        )


def _is_fingerprint(value: object) -> None:
    if not callable(value):
        raise ConfigurationError(
            f"fingerprint={value!r} is not a function; onefold.policies has canonical_json, raw_bytes and "
            "selected_fields(...), and you may write your own"
        )


def _are_names(name: str, value: object) -> None:
    if isinstance(value, str):
        raise ConfigurationError(f"{name}={value!r} is one text; write a set of header names: {{{value!r}}}")
    if not isinstance(value, Collection) or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f"{name}={value!r} must be a set of header names, as in {{'x-request-id'}}")


def _may_be_kept(name: str) -> None:
    if _HEADER_NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"headers_kept names {name!r}, which no header can be called; write the name alone, as in 'x-request-id'"
        )
    if name in _NEVER_KEPT:
        raise ConfigurationError(
            f"headers_kept names {name!r}, which stored answers never hold: {_NEVER_KEPT[name]}; leave it out"
        )


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ConfigurationError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
