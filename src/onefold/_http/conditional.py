"""Conditional requests: the rules of a route for them, and the condition of one request.

Theory of operation. The handler has the condition judged by the row that it writes, in its own transaction, while that
row is locked: `condition.lock(...)` reads it so and judges it in one call. A layer in front of the handler cannot do
that: between its look and the handler's write another request would fit. What the layer does instead is to insist: a
handler of such a route that succeeds without having had its condition judged is not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onefold._http.condition_errors import ConditionFailed, ConditionMissing
from onefold._http.etags import EntityTag, Preconditions, judge, make_tag, read_preconditions, read_tag
from onefold._http.request import Headers, Request
from onefold._kernel.arguments import name_type
from onefold._kernel.executors import is_async
from onefold._kernel.inside_calls import PendingCall
from onefold.errors import CallerError, ConfigurationError, OnefoldError, ProgrammerError

if TYPE_CHECKING:
    from onefold._idempotency.model import Ask, Run
    from onefold._idempotency.store import Store
    from onefold._kernel.owned_transaction import OwnedTransaction

T = TypeVar("T")

#: The name of a field, or a function from what is stored (or answered) to its version.
Etag: TypeAlias = str | Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """The rules of a route for the conditions of its requests.

    `etag` is what changes with each write. Without `required` a request with neither If-Match nor If-None-Match runs
    all the same; with it (the default) it is refused with 428. `repeatable_delete`: a DELETE of what is gone passes,
    whatever its If-Match names, so that its retry is answered like the first.
    """

    etag: Etag
    required: bool = True
    repeatable_delete: bool = False

    def __post_init__(self) -> None:
        given: object = self.etag
        if not (callable(given) or (isinstance(given, str) and given)):
            raise ConfigurationError(
                f"etag={given!r} must name the field with the version, as in etag='version', or be a function from the "
                "row to it, as in etag=lambda order: order.version"
            )
        if is_async(given):
            raise ConfigurationError(
                f"etag={given!r:.200} is an async function: it is called for the version of a row, and is not awaited. "
                "Write a `def`"
            )
        for name in ("required", "repeatable_delete"):
            value: object = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigurationError(f"{name}={value!r} of a conditional route must be True or False")


class RequestCondition:
    """The condition of one request, for its handler."""

    __slots__ = ("_etag_error", "_failed", "_in_tuple", "_method", "_read", "_request", "_tag", "_tx", "rules", "whose")

    def __init__(
        self, request: Request, rules: Conditional | None, whose: str, tx: OwnedTransaction[Any] | None
    ) -> None:
        self._request = (request.values("if-match"), request.values("if-none-match"))
        self._method = request.method
        #: Flask's views return the body in a tuple, with status and headers; to others a tuple is a list.
        self._in_tuple = "REQUEST_METHOD" in request.source
        self._tx = tx
        self._read: Preconditions | None = None
        self._failed = False
        self._tag: EntityTag | None = None
        #: Why what the handler returned has no tag: an error where that is a success.
        self._etag_error: OnefoldError | None = None
        #: Of the route; None until the handler of a read is reached, which has them.
        self.rules = rules
        self.whose = whose

    @property
    def is_given(self) -> bool:
        """Whether the request has a condition."""
        return self._preconditions().given

    def lock(self, table: Any, *, where: Mapping[str, Any]) -> Any:
        """The row as it is, locked until COMMIT, if the condition of the request holds for it; else ConditionFailed,
        which is answered 412. None: there is no such row, and the condition allows that. With AsyncOnefold to be
        awaited. The table is its name, a Table or a mapped class of SQLAlchemy."""
        if self._tx is None:
            raise ProgrammerError(f"{self.whose} reads, and has no transaction: only writes lock rows")
        found = self._tx.lock_row(table, where=where)
        if not isinstance(found, PendingCall):
            return self._check(found)

        async def check() -> Any:
            return self._check(await found)

        return PendingCall("condition.lock(...)", check)

    def check(self, current: T) -> T:
        """For a row that you have locked yourself, by SELECT … FOR UPDATE in this transaction; None for none. The row,
        if the condition holds for it, else ConditionFailed."""
        if hasattr(current, "_sa_instance_state"):
            # A session hands out what it has loaded before, also for a SELECT … FOR UPDATE: the state of that time.
            raise ProgrammerError(
                f"{self.whose}: condition.check({current!r:.80}) got an instance of a mapped class, which may be older "
                f"than its lock. Have condition.lock({type(current).__name__}, where=...) read it, or check columns: "
                "session.execute(select(Order.version).where(...).with_for_update()).one()"
            )
        return self._check(current)

    def _check(self, current: T) -> T:
        rules = self._require_rules()
        preconditions = self._preconditions()
        tag = None if current is None else tag_of(rules.etag, current, self.whose)
        gone = current is None and rules.repeatable_delete and self._method == "DELETE"
        if not gone and judge(preconditions, tag, self._method) != "holds":
            self._failed = True  # for good, also where the handler goes on
            raise condition_error(tag)
        if self._tx is not None:
            self._tx.pending.held += 1
        return current

    def tag(self, value: object) -> None:
        """The answer has the ETag of this: for handlers that return a response instead of the row."""
        self._tag = tag_of(self._require_rules().etag, value, self.whose)

    # --- for the layer ---

    async def read_or_release(self, store: Store, ask: Ask, run: Run) -> None:
        """After the claim: a key with a record is answered by that, whatever the retry's condition is."""
        try:
            preconditions = self._preconditions()
            if self._require_rules().required and not preconditions.given:
                raise ConditionMissing(
                    f"{self.whose} needs a condition: If-Match with the ETag of what you have read, or If-None-Match: "
                    "* to create it only where it is not there. Nothing was done."
                )
        except CallerError:
            await store.release(ask, run)
            raise

    def note_result(self, result: object) -> None:
        """Make the ETag of what the handler returned, unless the handler has set it or the result has none. The status
        is known later: the body of a 404 is no row."""
        if self._in_tuple and isinstance(result, tuple) and result:
            result = result[0]
        has_no_tag = result is None or result == "" or self._method == "DELETE" or _is_response(result)
        if self._tag is None and not has_no_tag:
            try:
                self.tag(result)
            except OnefoldError as error:
                self._etag_error = error

    def failure_in(self, error: BaseException | None) -> ConditionFailed | None:
        """What a handler raised, if it is a condition that does not hold; also alone in a group, as of a TaskGroup."""
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        return error if isinstance(error, ConditionFailed) else None

    def check_end(self, status: int) -> None:
        """Raises ProgrammerError where the handler has answered a success that depends on nothing, or without a tag
        that it was to have."""
        if self._failed:
            raise ProgrammerError(
                f"{self.whose}: its condition does not hold, and its handler succeeded all the same: nothing was "
                "committed. Let ConditionFailed rise"
            )
        if self._tx is not None and not self._tx.pending.held:
            raise ProgrammerError(
                f"{self.whose} is marked as conditional, and its handler succeeded without having its condition "
                "judged: nothing was committed. Lock the row by `condition.lock(table, where=...)`, awaited in async "
                "code, or call condition.check(row) with a row that you have locked by SELECT … FOR UPDATE. Where that "
                "was in a savepoint that was rolled back, the lock is gone: ask again"
            )
        if self._etag_error is not None and self._tag is None and 200 <= status < 300:
            raise self._etag_error

    def headers_for(self, status: int, present: Headers) -> Headers:
        """What an answer with this status gets besides its own headers."""
        if self._tag is None or not 200 <= status < 300 or any(name == b"etag" for name, _ in present):
            return ()
        return ((b"etag", str(self._tag).encode("latin-1")),)

    def judge_read(self, present: Headers) -> EntityTag | None:
        """The tag where the reader has this state already. Raises ConditionFailed, ConditionMalformed, and
        ProgrammerError where the answer was to have a tag."""
        if self._tag is None and self._etag_error is not None:
            raise self._etag_error
        if self._tag is None:
            return None
        # A response may have a tag of its own (that of a file): then that is what its readers have.
        own = [read_tag(value) for name, value in present if name == b"etag"]
        tag = own[0] if own else self._tag
        if tag is None:
            return None
        verdict = judge(self._preconditions(), tag, self._method)
        if verdict == "failed":
            raise condition_error(tag)
        return tag if verdict == "not modified" else None

    def _preconditions(self) -> Preconditions:
        if self._read is None:
            self._read = read_preconditions(*self._request)
        return self._read

    def _require_rules(self) -> Conditional:
        if self.rules is None:
            raise ProgrammerError(f"{self.whose} has no condition: mark its handler with @once.conditional(etag=...)")
        return self.rules


def condition_error(current: EntityTag | None) -> ConditionFailed:
    """The error for a caller whose condition does not hold."""
    now = "There is no such resource now." if current is None else "Its ETag is in this answer."
    return ConditionFailed(
        f"The resource is not in the state that the request depends on. Nothing was done. {now} Read it again, decide "
        "again, and send a new request, under a new Idempotency-Key if it has one.",
        etag=None if current is None else str(current),
    )


class _Fields(dict[str, Any]):
    """A row of a table that is known by its name, for a function that reads the attributes of a model, too."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def tag_of(etag: Etag, value: Any, whose: str) -> EntityTag:
    """The tag of a row, or of what stands for one."""
    try:
        if not isinstance(etag, str):
            version = etag(_Fields(value) if type(value) is dict else value)
        elif isinstance(value, Mapping) or hasattr(value, "keys"):  # rows of sqlite3 and asyncpg are no Mappings
            version = value[etag]
        else:
            version = getattr(value, etag)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise ProgrammerError(
            # Without the row, and without what a function says of it: the caller reads this.
            f"{whose}: etag={etag!r} cannot be found in {name_type(value)} ({type(error).__name__}). It is "
            "asked about the row that is locked, and about what the handler returns: return the row, or call "
            "condition.tag(row)"
        ) from error
    return make_tag(version, whose)


def _is_response(result: object) -> bool:
    """Whether it is a response of a framework, which does not show its row: Flask's and Starlette's are
    applications themselves. (A row may have columns of any name.)"""
    return callable(result) and hasattr(result, "headers")
