"""The HTTP semantics of an idempotent request, once, without any I/O. ASGI and WSGI are thin adapters around it.

A `RequestGuard` looks at the head of each request. What concerns it becomes a `GuardedRequest`, which is admitted with
the body (claim), and ends in exactly one of `finish` (the handler answered) and `abort` (it did not). All three are
flows. What a guarded request returns is what to send; None means: go on with what you have.

It is the one object that goes with a request: the application runs inside `with guarded:`, and code finds the object in
the scope or environ and in `current_request`. The decorator of the handler notes there that the handler was reached and
what it raised, a response what cut it short, the adapter what was sent.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from onefold._http.authentication import ApplicationRefusal, authenticate, render_with_application
from onefold._http.claiming import take_slot, take_slot_or_release, wait_and_claim
from onefold._http.development import check_used, explain_wait
from onefold._http.encodings import fit_encoding
from onefold._http.refusals import answer_lost, answer_misuse, refuse
from onefold._http.reported_request import ReportedRequest
from onefold._http.request import Request, Response, pick_carried_headers
from onefold._http.request_identity import make_ask
from onefold._http.route_policy import Route
from onefold._http.scope_keys import CONDITION, GUARDED, TRANSACTION
from onefold._http.steps_parameter import make_work
from onefold._http.stored_response import NOT_STORED, make_answer, make_replay
from onefold._idempotency.model import Ask, Claim, InFlight, Replay, Run, rows_kept
from onefold._idempotency.store import Store
from onefold._idempotency.unkeyed import unkeyed_ask
from onefold._kernel.clock import monotonic_s
from onefold._kernel.current_transaction import current_request as _current_request
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.handler_errors import failure_of, refusal_not_stored, success_not_stored
from onefold._kernel.owned_transaction import OwnedTransaction, close_sessions, commit, undo
from onefold._kernel.telemetry.request_events import STEPPED_ASIDE
from onefold._policy.quota import QuotaSlot
from onefold.errors import (
    ConnectionLost,
    OnefoldError,
    ProgrammerError,
    StatementRefused,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
    TransactionAborted,
    TransactionMisused,
    WorkChanged,
    WorkParked,
    WorkTakenOver,
)

if TYPE_CHECKING:
    from onefold._http.conditional import RequestCondition
    from onefold._http.request_guard import RequestGuard
    from onefold._http.request_steps import RequestSteps
    from onefold._http.stepped_store import RequestWork

E = TypeVar("E", bound=ThreadExecutor[Any] | TaskExecutor[Any])

_log = logging.getLogger("onefold.requests")


class GuardedRequest(ReportedRequest, Generic[E]):
    """One request to an idempotent route, from its admission to its end."""

    def __init__(
        self, guard: RequestGuard, request: Request, route: Route, key: str | None, key_ms: int | None, executor: E
    ) -> None:
        self._guard = guard
        self._key = key
        self._key_ms = key_ms
        self._store: Store = guard.unkeyed if key is None else guard.store
        self.executor = executor
        self.request = request
        self._route = route
        self.policy = route.policy
        self.operation = f"{request.method} {route.name}"
        self.tx: OwnedTransaction[Any] = OwnedTransaction(executor, guard.outbox, guard.sessions, guard.natural)
        #: Whether the handler itself was reached, as its decorator notes. A framework that refuses the request
        #: before (validation) leaves it False.
        self.entered = not guard.decorated
        # Set here, as all the rest, and not a default of the class: see `Transaction.__init__`.
        self.trace, self._began = None, 0.0
        self._ask: Ask | None = None
        self._body = b""
        self._run: Run | None = None
        self._token: Token[GuardedRequest[Any] | None] | None = None
        #: The digest of the record that it will have, and its key.
        self.record_name: tuple[bytes, str] | None = None
        #: Its work and its steps, where its handler works in some: from the claim on, and from the handler's start on.
        self.work: RequestWork | None = None
        self.steps: RequestSteps | None = None
        self.condition: RequestCondition | None = None
        #: What the handler raised, if it did. An exception handler of the application may have answered since.
        self.raised: BaseException | None = None
        #: What cut the handler's response short. Middleware may have ended the body since, as if it were whole.
        self.stream_error: Exception | None = None
        self.over = False
        #: Its slot among the requests of its principal, where that has a quota. It is given back on every way out.
        self.quota_slot: QuotaSlot | None = None
        #: The status of the application's own answer, once that goes out; 0 when another does in its place, or none.
        self.sent: int | None = None
        #: Background tasks of before its final status was known, which run after the response: see `background`.
        self.followed_by: Sequence[tuple[Context, Callable[[], Awaitable[object]]]] = ()

    def __enter__(self) -> None:
        source: Any = self.request.source  # ours to write to: the scope, or the environ
        source[TRANSACTION], source[GUARDED], source[CONDITION] = self.tx, self, self.condition
        self._token = current_request.set(self)
        if self.trace is not None:
            self.trace.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            if self._run is not None and not self.over:  # in its handler: once it ends, COMMIT may be under way
                self._emit_released(type(error).__name__)
            self.sent, self.over = self.sent or 0, True
            self.executor.abandon()  # interrupted: nothing more may be awaited on its connection
            if self.work is not None:
                self.work.interrupt(self.executor)
        assert self._token is not None
        current_request.reset(self._token)
        if self.quota_slot is not None:
            self.leave_quota()
        if self.trace is not None:
            self.trace.leave(error, is_over=self.over)
        # It knows the scope, and tracebacks lead to it: circles for the garbage collector.
        source: Any = self.request.source
        source.pop(GUARDED, None)
        self._token = self.raised = self.stream_error = self.steps = None

    def leave_quota(self) -> None:
        """The request is not in flight any more. Its record is stored once COMMIT was answered, whatever interrupts
        what comes after that (a hook)."""
        if self.quota_slot is not None:
            self.quota_slot.recorded = self.keyed and self.tx.settled
            self.quota_slot.leave()

    @property
    def keyed(self) -> bool:
        """Whether there is a key to claim. Without one the request just gets its transaction."""
        return self._key is not None

    async def admit(self, body: bytes) -> Response | None:
        """Claim the key. None: the handler runs now, and the guarded request must be finished or aborted.

        Not before the body is here, with a key or without: else a slow client would keep a connection for as long as
        it holds its body back.
        """
        guard, policy, key, self._body = self._guard, self.policy, self._key, body
        try:
            # Without a key too: who may not have one claimed gets no transaction either.
            allow, identify = policy.authorize_function, policy.principal_function
            principal = await authenticate(guard.framework, allow, identify, self.request, body, self._route.template)
        except OnefoldError as error:  # also where they query a store that is down: the caller is not known then
            return self._refuse(error)
        except ApplicationRefusal as answered:
            self._emit_turned_away(answered.response.status)
            return answered.response
        try:
            if key is None:
                ask = unkeyed_ask(self.operation, policy.lease_s, policy.isolation)
            else:
                naming = guard.naming.known or await guard.naming.find()
                ask = make_ask(self.request, self._route, naming, principal, key, self._key_ms, body)
                self.record_name = (ask.digest, key)
            self._ask = ask
            if policy.steps and guard.stepped is not None:
                shared, context = guard.stepped(), self._context()
                self._store = self.work = make_work(shared, self.request, body, self._route, principal, context)
            if guard.cached is not None and key is not None and policy.cached:
                self._store = guard.cached(self._store, self.operation, policy.wait_s)
            claim = await self._store.claim(ask)
            if policy.wait_s > 0 and isinstance(claim, InFlight):
                claim = await wait_and_claim(self._store, ask, policy.wait_s)
            if self.condition is not None and isinstance(claim, Run):
                await self.condition.read_or_release(self._store, ask, claim)
            if policy.quota is not None and isinstance(claim, Run):
                quota, keyed = policy.quota, key is not None
                self.quota_slot = await take_slot_or_release(self._store, ask, claim, quota, principal, keyed)
        except OnefoldError as error:
            if isinstance(error, StoreUnavailable) and policy.store_down == "run" and key is not None:
                return await self._run_unprotected(error, principal)
            return self._refuse(error)
        return self._begin(claim)

    def _refuse(self, error: OnefoldError) -> Response:
        self._emit_refused(error)
        return self._guard.log_and_refuse(error, self.request, self.operation)

    def _begin(self, claim: Claim) -> Response | None:
        if isinstance(claim, Run):
            self._run = claim
            if self._guard.listener is not None:
                self._began = monotonic_s()
                self._emit_claimed("run")
            if self.work is None:
                # Not the request itself: it knows the scope, where the transaction is, and so would never be let go of.
                carried = functools.partial(pick_carried_headers, self.request.headers)
                self.tx.open(self.operation, carried, self.record_name)
            else:
                self.steps = self.work.begin(self)
            return None
        self.over = True
        return self._answer(claim)

    async def _run_unprotected(self, error: StoreUnavailable, principal: str) -> Response | None:
        """The route runs without its store, as configured; its principal's requests are counted all the same."""
        if self.policy.quota is not None:
            try:
                self.quota_slot = await take_slot(self.policy.quota, principal, may_record=False)
            except TooManyRequests as refused:
                return self._refuse(refused)
        self._emit_claimed("unprotected")
        _log.warning(
            "%s runs unprotected, because its route has store_down='run', and a retry runs again: %s",
            self.operation, error,
        )  # fmt: skip
        self.tx.deny(error)
        return None

    def adopt(self, tx: OwnedTransaction[Any]) -> None:
        """The transaction of `work.finish` stays open for the answer: the request ends in it, on its connection."""
        self.tx, self.executor = tx, cast("E", tx.executor)

    async def step_aside(self) -> bool:
        """The request has to wait for its turn, and its handler has not run: let others have its connection and its key
        meanwhile. True: it must `step_back` before it runs."""
        if (run := self._run) is None or (ask := self._ask) is None or self.over:  # unprotected: it holds nothing
            return False
        self._run = None
        await undo(self.tx, functools.partial(self._store.release, ask, run))
        self._emit_released(STEPPED_ASIDE)
        return True

    async def step_back(self) -> Response | None:
        """Its turn has come: claim the key once more. A Response: it was done, or is being done, by another request."""
        assert self._ask is not None
        try:
            claim = await self._store.claim(self._ask)
            if self.policy.wait_s > 0 and isinstance(claim, InFlight):
                claim = await wait_and_claim(self._store, self._ask, self.policy.wait_s)
            return self._begin(claim)
        except OnefoldError as error:
            self.over = True
            return self._refuse(error)

    async def finish(self, response: Response, *, whole: bool = True) -> Response | None:
        """The handler answered; commit, then let the answer go. None: it may go as it is.

        With `whole` false the body is only the beginning of what the handler sends, and is not stored.
        """
        run, ask, error = self._run, self._ask, self.raised
        if run is None or ask is None:  # unprotected, as the route is configured
            self.over = True
            return None
        status = response.status
        if error is not None and self._is_failure(error, status):
            return await self.fail(error)
        if status >= 500 or status in NOT_STORED or not self.entered:
            found = await self.abort("not entered" if not self.entered else f"status {status}")
            return answer_lost(self, found, self.raised) if status >= 500 else answer_misuse(self, found)
        keep_rows = status < 400
        if error is not None and keep_rows:
            # Rows of half a handler, and an answer that may promise them: neither is kept, and a retry runs again.
            _log.warning(success_not_stored(self.operation, error, status))
            return answer_misuse(self, await self.abort(type(error).__name__))
        try:
            if self.steps is not None:
                self.steps.check_end()
            self.tx.check_end(keep_rows=keep_rows)
            if self.condition is not None and keep_rows:
                self.condition.check_end(status)
            if self.tx.joined:
                await close_sessions(self.tx, keep_rows)
            if keep_rows and self._guard.development and self.policy.writes and self.steps is None:
                check_used(self.tx, self.operation, status)
            answer = make_answer(
                response, ask, self._guard.new_run_id(), whole=whole, headers_kept=self.policy.headers_kept,
                sealer=self._guard.naming.reading.sealer, span=self.trace.span.carrier() if self.trace else {},
            )  # fmt: skip
        except OnefoldError as error:
            await self.abort(type(error).__name__)
            return self._guard.log_and_refuse(error, self.request, self.operation)
        except Exception as error:  # the handler's own: a session that could not write what it held back
            instead = await self.fail(error) or await self._render_with_application(error)
            if instead is None:
                raise
            return instead
        self.over = True
        try:
            lost_to = await commit(
                self.tx, lambda events: self._store.settle(ask, run, answer, keep_rows=keep_rows, also=events),
                keep_rows=keep_rows, rows_kept=rows_kept,
            )  # fmt: skip
        except OnefoldError as error:
            return await self._answer_uncommitted(error, status)
        finally:  # also where it was interrupted after COMMIT, in a hook or while the cache was written
            if self._guard.listener is not None and self.tx.settled:
                self._emit_settled(status, whole)
        return None if lost_to is None else self._answer(lost_to)

    async def _answer_uncommitted(self, error: OnefoldError, status: int) -> Response | None:
        """The handler has answered, and the commit was refused. None: its refusal goes out, and is not stored."""
        self._emit_released(type(error).__name__)
        if isinstance(error, TransactionAborted):
            _log.warning(refusal_not_stored(self.operation, status))
            return None
        if isinstance(error, StatementRefused) and (own := await self._render_with_application(error)) is not None:
            return own
        return self._guard.log_and_refuse(error, self.request, self.operation)

    async def fail(self, error: BaseException) -> Response | None:
        """The handler raised, and nothing of it stays. A Response: send this instead, a retry may succeed."""
        self.sent = self.sent or 0
        explain_wait(error, self.operation)
        judged = not self.over and self._run is not None
        if judged and self.condition is not None and (failed := self.condition.failure_in(error)) is not None:
            # An answer like the handler's own: it is kept under its key.
            self.raised, answer = failed, self._guard.refusal(failed, self.request)
            return await self.finish(answer) or answer
        failure = self._failure_of(error) if judged else None
        found = await self.abort(type(failure or error).__name__)
        if failure is None:
            return answer_lost(self, found, error)
        return self._guard.log_and_refuse(failure, self.request, self.operation)

    def _is_failure(self, error: BaseException, status: int) -> bool:
        """Whether what the handler raised is answered by us, whatever was answered to it with this status."""
        # A failed condition may be answered as any error: by the exception handler of a blueprint, below a mount.
        if status >= 500 and self.condition is not None and self.condition.failure_in(error) is not None:
            return True
        return self._failure_of(error) is not None

    def _failure_of(self, error: BaseException) -> OnefoldError | None:
        """What a handler raised, if the database is at fault, or if it has the outcome of its work."""
        if self.work is not None and isinstance(error, StoreError | WorkTakenOver | WorkParked | WorkChanged):
            return error
        return failure_of(error, self.operation, self.policy.lease_s)

    async def abort(self, reason: str) -> OnefoldError | None:
        """The handler failed, or answered something that is not kept: leave nothing behind. What was found to be wrong
        then: its connection was lost before, or it has committed by itself."""
        if self.over:
            return None
        self.over = True
        if self._run is None or self._ask is None:
            self.tx.end()
            return None
        if self.work is not None:
            self.work.leave()
        release = functools.partial(self._store.release, self._ask, self._run, touched=self.tx.touched)
        found: OnefoldError | None = None
        try:
            await undo(self.tx, release)
        except (TransactionMisused, ConnectionLost) as error:
            level = logging.ERROR if isinstance(error, TransactionMisused) else logging.WARNING
            _log.log(level, "%s failed (%s), and its retry runs again: %s", self.operation, reason, error)
            found = error
        self._emit_released(reason)
        return found

    async def _render_with_application(self, error: Exception) -> Response | None:
        return await render_with_application(self._guard.framework, error, self.request, self._body)

    def _answer(self, claim: Claim) -> Response:
        """The answer to a request that does not run."""
        guard, ask = self._guard, self._ask
        assert ask is not None
        match claim:
            case Replay(record):
                self._emit_claimed("replay")
                try:
                    self._link_to(record)
                    answer = make_replay(record, headers_kept=self.policy.headers_kept, reading=guard.naming.reading)
                    return fit_encoding(answer, self.request.headers, tags_state=self.policy.conditional is not None)
                except OnefoldError as unreadable:
                    return guard.log_and_refuse(unreadable, self.request, self.operation)
            case Run():
                raise ProgrammerError("a claim that was granted has no answer yet")
            case _:
                outcome, error = refuse(claim, self.policy.retention_s)
                self._emit_claimed(outcome)
                return guard.log_and_refuse(error, self.request, self.operation)


#: The guarded request this task or thread is inside of, from admission to end.
current_request: ContextVar[GuardedRequest[Any] | None] = _current_request
