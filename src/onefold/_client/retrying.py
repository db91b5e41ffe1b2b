"""Retrying: how a client behaves, and what it has learned about its hosts. One object may serve many clients."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

from onefold._client.aiohttp import RetryingMiddleware
from onefold._client.attempt_loop import AttemptLoop
from onefold._client.error_outcomes import On, ResultIf
from onefold._client.foreign_retry_loops import StaminaHook, tenacity_settings
from onefold._client.function_calls import FunctionCalls
from onefold._client.host_policies import HostPolicies
from onefold._client.http_call_factory import HttpCallFactory
from onefold._client.httpx import RetryingTransport, is_client, vendor_of, wrap_client
from onefold._client.journal_store import JournalStore
from onefold._client.journalled_intent import JournalledIntent
from onefold._client.key_hosts import KeyHosts
from onefold._client.requests import RetryingAdapter, is_adapter, is_session, wrap_session
from onefold._client.retry_conditions import RetryIf, check_condition
from onefold._kernel.arguments import named_arguments
from onefold._kernel.telemetry import Listeners, are_listeners, join
from onefold._policy.attempts import HostHealth
from onefold._policy.hosts import Hosts
from onefold._policy.ranges import require
from onefold._policy.retry import RetryPolicy
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx
    import httpx2
    from requests import Session
    from requests.adapters import BaseAdapter

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar(
    "A",
    "httpx.BaseTransport",
    "httpx.AsyncBaseTransport",
    "httpx2.BaseTransport",
    "httpx2.AsyncBaseTransport",
    "BaseAdapter",
    "httpx.Client",
    "httpx.AsyncClient",
    "httpx2.Client",
    "httpx2.AsyncClient",
    "Session",
)

DAY_S = 86_400.0


class RetryingSettings(TypedDict, total=False):
    """What Retrying takes besides its policy."""

    journal: object | None
    retention_s: float
    generate_keys: bool | Collection[str]
    quoted: bool
    hosts: Mapping[str, RetryPolicy] | None
    retry_if: RetryIf | None
    listener: Listeners | None


class Retrying:
    """Calls that are retried well: with keys, and under a budget, a breaker and a deadline per host.

    - `policy` is how patient they are; without one, `RetryPolicy()`.
    - `journal` keeps the keys of intents: a path, an address or a pool, as Onefold takes them. By default a file of
      the user's own (see `onefold intents`). It is opened when the first intent is served.
    - `retention_s` is how long the servers remember a key.
    - `generate_keys`: the hosts that honour Idempotency-Key, as in `{"api.stripe.com"}`, or True: all of them do. A
      POST or PATCH to one of them that has no key is given one. Elsewhere a key would be ignored, and repeating the
      request would do it twice: it is sent once, unless the caller gives a key, or not one byte of it has left.
    - `hosts`: policies of their own, as in `{"api.stripe.com": RetryPolicy(attempts_max=2)}`. What `calls` names counts
      as a host.
    - `retry_if` is called with every answer (an `HttpAnswer`) and every error of the HTTP clients: True is another
      attempt, False is none, a number is one in so many seconds, None is what happens without it.
    - `quoted`: keys are sent as the quoted strings of the IETF draft; most servers of today take them bare.
    - `listener` gets the events of attempts, retries and breakers (`onefold.telemetry`). `draw`: the chance in waits.
    """

    @named_arguments()
    def __init__(
        self,
        policy: RetryPolicy | None = None,
        *,
        journal: object | None = None,
        retention_s: float = DAY_S,
        generate_keys: bool | Collection[str] = False,
        quoted: bool = False,
        hosts: Mapping[str, RetryPolicy] | None = None,
        retry_if: RetryIf | None = None,
        listener: Listeners | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        policy = RetryPolicy() if policy is None else policy
        _check(policy, {"quoted": quoted}, listener, {"draw": draw})
        require("retention_s", retention_s, least=1, most=3650 * DAY_S)
        self._recipe = _Recipe(
            policy,
            {
                "journal": journal,
                "retention_s": retention_s,
                "generate_keys": generate_keys,
                "quoted": quoted,
                "hosts": hosts,
                "retry_if": retry_if,
                "listener": listener,
                "draw": draw,
            },
        )
        own = HostPolicies(policy, hosts or {})
        self._hosts = Hosts(lambda name: HostHealth(own.of(name), draw, name))
        self._listener = join(listener)
        self._store = JournalStore(journal, retention_s=retention_s)
        self._http_calls = HttpCallFactory(
            hosts=self._hosts,
            store=self._store,
            listener=self._listener,
            key_hosts=KeyHosts(generate_keys),
            quoted=quoted,
            retry_if=check_condition(retry_if),
            remake=self._recipe,
        )
        self._middleware = RetryingMiddleware(self._http_calls)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: the settings. What was learned about hosts, and open journals, belong to a process."""
        return _retrying_by, (self._recipe,)

    def around(self, inner: A) -> A:
        """A transport of httpx or httpx2, or an adapter of requests, that retries. A client or a session that was made
        already is changed, with its proxies and mounts, and given back."""
        return wrap_client_or_sender(inner, self._http_calls, owns=False)

    @property
    def middleware(self) -> RetryingMiddleware:
        """For aiohttp: `ClientSession(middlewares=[retrying.middleware])`."""
        return self._middleware

    def intent(self, name: str) -> JournalledIntent:
        """A block like `onefold.intent(name)`, whose key is in this journal before the block begins: the one to hand
        over where the call is not made through a client of onefold. `with` on threads, `async with` on asyncio."""
        return JournalledIntent(name, self._store)

    @named_arguments("Retrying.calls")
    def calls(
        self, to: str, *, on: On, retry_if: ResultIf | None = None, hedge_s: float | None = None
    ) -> Callable[[F], F]:
        """Decorate a function, sync or async, that calls something: `on` says which of its errors are worth another
        attempt: classes, or a function from the error to yes, no, or the seconds to wait. `to` names what is called:
        functions that call the same share its budget and its breaker. It must be safe to call it again. An error that
        `on` does not name is an answer: what is called works, unless it is an OSError, a time-out or an answer of 5xx.

        `retry_if` says the same of its results; when no attempt is left, the last result is returned. `hedge_s`, for
        a coroutine function that only reads: where there is no result after so many seconds it is called once more,
        beside the first call and paid for by the same budget, and the first result counts."""
        return cast("Callable[[F], F]", FunctionCalls(self._host(to), on, self._listener, retry_if, hedge_s).wrap)

    @named_arguments("Retrying.attempts")
    def attempts(self, to: str, *, on: On) -> AttemptLoop:
        """Repeat a block that calls `to`: `for attempt in retrying.attempts("ledger", on=OSError): with attempt: ...`;
        or `async for`."""
        return AttemptLoop(self._calls(to, on))

    @named_arguments("Retrying.tenacity")
    def tenacity(self, to: str, *, on: On) -> dict[str, Any]:
        """For code that calls `to` and keeps tenacity: `@tenacity.retry(**retrying.tenacity("ledger", on=OSError))`."""
        return tenacity_settings(self._calls(to, on))

    @named_arguments("Retrying.stamina")
    def stamina(self, to: str, *, on: On) -> StaminaHook:
        """For code that calls `to` and keeps stamina: `hook = retrying.stamina("ledger", on=OSError)`, then
        `@stamina.retry(on=hook)` above `@hook.watch`."""
        return StaminaHook(self._calls(to, on))

    def close(self) -> None:
        """Close the journal, where it was opened here."""
        self._store.close()

    async def aclose(self) -> None:
        """Close it where it was used on a loop."""
        await self._store.aclose()

    def _calls(self, to: str, on: On) -> FunctionCalls:
        return FunctionCalls(self._host(to), on, self._listener)

    def _host(self, to: str) -> HostHealth:
        named: object = to
        if not isinstance(named, str) or not named:
            raise ConfigurationError(f"to={named!r} must be the name of what is called, for example 'ledger'")
        return self._hosts.of(to, time.monotonic())


def _check(policy: object, switches: Mapping[str, object], listener: object, functions: Mapping[str, object]) -> None:
    """Refuse what would be found out at the first retry, or never."""
    if not isinstance(policy, RetryPolicy):
        raise ConfigurationError(f"policy={policy!r} must be a RetryPolicy, as in RetryPolicy(attempts_max=3)")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name}={value!r} must be True or False")
    if not are_listeners(listener):
        raise ConfigurationError(f"listener={listener!r} must be a function of one event, a list of them, or None")
    for name, value in functions.items():
        if value is not None and not callable(value):
            raise ConfigurationError(f"{name}={value!r} must be a function")


class _Recipe:
    """What a Retrying was made of, for another process to make one like it."""

    def __init__(self, policy: RetryPolicy, settings: dict[str, Any]) -> None:
        self.policy = policy
        self.settings = settings

    def __call__(self) -> HttpCallFactory:
        return _retrying_by(self)._http_calls

    def __getstate__(self) -> dict[str, Any]:
        settings = dict(self.settings)
        if settings["draw"] is random.random:
            del settings["draw"]  # its state would come along, and all processes would draw the same
        journal = settings["journal"]
        if not (journal is None or isinstance(journal, str | Path)):
            raise ConfigurationError(
                f"journal={type(journal).__module__}.{type(journal).__qualname__} cannot be sent to another process: "
                "give the journal as a path or an address"
            )
        return {"policy": self.policy, "settings": settings}


def _retrying_by(recipe: _Recipe) -> Retrying:
    return Retrying(recipe.policy, **recipe.settings)


@named_arguments("onefold.retrying")
def retrying(inner: A, policy: RetryPolicy | None = None, **settings: Unpack[RetryingSettings]) -> A:
    """What sends (`inner`), made to retry by the policy: see `Retrying.around`. The settings are those of Retrying.

    `client = onefold.retrying(httpx.Client())`, or `httpx.Client(transport=onefold.retrying(httpx.HTTPTransport()))`
    """
    return wrap_client_or_sender(inner, Retrying(policy, **settings)._http_calls, owns=True)


def wrap_client_or_sender(inner: A, calls: HttpCallFactory, *, owns: bool) -> A:
    """What retries around what sends. `owns`: closing it closes the journal too."""

    def wrap(sender: Any) -> Any:
        if isinstance(sender, RetryingTransport | RetryingAdapter):
            raise ConfigurationError("this transport retries already, and attempts would multiply: wrap it once")
        if is_adapter(sender):
            return RetryingAdapter(sender, calls, owns=owns)
        if (vendor := vendor_of(sender)) is not None:
            return RetryingTransport(sender, vendor, calls, owns=owns)
        raise ConfigurationError(
            f"{type(sender).__module__}.{type(sender).__qualname__} cannot be made to retry: give a client or a "
            "transport of httpx or httpx2, a session or an adapter of requests; aiohttp takes Retrying().middleware "
            "when its session is made, all else Retrying().calls(...)"
        )

    if is_client(inner):
        wrap_client(inner, wrap)
        return inner
    if is_session(inner):
        wrap_session(inner, wrap)
        return inner
    return cast(A, wrap(inner))
