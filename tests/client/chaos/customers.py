"""Processes that pay: each serves a list of intents, again and again until the bank has answered every one of them.

Trying an intent again after an error is what an application does, and it is bounded: what never ends fails.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias

import httpx

import onefold
from onefold import RetryPolicy
from onefold.clients import report_of
from onefold.errors import StoreBusy
from onefold.telemetry import AttemptEnded, CallEnded
from tests.client.chaos.ledger_checks import journalled

#: How a customer names its payments. "fresh" and "none" are planted mistakes: a new key for every try, and none at all.
Keys: TypeAlias = Literal["intents", "fresh", "none"]

#: A child that hangs is a bug that should show, not a test run that never ends.
CHILD_S_MAX = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a process has to do."""

    url: str
    journal: str
    intents: Sequence[str]
    keys: Keys = "intents"
    concurrency: int = 16
    timeout_s: float = 1.0
    insist_s: float = 300.0
    """A number of tries would be up sooner the slower the machine is, and the faults as many as ever."""
    policy: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(slots=True)
class Account:
    """What came of it."""

    answers: dict[str, str] = field(default_factory=dict)
    """The body that each intent was answered with."""
    keys: dict[str, str] = field(default_factory=dict)
    """The key that it was sent under."""
    attempts: int = 0
    calls: int = 0
    """Those of which at least one attempt was made."""
    successes: int = 0
    again: int = 0
    """How often an application had to try an intent again."""
    replayed: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Attempts that the network broke, by what the client saw."""
    stops: Counter[str] = field(default_factory=Counter)
    """Calls that were given up, by why."""

    def add(self, other: Account) -> None:
        self.answers |= other.answers
        self.keys |= other.keys
        self.faults += other.faults
        self.stops += other.stops
        self.attempts += other.attempts
        self.calls += other.calls
        self.successes += other.successes
        self.again += other.again
        self.replayed += other.replayed

    def hear(self, event: Any) -> None:
        if isinstance(event, AttemptEnded):
            self.attempts += 1
            self.successes += event.succeeded
            if event.error is not None:
                self.faults[event.error] += 1
        elif isinstance(event, CallEnded):
            self.calls += event.attempts > 0
            if event.reason is not None:
                self.stops[event.reason] += 1


async def served(assignment: Assignment) -> Account:
    """Serve all of them."""
    account = Account()
    transport: httpx.AsyncBaseTransport = httpx.AsyncHTTPTransport()
    if assignment.keys != "none":
        transport = onefold.retrying(
            transport, assignment.policy, journal=assignment.journal, listener=account.hear, generate_keys=True
        )
    waiting = iter(assignment.intents)
    async with httpx.AsyncClient(transport=transport, base_url=assignment.url, timeout=assignment.timeout_s) as client:

        async def customer() -> None:
            for intent in waiting:
                await _insisted(client, assignment, intent, account)

        await asyncio.gather(*(customer() for _ in range(assignment.concurrency)))
    return account


async def _insisted(client: httpx.AsyncClient, assignment: Assignment, intent: str, account: Account) -> None:
    extensions = {"intent": intent} if assignment.keys == "intents" else {}
    give_up_at = time.monotonic() + assignment.insist_s
    for tries in count():
        # Where the machine is too slow for all, those that wait as short as before would never be answered.
        timeout_s = assignment.timeout_s * 2 ** min(tries // 5, 5)
        try:
            answer = await client.post("/payments", json={"intent": intent}, extensions=extensions, timeout=timeout_s)
        except StoreBusy as error:  # the others of a SQLite journal were faster for seconds: nothing was sent
            ended: object = error
            account.stops["journal busy"] += 1
        except httpx.TransportError as error:
            ended = error
            if assignment.keys == "none":
                account.faults[type(error).__name__] += 1
        else:
            if answer.status_code == 201:
                report = report_of(answer)
                account.answers[intent] = answer.text
                account.keys[intent] = (report.key if report else None) or ""
                account.replayed += "idempotent-replayed" in answer.headers
                return
            assert answer.status_code in (409, 503), f"{intent}: {answer.status_code} {answer.text}"
            ended = answer
        unanswered = f"{intent} was not answered in {assignment.insist_s:g} s: {ended!r} {report_of(ended)}"
        assert time.monotonic() < give_up_at, unanswered
        account.again += 1
        await asyncio.sleep(_patience_s(ended))


def _patience_s(ended: object) -> float:
    """Until the moment that was asked for, and a little longer, for all were told the same."""
    report = report_of(ended)
    asked_s = 0.0
    if report is not None and report.retry_at is not None:
        asked_s = max(0.0, (report.retry_at - datetime.now(UTC)).total_seconds())
    return asked_s + random.uniform(0.01, 0.1)


# --- processes -----------------------------------------------------------------------------------------------

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "tests.client.chaos.victim"])


class Child:
    """A process that calls a function, and tells what it returned."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._pipe, theirs = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_live, args=(theirs, function, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def told(self, within_s: float) -> Any:
        """What the function returned."""
        assert self._pipe.poll(within_s), f"a child was not done in {within_s:g} s"
        try:
            return self._pipe.recv()
        except EOFError:
            raise AssertionError("a child died; it says above why") from None

    def ended(self, within_s: float) -> int | None:
        """What the process ended with; None: it still runs."""
        self._process.join(within_s)
        return self._process.exitcode

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


@contextmanager
def child(function: Callable[..., Any], *arguments: object) -> Iterator[Child]:
    """It is not left at the end."""
    found = Child(function, *arguments)
    try:
        yield found
    finally:
        found.end()


@contextmanager
def customers(assignments: Sequence[Assignment]) -> Iterator[list[Child]]:
    """A process for every assignment."""
    with ExitStack() as stack:
        yield [stack.enter_context(child(run_assignment, assignment)) for assignment in assignments]


def accounts(children: Sequence[Child], within_s: float) -> list[Account]:
    """Wait for all; what each has to tell."""
    give_up_at = time.monotonic() + within_s
    return [each.told(max(0.0, give_up_at - time.monotonic())) for each in children]


def together(accounts: Sequence[Account]) -> Account:
    """As if one had done it all."""
    whole = Account()
    for account in accounts:
        whole.add(account)
    return whole


def serve_unnoted(url: str, journal: str) -> Account:
    """An answer that a journal was too busy to note for seconds, as on a machine that is hardly given any time, is left
    open there. Ask for it again, as an application does; more than one in twenty would be another matter."""
    entries = journalled(journal)
    left = [intent for intent, _, status, _ in entries if status is None]
    assert len(left) <= len(entries) / 20, f"of {len(entries)} answers {len(left)} were not noted"
    if not left:
        return Account()
    with customers([Assignment(url=url, journal=journal, intents=left)]) as children:
        return together(accounts(children, CHILD_S_MAX))


def run_assignment(assignment: Assignment) -> Account:
    return asyncio.run(served(assignment))


def _live(pipe: Connection, function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    signal.alarm(CHILD_S_MAX)
    pipe.send(function(*arguments))
    pipe.close()
