"""Each fault of the proxy, seen from both ends of a connection; and an answer lost after a real COMMIT."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from onefold.errors import ConfigurationError, ProgrammerError
from onefold.testing.fault_proxy import HOST, Direction, FaultProxy, reserve_port
from onefold.testing.servers import PrivatePostgres
from tests.support.patience import PATIENCE_S

A_MOMENT_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A listening server, the proxy before it, and ways to make connections through it."""

    listener: socket.socket
    proxy: FaultProxy

    def dial(self) -> socket.socket:
        return socket.create_connection(self.proxy.address, PATIENCE_S)

    def pick_up(self, timeout_s: float = PATIENCE_S) -> socket.socket:
        self.listener.settimeout(timeout_s)
        server, _ = self.listener.accept()
        server.settimeout(PATIENCE_S)
        return server

    def connect(self) -> tuple[socket.socket, socket.socket]:
        client = self.dial()
        return client, self.pick_up()


@pytest.fixture
def line() -> Iterator[Line]:
    with socket.create_server((HOST, 0)) as listener, FaultProxy(*listener.getsockname()) as proxy:
        yield Line(listener=listener, proxy=proxy)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        yield server


def received(end: socket.socket, count: int) -> bytes:
    with end.makefile("rb", buffering=0) as stream:
        data = b""
        while len(data) < count and (more := stream.read(count - len(data))):
            data += more
        return data


def until_the_end(end: socket.socket) -> bytes:
    return b"".join(iter(lambda: end.recv(65_536), b""))


def hears_of_a_reset(end: socket.socket) -> bool:
    try:
        until_the_end(end)
    except ConnectionResetError:
        return True
    return False


def test_bytes_pass_both_ways_and_are_counted(line: Line) -> None:
    client, server = line.connect()
    with client, server:
        client.sendall(b"question")
        assert received(server, 8) == b"question"
        server.sendall(b"answer" * 100_000)
        assert received(client, 600_000) == b"answer" * 100_000
        client.shutdown(socket.SHUT_WR)
        assert until_the_end(server) == b""
        server.sendall(b"last words")
        server.close()
        assert until_the_end(client) == b"last words"
    traffic = line.proxy.traffic
    assert (traffic.connections, traffic.bytes_up, traffic.bytes_down, traffic.cuts) == (1, 8, 600_010, 0)


def test_refusing_turns_new_connections_away_and_keeps_the_old(line: Line) -> None:
    client, server = line.connect()
    with client, server:
        line.proxy.switch("refuse")
        with pytest.raises(ConnectionRefusedError):
            line.dial()
        client.sendall(b"still here")
        assert received(server, 10) == b"still here"


def test_the_port_is_the_same_after_it_refused(line: Line) -> None:
    address = line.proxy.address
    line.proxy.switch("refuse")
    line.proxy.switch("pass")
    assert line.proxy.address == address
    client, server = line.connect()
    client.close()
    server.close()


def test_a_reset_reaches_both_ends_of_every_connection(line: Line) -> None:
    ends = [*line.connect(), *line.connect()]
    line.proxy.switch("reset")
    assert [hears_of_a_reset(end) for end in ends] == [True] * 4
    for end in ends:
        end.close()


def test_while_resetting_a_new_connection_is_reset_too(line: Line) -> None:
    line.proxy.switch("reset")
    with pytest.raises(ConnectionResetError), line.dial() as client:
        client.recv(1)
    with pytest.raises(TimeoutError):
        line.pick_up(A_MOMENT_S)


def test_a_black_hole_holds_what_is_sent_until_it_ends(line: Line) -> None:
    client, server = line.connect()
    with server:
        line.proxy.switch("black_hole")
        with client:
            client.sendall(b"late")
        server.settimeout(A_MOMENT_S)
        with pytest.raises(TimeoutError):
            server.recv(1)
        line.proxy.switch("pass")
        server.settimeout(PATIENCE_S)
        assert until_the_end(server) == b"late"


def test_a_black_hole_swallows_even_the_news_of_a_reset(line: Line) -> None:
    client, server = line.connect()
    with server:
        line.proxy.switch("black_hole")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        server.settimeout(A_MOMENT_S)
        with pytest.raises(TimeoutError):
            server.recv(1)
        line.proxy.switch("pass")
        server.settimeout(PATIENCE_S)
        assert hears_of_a_reset(server)


def test_a_connection_into_a_black_hole_is_made_when_it_ends(line: Line) -> None:
    line.proxy.switch("black_hole")
    with line.dial() as client:
        client.sendall(b"hello")
        with pytest.raises(TimeoutError):
            line.pick_up(A_MOMENT_S)
        line.proxy.switch("pass")
        with line.pick_up() as server:
            assert received(server, 5) == b"hello"


def test_latency_is_added_on_each_way(line: Line) -> None:
    client, server = line.connect()
    with client, server:
        line.proxy.latency_s = A_MOMENT_S
        started = time.monotonic()
        client.sendall(b"?")
        assert received(server, 1) == b"?"
        server.sendall(b"!")
        assert received(client, 1) == b"!"
        assert time.monotonic() - started >= 2 * A_MOMENT_S


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_cut_passes_exactly_so_many_bytes_then_ends_the_receiver_and_resets_the_sender(
    line: Line, direction: Direction, count: int
) -> None:
    client, server = line.connect()
    sender, receiver = (client, server) if direction == "up" else (server, client)
    with client, server:
        sender.sendall(b"before")
        assert received(receiver, 6) == b"before"
        line.proxy.cut_after(direction, count)
        sender.sendall(b"12345678")
        assert until_the_end(receiver) == b"12345678"[:count]
        assert hears_of_a_reset(sender)
    assert line.proxy.traffic.cuts == 1


def test_a_cut_waits_for_the_byte_after_the_last_that_may_pass(line: Line) -> None:
    client, server = line.connect()
    with client, server:
        line.proxy.cut_after("up", 3)
        client.sendall(b"123")
        assert received(server, 3) == b"123"
        server.sendall(b"the other way is not counted")
        assert received(client, 28) == b"the other way is not counted"
        assert line.proxy.traffic.cuts == 0
        client.sendall(b"4")
        assert until_the_end(server) == b""


def test_a_cut_is_made_once(line: Line) -> None:
    line.proxy.cut_after("up", 2)
    bystander, beside = line.connect()
    client, server = line.connect()
    with bystander, beside, client, server:
        client.sendall(b"123")
        assert until_the_end(server) == b"12"
        bystander.sendall(b"12345")
        assert received(beside, 5) == b"12345"
    assert line.proxy.traffic.cuts == 1


def test_healing_takes_every_fault_back(line: Line) -> None:
    line.proxy.latency_s = 60.0
    line.proxy.cut_after("up", 0)
    line.proxy.switch("black_hole")
    line.proxy.heal()
    assert (line.proxy.mode, line.proxy.latency_s) == ("pass", 0.0)
    client, server = line.connect()
    with client, server:
        client.sendall(b"well")
        assert received(server, 4) == b"well"


def test_a_client_is_reset_when_there_is_no_server() -> None:
    with (
        reserve_port() as nobody,
        FaultProxy(*nobody.getsockname()) as proxy,
        pytest.raises(ConnectionResetError),
        socket.create_connection(proxy.address, PATIENCE_S) as client,
    ):
        client.recv(1)


def test_stopping_ends_the_thread_and_gives_up_the_port(line: Line) -> None:
    client, server = line.connect()
    address = line.proxy.address
    line.proxy.stop()
    assert hears_of_a_reset(client)
    assert hears_of_a_reset(server)
    client.close()
    server.close()
    assert "fault-proxy" not in {thread.name for thread in threading.enumerate()}
    with socket.create_server(address):
        pass
    with pytest.raises(ProgrammerError, match="not started"):
        line.proxy.switch("pass")


def test_a_dsn_is_led_through_the_proxy(line: Line) -> None:
    host, port = line.proxy.address
    direct = f"postgresql://me:s%40crt@localhost:{line.listener.getsockname()[1]}/shop?connect_timeout=3"
    assert line.proxy.dsn(direct) == f"postgresql://me:s%40crt@{host}:{port}/shop?connect_timeout=3"


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://localhost:1/shop",
        "postgresql://one:1,two:2/shop",
        "postgresql://localhost/shop?host=elsewhere",
        "host=localhost dbname=shop",
    ],
)
def test_a_dsn_that_would_not_go_through_the_proxy_is_refused(line: Line, dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="names this one server") as refused:
        line.proxy.dsn(dsn.replace("://", "://me:pa55@"))
    assert "pa55" not in str(refused.value)


def test_wherever_the_answer_to_commit_is_cut_the_row_is_there(postgres: PrivatePostgres) -> None:
    dsn = postgres.fresh_database()
    with psycopg.connect(dsn, autocommit=True) as direct, FaultProxy(HOST, postgres.port) as proxy:
        direct.execute("CREATE TABLE payment (id int PRIMARY KEY)")
        for passed in itertools.count():
            with psycopg.connect(proxy.dsn(dsn)) as connection:
                connection.execute("INSERT INTO payment VALUES (%s)", [passed])
                proxy.cut_after("down", passed)
                try:
                    connection.commit()
                except psycopg.OperationalError:
                    lost = True
                else:
                    lost = False
                    proxy.heal()
            assert direct.execute("SELECT max(id) FROM payment").fetchone() == (passed,)
            if not lost:
                break
    # CommandComplete and ReadyForQuery are 12 + 6 bytes: the run that may pass all of them is the last.
    assert passed == proxy.traffic.cuts == 18


def test_a_commit_cut_on_its_way_up_leaves_no_row(postgres: PrivatePostgres) -> None:
    dsn = postgres.fresh_database()
    with psycopg.connect(dsn, autocommit=True) as direct, FaultProxy(HOST, postgres.port) as proxy:
        direct.execute("CREATE TABLE payment (id int PRIMARY KEY)")
        with psycopg.connect(proxy.dsn(dsn)) as connection:
            connection.execute("INSERT INTO payment VALUES (1)")
            proxy.cut_after("up", 0)
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        assert direct.execute("SELECT id FROM payment").fetchall() == []
