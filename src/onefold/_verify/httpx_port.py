"""The edge: sends requests by httpx, each on a connection of its own, and reads the answers, up to a limit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import import_module
from ipaddress import ip_address
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from onefold._kernel.redaction import redact
from onefold._verify.http_port import NoAnswer, ProbeAnswer, ProbeRequest, Reply
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES_MAX: Final = 1024 * 1024

#: How long requests wait for each other. A server that takes few connections would let the others wait for ever.
_MEET_S_MAX: Final = 5.0


def require_httpx() -> None:
    """Raises ConfigurationError where it is not installed."""
    try:
        import_module("httpx")
    except ModuleNotFoundError as error:
        raise ConfigurationError("verify needs httpx: pip install 'onefold[cli,httpx]'") from error


def is_loopback(url: str) -> bool:
    """Whether the address names this machine literally; no name is resolved."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


#: Characters beside which credentials may stand: an address with one of these is not repeated.
_SECRETIVE: Final = re.compile(r"[@?#]")


def require_url(url: str) -> str:
    """The address, if requests can be sent to it. Raises ConfigurationError."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if "://" not in url and not _SECRETIVE.search(url):
        shown = redact(f"http://{url.lstrip('/')}", with_path=True)
        raise ConfigurationError(f"{shown[7:]!r} has no scheme: write {shown}, or https://...")
    if not usable:
        raise ConfigurationError(f"{redact(url)!r} is not an address: give http://host:port/path, or https://...")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(f"the address of {redact(url)} has credentials in it: give them by --header")
    return url


class HttpxPort:
    """A port on httpx: no redirect is followed, no cookie is kept, no connection is used twice (one that the server
    closes at that moment would look like a lost answer)."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def send(self, requests: Sequence[ProbeRequest], /) -> list[Reply]:
        if len(requests) == 1:
            return [self._send(requests[0], None)]
        start = Barrier(len(requests))
        with ThreadPoolExecutor(len(requests)) as threads:
            return list(threads.map(lambda request: self._send(request, start), requests))

    def _send(self, request: ProbeRequest, start: Barrier | None) -> Reply:
        """With a barrier all but the last byte leaves, and the last one with those of the other requests: connecting
        takes them different times, and many a window is shorter than that."""
        import httpx

        headers = [(name.encode(), value) for name, value in request.headers]
        content: bytes | Iterator[bytes] = request.body
        if start is not None and request.body:
            headers.append((b"Content-Length", str(len(request.body)).encode()))
            content = _hold_last_byte(request.body, start)
        elif start is not None:
            _meet(start)
        try:
            with self._client.stream(request.method, request.url, headers=headers, content=content) as response:
                body = _read(response)
                if body is None:
                    return NoAnswer(reason=f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
                lines = tuple((name.decode("latin-1").lower(), value) for name, value in response.headers.raw)
                return ProbeAnswer(status=response.status_code, headers=lines, body=body)
        except httpx.HTTPError as error:
            if start is not None:
                start.abort()  # the others do not wait for this one
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                return NoAnswer(reason=f"it cannot be reached: {error}", connected=False)
            return NoAnswer(reason=f"{type(error).__name__}: {error}")


def _hold_last_byte(body: bytes, start: Barrier) -> Iterator[bytes]:
    yield body[:-1]
    _meet(start)
    yield body[-1:]


def _meet(start: Barrier) -> None:
    with suppress(BrokenBarrierError):
        start.wait(_MEET_S_MAX)


def _read(response: httpx.Response) -> bytes | None:
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            return None
    return bytes(body)


@contextmanager
def open_port(*, timeout_s: float, local: bool, agent: str) -> Iterator[HttpxPort]:
    """A port with a client of its own. `local`: ignore the proxies of the environment, which are for other machines."""
    import httpx

    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    with httpx.Client(
        timeout=timeout_s,
        trust_env=not local,
        follow_redirects=False,
        cookies=no_cookies,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        # Bytes are compared: they must not depend on how a proxy happens to compress.
        headers={"user-agent": agent, "accept-encoding": "identity", "accept": "application/json, */*;q=0.1"},
    ) as client:
        yield HttpxPort(client)
