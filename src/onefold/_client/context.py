"""What a call inherits from the code around it: the block it is made in, which holds one key.

Theory of operation. A block stands for one call, however many attempts are made of it, and by which loop: our own
loop, an SDK's, tenacity's. All of them are sent under the block's key. The first request that needs a key is the call;
another one in the same block is refused, for its server would take it for a repetition of the first. Requests that
only read, and those that fetch a token, are not calls in this sense.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from onefold._client.call_options import check_options
from onefold._client.journal.records import check_intent
from onefold._client.retry_conditions import RetryIf
from onefold._kernel.arguments import named_arguments
from onefold._kernel.call_blocks import Block, enter, leave

_log = logging.getLogger("onefold.client")

#: Methods that only read: they need no key, and take none.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class Redirect(NamedTuple):
    """A call that was just sent elsewhere by its server (307, 308), for the request with which its client follows."""

    url: tuple[str, ...]
    method: str
    body: bytes
    """The hash of it."""
    key: str
    block: Block | None


#: HTTP clients make a new request of a redirect, without the key that was added to the first. They do so in the same
#: task or thread, so the next request finds this.
_redirect: ContextVar[Redirect | None] = ContextVar("onefold.moved", default=None)

pending_redirect: Callable[[], Redirect | None] = _redirect.get
remember_redirect: Callable[[Redirect | None], object] = _redirect.set


#: The options from the code around a call: see `options`.
_options: ContextVar[Mapping[str, Any] | None] = ContextVar("onefold.clients.options", default=None)

current_options: Callable[[], Mapping[str, Any] | None] = _options.get


@named_arguments("onefold.clients.options")
@contextmanager
def options(
    *,
    deadline_s: float | None = None,
    attempts_max: int | None = None,
    attempt_s: float | None = None,
    stream: bool | None = None,
    retry_if: RetryIf | None = None,
    hedge_s: float | None = None,
) -> Iterator[None]:
    """Options of the requests in this block, with every client, like the `extensions` of one request of httpx: `with
    onefold.clients.options(deadline_s=2): session.get(...)`. A block inside another gives only what differs; options
    of a request itself come first. `deadline_s`, `attempts_max` and `attempt_s` are as in RetryPolicy. `stream`:
    answers of unknown length are passed on while they arrive, and not read within their attempt. `retry_if`: see
    Retrying. `hedge_s`: a request that only reads is sent again, beside the first attempt, where there is no answer
    after so many seconds (httpx.AsyncClient)."""
    settings = {
        "deadline_s": deadline_s,
        "attempts_max": attempts_max,
        "attempt_s": attempt_s,
        "stream": stream,
        "retry_if": retry_if,
        "hedge_s": hedge_s,
    }
    check_options(settings)
    token = _options.set(
        {**(_options.get() or {}), **{name: value for name, value in settings.items() if value is not None}}
    )
    try:
        yield
    finally:
        _options.reset(token)


@contextmanager
def _within(block: Block) -> Iterator[str]:
    token = enter(block)
    try:
        yield block.key
    finally:
        leave(token)


@contextmanager
def call() -> Iterator[str]:
    """One call, and its key: every attempt in this block is sent under it, also those that an SDK or another retry
    loop makes. `with onefold.call() as key: client.post(...)`. It lives as long as the block: after a restart the same
    call gets another key. See `intent`."""
    with _within(Block()) as key:
        yield key


@named_arguments("onefold.intent")
@contextmanager
def intent(name: str) -> Iterator[str]:
    """One key for a call that survives the process: a client of onefold journals the key before the first byte
    leaves, and sends the same one after a restart. `with onefold.intent("pay:ord-42"): client.post(...)`.

    The key that the block gives is for SDKs over such a client that want one of their own. Where the journal has
    another one for this intent already, because a process died in the middle of it, the client sends that one in its
    place. The block itself knows no journal: any other client would be given another key after a restart. For those
    there is `Retrying.intent`, whose key is the journal's from the beginning.
    """
    block = Block(check_intent(name))
    with _within(block) as key:
        yield key
    if not block.used:
        _log.warning(
            "intent %r: its block ended without a call by a retrying client, so its key is in no journal, and after a "
            "restart the intent gets another one. Where the key is handed to another client, use `with "
            "retrying.intent(%r) as key`, which journals it; a thread pool sees the block only if it is handed the "
            "context (contextvars.copy_context)", name, name,
        )  # fmt: skip
