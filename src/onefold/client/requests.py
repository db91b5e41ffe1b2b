"""requests: an adapter that retries. `session.mount("https://", onefold.retrying(HTTPAdapter()))`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onefold._kernel.runners import run
from onefold.client.exchange import Exchange
from onefold.client.waiting import CallLane
from onefold.client.wire import is_problem, not_made_as, problem_type
from onefold.errors import CallNotMade, ConfigurationError
from onefold.policy.outcome import Unanswered

if TYPE_CHECKING:
    from requests import PreparedRequest, Response
    from requests.adapters import BaseAdapter


class RetryingAdapter:
    """An adapter around another one, which does the sending."""

    def __init__(self, inner: BaseAdapter, exchange: Exchange, *, owns: bool) -> None:
        retries = getattr(inner, "max_retries", None)
        # A total of None is no limit: what counts are then the limits for connecting, reading and so on.
        if retries is not None and (retries.total or retries.total is None):
            raise ConfigurationError(
                f"the adapter retries by itself ({retries!r}), and attempts would multiply: give it max_retries=0"
            )
        self._inner = inner
        self._exchange = exchange
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
        wire = _Wire(request, self._inner, stream=stream, timeout=timeout, more=more)
        return run(self._exchange.run(wire), CallLane(self._exchange.store.threads))

    def close(self) -> None:
        self._inner.close()
        if self._owns:
            self._exchange.store.close()


class _Wire:
    """One request, as the exchange sees it. requests has no place for options: intents come from the context."""

    __slots__ = ("_inner", "_more", "_request", "_stream", "_timeout", "host", "method", "options")

    def __init__(self, request: PreparedRequest, inner: BaseAdapter, *, stream: bool, timeout: Any, more: Any) -> None:
        self._request: Any = request
        self._inner = inner
        self._stream = stream
        self._timeout = timeout
        self._more = more
        self.method = request.method or "GET"
        self.host = urlsplit(request.url or "").netloc.rpartition("@")[2]
        self.options: Mapping[str, Any] = {}

    def address(self) -> str:
        return self._request.url or ""

    def header(self, name: str) -> str | None:
        value = self._request.headers.get(name)
        return value.decode("latin-1") if isinstance(value, bytes) else value

    def set_header(self, name: str, value: str) -> None:
        self._request.headers[name] = value

    def replayable(self) -> bool:
        body = self._request.body
        return body is None or isinstance(body, bytes | str) or isinstance(self._position(), int)

    def body(self) -> bytes:
        body: Any = self._request.body
        if hasattr(body, "read"):
            found = body.read()
            body.seek(self._position())
            body = found
        return body.encode() if isinstance(body, str) else body or b""

    def patience_s(self, left_s: float) -> float:
        return _bounded(self._timeout, left_s)[1]

    def send(self, seconds: float) -> Response:
        body: Any = self._request.body
        position = self._position()
        if isinstance(position, int):
            body.seek(position)
        response = self._inner.send(
            self._request, stream=self._stream, timeout=_bounded(self._timeout, seconds), **self._more
        )
        if not self._stream or is_problem(response.headers.get("content-type")):
            _ = response.content  # read it here: an answer that breaks off is an attempt that failed
        return response

    def status(self, response: Response) -> int:
        return response.status_code

    def answer_header(self, response: Response, name: str) -> str | None:
        return response.headers.get(name)

    def problem(self, response: Response) -> str | None:
        return problem_type(response.content) if is_problem(response.headers.get("content-type")) else None

    def discard(self, response: Response) -> None:
        response.close()

    def unanswered(self, error: Exception) -> Unanswered | None:
        vendor: Any = sys.modules["requests"].exceptions
        if isinstance(error, vendor.ConnectTimeout) or _never_connected(error):
            return Unanswered(maybe_sent=False)
        broken = (vendor.ConnectionError, vendor.Timeout, vendor.ChunkedEncodingError, vendor.ContentDecodingError)
        return Unanswered(maybe_sent=True) if isinstance(error, broken) else None

    def not_made(self, message: str) -> CallNotMade:
        error: CallNotMade = not_made_as(sys.modules["requests"].ConnectionError)(message, request=self._request)
        return error

    def _position(self) -> object:
        """Where a body that is a file begins; requests asked when it was prepared. No number: it cannot be rewound."""
        return getattr(self._request, "_body_position", None)


def is_adapter(inner: object) -> bool:
    """It is an adapter of requests."""
    module: Any = sys.modules.get("requests.adapters")
    return module is not None and isinstance(inner, module.BaseAdapter)


def _bounded(timeout: Any, seconds: float) -> tuple[float, float]:
    """Connecting and every read may take as long as was said, and no longer than what is left."""
    if hasattr(timeout, "connect_timeout"):  # urllib3's own
        timeout = (timeout.connect_timeout, timeout.read_timeout)
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    return min(connect or seconds, seconds), min(read or seconds, seconds)


def _never_connected(error: Exception) -> bool:
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return type(reason).__name__ in ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError")
