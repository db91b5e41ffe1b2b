"""A fault before and after every verb of handling one message: nothing is lost, and its effect happens once.

Two planted mistakes run through the same harness and must be seen to break: acknowledging before COMMIT, and a ledger
row in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from onefold._inbox.failed_messages import take
from onefold._inbox.handling import Inbox, _Go
from onefold._inbox.in_hand import give_up
from onefold._inbox.stored_message import StoredMessage
from onefold._kernel.effects import Batch, Boundary
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.errors import StoreError
from tests.inbox.backends import Backend, delivery, message
from tests.support.crash import Act, Boundaries, Crossing, lose_connection, never_struck, strikes


class Killed(BaseException):
    """The process is gone: nothing after it happens."""


def kill(crossing: Crossing) -> None:
    raise Killed(str(crossing))


@dataclass
class Life:
    """One message on its way from a broker that delivers until it is acknowledged, then as a failed message."""

    backend: Backend
    inbox: Inbox
    database: AsyncDatabase[Any]
    given: Message
    acks_first: bool = False

    async def live(self, *, redelivered: bool) -> None:
        at_broker = True
        for _ in range(5):
            while at_broker:
                at_broker = not self.acks_first
                try:
                    await self.backend.hand(
                        self.inbox, replace(delivery(self.given), redelivered=redelivered), self.database
                    )
                    at_broker = False
                except (StoreError, Killed):
                    redelivered = True
            if not await self.backend.failed_messages():
                return
            await self.backend.hours_pass()
            try:
                await self._failed_messages()
            except (StoreError, Killed):
                continue

    async def _failed_messages(self) -> None:
        await run_async(give_up(self.inbox), TaskExecutor(self.database))
        for suspects in (False, True):
            for failed_message in await run_async(take(self.inbox, 10, suspects=suspects), TaskExecutor(self.database)):
                executor, tx = self.backend.executor(self.database)
                await run_async(self.inbox.run_failed(failed_message, tx), executor)


async def forget(backend: Backend) -> None:
    for table in ("effects", "onefold_inbox", "onefold_letter", "onefold_progress", "onefold_outbox"):
        await backend.change(f"DELETE FROM {table}")
    backend.calls.clear()


async def broken(
    backend: Backend,
    make: Callable[[], Inbox],
    act: Act,
    *,
    redelivered: bool = False,
    version: int | None = None,
    acks_first: bool = False,
) -> list[str]:
    """Strike everywhere; the crossings after which the world was not as it must be."""
    wrong, struck, counted = [], [], []
    for strike in strikes(act):
        await forget(backend)
        boundaries = Boundaries(strike)
        given = message(key=None if version is None else "k", version=version)
        life = Life(backend, make(), boundaries.around_async(backend.database), given, acks_first)
        await life.live(redelivered=redelivered)
        seen = (await backend.effects(), await backend.ledger(), await backend.failed_messages())
        events = await backend.rows("SELECT topic FROM onefold_outbox")
        if seen != (["m1"], ["m1"], {}) or events != [("done",)]:
            wrong.append(f"{strike.struck}: {seen} {events}")
        if strike.struck is None:
            counted = boundaries.crossings
        else:
            struck.append(strike.struck)
    assert never_struck(counted, struck) == []
    assert len(struck) >= 8
    return wrong


def publishing(backend: Backend, *, fails: int = 0) -> Callable[..., Any]:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        await backend.write(tx, given.id)
        await tx.publish("done", {"id": given.id})
        if len(backend.calls) <= fails:
            raise RuntimeError("not yet")

    return handler


@pytest.mark.parametrize("act", [lose_connection, kill], ids=["lost", "killed"])
@pytest.mark.parametrize(
    ("redelivered", "fails"),
    [
        pytest.param(False, 0, id="first-succeeds"),
        pytest.param(True, 0, id="redelivered-succeeds"),
        pytest.param(False, 1, id="first-fails-once"),
        # Each strike of the one above makes its delivery a repeated one, which fails then.
        pytest.param(True, 1, id="redelivered-fails-once", marks=pytest.mark.soak),
    ],
)
async def test_wherever_it_is_struck_a_message_has_its_effect_once(
    backend: Backend, act: Act, redelivered: bool, fails: int
) -> None:
    wrong = await broken(backend, lambda: backend.inbox(publishing(backend, fails=fails)), act, redelivered=redelivered)
    assert wrong == []


@pytest.mark.parametrize("act", [lose_connection, kill], ids=["lost", "killed"])
@pytest.mark.parametrize(("order", "version"), [("strict", 1), ("strict", 3), ("latest", 3)])
async def test_the_same_holds_for_ordered_consumers(backend: Backend, act: Act, order: str, version: int) -> None:
    wrong = await broken(backend, lambda: backend.inbox(publishing(backend), order=order), act, version=version)
    assert wrong == []


@pytest.mark.parametrize("act", [lose_connection, kill], ids=["lost", "killed"])
async def test_wherever_a_batch_is_struck_each_of_its_messages_has_its_effect_once(backend: Backend, act: Act) -> None:
    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        for one in given:
            await backend.write(tx, one.id)

    names = ["m1", "m2", "m3"]
    struck = 0
    for strike in strikes(act):
        await forget(backend)
        inbox = backend.inbox(handler, batch=10)
        executor, tx = backend.executor(Boundaries(strike).around_async(backend.database))
        try:
            events = await run_async(inbox.handle_batch([delivery(message(name)) for name in names], tx), executor)
            assert events is not None
        except (StoreError, Killed):
            for name in names:
                await backend.deliver(inbox, message(name), redelivered=True)
        struck += strike.struck is not None
        assert (await backend.effects(), await backend.ledger(), await backend.failed_messages()) == (names, names, {})
    assert struck >= 10


async def test_control_acknowledging_before_commit_loses_messages(backend: Backend) -> None:
    wrong = await broken(backend, lambda: backend.inbox(publishing(backend)), kill, acks_first=True)
    assert any("([], [], {})" in line for line in wrong)


class LedgerApart(Inbox):
    """The ledger row commits before the handler runs."""

    async def _open(self, stored: StoredMessage) -> Any:
        opened = await super()._open(stored)
        if isinstance(opened, _Go):
            await Batch((Boundary.COMMIT, Boundary.BEGIN, *self.sql.opening(60_000)))
        return opened


async def test_control_a_ledger_row_in_another_transaction_loses_effects(backend: Backend) -> None:
    wrong = await broken(
        backend, lambda: LedgerApart(backend.consumer(publishing(backend)), backend.dialect, draw=lambda: 0.5), kill
    )
    assert any("([], ['m1'], {})" in line for line in wrong)
