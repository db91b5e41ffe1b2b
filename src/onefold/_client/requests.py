"""requests: an adapter that retries. `session.mount("https://", onefold.retrying(HTTPAdapter()))`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onefold._client import socket_limits
from onefold._client.http_call_factory import HttpCallFactory
from onefold._client.http_call_runner import make_call
from onefold._client.outgoing_request import bytes_to_read, is_certificate_error, not_made_class
from onefold._client.requests_raw import can_be_resumed, read_start, unpack_body
from onefold._client.socket_limits import limit_pool
from onefold._policy.outcome import Unanswered
from onefold.errors import CallNotMade, ConfigurationError

if TYPE_CHECKING:
    from requests import PreparedRequest, Response
    from requests.adapters import BaseAdapter


class RetryingAdapter:
    """An adapter around another one, which does the sending."""

    def __init__(self, inner: BaseAdapter, calls: HttpCallFactory, *, owns: bool) -> None:
        retries = getattr(inner, "max_retries", None)
        # A total of None is no limit: what counts are then the limits for connecting, reading and so on.
        if retries is not None and (retries.total or retries.total is None):
            raise ConfigurationError(
                f"the adapter retries by itself ({retries!r}), and attempts would multiply: give it max_retries=0"
            )
        self._inner = inner
        self._calls = calls
        self._owns = owns

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Response:
        more = {"verify": verify, "cert": cert, "proxies": proxies}
        # A copy: the caller may send his request again, with another body, and the key is for this one.
        outgoing = RequestsRequest(request.copy(), self._inner, stream=stream, timeout=timeout, more=more)
        response: Response = make_call(self._calls.begin(outgoing, time.monotonic()), self._calls.store)
        response.__dict__["connection"] = self  # digest authentication sends its second request through this
        return response

    def close(self) -> None:
        self._inner.close()
        if self._owns:
            self._calls.store.close()


class RequestsRequest:
    """One request, as the retry loop sees it. requests has no place for options: intents come from the context."""

    __slots__ = ("_inner", "_more", "_read", "_request", "_timeout", "host", "method", "options", "streams")

    def __init__(self, request: PreparedRequest, inner: BaseAdapter, *, stream: bool, timeout: Any, more: Any) -> None:
        self._request: Any = request
        self._inner = inner
        self.streams = stream
        self._timeout = timeout
        self._more = more
        self.method = request.method or "GET"
        self.host = urlsplit(request.url or "").netloc.rpartition("@")[2]
        self.options: Mapping[str, Any] = {}
        #: The body of the last answer, where it was read.
        self._read: bytes | None = None

    def address(self) -> str:
        return self._request.url or ""

    def header(self, name: str) -> str | None:
        value = self._request.headers.get(name)
        return value.decode("latin-1") if isinstance(value, bytes) else value

    def set_header(self, name: str, value: str) -> None:
        self._request.headers[name] = value

    def can_be_resent(self) -> bool:
        body = self._request.body
        return body is None or isinstance(body, bytes | str) or isinstance(self._position(), int)

    def body(self) -> bytes:
        body: Any = self._request.body
        if hasattr(body, "read"):
            body.seek(self._position())
            content = body.read()
            body.seek(self._position())
            body = content
        return body.encode() if isinstance(body, str) else body or b""

    def patience_s(self, left_s: float) -> float:
        return _bound_timeout(self._timeout, left_s)[1]

    def send(self, seconds: float) -> Response:
        body: Any = self._request.body
        position = self._position()
        if isinstance(position, int):
            body.seek(position)
        self._read = None
        self._limit_sockets()
        token = socket_limits.begin(time.monotonic() + seconds)
        try:
            response = self._inner.send(
                self._request, stream=self.streams, timeout=_bound_timeout(self._timeout, seconds), **self._more
            )
            self._read = self._read_beginning(response)
        except sys.modules["urllib3"].exceptions.EmptyPoolError as error:
            raise sys.modules["requests"].exceptions.ConnectTimeout(error, request=self._request) from error
        finally:
            socket_limits.end(token)
        if not self.streams and self._read is None:
            self._read = response.content  # a long one: here too, for one that breaks off is an attempt that failed
        return response

    def _read_beginning(self, response: Response) -> bytes | None:
        """Read what is short within the limits of the attempt; None: it is longer, or the caller's to read."""
        if self.streams and response.status_code < 400:
            return None
        if can_be_resumed(response) and (self.streams or "Content-Length" not in response.headers):
            body = read_start(response)
            if self.streams or body is None:
                return None if body is None else unpack_body(response, body)
            return response.content
        if self.streams or not bytes_to_read(response.headers.get("Content-Length")):
            return None
        return response.content

    def _limit_sockets(self) -> None:
        """Have the connection that is taken, or made, know when the attempt ends."""
        find: Any = getattr(self._inner, "get_connection_with_tls_context", None)
        if find is not None:
            with suppress(Exception):  # sending the request raises what is wrong with it
                more = self._more
                limit_pool(find(self._request, more["verify"], proxies=more["proxies"], cert=more["cert"]))

    def status(self, response: Response) -> int:
        return response.status_code

    def answer_header(self, response: Response, name: str) -> str | None:
        return response.headers.get(name)

    def content(self, response: Response) -> bytes | None:
        return self._read  # unpacked by the vendor

    def discard(self, response: Response) -> None:
        response.close()

    def classify_error(self, error: Exception) -> Unanswered | None:
        vendor: Any = sys.modules["requests"].exceptions
        if is_certificate_error(error) or _cause_of(error) == "EmptyPoolError":
            return None  # the second: all connections are in use, which is not the host's doing
        if isinstance(error, vendor.ConnectTimeout) or _never_connected(error):
            return Unanswered(maybe_sent=False)
        broken = (vendor.ConnectionError, vendor.Timeout, vendor.ChunkedEncodingError, vendor.ContentDecodingError)
        if not isinstance(error, broken):
            return None
        # The second: so the vendor calls a read that was not in time, once the answer has begun.
        late = isinstance(error, vendor.Timeout) or _cause_of(error) == "ReadTimeoutError"
        return Unanswered(maybe_sent=True, timed_out=late)

    def not_made_error(self, message: str) -> CallNotMade:
        error: CallNotMade = not_made_class(sys.modules["requests"].ConnectionError)(message, request=self._request)
        return error

    def _position(self) -> object:
        """Where a body that is a file begins, as requests noted when it was prepared. No number: it cannot be
        rewound, also where it says how much of it was read, as the answer of another host does."""
        body: Any = self._request.body
        seekable = getattr(body, "seekable", None)
        if not hasattr(body, "seek") or (seekable is not None and not seekable()):
            return None
        return getattr(self._request, "_body_position", None)


def is_adapter(inner: object) -> bool:
    """It is an adapter of requests."""
    module: Any = sys.modules.get("requests.adapters")
    return module is not None and isinstance(inner, module.BaseAdapter)


def is_session(given: object) -> bool:
    """It is a session of requests."""
    module: Any = sys.modules.get("requests")
    return module is not None and isinstance(given, module.Session)


def wrap_session(session: Any, wrap: Callable[[Any], Any]) -> None:
    """Let a session send through adapters that retry."""
    wrapped = [(prefix, wrap(adapter)) for prefix, adapter in session.adapters.items()]  # all of them, or none
    for prefix, adapter in wrapped:
        session.mount(prefix, adapter)


def _bound_timeout(timeout: Any, seconds: float) -> tuple[float, float]:
    """The time-outs of connecting and of every read: as set, and no longer than what is left."""
    if hasattr(timeout, "connect_timeout"):  # urllib3's own
        timeout = (timeout.connect_timeout, timeout.read_timeout)
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    return min(connect or seconds, seconds), min(read or seconds, seconds)


def _cause_of(error: Exception) -> str:
    return type(error.args[0] if error.args else None).__name__


def _never_connected(error: Exception) -> bool:
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return type(reason).__name__ in ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError")
