"""What the rims for ASGI and for WSGI have in common: an application that runs inside a passage.

Invariant: a passage is found in the context, and in the scope or environ, for as long as the application runs in it,
and its place among the requests of its principal is given back on every way out.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextvars import Token
from types import TracebackType
from typing import Any, Final

from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold.http.exchange import Passage, passing

#: Where a handler finds its transaction in the scope or environ.
TRANSACTION: Final = "onefold.transaction"

#: Where a shedder inside of the layer finds the request's passage and its lane: see `Passage.step_aside`.
PASSAGE: Final = "onefold.passage"

#: Where a request finds the application's sessions.
SESSIONS: Final = "onefold.sessions"


class Inside:
    """`with` it, the application runs inside a passage. `marks_entry`: its handlers tell by themselves that they were
    reached."""

    __slots__ = ("_lane", "_passage", "_source", "_token")

    def __init__(
        self,
        passage: Passage,
        lane: ThreadLane[Any] | TaskLane[Any],
        source: MutableMapping[str, Any],
        *,
        marks_entry: bool,
    ) -> None:
        self._passage = passage
        self._lane = lane
        self._source = source
        self._token: Token[Passage | None] | None = None
        passage.entered = not marks_entry

    def __enter__(self) -> None:
        self._source[TRANSACTION] = self._passage.tx
        self._source[PASSAGE] = (self._passage, self._lane)
        self._token = passing.set(self._passage)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        passage = self._passage
        if error is not None and not isinstance(error, Exception):
            passage.sent, passage.over = passage.sent or 0, True
            self._lane.abandon()  # interrupted: nothing more may be awaited on its connection
        assert self._token is not None
        passing.reset(self._token)
        leave(passage)
        # The passage knows the scope, and tracebacks lead to the passage: circles for the garbage collector.
        self._source.pop(PASSAGE, None)
        passage.raised = passage.stream_error = None


def leave(passage: Passage) -> None:
    """The request is not in flight any more. Its record is stored once COMMIT was answered, whatever interrupts what
    comes after that (a hook)."""
    if passage.place is not None:
        passage.place.recorded = passage.keyed and passage.tx.settled
        passage.place.leave()
