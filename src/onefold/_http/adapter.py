"""What the adapters for ASGI and for WSGI have in common: an application that runs inside a guarded request.

Invariant: a guarded request is found in the context, and in the scope or environ, for as long as the application runs
in it, and its place among the requests of its principal is given back on every way out.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextvars import Token
from types import TracebackType
from typing import Any, Final

from onefold._http.guarded_request import GuardedRequest, current_request
from onefold._kernel.executors import TaskExecutor, ThreadExecutor

#: Where a handler finds its transaction in the scope or environ.
TRANSACTION: Final = "onefold.transaction"

#: Where a shedder inside of the layer finds the request's guarded request and its executor: see
# `GuardedRequest.step_aside`.
PASSAGE: Final = "onefold.passage"

#: Where a request finds the application's sessions.
SESSIONS: Final = "onefold.sessions"


class Inside:
    """`with` it, the application runs inside a guarded request. `marks_entry`: its handlers tell by themselves that
    they were reached."""

    __slots__ = ("_executor", "_guarded", "_source", "_token")

    def __init__(
        self,
        guarded: GuardedRequest,
        executor: ThreadExecutor[Any] | TaskExecutor[Any],
        source: MutableMapping[str, Any],
        *,
        marks_entry: bool,
    ) -> None:
        self._guarded = guarded
        self._executor = executor
        self._source = source
        self._token: Token[GuardedRequest | None] | None = None
        guarded.entered = not marks_entry

    def __enter__(self) -> None:
        self._source[TRANSACTION] = self._guarded.tx
        self._source[PASSAGE] = (self._guarded, self._executor)
        self._token = current_request.set(self._guarded)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        guarded = self._guarded
        if error is not None and not isinstance(error, Exception):
            guarded.sent, guarded.over = guarded.sent or 0, True
            self._executor.abandon()  # interrupted: nothing more may be awaited on its connection
        assert self._token is not None
        current_request.reset(self._token)
        leave(guarded)
        # The guarded request knows the scope, and tracebacks lead to the guarded request: circles for the garbage
        # collector.
        self._source.pop(PASSAGE, None)
        guarded.raised = guarded.stream_error = None


def leave(guarded: GuardedRequest) -> None:
    """The request is not in flight any more. Its record is stored once COMMIT was answered, whatever interrupts what
    comes after that (a hook)."""
    if guarded.place is not None:
        guarded.place.recorded = guarded.keyed and guarded.tx.settled
        guarded.place.leave()
