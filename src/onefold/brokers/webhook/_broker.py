"""The broker: which endpoints a message goes to, and what their answers mean."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from onefold._kernel.messages import Confirm, Message, ascii_only, write_structured
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.redaction import redact
from onefold._policy.outcome import Answered
from onefold._policy.ranges import require
from onefold.brokers._endpoints import check_topics, is_wanted
from onefold.brokers.webhook._endpoint_table import Directory, Endpoint, make_endpoint
from onefold.brokers.webhook._sender import EndpointAnswer, HttpxSender, Sender
from onefold.brokers.webhook._signature import read_keys, sign
from onefold.brokers.webhook._slow_endpoints import SlowEndpoints
from onefold.errors import BrokerUnavailable, ConfigurationError, KeyInFlight, MessageRefused, StoreError

_TRANSIENT: Final = frozenset({408, 425, 429})
#: The status of an endpoint that wants no more requests.
_GONE: Final = 410
_PROBLEM: Final = "application/problem+json"
#: Headers that belong to the request, and not to what it carries.
_FRAMING: Final = frozenset({"connection", "content-encoding", "content-length", "host", "te", "transfer-encoding"})


class WebhookBroker:
    """Sends events to endpoints, by topic. It only sends: who receives them runs an HTTP API."""

    #: In spans.
    system = "webhook"

    def __init__(
        self,
        endpoints: str | Mapping[str, str | Sequence[str]] | None = None,
        *,
        secret: str | Sequence[str],
        sender: Sender | None = None,
        concurrency: int = 20,
        confirm_s: float = 10.0,
        redelivery_s: float = 7 * 86_400,
        allow_private: bool = False,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`endpoints` is one URL for every topic, or the URLs of each topic (or pattern), or None: those in the
        application's database, where they come and go at any time (`onefold endpoints`). `secret` is what signs, as
        `whsec_...`; of several each signs, so that those who check can change from one to the next. `sender` makes the
        requests, instead of httpx; at most `concurrency` at once, each with `confirm_s` for its answer. `wall_s` is the
        clock that requests are signed by. `redelivery_s` is for how long the outbox may try
        again. `allow_private` lets the default sender connect to addresses of private networks and of this machine,
        which an endpoint that a customer has chosen must not reach."""
        require("concurrency", concurrency, least=1, most=1000)
        require("confirm_s", confirm_s, least=0.1, most=600)
        require("redelivery_s", redelivery_s, least=1, most=10 * 366 * 86_400)
        self._directory = Directory()
        self._one = make_endpoint("the endpoint", endpoints) if isinstance(endpoints, str) else None
        by_topic = endpoints if isinstance(endpoints, Mapping) else {}
        check_topics("an endpoint", by_topic)
        self._endpoints = {
            topic: tuple(make_endpoint(f"the endpoint of topic {topic!r}", url) for url in _several(urls))
            for topic, urls in by_topic.items()
        }
        self._listed = endpoints is None
        self._keys = read_keys(secret)
        self._given = sender
        self._own: HttpxSender | None = None
        self._turns = asyncio.Semaphore(concurrency)
        self._slow = SlowEndpoints(concurrency)
        self._concurrency = concurrency
        self._confirm_s = confirm_s
        self._redelivery_s = redelivery_s
        self._allow_private = allow_private
        self._wall_s = wall_s

    @property
    def keep_every_s(self) -> float:
        return self._confirm_s

    @property
    def redelivery_s(self) -> float:
        return self._redelivery_s

    def use(self, database: AsyncDatabase[Any]) -> None:
        """Where the endpoints are, unless they were given."""
        if self._listed:
            self._directory.database = database

    async def refresh(self) -> None:
        """Read the endpoints again, if they may have changed. Raises what the database raises."""
        await self._directory.refresh()

    def destinations(self, message: Message) -> Sequence[str]:
        """The names of the endpoints that a message goes to. The relay makes a copy for each."""
        return [endpoint.name for endpoint in self._endpoints_of(message)]

    async def open(self) -> None:
        """Nothing to connect to: each request finds its own way."""
        if self._listed and self._directory.database is None:
            raise ConfigurationError(
                "WebhookBroker has no endpoints: give it some, or hand it to Onefold as broker=lambda: "
                "WebhookBroker(...), so that it reads those of the database (onefold endpoints)"
            )

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        try:
            await self.refresh()
        except StoreError as error:
            raise BrokerUnavailable(f"the endpoints of webhooks cannot be read: {error}") from error
        confirms = await asyncio.gather(*map(self._publish, messages))
        await self._directory.note()
        return confirms

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> NoReturn:
        raise ConfigurationError(
            f"consumer={consumer!r} cannot subscribe: webhooks only send; receive them with an HTTP route, "
            "read them there with read_webhook, and give the route an Idempotency-Key policy"
        )

    async def close(self) -> None:
        await self._slow.close()
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    async def _publish(self, message: Message) -> Confirm:
        found = self._endpoints_of(message)
        if message.endpoint is not None:
            found = [endpoint for endpoint in found if endpoint.name == message.endpoint]
            if not found:
                return MessageRefused(
                    f"endpoint {message.endpoint!r} of topic {message.topic!r} is disabled, or there is none any more: "
                    "see `onefold endpoints`"
                )
        if not found:
            if self._listed:
                return None  # no endpoint has its topic
            return MessageRefused(f"topic {message.topic!r} has no endpoint: name one, or do not publish it")
        if "." in message.id:
            return MessageRefused(
                f"message {message.id!r} has a dot in its id, which the signature of webhooks does not allow: choose "
                "another id, or leave it to publish"
            )
        if clash := _FRAMING & message.headers.keys():
            return MessageRefused(
                f"the header {min(clash)!r} of message {message.id} would break the request: rename it"
            )
        confirms = await asyncio.gather(*(self._send(endpoint, message) for endpoint in found))
        # One that may still come right is tried again, with all others: they know the id.
        failed = [confirm for confirm in confirms if confirm is not None]
        return next((confirm for confirm in failed if isinstance(confirm, BrokerUnavailable)), next(iter(failed), None))

    def _endpoints_of(self, message: Message) -> Sequence[Endpoint]:
        if self._listed:
            return self._directory.wanting(message.topic)
        if self._one is not None:
            return (self._one,)
        # Of several topics that stand for it, an endpoint gets it once.
        found = (
            each for topic, several in self._endpoints.items() if is_wanted((topic,), message.topic) for each in several
        )
        return list(dict.fromkeys(found))

    async def _send(self, endpoint: Endpoint, message: Message) -> Confirm:
        slow, name = self._slow, endpoint.name
        if slow.has_taken(name, message.id):
            return None
        if name in slow:
            return await slow.send(name, message.id, partial(self._request, endpoint, message))
        async with self._turns:
            if name in slow:  # that was found out while this waited for its turn
                return slow.unavailable(name)
            return await self._request(endpoint, message)

    async def _request(self, endpoint: Endpoint, message: Message) -> Confirm:
        began = time.monotonic()
        try:
            headers, body = write_structured(message)
            keys = self._keys if endpoint.secret is None else read_keys(endpoint.secret)
            headers |= sign(keys, ascii_only(message.id), body, now_s=self._wall_s())
            confirm, gone = await self._send_to_endpoint(endpoint.url, headers, body)
        except Exception as error:  # a bad secret, a mistake of the sender's: the others must have their answers
            confirm = MessageRefused(f"sending to endpoint {endpoint.name} failed: {type(error).__name__}: {error}")
            gone = False
        self._slow.note(endpoint.name, confirm, time.monotonic() - began)
        if self._listed:
            self._directory.note_answer(endpoint.name, confirm, gone=gone)
        return confirm

    async def _send_to_endpoint(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[Confirm, bool]:
        """Send to an endpoint: its confirm, and whether the endpoint is gone for good."""
        try:
            async with asyncio.timeout(self._confirm_s):
                answer = await self._sender()("POST", url, headers, body, self._confirm_s)
        except MessageRefused as error:
            return error, False
        except TimeoutError:
            return BrokerUnavailable(f"{redact(url)} did not answer in {self._confirm_s:g} s"), False
        except OSError as error:
            return BrokerUnavailable(f"{redact(url)} cannot be reached: {error!r}"), False
        return _verdict(redact(url), answer), answer.status == _GONE

    def _sender(self) -> Sender:
        if self._given is not None:
            return self._given
        if self._own is None:
            # As many again for those that are slow: they must not take the connections of the others.
            self._own = HttpxSender(2 * self._concurrency, allow_private=self._allow_private)
        return self._own


def _verdict(where: str, answer: EndpointAnswer) -> Confirm:
    status = answer.status
    if 200 <= status < 300:
        return None
    message = f"{where} answered {status}"  # without its body, which may repeat secrets
    if status >= 500 or status in _TRANSIENT or _in_flight(answer):
        return BrokerUnavailable(message)
    return MessageRefused(message)


def _in_flight(answer: EndpointAnswer) -> bool:
    """A 409 that says the same request is being worked on right now: the answer to it is not known yet."""
    if answer.status != KeyInFlight.status:
        return False
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _PROBLEM:
        return False
    try:
        problem = json.loads(answer.body)
    except (ValueError, RecursionError):
        return False
    kind = problem.get("type") if isinstance(problem, dict) else None
    return Answered(status=answer.status, problem_type=kind if isinstance(kind, str) else None).in_flight


def _several(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value
