"""The adapters at their edges: what a server or an application may do within its protocol, and what it may not."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold
from onefold._http import asgi, wsgi
from tests.http.stages import Orders, account_of

Told = tuple[int, bytes]


class WsgiStage:
    """A WSGI application over a SQLite file; each test brings its own handler."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.once = Onefold(orders.path, principal=account_of)

    def call(self, handler: wsgi.Application, **environ: Any) -> Told:
        app = self.once.wsgi(handler, {"POST /orders": self.once.policy()})
        started: list[str] = []

        def start_response(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], object]:
            started.append(status)
            return started.append  # type: ignore[return-value]

        given: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/orders",
            "HTTP_IDEMPOTENCY_KEY": '"k"',
            "HTTP_X_ACCOUNT": "acme",
            "wsgi.input": io.BytesIO(),
        }
        chunks = app(given | environ, start_response)
        body = b"".join(chunks)
        getattr(chunks, "close", lambda: None)()
        [status] = started
        return int(status[:3]), body


@pytest.fixture
def threads(orders: Orders) -> Iterator[WsgiStage]:
    stage = WsgiStage(orders)
    yield stage
    stage.once.close()


def write_a_row(environ: wsgi.Environ, item: str = "book") -> None:
    environ[wsgi.TRANSACTION].connection.execute("INSERT INTO orders (item) VALUES (?)", (item,))


def buy(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> list[bytes]:
    write_a_row(environ)
    start_response("201 Created", [])
    return [environ["wsgi.input"].read()]


def test_a_body_whose_length_is_not_a_number_is_refused(threads: WsgiStage) -> None:
    status, body = threads.call(buy, CONTENT_LENGTH="many")
    assert (status, b"body-incomplete" in body, threads.orders.items) == (400, True, [])


def test_a_body_of_unknown_length_is_read_to_its_end_where_the_server_marks_it(threads: WsgiStage) -> None:
    marked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
    assert threads.call(buy, **marked, **{"wsgi.input": io.BytesIO(b"first")}) == (201, b"first")
    assert threads.call(buy, **marked, **{"wsgi.input": io.BytesIO(b"first")}) == (201, b"first")
    status, body = threads.call(buy, **marked, **{"wsgi.input": io.BytesIO(b"other")})
    assert (status, b"key-reused" in body) == (422, True)


def test_a_body_that_the_server_does_not_hand_over_is_refused_and_not_taken_for_empty(threads: WsgiStage) -> None:
    chunked = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": io.BytesIO(b"unseen")}
    status, body = threads.call(buy, **chunked)
    assert (status, b"body-incomplete" in body, threads.orders.items) == (400, True, [])


def test_what_an_application_writes_comes_before_what_it_returns(threads: WsgiStage) -> None:
    def handler(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> list[bytes]:
        write = start_response("201 Created", [])
        write(b"written, ")
        write_a_row(environ)
        return [b"returned"]

    assert [threads.call(handler) for _ in range(2)] == [(201, b"written, returned")] * 2
    assert threads.orders.items == ["book"]


def test_an_application_may_start_again_after_an_error(threads: WsgiStage) -> None:
    def handler(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> list[bytes]:
        start_response("201 Created", [])
        try:
            raise LookupError
        except LookupError as error:
            start_response("404 Not Found", [], (LookupError, error, error.__traceback__))
        write_a_row(environ)
        return [b"not here"]

    assert [threads.call(handler) for _ in range(2)] == [(404, b"not here")] * 2
    assert threads.orders.items == []


def test_what_was_written_before_an_application_starts_again_is_no_part_of_its_answer(threads: WsgiStage) -> None:
    def handler(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> list[bytes]:
        start_response("201 Created", [])(b"half an ans")
        try:
            raise LookupError
        except LookupError as error:
            start_response("404 Not Found", [], (LookupError, error, error.__traceback__))
        return [b"not here"]

    assert [threads.call(handler) for _ in range(2)] == [(404, b"not here")] * 2


def test_an_application_that_never_starts_its_answer_leaves_nothing(threads: WsgiStage) -> None:
    def handler(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> list[bytes]:
        write_a_row(environ)
        return [b"no head"]

    with pytest.raises(Exception, match="without calling start_response"):
        threads.call(handler)
    assert (threads.orders.items, threads.orders.records) == ([], 0)
    assert threads.call(buy)[0] == 201


class Unclosable:
    """An answer that fails when it is made, and again when it is closed."""

    def __iter__(self) -> Iterator[bytes]:
        raise LookupError("no answer")

    def close(self) -> None:
        raise OSError("cannot close")


def test_an_answer_that_cannot_be_closed_does_not_keep_its_transaction_open(threads: WsgiStage) -> None:
    def handler(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Iterable[bytes]:
        write_a_row(environ)
        return Unclosable()

    with pytest.raises(Exception, match="cannot close"):
        threads.call(handler)
    assert (threads.orders.items, threads.orders.records) == ([], 0)
    assert threads.call(buy)[0] == 201


def test_an_interrupted_thread_rolls_back_and_frees_its_key(threads: WsgiStage) -> None:
    def handler(environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Iterable[bytes]:
        write_a_row(environ)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.call(handler)
    assert (threads.orders.items, threads.orders.records) == ([], 0)
    assert threads.call(buy)[0] == 201


# --- ASGI ----------------------------------------------------------------------------------------------------


async def nothing_to_read() -> asgi.Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def call_asgi(
    once: AsyncOnefold,
    handler: asgi.Application,
    *,
    receive: asgi.Receive = nothing_to_read,
    body_timeout_s: float = 30,
    **scope: Any,
) -> list[asgi.Message]:
    app = once.asgi(handler, {"POST /orders": once.policy(wait_s=10, body_timeout_s=body_timeout_s)})
    sent: list[asgi.Message] = []

    async def send(message: asgi.Message) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", b'"k"'), (b"x-account", b"acme")]
    given = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"", "headers": headers}
    await app(given | scope, receive, send)
    return sent


async def test_a_body_that_the_server_would_read_from_disk_is_not_offered_to_the_application(
    once: AsyncOnefold,
) -> None:
    seen: list[object] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["extensions"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body"})

    offered = {"http.response.pathsend": {}, "http.response.zerocopysend": {}, "tls": {"version": 1}}
    await call_asgi(once, handler, extensions=offered)
    assert seen == [{"tls": {"version": 1}}]
    assert "http.response.pathsend" in offered


async def test_an_application_that_never_answers_leaves_nothing(orders: Orders, once: AsyncOnefold) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await scope[asgi.TRANSACTION].connection.execute("INSERT INTO orders (item) VALUES ('book')")
        await send({"type": "http.response.start", "status": 201, "headers": []})

    assert await call_asgi(once, handler) == []
    assert (orders.items, orders.records) == ([], 0)


async def test_a_cancelled_request_rolls_back_and_frees_its_key(orders: Orders, once: AsyncOnefold) -> None:
    started = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await scope[asgi.TRANSACTION].connection.execute("INSERT INTO orders (item) VALUES ('book')")
        started.set()
        await asyncio.Event().wait()

    call = asyncio.create_task(call_asgi(once, handler))
    await started.wait()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call

    async def buying(scope: Any, receive: Any, send: Any) -> None:
        await scope[asgi.TRANSACTION].connection.execute("INSERT INTO orders (item) VALUES ('book')")
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    [start, _] = await call_asgi(once, buying)
    assert (start["status"], orders.items) == (201, ["book"])


async def test_the_time_for_a_body_is_the_time_for_all_its_parts(once: AsyncOnefold) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nothing to run")

    parts: list[asgi.Message] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b", "more_body": False},
    ]

    async def receive() -> asgi.Message:
        await asyncio.sleep(0.08)  # each in time, both together not
        return parts.pop(0)

    [start, _] = await call_asgi(once, handler, receive=receive, body_timeout_s=0.1)
    assert start["status"] == 408


async def test_websockets_and_lifespans_pass_through(once: AsyncOnefold) -> None:
    seen: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await call_asgi(once, handler, type="websocket")
    await call_asgi(once, handler, type="lifespan")
    assert seen == ["websocket", "lifespan"]


async def test_an_application_may_start_again_after_an_error_over_asgi(orders: Orders, once: AsyncOnefold) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"half an ans", "more_body": True})
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"not here"})

    for _ in range(2):
        [start, body] = await call_asgi(once, handler)
        assert (start["status"], body["body"]) == (404, b"not here")
    assert orders.records == 1
