"""Messages in steps, in processes that are killed or stopped: each is handled in a forked process, which kills or stops
itself at the crossing it was given. The processor is a file: what it did is known whichever process asked.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGCONT
from typing import Any, Literal
from uuid import uuid4

from onefold import Message, Onefold, Steps, Transaction
from onefold._inbox.failed_messages import take
from onefold._inbox.handling import Inbox
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold._kernel.telemetry.consumer_events import InboxEvent
from tests.steps.message_stage import delivery, message
from tests.steps.places import Place, insert
from tests.steps.ride_processes import FileProcessor
from tests.support.crash import Act, Boundaries, Crossing, Edge, Strike, kill_process, stop_process
from tests.support.fork_server import Child, State, fork_server

_ACTS: dict[str, Act] = {"kill": kill_process, "stop": stop_process}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One message for a child to handle, and where to strike it."""

    address: str
    processor: str
    """The file."""
    name: str
    act: Literal["kill", "stop"] | None = None
    at: int = 0
    edges: tuple[Edge, ...] = ("after",)
    lease_s: float = 0.3
    records: bool = True
    """Whether the handler works in steps: one that does not is the control."""
    finishes: bool = True
    """Whether its last step is `finish`, or a phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrandFate:
    """What became of a child, and what it crossed if it ended."""

    child: Child
    state: State
    crossings: list[Crossing]


class Desk:
    """The consumer in one process."""

    def __init__(self, assignment: Assignment, boundaries: Boundaries) -> None:
        self.once = Onefold(assignment.address, source="rides")
        self.once._database = boundaries.around(self.once._database)
        self._boundaries = boundaries
        self._finishes = assignment.finishes
        self._processor = FileProcessor(Path(assignment.processor))
        handler = self._bill if assignment.records else self._bill_in_one_go
        self.once.consumer("billing", topic="ride.wanted", lease_s=assignment.lease_s)(handler)
        [consumer] = self.once.consumers
        self.inbox = Inbox(consumer, self.once._database.dialect, draw=random.random, steps=self.once._message_steps())

    def deliver(self, name: str, *, redelivered: bool = False) -> InboxEvent:
        executor: ThreadExecutor[Any] = ThreadExecutor(self.once._database)
        given = delivery(message(name), redelivered=redelivered)
        return run(self.inbox.handle(given, self.once._new_transaction(executor)), executor)

    def run_due(self) -> None:
        for suspects in (False, True):
            executor: ThreadExecutor[Any] = ThreadExecutor(self.once._database)
            for failed in run(take(self.inbox, 10, suspects=suspects), executor):
                run(self.inbox.run_failed(failed, self.once._new_transaction(executor)), executor)

    def _bill(self, given: Message, work: Steps) -> None:
        work.phase("create", insert, f"{given.id} created")
        work.call("charge", self._charge, given.id, work.derive("charge"))
        if self._finishes:
            work.finish(insert, f"{given.id} paid")
        else:
            work.phase("pay", insert, f"{given.id} paid")

    def _bill_in_one_go(self, given: Message, tx: Transaction[Any]) -> None:
        insert(tx, f"{given.id} created")
        self._charge(given.id, uuid4().hex)
        insert(tx, f"{given.id} paid")

    def _charge(self, name: str, key: str) -> str:
        with self._boundaries.around_step("charge"):
            self._processor.charge(name, key)
        return key[:8]


@contextmanager
def open_desk(assignment: Assignment, boundaries: Boundaries | None = None) -> Iterator[Desk]:
    desk = Desk(assignment, boundaries or Boundaries())
    yield desk
    desk.once.close()


def insist(desk: Desk, place: Place, name: str, *, patience_s: float = 60.0) -> None:
    """As the broker and another process do after a crash: deliver again, and run what is due, until it is handled."""
    desk.deliver(name, redelivered=True)
    until = time.monotonic() + patience_s
    while _is_undecided(place, name) and time.monotonic() < until:
        time.sleep(0.02)
        place.change(
            "UPDATE onefold_letter SET due_at = now() WHERE due_at IS NOT NULL"
            if place.is_postgres
            else "UPDATE onefold_letter SET due_at_ms = 1 WHERE due_at_ms IS NOT NULL"
        )
        desk.run_due()


def _is_undecided(place: Place, name: str) -> bool:
    waiting = place.rows(f"SELECT 1 FROM onefold_letter WHERE message_id = '{name}' AND state = 'waiting'")
    return bool(waiting) or not _handled(place, name)


def _handled(place: Place, name: str) -> int:
    return len(place.rows(f"SELECT 1 FROM onefold_inbox WHERE message_id = '{name}'"))


def find_wrongs(place: Place, assignment: Assignment) -> Iterator[str]:
    """What is not as it must be once the message is handled."""
    rows = [name for (name,) in place.rows("SELECT name FROM effects") if name.startswith(f"{assignment.name} ")]
    if sorted(rows) != [f"{assignment.name} created", f"{assignment.name} paid"]:
        yield f"the rows are {rows}"
    keys = FileProcessor(Path(assignment.processor)).keys(assignment.name)
    if len(keys) != 1:
        yield f"the processor was asked under {len(keys)} keys"
    if _handled(place, assignment.name) != 1:
        yield f"the ledger has it {_handled(place, assignment.name)} times"
    if place.works_left() or place.steps_left():
        yield f"{place.works_left()} works and the steps {place.steps_left()} are left"
    if letters := place.rows("SELECT message_id, state, reason FROM onefold_letter"):
        yield f"the failed messages {letters} are left"


class MessageProcesses:
    """Where they are forked."""

    def __init__(self) -> None:
        self._server = fork_server("import tests.steps.message_processes")

    def send(self, assignment: Assignment) -> ErrandFate:
        """Fork a child that handles this message; returns when it has ended, died or stopped."""
        program = "from tests.steps.message_processes import obey; obey()"
        return _fate(self._server.start_with_pipes("-c", program, json.dumps(asdict(assignment))))

    def go_on(self, stopped: ErrandFate) -> ErrandFate:
        """SIGCONT to a stopped child; returns when it has ended."""
        stopped.child.send_signal(SIGCONT)
        return _fate(stopped.child)


def _fate(child: Child) -> ErrandFate:
    state, crossings = child.wait_for_change(), []
    if state != "stopped":
        assert child.stdout is not None
        lines = [json.loads(line) for line in child.stdout]
        child.close()
        if lines:
            crossings = [Crossing(*crossing) for crossing in lines[0]]
    return ErrandFate(child=child, state=state, crossings=crossings)


# --- in the child --------------------------------------------------------------------------------------------


def obey() -> None:
    """Whatever happens to it, it ends here: an error on the way is a delivery that was not acknowledged."""
    try:
        assignment = Assignment(**json.loads(sys.argv[1]))
        strike = Strike(assignment.at, _ACTS[assignment.act]) if assignment.act is not None else None
        boundaries = Boundaries(strike, edges=assignment.edges)
        with open_desk(assignment, boundaries) as desk:
            desk.deliver(assignment.name)
            with boundaries.around_step("ack"):
                pass
            print(json.dumps([[each.number, each.verb, each.edge] for each in boundaries.crossings]), flush=True)
    finally:
        os._exit(0)
