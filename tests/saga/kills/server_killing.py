"""Kills the process that runs a saga, the server that has its journal, or both at once; starts again what died, and
looks at what stands."""

from __future__ import annotations

import itertools
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onefold.testing.fault_proxy import HOST, reserve_port
from onefold.testing.servers import PrivateRestate, PrivateServer
from tests.saga.kills.world import Outside
from tests.support.fork_server import Child, fork_server
from tests.support.patience import PATIENCE_S
from tests.support.temporal_server import PrivateTemporal
from tests.testing.servers.processes import ends

Victim = Literal["service", "server", "both"]

PRELUDE = "import tests.saga.kills.server_workers"
# It ends without the interpreter's own end, in which threads of Temporal's core may abort (temporalio/sdk-python#300).
MAIN = "import os, sys; from tests.saga.kills.sagas import main; main(*sys.argv[1:]); sys.stdout.flush(); os._exit(0)"

_numbers = itertools.count(1)


@dataclass
class Target:
    """A server, and how workers find it and each other."""

    server: PrivateServer
    factory: str
    url: str


@contextmanager
def restate_target(server: PrivateRestate) -> Iterator[Target]:
    with reserve_port() as port:
        listen = f"{HOST}:{_number_of(port)}"
        url = f"{server.ingress} {server.admin} {listen} killed-{next(_numbers)}"
        yield Target(server, "tests.saga.kills.server_workers:open_restate", url)


@contextmanager
def temporal_target(server: PrivateTemporal) -> Iterator[Target]:
    url = f"{server.address} killed-{next(_numbers)}"
    yield Target(server, "tests.saga.kills.server_workers:open_temporal", url)


def kill_and_go_on(target: Target, world: Path, mode: str, at: str, victim: Victim, *, keyed: bool = True) -> Outside:
    """Run the saga until what is to die dies there, start that again, and wait for the saga's end."""
    outside = Outside(world)
    outside.create()
    pid = target.server.pid
    victims = {"service": "0", "server": f"{pid}", "both": f"{pid},0"}[victim]
    kept = "keyed" if keyed else "bare"
    words = (target.factory, target.url, str(world), at, mode, kept, f"order-{next(_numbers)}", victims)
    with closing(_start(*words)) as first:
        _wait_for_death(outside)
        if victim != "server":
            assert first.wait(PATIENCE_S) == -signal.SIGKILL
        if victim != "service":
            assert ends(pid)
            target.server.restart()
        if victim == "server":
            _check_end(first, mode)
            return outside
    with closing(_start(*words)) as second:
        _check_end(second, mode)
    return outside


def _check_end(worker: Child, mode: str) -> None:
    assert worker.stdout is not None
    said = worker.stdout.read().split()
    code = worker.wait(PATIENCE_S)
    assert code == 0, f"it ended with {code} and said {said}"
    assert said == ["open", '"compensated"' if mode == "abort" else '"shipped"'], f"it said {said}"


def _start(*words: str) -> Child:
    return fork_server(PRELUDE).start_with_pipes("-c", MAIN, *words)


def _wait_for_death(outside: Outside) -> None:
    until = time.monotonic() + PATIENCE_S
    while not outside.died():
        assert time.monotonic() < until, "it did not die"
        time.sleep(0.02)


def _number_of(port: socket.socket) -> int:
    return int(port.getsockname()[1])
