"""Requests in steps, in processes that are killed or stopped: each is made in a forked process, which kills or stops
itself at the crossing it was given. The processor is a file: what it did is known whichever process asked.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGCONT
from typing import Any, Literal

from flask import Flask

from onefold import Onefold, single_principal
from onefold._kernel.transaction import Transaction
from onefold._steps.sql.statements import Statements
from onefold.fastapi import Steps
from tests.support.crash import Act, Boundaries, Crossing, Edge, Strike, kill_process, stop_process
from tests.support.fork_server import Child, State, fork_server

_ACTS: dict[str, Act] = {"kill": kill_process, "stop": stop_process}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ride:
    """One request for a child to make, and where to strike it."""

    address: str
    processor: str
    """The file."""
    key: str
    act: Literal["kill", "stop"] | None = None
    at: int = 0
    edges: tuple[Edge, ...] = ("after",)
    lease_s: float = 0.4
    forgets: bool = False
    """A planted bug: phases are committed without their record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RideFate:
    """What became of a child, what its client saw, and what it crossed if it ended."""

    child: Child
    state: State
    answer: tuple[int, Any] | None
    crossings: list[Crossing]


class FileProcessor:
    """Another company's service: does nothing twice under one key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def charge(self, ride: str, key: str) -> dict[str, str]:
        with self._path.open("a") as file:
            file.write(f"{ride} {key}\n")
        return {"id": key[:8]}

    def keys(self, ride: str) -> Counter[str]:
        """By key, how often it was asked to charge for a ride."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return Counter(key for name, key in (line.split() for line in lines) if name == ride)


@contextmanager
def serve(ride: Ride, boundaries: Boundaries | None = None) -> Iterator[Any]:
    """A client of the application, as Flask's tests have it."""
    boundaries = boundaries or Boundaries()
    once = Onefold(ride.address, principal=single_principal, source="rides", pages=None)
    once._database = boundaries.around(once._database)
    processor, app = FileProcessor(Path(ride.processor)), Flask(__name__)

    def write(tx: Transaction[Any], name: str) -> str:
        mark = "%s" if "psycopg" in type(tx.connection).__module__ else "?"
        tx.connection.execute(f"INSERT INTO effects VALUES ({mark})", (name,))
        _ = tx.publish("ride.created", {"name": name})
        return name

    @app.post("/rides/<name>")
    @once.idempotent(required=True, lease_s=ride.lease_s)
    def create_ride(name: str, work: Steps) -> Any:
        created = work.phase("create", write, f"{name} created")
        charge = work.call("charge", charge_it, name, work.derive("charge"))
        work.finish(write, f"{name} paid")
        return {"created": created, "charge": charge["id"]}, 201

    def charge_it(name: str, key: str) -> dict[str, str]:
        with boundaries.around_step("charge"):
            return processor.charge(name, key)

    once.install(app)
    yield app.test_client()
    once.close()


def post(client: Any, key: str) -> tuple[int, Any]:
    found = client.post(f"/rides/{key}", json={}, headers={"Idempotency-Key": key})
    return found.status_code, found.json


class RideProcesses:
    """Where they are forked."""

    def __init__(self) -> None:
        self._server = fork_server("import tests.steps.ride_processes")

    def ask(self, ride: Ride) -> RideFate:
        """Fork a child that makes this request; returns when it has ended, died or stopped."""
        program = "from tests.steps.ride_processes import obey; obey()"
        return _fate(self._server.start_with_pipes("-c", program, json.dumps(asdict(ride))))

    def go_on(self, stopped: RideFate) -> RideFate:
        """SIGCONT to a stopped child; returns when it has ended."""
        stopped.child.send_signal(SIGCONT)
        return _fate(stopped.child)


def insist(client: Any, key: str, *, patience_s: float = 60.0) -> tuple[int, Any]:
    """Retry until it is decided."""
    until = time.monotonic() + patience_s
    while True:
        status, body = post(client, key)
        if status not in (409, 500, 503) or time.monotonic() > until:
            return status, body
        time.sleep(0.02)


def _fate(child: Child) -> RideFate:
    state, answer, crossings = child.wait_for_change(), None, []
    if state != "stopped":
        assert child.stdout is not None
        lines = [json.loads(line) for line in child.stdout]
        child.close()
        if lines:
            answer = (lines[0][0], lines[0][1])
        if len(lines) > 1:
            crossings = [Crossing(*crossing) for crossing in lines[1]]
    return RideFate(child=child, state=state, answer=answer, crossings=crossings)


# --- in the child --------------------------------------------------------------------------------------------


def obey() -> None:
    """Whatever happens to it, it ends here: an error on the way is an answer that never came."""
    try:
        _obey(Ride(**json.loads(sys.argv[1])))
    finally:
        os._exit(0)


def _obey(ride: Ride) -> None:
    if ride.forgets:
        _forget_phases()
    strike = Strike(ride.at, _ACTS[ride.act]) if ride.act is not None else None
    boundaries = Boundaries(strike, edges=ride.edges)
    with serve(ride, boundaries) as client:
        answer = post(client, ride.key)
        with boundaries.around_step("answer"):
            print(json.dumps(answer), flush=True)
        print(json.dumps([[each.number, each.verb, each.edge] for each in boundaries.crossings]), flush=True)


def _forget_phases() -> None:
    record = Statements.record

    def forget(self: Statements, held: Any, step: Any) -> Any:
        return self.renew(held) if step.kind == "phase" else record(self, held, step)

    Statements.record = forget  # type: ignore[method-assign]
