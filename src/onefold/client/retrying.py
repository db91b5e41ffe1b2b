"""Retrying: how a client behaves, and what it has learned about its hosts. One object may serve many clients."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

from onefold._kernel.events import Listener
from onefold.client.aiohttp import RetryingMiddleware
from onefold.client.calls import Calls
from onefold.client.exchange import Exchange
from onefold.client.hooks import StaminaHook, tenacity_settings
from onefold.client.httpx import AsyncRetryingTransport, RetryingTransport, vendor_of
from onefold.client.loops import AttemptLoop
from onefold.client.outcomes import On
from onefold.client.requests import RetryingAdapter, is_adapter
from onefold.client.store import JournalStore
from onefold.errors import ConfigurationError
from onefold.policy.attempts import Host
from onefold.policy.hosts import Hosts
from onefold.policy.retry import RetryPolicy

if TYPE_CHECKING:
    import httpx
    import httpx2
    from requests.adapters import BaseAdapter

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar(
    "A",
    "httpx.BaseTransport",
    "httpx.AsyncBaseTransport",
    "httpx2.BaseTransport",
    "httpx2.AsyncBaseTransport",
    "BaseAdapter",
)

DAY_S = 86_400.0


class Settings(TypedDict, total=False):
    """What Retrying takes besides its policy."""

    journal: object | None
    retention_s: float
    mint: bool
    quoted: bool
    listener: Listener | None


class Retrying:
    """Calls that are retried well: with keys, and under a budget, a breaker and a deadline per host.

    - `journal` keeps the keys of intents: a path, an address or a pool, as Onefold takes them. By default a file of
      the user's own (see `onefold intents`). It is opened when the first intent is served.
    - `retention_s` is how long the servers remember a key.
    - `mint`: a POST or PATCH without a key is given one. Say False for servers that do not honour Idempotency-Key:
      their POSTs are then sent once, unless the caller gives a key.
    - `quoted`: keys are sent as the quoted strings of the IETF draft; most servers of today take them bare.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        *,
        journal: object | None = None,
        retention_s: float = DAY_S,
        mint: bool = True,
        quoted: bool = False,
        listener: Listener | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        policy = RetryPolicy() if policy is None else policy
        self._hosts = Hosts(lambda name: Host(policy, draw, name))
        self._listener = listener
        self._store = JournalStore(journal, retention_s=retention_s)
        self._exchange = Exchange(hosts=self._hosts, store=self._store, listener=listener, mint=mint, quoted=quoted)
        self._middleware = RetryingMiddleware(self._exchange)

    def around(self, inner: A) -> A:
        """A transport of httpx or httpx2, or an adapter of requests, that retries."""
        return wrapped(inner, self._exchange, owns=False)

    @property
    def middleware(self) -> RetryingMiddleware:
        """For aiohttp: `ClientSession(middlewares=[retrying.middleware])`."""
        return self._middleware

    def calls(self, to: str, *, on: On) -> Callable[[F], F]:
        """Decorate a function, sync or async, that calls something: `on` says which of its errors are worth another
        attempt: classes, or a function from the error to yes, no, or the seconds to wait. `to` names what is called:
        functions that call the same share its budget and its breaker. It must be safe to call it again."""
        return cast("Callable[[F], F]", self._calls(to, on).around)

    def attempts(self, to: str, *, on: On) -> AttemptLoop:
        """The same for a block: `for attempt in retrying.attempts("ledger", on=OSError): with attempt: ...`, or
        `async for`."""
        return AttemptLoop(self._calls(to, on))

    def tenacity(self, to: str, *, on: On) -> dict[str, Any]:
        """For those who keep tenacity: `@tenacity.retry(**retrying.tenacity("ledger", on=OSError))`."""
        return tenacity_settings(self._calls(to, on))

    def stamina(self, to: str, *, on: On) -> StaminaHook:
        """For those who keep stamina: `hook = retrying.stamina("ledger", on=OSError)`, then `@stamina.retry(on=hook)`
        above `@hook.watch`."""
        return StaminaHook(self._calls(to, on))

    def close(self) -> None:
        """Close the journal, where it was opened here."""
        self._store.close()

    async def aclose(self) -> None:
        """The same, where it was used on a loop."""
        await self._store.aclose()

    def _calls(self, to: str, on: On) -> Calls:
        return Calls(self._hosts.of(to, time.monotonic()), on, self._listener)


def retrying(inner: A, policy: RetryPolicy | None = None, **settings: Unpack[Settings]) -> A:
    """A transport of httpx or httpx2, or an adapter of requests, that retries: the settings are those of Retrying.

    `httpx.Client(transport=onefold.retrying(httpx.HTTPTransport()))`
    """
    return wrapped(inner, Retrying(policy, **settings)._exchange, owns=True)


def wrapped(inner: A, exchange: Exchange, *, owns: bool) -> A:
    """What retries around what sends. `owns`: closing it closes the journal too."""
    sender: Any = inner
    around: object
    if isinstance(sender, RetryingTransport | AsyncRetryingTransport | RetryingAdapter):
        raise ConfigurationError("this transport retries already, and attempts would multiply: wrap it once")
    if is_adapter(sender):
        around = RetryingAdapter(sender, exchange, owns=owns)
    elif (vendor := vendor_of(sender)) is None:
        raise ConfigurationError(
            f"{type(sender).__module__}.{type(sender).__qualname__} cannot be made to retry: give a transport of httpx "
            "or httpx2, or an adapter of requests; aiohttp takes Retrying().middleware, all else Retrying().calls(...)"
        )
    elif isinstance(sender, vendor.AsyncBaseTransport):
        around = AsyncRetryingTransport(sender, vendor, exchange, owns=owns)
    else:
        around = RetryingTransport(sender, vendor, exchange, owns=owns)
    return cast(A, around)
