"""Each step of a scripted server, seen through a bare socket: what it plants is what a client gets."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing

import pytest

from onefold._client.call_executors import Waits, wait
from onefold.errors import ConfigurationError
from onefold.testing.no_waiting import no_waiting
from onefold.testing.scripted_server import Act, Chunks, Half, Reply, Reset, ScriptedServer, Stall
from tests.support.patience import PATIENCE_S

GET = b"GET /a?b=1 HTTP/1.1\r\nHost: x\r\nX-One: 1\r\n\r\n"


def dial(server: ScriptedServer) -> closing[socket.socket]:
    return closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S))


def rest(connection: socket.socket) -> bytes:
    found = b""
    while more := connection.recv(65_536):
        found += more
    return found


def test_requests_are_recorded_and_steps_taken_in_order_the_last_one_for_ever() -> None:
    with ScriptedServer([Reply(201, b"{}", {"X-Two": "2"}), Reply(599)]) as server, dial(server) as line:
        line.sendall(GET + b"POST /c HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" + GET)
        line.shutdown(socket.SHUT_WR)
        text = rest(line)
    assert text.startswith(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nX-Two: 2\r\n\r\n{}HTTP/1.1 599 Status\r\n")
    assert text.count(b"HTTP/1.1 599") == 2
    assert [(seen.method, seen.target, seen.body) for seen in server.requests] == [
        ("GET", "/a?b=1", b""),
        ("POST", "/c", b"abc"),
        ("GET", "/a?b=1", b""),
    ]
    assert server.requests[0].headers == {"host": "x", "x-one": "1"}
    assert server.connections == 1


def test_chunked_requests_are_put_together() -> None:
    with ScriptedServer([Reply()]) as server, dial(server) as line:
        line.sendall(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        line.shutdown(socket.SHUT_WR)
        assert rest(line).startswith(b"HTTP/1.1 200 OK")
    assert server.requests[0].body == b"abcde"


def test_a_request_that_breaks_off_is_none() -> None:
    with ScriptedServer([Reply()]) as server, dial(server) as line:
        line.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        line.shutdown(socket.SHUT_WR)
        assert rest(line) == b""
    assert server.requests == []


def test_half_an_answer_is_the_beginning_of_one() -> None:
    answer = Reply(200, b"12345")
    with ScriptedServer([Half(answer), Half(answer, 7)]) as server:
        for expected in (answer.wire()[:-1], b"HTTP/1."):
            with dial(server) as line:
                line.sendall(GET)
                assert rest(line) == expected


@pytest.mark.parametrize("reset", [Reset(), Reset(body_bytes=2)])
def test_a_reset_is_a_reset_and_no_end(reset: Reset) -> None:
    with ScriptedServer([reset]) as server, dial(server) as line:
        line.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        with pytest.raises(ConnectionResetError):
            rest(line)
    assert server.requests[0].body == b"abc"[: reset.body_bytes]


def test_a_stall_says_nothing_until_the_client_hangs_up() -> None:
    with ScriptedServer([Stall()]) as server, dial(server) as line:
        line.sendall(GET)
        line.settimeout(0.1)
        with pytest.raises(TimeoutError):
            line.recv(1)
    assert len(server.requests) == 1


def test_the_last_chunk_waits_for_its_gate() -> None:
    gate = threading.Event()
    with ScriptedServer([Chunks((b"first", b"last"), gate)]) as server, dial(server) as line:
        line.sendall(GET)
        text = b""
        while not text.endswith(b"5\r\nfirst\r\n"):
            text += line.recv(1)
        line.settimeout(0.1)
        with pytest.raises(TimeoutError):
            line.recv(1)
        gate.set()
        line.settimeout(PATIENCE_S)
        line.shutdown(socket.SHUT_WR)
        assert rest(line) == b"4\r\nlast\r\n0\r\n\r\n"
    assert b"Content-Length" not in text


def test_a_server_stops_whatever_it_is_doing() -> None:
    steps: list[Act] = [Stall(), Reply(after_s=600), Chunks((b"never",), threading.Event())]
    lines = []
    with ScriptedServer(steps) as server:
        for count in range(1, 4):
            line = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
            lines.append(line)
            line.sendall(GET)
            while len(server.requests) < count:
                threading.Event().wait(0.005)
    for line in lines:
        line.close()


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one step"):
        ScriptedServer([])


def test_no_waiting_skips_waits_and_ends_with_its_block() -> None:
    began = time.monotonic()
    with no_waiting():
        wait(600)
        with no_waiting():
            pass
        assert Waits.skipped
    assert not Waits.skipped
    assert time.monotonic() - began < 300
