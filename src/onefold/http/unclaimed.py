"""Requests that pass the layer unclaimed, because no idempotent route was found for them.

A marked handler that such a request reaches all the same would run unprotected, and nobody would notice: it is refused.
Called outside of a request, in a test for instance, or by a handler that has a passage, it is a plain function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from onefold.errors import ProgrammerError
from onefold.http.exchange import Passage, passing
from onefold.http.policy import METHODS


class _Unclaimed:
    """One such request. A passage that began after it (an application below with a layer of its own) takes over."""

    __slots__ = ("name", "outer", "over")

    def __init__(self, name: str, outer: Passage | None) -> None:
        self.name = name
        self.outer = outer
        self.over = False


_current: ContextVar[_Unclaimed | None] = ContextVar("onefold_unclaimed", default=None)


@contextmanager
def unclaimed(method: str, path: str) -> Iterator[None]:
    """Around the application, for a request that has no passage."""
    # For other methods a key means nothing: a handler that serves them too runs without one.
    found = _Unclaimed(f"{method} {path}", passing.get()) if method in METHODS else None
    token = _current.set(found)
    try:
        yield
    finally:
        _current.reset(token)
        if found is not None:
            found.over = True  # for tasks that were left behind, with this context


def refuse_unclaimed(handler: str) -> None:
    """Called where a marked handler is entered that the passage under way, if there is one, is not about."""
    found = _current.get()
    if found is None or found.over or found.outer is not passing.get():
        return
    raise ProgrammerError(
        f"{found.name} reached {handler}, which is marked as idempotent, but onefold found no idempotent route for it "
        "in the application it is installed in: the handler would run unprotected. Call once.install(...) on the "
        "application that has the route. Other ASGI or WSGI code around it hides it, and so does middleware that "
        "rewrites the path or the method, and a Host with parameters (there the principal must tell the hosts apart). "
        "If another handler calls this one as a function, let it call an unmarked function instead"
    )
