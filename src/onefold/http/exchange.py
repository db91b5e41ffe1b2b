"""The HTTP semantics of an idempotent request, once, without any I/O. ASGI and WSGI are thin rims around it.

A `Gate` looks at the head of each request. What concerns it becomes a `Passage`, which is admitted with the body
(claim), and ends in exactly one of `finish` (the handler answered) and `abort` (it did not). All three are flows.
What a passage returns is what to send; None means: go on with what you have.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Call, Now, Sleep
from onefold._kernel.events import Claimed, Listener, Outcome, Released, Settled, tell
from onefold._kernel.ids import uuid7_ms
from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold._kernel.transaction import Outgoing, Transaction, close_sessions, no_outbox
from onefold.errors import (
    CallerError,
    ConnectionLost,
    KeyExpired,
    KeyInFlight,
    KeyMalformed,
    KeyMissing,
    KeyReused,
    OnefoldError,
    PrincipalMissing,
    ProgrammerError,
    StoreError,
    StoreUnavailable,
    TransactionMisused,
)
from onefold.http.answers import replayed, stored
from onefold.http.keys import MalformedKey, parse_key
from onefold.http.messages import Request, Response, carried_in
from onefold.http.policy import METHODS, Policy, Route
from onefold.http.problems import problem
from onefold.idempotency.fingerprint import Asked, fingerprint
from onefold.idempotency.model import Ask, Claim, Expired, InFlight, Mismatch, Replay, Run, Scope
from onefold.idempotency.sealing import Sealer
from onefold.idempotency.store import Store
from onefold.idempotency.unkeyed import unkeyed_ask

HEADER = "idempotency-key"

#: Answers about the caller's rights or pace, not about the request: a corrected or later retry must run.
NOT_STORED = frozenset({401, 403, 407, 408, 425, 429})

#: How far ahead of our clock a key may be dated before it is not believed.
_SKEW_MS = 24 * 3600 * 1000

_PAUSES_S = (0.02, 0.04, 0.08, 0.15, 0.25)

_log = logging.getLogger("onefold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What all requests of an application share."""

    store: Store
    unkeyed: Store
    """For requests without a key on routes that allow it: a transaction, and nothing to remember."""
    outbox: Callable[[], Outgoing] = no_outbox
    sealer: Sealer | None = None
    listener: Listener | None = None
    described_by: str | None = None
    """Where the specification page is, below the application's root, for the Link header of problems."""
    development: bool = False
    now_ms: Callable[[], int] = wall_ms

    def transaction(self, lane: ThreadLane[Any] | TaskLane[Any], request: Request) -> Transaction[Any]:
        """The request's transaction, still closed."""
        tx = Transaction(lane, self.outbox)
        # Not the request itself: it knows the scope, where the transaction will be, and so would never be let go of.
        tx.carried = functools.partial(carried_in, request.headers)
        return tx

    def screen(self, request: Request, route: Route | None, tx: Transaction[Any]) -> Passage | Response | None:
        """Judge a request by its head, before its body is read and before any store access.

        None: not ours. A Response: refused. A Passage: read the body and have it admitted.
        """
        if route is None or request.method not in METHODS:
            return None
        lines = request.values(HEADER)
        try:
            key, key_ms = self.read_key(lines, route.policy) if lines else (None, None)
            if key is None and route.policy.required:
                raise KeyMissing(
                    f"{request.method} {route.template} requires an Idempotency-Key header: a value of your own, "
                    "for example a UUIDv7 in quotes, repeated on every retry of the same request."
                )
        except CallerError as error:
            return self.refusal(error, request)
        outer = passing.get()
        if outer is not None and not outer.over:
            return self.broken(
                ProgrammerError(
                    f"{request.method} {route.template} was called from inside another idempotent request of the "
                    "same process; it would wait for, or commit apart from, the transaction it is called in. Call the "
                    "function with the same tx instead, or publish an event"
                ),
                request,
            )
        return Passage(self, request, route, key, key_ms, tx)

    def refusal(self, error: OnefoldError, request: Request) -> Response:
        """An error as a response, with a link to the specification, wherever the application is mounted."""
        link = None if self.described_by is None else quote(request.root) + self.described_by
        return problem(error, described_by=link)

    def broken(self, error: OnefoldError, request: Request) -> Response:
        """An error as a response; what the programmer or the operator must know goes to the log as well."""
        if not isinstance(error, CallerError) or isinstance(error, StoreError):
            _log.error("%s", error, exc_info=error)
        return self.refusal(error, request)

    def read_key(self, lines: list[bytes], policy: Policy) -> tuple[str, int | None]:
        """The key and, where late retries are refused, when it was minted. Raises KeyMalformed."""
        try:
            key = parse_key(lines, strict=policy.strict)
        except MalformedKey as error:
            raise KeyMalformed(f"The Idempotency-Key header cannot be used: {error.reason}") from error
        if policy.expiry == "new":
            return key, None
        key_ms = uuid7_ms(key)
        if key_ms is None:
            raise KeyMalformed("This route refuses late retries, so its keys must be UUIDv7 (they carry their time).")
        if key_ms > self.now_ms() + _SKEW_MS:
            raise KeyMalformed("The Idempotency-Key is a UUIDv7 dated more than a day ahead; check the client's clock.")
        return key, key_ms


class Passage:
    """One keyed request, from its admission to its end."""

    __slots__ = (
        "_ask", "_gate", "_key", "_key_ms", "_run", "_store", "entered", "operation", "over", "policy", "request", "tx",
    )  # fmt: skip

    def __init__(
        self, gate: Gate, request: Request, route: Route, key: str | None, key_ms: int | None, tx: Transaction[Any]
    ) -> None:
        self._gate = gate
        self._store = gate.store if key is not None else gate.unkeyed
        self._key = key
        self._key_ms = key_ms
        self._ask: Ask | None = None
        self._run: Run | None = None
        self.request = request
        self.policy = route.policy
        self.operation = f"{request.method} {route.template}"
        self.tx = tx
        #: Whether the handler itself was reached. A framework that refuses the request before (validation) leaves
        #: it False; rims without a decorator to tell set it True.
        self.entered = False
        self.over = False

    @property
    def keyed(self) -> bool:
        """Whether there is a key to claim. Without one the request just gets its transaction."""
        return self._key is not None

    async def admit(self, body: bytes) -> Response | None:
        """Claim the key. None: the handler runs now, and the passage must be finished or aborted."""
        gate = self._gate
        try:
            if self._key is None:
                ask = unkeyed_ask(self.operation, self.policy.lease_s)
            else:
                ask = self._asked(await principal_of(self.request, self.policy, self.operation), self._key, body)
            self._ask = ask
            claim = await self._store.claim(ask)
            if isinstance(claim, InFlight) and self.policy.wait_s > 0:
                claim = await self._wait(ask, claim)
        except StoreUnavailable as error:
            if self.policy.store_down == "run" and self.keyed:
                self._tell("unprotected")
                _log.warning("%s runs unprotected: %s", self.operation, error)
                self.tx.deny(error)
                return None
            self._tell("unavailable")
            return gate.broken(error, self.request)
        except OnefoldError as error:
            return gate.broken(error, self.request)
        if isinstance(claim, Run):
            self._run = claim
            self._tell("run")
            self.tx.open()
            return None
        self.over = True
        return self._answer(claim)

    async def finish(self, response: Response, *, kept: bool = True) -> Response | None:
        """The handler answered; commit, then let the answer go. None: it may go as it is.

        With `kept` false the body is only the beginning of what the handler sends, and is not stored.
        """
        run, ask = self._run, self._ask
        if run is None or ask is None:  # unprotected, because the route says so
            self.over = True
            return None
        refused = 400 <= response.status < 500
        if response.status >= 500 or response.status in NOT_STORED or not self.entered:
            await self.abort("not entered" if not self.entered else f"status {response.status}")
            return None
        try:
            if not refused:
                self._check_touched(response.status)
            if self.tx.endings:
                await close_sessions(self.tx, not refused)
            answer = stored(
                response, digest=ask.digest, kept=kept, headers_kept=self.policy.headers_kept, sealer=self._gate.sealer
            )
        except OnefoldError as error:
            await self.abort(type(error).__name__)
            return self._gate.broken(error, self.request)
        except Exception as error:  # the handler's own: a session that could not write what it held back
            await self.abort(type(error).__name__)
            raise
        self._end()
        try:
            events = () if refused else self.tx.flush()
            lost_to = await self._store.settle(ask, run, answer, keep_rows=not refused, also=events)
        except OnefoldError as error:
            tell(self._gate.listener, Released(self.operation, type(error).__name__))
            return self._gate.broken(error, self.request)
        if lost_to is not None:
            return self._answer(lost_to)
        if events:
            self.tx.committed()
        if self._key is not None and self._gate.listener is not None:
            tell(self._gate.listener, Settled(self.operation, response.status, kept))
        return None

    async def abort(self, reason: str) -> None:
        """The handler failed, or answered something that is not kept: leave nothing behind."""
        if self.over:
            return
        if self._run is None or self._ask is None:
            self._end()
            return
        try:
            await close_sessions(self.tx, False)
        except Exception:
            _log.warning("%s: a session could not be closed; its connection rolls back", self.operation, exc_info=True)
        self._end()
        try:
            await self._store.release(self._ask, self._run, touched=self.tx.touched)
        except TransactionMisused as error:  # the handler failed anyway: what it left is for the operator to know
            _log.error("%s failed (%s), and its retry will run again: %s", self.operation, reason, error)
        except ConnectionLost as error:
            _log.warning("%s failed (%s): %s", self.operation, reason, error)
        tell(self._gate.listener, Released(self.operation, reason))

    async def forsake(self) -> None:
        """The handler was interrupted and its connection thrown away: free the key now, not when its lease runs out."""
        if not self.over:
            self._end()
        if self._run is not None and self._ask is not None:
            await self._store.forsake(self._ask, self._run)

    @property
    def leased(self) -> bool:
        """Whether the claim is a lease that a long handler must keep alive."""
        return self._store.leases and self._run is not None

    async def renew(self) -> None:
        """Extend the lease, unless the passage is over or its open transaction makes that needless."""
        if self._run is not None and self._ask is not None and not self.over and not self.tx.touched:
            await self._store.renew(self._ask, self._run)

    def _end(self) -> None:
        self.over = True
        self.tx.end()

    def _asked(self, principal: str, key: str, body: bytes) -> Ask:
        policy, request = self.policy, self.request
        digest = Scope(principal, self.operation).digest(key)
        asked = Asked(request.path, request.query, _media_type(request.header("content-type") or ""), body)
        return Ask(
            digest,
            fingerprint(asked, policy.fingerprint, key=digest),
            self.operation,
            policy.lease_s,
            policy.retention_s,
            self._key_ms,
        )

    async def _wait(self, ask: Ask, claim: Claim) -> Claim:
        """Where the route asks for it: wait for a request in flight, without holding a connection."""
        give_up_at = await Now() + self.policy.wait_s
        turn = 0
        while isinstance(claim, InFlight):
            left_s = give_up_at - await Now()
            if left_s <= 0:
                break
            await Sleep(min(left_s, _PAUSES_S[min(turn, len(_PAUSES_S) - 1)]))
            turn += 1
            claim = await self._store.claim(ask)
        return claim

    def _answer(self, claim: Claim) -> Response:
        """What a request that does not run is told."""
        gate, ask = self._gate, self._ask
        assert ask is not None
        error: OnefoldError
        match claim:
            case Replay(answer):
                self._tell("replay")
                try:
                    return replayed(answer, digest=ask.digest, sealer=gate.sealer)
                except OnefoldError as unreadable:
                    error = unreadable
            case InFlight():
                self._tell("in_flight")
                error = KeyInFlight(
                    "The same request is being worked on. Retry with the same Idempotency-Key.", retry_after_s=1
                )
            case Mismatch():
                self._tell("mismatch")
                error = KeyReused(
                    "This Idempotency-Key already names a request with another payload, path or query. Use a new key "
                    "for a new request."
                )
            case Expired():
                self._tell("expired")
                error = KeyExpired(
                    f"This Idempotency-Key is older than {self.policy.retention_s:.0f} s, the time this route "
                    "remembers its answers. It was not run. Find out what became of it, then use a new key."
                )
            case Run():
                raise ProgrammerError("a claim that was granted has no answer yet")
        return gate.broken(error, self.request)

    def _check_touched(self, status: int) -> None:
        if self._gate.development and self.policy.writes and not (self.tx.touched or self.tx.published):
            raise TransactionMisused(
                f"{self.operation} answered {status} without using its transaction: what it wrote through another "
                "session or connection commits apart from the key and can happen twice. Write through tx, or declare "
                "the route with writes=False"
            )

    def _tell(self, outcome: Outcome) -> None:
        if self._key is not None and self._gate.listener is not None:
            tell(self._gate.listener, Claimed(self.operation, outcome))


async def principal_of(request: Request, policy: Policy, operation: str) -> str:
    """Who asks, as the application finds it in the request."""
    principal = policy.principal(request)
    if not isinstance(principal, str) and inspect.isawaitable(principal):
        principal = await Call(functools.partial(_same, principal))
    if not principal:
        raise PrincipalMissing(
            "The application found no principal in this request; keys belong to someone. Authenticate and retry."
        )
    if not isinstance(principal, str):
        raise ProgrammerError(
            f"the principal of {operation} is {principal!r}; it must be a string that stays the same for the same "
            "account, tenant or user"
        )
    return principal


@functools.lru_cache(maxsize=64)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _same(awaitable: Awaitable[str | None]) -> Awaitable[str | None]:
    return awaitable


#: The passage this task or thread is inside of, from admission to end.
passing: ContextVar[Passage | None] = ContextVar("onefold_passing", default=None)
