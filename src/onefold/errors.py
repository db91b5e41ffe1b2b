"""Every error onefold raises, in branches by who must act: the programmer, the caller, the operator.

Nothing outside this hierarchy leaves the library: vendor errors are mapped by table (see `db/`) and chained. A message
names the thing, its value and the way out.
"""

from __future__ import annotations

from typing import ClassVar


class OnefoldError(Exception):
    """The root: catch this to catch everything onefold raises on purpose."""


class AnsweredError(OnefoldError):
    """A problem (RFC 9457) as an answer: its `detail`, and `retry_after_s` where a later retry may help."""

    status: ClassVar[int] = 400
    slug: ClassVar[str] = "request-refused"
    title: ClassVar[str] = "The request was refused"
    retryable: ClassVar[bool] = False
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail, self.retry_after_s = detail, retry_after_s


# --- the programmer must act -----------------------------------------------------------------------------


class ProgrammerError(OnefoldError):
    """The code that uses onefold is wrong; no retry will help. Answered with 500, nothing stored."""

    slug: ClassVar[str] = "handler-broken"
    title: ClassVar[str] = "The application is at fault"


class ConfigurationError(ProgrammerError):
    """A setting is missing, contradictory or out of range. Raised at start, never in the middle of a request."""


class TransactionMisused(ProgrammerError):
    """The handler broke the request's transaction: committed it, swallowed an SQL error, or went around it."""


class AuthenticationBroken(ProgrammerError):
    """The application's `authorize` or `principal` function failed. Nothing was done, and a retry may succeed."""

    slug = "authentication-broken"
    title = "The application could not find out who is asking"


class MessageInvalid(ProgrammerError):
    """An event cannot be published as it is: its topic, key, headers or data. The transaction goes on without it."""


class IntentInvalid(ProgrammerError):
    """An intent cannot be named like this."""


class IntentReused(ProgrammerError):
    """The `intent`, which has this `key`, names another call: see `detail`. Nothing was sent."""

    def __init__(self, detail: str, *, intent: str = "", key: str = "") -> None:
        super().__init__(detail)
        self.intent, self.key = intent, key


class KeyNotDerivable(ProgrammerError):
    """A key cannot be derived from this: it may be written differently the next time."""


class ResultNotSerializable(ProgrammerError):
    """What a function returned cannot be recorded: its type, its size. Nothing of it stays."""


class ResultUnreadable(ProgrammerError):
    """A recorded result does not fit its type: that was changed afterwards, or a person gave it in a wrong form."""


class WorkMisused(ProgrammerError):
    """The steps of a work are used in a way that cannot be resumed: a name twice, two at once, one after the end."""


class WorkMismatch(ProgrammerError):
    """The name already stands for a work with another input. Nothing was run."""


class WorkChanged(ProgrammerError):
    """The code asks for other steps than those that an earlier attempt at this work has recorded. Nothing was run."""

    slug = "work-changed"
    title = "The application was changed in the middle of this request"


# --- the caller must act ---------------------------------------------------------------------------------


class CallerError(AnsweredError):
    """The request cannot be served as it is."""


class KeyMissing(CallerError):
    """The route requires an Idempotency-Key and the request has none."""

    slug = "key-missing"
    title = "Idempotency-Key is missing"


class KeyMalformed(CallerError):
    """The Idempotency-Key header cannot be read as one key."""

    slug = "key-malformed"
    title = "Idempotency-Key is malformed"


class PrincipalMissing(CallerError):
    """The application could not say on whose behalf the request is made."""

    status = 401
    slug = "principal-missing"
    title = "The request has no principal"


class NotAuthorized(CallerError):
    """The application's `authorize` does not allow the request."""

    status = 403
    slug = "not-authorized"
    title = "The request is not allowed"


class HeaderRepeated(CallerError):
    """A header that has one value is there more than once: which of them holds must not be guessed."""

    slug = "header-repeated"
    title = "A header was sent more than once"


class KeyInFlight(CallerError):
    """The same request is being worked on at this moment: wait, then retry with the same key."""

    status = 409
    slug = "key-in-flight"
    title = "A request with this Idempotency-Key is in flight"
    retryable = True


class WorkTakenOver(KeyInFlight):
    """The lease of this work ran out and another process has taken it over: this one may write nothing more for it."""


class WorkParked(CallerError):
    """The work waits for a person: an outcome is unknown, or it failed too often. See `onefold keys`."""

    status = 409
    slug = "work-parked"
    title = "The request was begun and is not complete"


class KeyReused(CallerError):
    """The key already names another request: other payload, other path or other query."""

    status = 422
    slug = "key-reused"
    title = "Idempotency-Key was used for another request"


class KeyExpired(CallerError):
    """The key is older than the route remembers; running the request could execute it twice."""

    status = 410
    slug = "key-expired"
    title = "Idempotency-Key has expired"


class AnswerNotKept(CallerError):
    """The request completed, but its answer was too large to be stored for a replay."""

    status = 410
    slug = "answer-not-kept"
    title = "The request completed; its answer was not kept"


class AnswerEncoded(CallerError):
    """The request completed; its answer is stored in a content coding that this caller does not accept."""

    status = 406
    slug = "answer-encoded"
    title = "The stored answer is encoded in a way this request does not accept"


class BodyTooLarge(CallerError):
    """The request body is larger than the route accepts."""

    status = 413
    slug = "body-too-large"
    title = "The request body is too large"


class BodyIncomplete(CallerError):
    """The request body ended early; nothing was claimed."""

    slug = "body-incomplete"
    title = "The request body is incomplete"


class BodyTooSlow(CallerError):
    """The request body did not arrive in time; nothing was claimed."""

    status = 408
    slug = "body-too-slow"
    title = "The request body took too long"
    retryable = True


class Overloaded(CallerError):
    """The service has more work than it can do. Nothing was done."""

    status = 503
    slug = "overloaded"
    title = "The service is overloaded"
    retryable = True


class TooManyRequests(CallerError):
    """The principal has used up its quota: of requests in flight, or of those recorded in an hour."""

    status = 429
    slug = "too-many-requests"
    title = "Too many requests"
    retryable = True


class DeadlinePassed(CallerError):
    """The time that the client had granted was over before the request could run. Nothing was done."""

    status = 504  # not 503: a request that came too late is no overload; gRPC's gateways distinguish them like this
    slug = "deadline-passed"
    title = "The deadline of the request has passed"
    retryable = True


# --- the operator must act -------------------------------------------------------------------------------


class StoreError(AnsweredError):
    """The database could not do its part. The caller sees 503 and may retry with the same key."""

    status = 503
    slug = "store-unavailable"
    title = "The idempotency store is unavailable"
    retryable = True


class StoreUnavailable(StoreError):
    """No connection could be had, or the one in use was lost before anything could commit."""


class PoolExhausted(StoreUnavailable):
    """Every connection of the pool was out, and none came back in time. Nothing was done."""


class ConnectionLost(StoreUnavailable):
    """The connection died under a statement. If that was COMMIT, the outcome must be looked up."""


class OutcomeUnknown(StoreError):
    """COMMIT was sent, its answer was lost and the database does not answer. Retry with the same key."""

    slug = "outcome-unknown"
    title = "The outcome is unknown; retry with the same key"


class OutcomeUnknowable(StoreError):
    """COMMIT was sent without a key and its answer was lost: a retry may execute it twice."""

    slug = "outcome-unknowable"
    title = "The outcome is unknown and the request had no key"
    retryable = False


class StoreBusy(StoreError):
    """The database did not grant a lock in time."""

    slug = "store-busy"
    title = "The idempotency store is busy"


class SerializationFailed(StoreBusy):
    """The database could not serialise this transaction (also: a deadlock). Nothing of it stayed; it may be retried."""


class WorkUnreadable(StoreError):
    """What is recorded of a work cannot be opened: it is sealed, or not, otherwise than this application seals."""

    slug = "work-unreadable"
    title = "The recorded steps of this request cannot be read"
    retryable = False


class StoreReadOnly(StoreError):
    """The database or its file cannot be written."""

    slug = "store-read-only"
    title = "The idempotency store is read-only"
    retryable = False


class SchemaMissing(StoreError):
    """onefold's tables are not there. The way out is `onefold migrate`."""

    slug = "store-not-migrated"
    title = "The idempotency store is not migrated"
    retryable = False


class BrokerError(OnefoldError):
    """A broker could not do its part."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached, or did not confirm in time: no message is at fault."""


class ConsumerActive(BrokerError):
    """A consumer cannot be removed while processes of it are running: stop them first."""


class MessageRefused(BrokerError):
    """The broker refuses this message, and would again: too large, or without a route."""


class TopicNotSubscribed(MessageRefused):
    """No consumer has subscribed to the topic yet. The event waits for one, however long that takes."""


class IntentExpired(OnefoldError):
    """The server may have forgotten the `key` of the `intent`, and do it again (`detail`). Nothing was sent."""

    def __init__(self, detail: str, *, intent: str = "", key: str = "") -> None:
        super().__init__(detail)
        self.intent, self.key = intent, key


class WorkInProgress(OnefoldError):
    """The work of this name is being done elsewhere at this moment. Nothing was run."""


class MessageUnreadable(OnefoldError):
    """What was received has no envelope that onefold can read."""


class PayloadInvalid(MessageUnreadable):
    """The data of a message does not fit the type that its handler is annotated with: no attempt can help."""


# --- what an outgoing call can end with ------------------------------------------------------------------


class CallNotMade(OnefoldError):
    """A call was not made: the breaker is open, or the deadline passed. HTTP clients raise it as their own kind."""


class BodyNotReplayable(ProgrammerError):
    """The body of a request can be sent only once, so the request could not be retried. Nothing was sent."""


# --- what a statement can come back with: flows act on these, users rarely see them ----------------------


class StatementRefused(OnefoldError):
    """The database refused a statement for a reason that has no class of its own here."""


class RowDiffers(StatementRefused):
    """A row with this business key is there, with other values in `columns`: see `tx.insert_once`."""

    columns: tuple[str, ...] = ()


class UniqueViolated(StatementRefused):
    """A row with this unique value is already there."""


class RequiredValueMissing(StatementRefused):
    """A NOT NULL column got NULL: how a settle finds out, inside its own batch, that its claim is gone."""


class TransactionAborted(StatementRefused):
    """The transaction had failed before this statement: the handler swallowed an SQL error."""


class TransactionEnded(StatementRefused):
    """There is no open transaction, or its savepoint is gone: the handler committed or rolled back by itself."""


__all__ = sorted(name for name, each in globals().items() if isinstance(each, type) and issubclass(each, OnefoldError))
