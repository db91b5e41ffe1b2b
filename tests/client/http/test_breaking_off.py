"""A caller who breaks off, at whatever moment: no permit, no task and no connection stays behind."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from onefold import Retrying, RetryPolicy
from onefold._client.call_executors import Waits
from onefold._client.http_call_factory import HttpCallFactory
from onefold._client.journal.records import ClaimedKey
from onefold._client.journal_store import JournalStore
from onefold._client.key_hosts import KeyHosts
from onefold._kernel.effects import Call, Now, Sleep
from onefold._policy.attempts import HostHealth
from onefold._policy.hosts import Hosts
from onefold._policy.outcome import Unanswered
from onefold.clients import BreakerConfig
from onefold.errors import CallNotMade
from onefold.testing.scripted_server import Reply, ScriptedServer, Stall
from tests.client.http.clients import Kind, only
from tests.support.patience import PATIENCE_S
from tests.support.scripts import Really, play


async def arrived(server: ScriptedServer, count: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while len(server.requests) < count:
        assert time.monotonic() < give_up_at, f"{len(server.requests)} of {count} requests arrived"
        await asyncio.to_thread(time.sleep, 0.005)


# A thread cannot be cancelled: see the flow.
@only(lambda kind: kind.on_tasks)
async def test_an_attempt_can_be_cancelled_and_leaves_nothing(kind: Kind) -> None:
    # One probe only: were its permit lost, the last call would be refused.
    terms = BreakerConfig(calls_least=1, probes=1, open_s=0.001, open_max_s=0.001)
    retrying = Retrying(RetryPolicy(attempts_max=1, breaker=terms, budget=None), generate_keys=True)
    before = asyncio.all_tasks()
    with ScriptedServer([Reply(500), Stall(), Reply(200)]) as server:
        async with kind.opened(retrying, connections_max=1) as caller:
            await caller.send("GET", server.url)
            await asyncio.sleep(0.01)
            task = asyncio.create_task(caller.send("GET", server.url))
            await arrived(server, 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await caller.send("GET", server.url)).status == 200
    assert asyncio.all_tasks() == before


# A thread cannot be cancelled: see the flow.
@only(lambda kind: kind.on_tasks)
async def test_a_wait_can_be_cancelled(kind: Kind, patient: RetryPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waits, "skipped", False)
    planned = asyncio.Event()
    retrying = Retrying(
        patient, listener=lambda event: planned.set() if "Planned" in repr(event) else None, generate_keys=True
    )
    with ScriptedServer([Reply(503, headers={"Retry-After": "20"}), Reply(200)]) as server:
        async with kind.opened(retrying, connections_max=1) as caller:
            task = asyncio.create_task(caller.send("GET", server.url))
            async with asyncio.timeout(PATIENCE_S):
                await planned.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await caller.send("GET", server.url)).status == 200


class Line:
    """A request without a network: it answers what it is told to."""

    method = "POST"
    host = "host"
    streams = False

    def __init__(self, *answers: int | Exception) -> None:
        self._answers = list(answers)
        self.headers: dict[str, str] = {}
        self.options: dict[str, object] = {}
        self.discarded = 0

    def address(self) -> str:
        return "http://host/"

    def header(self, name: str) -> str | None:
        return self.headers.get(name)

    def set_header(self, name: str, value: str) -> None:
        self.headers[name] = value

    def can_be_resent(self) -> bool:
        return True

    def body(self) -> bytes:
        return b""

    def patience_s(self, left_s: float) -> float:
        return left_s

    def send(self, _: float) -> int:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def status(self, response: int) -> int:
        return response

    def answer_header(self, response: int, name: str) -> str | None:
        return None

    def content(self, response: int) -> bytes | None:
        return None

    def discard(self, response: int) -> None:
        self.discarded += 1

    def classify_error(self, error: Exception) -> Unanswered | None:
        return Unanswered(maybe_sent=True) if isinstance(error, OSError) else None

    def not_made_error(self, message: str) -> CallNotMade:
        return CallNotMade(message)


class Backend:
    """An exchange whose breaker is half-open, and lets one probe through."""

    def __init__(self) -> None:
        terms = BreakerConfig(calls_least=1, probes=1, open_s=1, open_max_s=1)
        policy = RetryPolicy(breaker=terms, budget=None)
        self.host = HostHealth(policy, lambda: 0.0, "host")
        breaker = self.breaker = self.host.breaker
        assert breaker is not None
        permit: Any = breaker.admit(0)
        breaker.fail(permit, 0)
        store = JournalStore(None, retention_s=60)
        hosts = Hosts(lambda _: self.host)
        self.exchange = HttpCallFactory(hosts=hosts, store=store, listener=None, key_hosts=KeyHosts(True), quoted=False)

    def free(self, now: float) -> bool:
        """The one probe can be had."""
        assert self.breaker is not None
        return not hasattr(self.breaker.admit(now), "retry_at")


WAYS: dict[str, tuple[int | Exception, ...]] = {
    "success": (200,),
    "an answer that is final": (404,),
    "an error of the programmer": (ValueError("no header can be like this"),),
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_breaks_off_at_any_effect_gives_his_permit_back(way: str) -> None:
    effects = 0
    for stop_at in range(20):
        backend = Backend()
        flow = backend.exchange.run(Line(*WAYS[way]))
        answer: Any = None
        resume: Any = flow.send
        try:
            for _ in range(stop_at):
                effect = resume(answer)
                resume, answer = flow.send, 100.0
                if isinstance(effect, Call):
                    try:
                        answer = effect.argument()
                    except ValueError as error:
                        resume, answer = flow.throw, error
            flow.close()
        except (StopIteration, ValueError):
            break
        effects += 1
        assert backend.free(200.0), f"the permit was lost at effect {stop_at}"
    assert effects >= 3, "the control: the call has effects to break off at"


def test_a_permit_that_is_not_given_back_is_found() -> None:
    """The control of the test above: a flow that is neither closed nor finished holds its probe."""
    backend = Backend()
    flow = backend.exchange.run(Line(200))
    flow.send(None)
    flow.send(100.0)
    assert not backend.free(101.0)
    flow.close()
    assert backend.free(101.0)


def test_an_answer_that_is_not_kept_is_discarded_before_the_wait() -> None:
    backend = Backend()
    backend.host.breaker = None
    line = Line(503, 200)
    line.options["attempt_s"] = 60.0  # all that is left
    turns = [
        (Now, 0.0),
        (Call, Really.CALL),
        (Now, 0.1),
        (Call, Really.CALL),
        (Sleep, None),
        (Now, 0.2),
        (Call, Really.CALL),
        (Now, 0.3),
    ]
    assert play(backend.exchange.run(line), turns) == 200
    assert line.discarded == 1
    assert line.headers["request-timeout-ms"] == "29800"


class SlowJournal:
    """A journal that takes two seconds to write a key down."""

    async def claim(self, intent: str, fingerprint: bytes, target: str, key: str, *, until: float) -> ClaimedKey:
        await Sleep(2.0)
        return ClaimedKey("k", known=False)

    async def resolve(self, intent: str, status: int, *, until: float) -> None:
        """At once."""


def test_the_time_that_the_journal_takes_is_not_given_to_the_attempt() -> None:
    backend = Backend()
    backend.host.breaker = None
    line = Line(200)
    line.options |= {"intent": "pay:1", "attempt_s": 60.0}
    store: Any = SimpleNamespace(journal=SlowJournal())
    hosts = Hosts(lambda _: backend.host)
    exchange = HttpCallFactory(hosts=hosts, store=store, listener=None, key_hosts=KeyHosts(True), quoted=False)
    turns = [(Now, 0.0), (Call, Really.CALL), (Sleep, None), (Now, 2.0), (Call, Really.CALL), (Now, 2.1)]
    assert play(exchange.run(line), turns) == 200
    assert line.headers["request-timeout-ms"] == "28000"
