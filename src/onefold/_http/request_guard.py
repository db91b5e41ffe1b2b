"""What all requests of an application share, and the first look at each: at its head, before its body is read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from onefold._http.authentication import PLAIN_ASGI, Framework
from onefold._http.earlier_release import ApplicationNaming
from onefold._http.guarded_request import E, GuardedRequest, current_request
from onefold._http.idempotency_key import generated_ms, read_key
from onefold._http.problems import problem
from onefold._http.reported_request import describe_request
from onefold._http.request import Request, Response, lines_of
from onefold._http.route_policy import Policy, Route
from onefold._http.stored_response import new_run_id
from onefold._idempotency.retention import Reaps
from onefold._idempotency.store import Store
from onefold._kernel.clock import wall_ms
from onefold._kernel.ports import NaturalWrites, Outgoing, Sessions
from onefold._kernel.telemetry import Listener
from onefold._kernel.tracing import Tracer
from onefold._kernel.transaction import no_outbox
from onefold._natural import natural_writes
from onefold.errors import (
    CallerError,
    KeyMissing,
    OnefoldError,
    ProgrammerError,
    StoreError,
)

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

    from onefold._http.stepped_store import SteppedStore

HEADER = "idempotency-key"

_log = logging.getLogger("onefold.requests")


class ConditionalUse:
    """Whether a layer has conditional handlers. Without any, its reads pass as they are."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGuard:
    """What all requests of an application share."""

    store: Store
    unkeyed: Store
    """For requests without a key on routes that allow it: a transaction, and nothing to remember."""
    stepped: _lru_cache_wrapper[SteppedStore] | None = None
    """For requests whose handlers work in steps."""
    cached: Callable[[Store, str, float], Store] | None = None
    """Puts the answer cache before the store of a request of an operation that may wait for so long; None: there is no
    cache."""
    outbox: Callable[[], Outgoing] = no_outbox
    sessions: Sessions | None = None
    naming: ApplicationNaming = field(default_factory=ApplicationNaming)
    listener: Listener | None = None
    tracer: Tracer | None = None
    described_by: str | None = None
    """Where the specification page is, below the application's root, for the Link header of problems."""
    development: bool = False
    natural: Callable[[], NaturalWrites] = field(default_factory=natural_writes)
    conditional: ConditionalUse = field(default_factory=ConditionalUse)
    decorated: bool = False
    """Whether the handlers of its routes are decorated: those note by themselves that they were reached."""
    framework: Framework = PLAIN_ASGI
    """Of the application that the layer is around: how its `authorize` and `principal` are called."""
    now_ms: Callable[[], int] = wall_ms
    new_run_id: Callable[[], bytes] = new_run_id

    def store_of(self, policy: Policy) -> SteppedStore | Store:
        """The store with the keys of such a route."""
        return self.stepped() if policy.steps and self.stepped is not None else self.store

    def reaped(self) -> Reaps:
        """Where expired rows are: works too, if this application has had some. Else its role may not touch them."""
        return self.store if self.stepped is None or not self.stepped.cache_info().currsize else self.stepped()

    def screen(self, request: Request, route: Route, executor: E) -> GuardedRequest[E] | Response:
        """Judge a request by its head, before its body is read and before any store access.

        A Response: refused. A GuardedRequest: read the body and have it admitted.
        """
        policy, lines = route.policy, lines_of(request.headers, HEADER)
        try:
            key, key_ms = self.read_key(lines, policy) if lines else (None, None)
            if key is None and policy.required:
                raise KeyMissing(
                    f"{request.method} {route.name} requires an Idempotency-Key header: a value of your own, "
                    "for example a UUIDv7 in quotes, repeated on every retry of the same request."
                )
        except CallerError as error:
            return self.refusal(error, request)
        outer = current_request.get()
        if outer is not None and not outer.over:
            return self.log_and_refuse(
                ProgrammerError(
                    f"{request.method} {route.name} was called from inside another idempotent request of the "
                    "same process; it would wait for, or commit apart from, the transaction it is called in. Call the "
                    "function with the same tx instead, or publish an event"
                ),
                request,
                f"{request.method} {route.name}",
            )
        guarded = GuardedRequest(self, request, route, key, key_ms, executor)
        if policy.conditional is not None:
            from onefold._http.conditional import RequestCondition  # for those who have such routes

            guarded.condition = RequestCondition(request, policy.conditional, guarded.operation, guarded.tx)
        return guarded

    def refusal(self, error: OnefoldError, request: Request) -> Response:
        """An error as a response, with a link to the specification, wherever the application is mounted."""
        link = None if self.described_by is None else quote(request.root) + self.described_by
        return problem(error, described_by=link)

    def log_and_refuse(self, error: OnefoldError, request: Request, operation: str) -> Response:
        """An error as a response; what the programmer or the operator must know goes to the log as well."""
        response = self.refusal(error, request)
        if not isinstance(error, CallerError):
            from onefold._kernel.log_context import log_extra  # for lines that are written

            # In an outage each request has such a line, and where it was noticed tells nothing.
            is_brief = isinstance(error, StoreError) and not _log.isEnabledFor(logging.DEBUG)
            traceback = None if is_brief else error
            extra = log_extra("request.failed", **describe_request(request, operation, self._named_key(request)))
            _log.error("%s answered %d: %s", operation, response.status, error, exc_info=traceback, extra=extra)
        return response

    def _named_key(self, request: Request) -> str | None:
        """The key of a request, if it has one that can be read."""
        try:
            return read_key(lines, strict=False) if (lines := request.values(HEADER)) else None
        except CallerError:
            return None

    def read_key(self, lines: list[bytes], policy: Policy) -> tuple[str, int | None]:
        """The key and, where late retries are refused, when it was generated. Raises KeyMalformed."""
        key = read_key(lines, strict=policy.strict)
        return key, None if policy.expiry == "new" else generated_ms(key, self.now_ms())
