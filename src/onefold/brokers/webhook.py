"""Webhooks: every event is a signed HTTP request to the endpoints of its topic, and somebody else's answer its confirm.

Invariant: a message counts as confirmed when each of its endpoints has answered it with a 2xx. It is sent with the
same id and the same Idempotency-Key every time, so who receives it can tell a repetition.

Envelope: the CloudEvents binding for HTTP in binary mode. Signature: Standard Webhooks (webhook-id, webhook-timestamp,
webhook-signature), which `verify_webhook` checks on the other side.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol
from urllib.parse import urlsplit

import httpx

from onefold._kernel.messages import Confirm, Message, write
from onefold.errors import BrokerUnavailable, ConfigurationError, KeyInFlight, MessageRefused, MessageUnreadable
from onefold.policy.outcome import Answered
from onefold.policy.ranges import require

SECRET_PREFIX: Final = "whsec_"
_SECRET_BYTES_MIN: Final = 24
_SECRET_BYTES_MAX: Final = 64
_BODY_SHOWN: Final = 200
_BODY_READ_MAX: Final = 16_384
_TRANSIENT: Final = frozenset({408, 425, 429})
_PROBLEM: Final = "application/problem+json"
#: Headers that belong to the request, and not to what it carries.
_FRAMING: Final = frozenset({"connection", "content-encoding", "content-length", "host", "te", "transfer-encoding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an endpoint said. Of a long body the beginning is enough."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Sender(Protocol):
    """Makes one HTTP request, without following redirects. Raises OSError or TimeoutError where there is no answer."""

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Answer: ...


class WebhookBroker:
    """Sends events to endpoints, by topic. It only sends: who receives them runs an HTTP API."""

    def __init__(
        self,
        endpoints: str | Mapping[str, str | Sequence[str]],
        *,
        secret: str | Sequence[str],
        sender: Sender | None = None,
        concurrency: int = 20,
        confirm_s: float = 10.0,
        redelivery_s: float = 7 * 86_400,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`endpoints` is one URL for every topic, or the URLs of each topic. Of several secrets each signs, so that
        those who check can change from one to the next. `redelivery_s` is for how long the outbox may try again."""
        require("concurrency", concurrency, least=1, most=1000)
        require("confirm_s", confirm_s, least=0.1, most=600)
        require("redelivery_s", redelivery_s, least=1, most=10 * 366 * 86_400)
        self._endpoints: Mapping[str, tuple[str, ...]] | tuple[str]
        if isinstance(endpoints, str):
            self._endpoints = (_checked("the endpoint", endpoints),)
        else:
            self._endpoints = {
                topic: tuple(_checked(f"the endpoint of topic {topic!r}", url) for url in _several(urls))
                for topic, urls in endpoints.items()
            }
        self._keys = _keys(secret)
        self._given = sender
        self._own: HttpxSender | None = None
        self._turns = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._confirm_s = confirm_s
        self._redelivery_s = redelivery_s
        self._wall_s = wall_s

    @property
    def keep_every_s(self) -> float:
        return self._confirm_s

    @property
    def redelivery_s(self) -> float:
        return self._redelivery_s

    async def open(self) -> None:
        """Nothing to connect to: each request finds its own way."""

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return await asyncio.gather(*map(self._publish, messages))

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> NoReturn:
        raise ConfigurationError(
            f"consumer={consumer!r} cannot subscribe: webhooks only send; receive them with an HTTP route, "
            "check them there with verify_webhook, and give the route an Idempotency-Key policy"
        )

    async def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    async def _publish(self, message: Message) -> Confirm:
        urls = self._endpoints if isinstance(self._endpoints, tuple) else self._endpoints.get(message.topic, ())
        if not urls:
            return MessageRefused(f"topic {message.topic!r} has no endpoint: name one, or do not publish it")
        if clash := _FRAMING & message.headers.keys():
            return MessageRefused(
                f"the header {min(clash)!r} of message {message.id} would break the request: rename it"
            )
        confirms = await asyncio.gather(*(self._send(url, message) for url in urls))
        # One that may still come right is tried again, with all others: they know the id.
        failed = [confirm for confirm in confirms if confirm is not None]
        return next((confirm for confirm in failed if isinstance(confirm, BrokerUnavailable)), next(iter(failed), None))

    async def _send(self, url: str, message: Message) -> Confirm:
        async with self._turns:
            headers = write(message)
            headers["idempotency-key"] = _quoted(headers["ce-id"])
            headers |= _signed(self._keys, headers["ce-id"], message.data, now_s=self._wall_s())
            try:
                async with asyncio.timeout(self._confirm_s):
                    answer = await self._sender()("POST", url, headers, message.data, self._confirm_s)
            except TimeoutError:
                return BrokerUnavailable(f"{_where(url)} did not answer in {self._confirm_s:g} s")
            except OSError as error:
                return BrokerUnavailable(f"{_where(url)} cannot be reached: {error!r}")
            return _verdict(_where(url), answer)

    def _sender(self) -> Sender:
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = HttpxSender(self._concurrency)
        return self._own


class HttpxSender:
    """The default: a pool of connections of httpx. Certificates are checked, redirects are not followed, and what the
    environment says of proxies is not read: who needs one brings a sender."""

    def __init__(self, connections: int = 20) -> None:
        self._client = httpx.AsyncClient(limits=httpx.Limits(max_connections=connections), trust_env=False)

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Answer:
        try:
            async with self._client.stream(method, url, headers=headers, content=body, timeout=timeout_s) as response:
                start = b""
                async for chunk in response.aiter_bytes():
                    start += chunk
                    if len(start) >= _BODY_READ_MAX:
                        break
        except httpx.TimeoutException as error:
            raise TimeoutError(str(error)) from error
        except httpx.HTTPError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return Answer(status=response.status_code, headers=dict(response.headers), body=start[:_BODY_READ_MAX])

    async def close(self) -> None:
        await self._client.aclose()


def _signed(keys: Sequence[bytes], message_id: str, body: bytes, *, now_s: float) -> dict[str, str]:
    """The three headers of Standard Webhooks, with one signature for each key."""
    stamp = str(int(now_s))
    signatures = " ".join(_signature(key, message_id, stamp, body) for key in keys)
    return {"webhook-id": message_id, "webhook-timestamp": stamp, "webhook-signature": signatures}


def verify_webhook(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_s: float | None = None,
    tolerance_s: float = 300.0,
) -> None:
    """Raises MessageUnreadable unless one of the secrets has signed this body, not longer than `tolerance_s` ago.

    `body` is the request's, byte for byte, before anything has read it as JSON."""
    require("tolerance_s", tolerance_s, most=86_400)
    found = {name.lower(): value for name, value in headers.items()}
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        if not found.get(name):
            raise MessageUnreadable(f"the webhook has no header {name!r}: it was not signed, or by another scheme")
    stamp = found["webhook-timestamp"]
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 15):
        raise MessageUnreadable(f"webhook-timestamp={stamp[:40]!r} is no number of seconds")
    off_s = (time.time() if now_s is None else now_s) - int(stamp)
    if abs(off_s) > tolerance_s:
        raise MessageUnreadable(
            f"webhook-timestamp={stamp} is {abs(off_s):.0f} s {'old' if off_s > 0 else 'ahead'}: "
            f"up to {tolerance_s:g} s are accepted, see that both clocks are right"
        )
    given = [text.encode() for text in found["webhook-signature"].split(" ")]
    expected = [_signature(key, found["webhook-id"], stamp, body).encode() for key in _keys(secret)]
    if not any(hmac.compare_digest(ours, theirs) for ours in expected for theirs in given):
        raise MessageUnreadable("no signature of the webhook fits: it was changed, or signed with another secret")


def _signature(key: bytes, message_id: str, stamp: str, body: bytes) -> str:
    signed = hmac.new(key, f"{message_id}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(signed).decode()


def _keys(secret: str | Sequence[str]) -> list[bytes]:
    keys = [_key(text) for text in _several(secret)]
    if not keys:
        raise ConfigurationError("secret names no secret: give one, or several while they change")
    return keys


def _key(secret: str) -> bytes:
    """No message repeats a secret."""
    way_out = (
        f"give {SECRET_PREFIX} and base64 of {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX} random bytes, such as "
        f"'{SECRET_PREFIX}' + base64.b64encode(secrets.token_bytes(32)).decode()"
    )
    if not secret.startswith(SECRET_PREFIX):
        raise ConfigurationError(f"a secret of a webhook does not begin with {SECRET_PREFIX!r}: {way_out}")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ConfigurationError(f"a secret of a webhook is not base64: {way_out}") from error
    if not _SECRET_BYTES_MIN <= len(key) <= _SECRET_BYTES_MAX:
        raise ConfigurationError(f"a secret of a webhook has {len(key)} bytes: {way_out}")
    return key


def _verdict(where: str, answer: Answer) -> Confirm:
    status = answer.status
    if 200 <= status < 300:
        return None
    said = f"{where} answered {status}: {answer.body[:_BODY_SHOWN].decode(errors='replace')!r}"
    if status >= 500 or status in _TRANSIENT or _in_flight(answer):
        return BrokerUnavailable(said)
    return MessageRefused(said)


def _in_flight(answer: Answer) -> bool:
    """A 409 that says the same request is being worked on right now: the answer to it is not known yet."""
    if answer.status != KeyInFlight.status:
        return False
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _PROBLEM:
        return False
    try:
        problem = json.loads(answer.body)
    except ValueError:
        return False
    kind = problem.get("type") if isinstance(problem, dict) else None
    return Answered(status=answer.status, problem_type=kind if isinstance(kind, str) else None).in_flight


def _several(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value


def _checked(what: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ConfigurationError(
            f"{what} must be an http(s) URL with a host and without a user or password: "
            f"{parts.scheme}://{parts.hostname or ''}{parts.path} is not"
        )
    return url


def _where(url: str) -> str:
    """An endpoint without its query, which may hold a token."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _quoted(text: str) -> str:
    """As a structured field's string. The id has been escaped: what is left of ASCII needs no more than this."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
