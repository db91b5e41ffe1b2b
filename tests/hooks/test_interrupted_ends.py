"""Every transaction is concluded, once, wherever an interruption strikes: its user is told how it ended, and no lie."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, Message, Onefold, Transaction
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold._kernel import executors
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold.db.sqlite import SqliteDatabase
from onefold.errors import ProgrammerError
from tests.http.stages import account_of, calling
from tests.inbox.backends import Backend, backend_of, message
from tests.inbox.conftest import inbox_database, inbox_dsn
from tests.support.crash import Boundaries, Crossing, cancel_task, interrupt_thread, strikes
from tests.support.patience import PATIENCE_S

__all__ = ["inbox_database", "inbox_dsn"]

#: What hooks are told of each end; None: nobody knows.
TOLD = {True: ["kept"], False: ["undone"], None: []}


class Refused(Exception):
    """The handler fails."""


class User:
    """Who works in one transaction, and wants to know how it ends; also as a session, which joins it."""

    def __init__(self, name: str, *, fails: bool) -> None:
        self.name = name
        self.fails = fails
        self.tx: Transaction[Any] | None = None
        self.heard: list[str] = []
        self.ends: list[bool | None] = []

    def begin(self, tx: Transaction[Any]) -> None:
        self.tx = tx
        tx.after_commit(self.heard.append, "kept")
        tx.after_rollback(self.heard.append, "undone")
        assert isinstance(tx, OwnedTransaction)
        tx._work().joined.append(self)

    def end(self) -> None:
        if self.fails:
            raise Refused

    async def end_async(self) -> None:
        self.end()

    def write(self) -> None: ...
    def begin_part(self) -> None: ...
    def end_part(self, part: Any, *, keep: bool) -> None: ...
    def before_end(self, keep_rows: bool) -> None: ...

    def after_end(self, kept: bool | None) -> None:
        self.ends.append(kept)

    def complaints(self, rows: list[str], struck: Crossing | None) -> list[str]:
        """What is wrong with what it was told, now that everything is over."""
        if self.tx is None:  # it never began
            return []
        try:
            self.tx.after_commit(print)
            return [f"{struck}: the transaction is still open"]
        except ProgrammerError:
            pass
        if len(self.ends) != 1:
            return [f"{struck}: concluded {len(self.ends)} times"]
        [kept] = self.ends
        wrong = []
        if self.heard != TOLD[kept]:
            wrong.append(f"{struck}: the session was told {kept}, the hooks {self.heard}")
        if kept is not None and kept != (self.name in rows):
            wrong.append(f"{struck}: told {kept}, but there is {rows}")
        # Once COMMIT was answered, giving the connection back is all that is left: that cannot unsay it.
        if kept is None and (struck is None or "commit" not in struck.verb):
            wrong.append(f"{struck}: said to be unknown, but COMMIT was not under way")
        return wrong


@pytest.fixture(params=["sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with backend_of(request) as backend:
        yield backend


Work = Callable[[Backend, AsyncOnefold, User], Awaitable[object]]


async def in_request(backend: Backend, once: AsyncOnefold, user: User, *, key: str | None) -> None:
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    async def endpoint(tx: Tx[Any]) -> None:
        user.begin(tx)
        await backend.write(tx, user.name)
        await user.end_async()

    once.install(app)
    async with calling(app) as client:
        await client.post("/orders", key=key)


async def in_keyed_request(backend: Backend, once: AsyncOnefold, user: User) -> None:
    await in_request(backend, once, user, key=f'"{user.name}"')


async def in_unkeyed_request(backend: Backend, once: AsyncOnefold, user: User) -> None:
    await in_request(backend, once, user, key=None)


async def in_transaction(backend: Backend, once: AsyncOnefold, user: User) -> None:
    async with once.transaction() as tx:
        user.begin(tx)
        await backend.write(tx, user.name)
        await user.end_async()


async def in_handling(backend: Backend, once: AsyncOnefold, user: User) -> None:
    async with once.handling("mail", user.name) as tx:
        assert tx is not None
        user.begin(tx)
        await backend.write(tx, user.name)
        await user.end_async()


async def in_consumer(backend: Backend, once: AsyncOnefold, user: User) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        user.begin(tx)
        await backend.write(tx, user.name)
        await user.end_async()

    await Backend(once._database).deliver(backend.inbox(handler), message(user.name))


WORKS = [in_keyed_request, in_unkeyed_request, in_transaction, in_handling, in_consumer]


async def leave() -> None:
    """Wait for what was left to be done in the background of this loop: those of tests before are closed."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        while leaving := {task for task in executors._leaving if task.get_loop() is loop}:
            await asyncio.wait(leaving)


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
@pytest.mark.parametrize("work", WORKS)
async def test_wherever_its_task_is_cancelled_a_transaction_is_concluded_once_and_truly(
    backend: Backend, work: Work, fails: bool
) -> None:
    await AsyncOnefold(backend.database).migrate()
    wrong, struck = [], 0
    for strike in strikes(cancel_task):
        boundaries = Boundaries(strike, edges=("before", "during", "after"))
        once = AsyncOnefold(boundaries.around_async(backend.database), source="shop", principal=account_of)
        user = User(f"work {strike.number}", fails=fails)
        task = asyncio.ensure_future(work(backend, once, user))
        boundaries.counts = lambda task=task: asyncio.current_task() is task  # type: ignore[misc]
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Refused):
            raise error
        await leave()
        wrong += user.complaints(await backend.effects(), strike.struck)
        struck += strike.struck is not None
        assert boundaries.out == 0
    assert wrong == []
    assert struck >= 9


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(PATIENCE_S)


async def be_cancelled(backend: Backend, work: Work, user: User) -> None:
    """Work whose own code cancels it."""
    once = AsyncOnefold(backend.database, source="shop", principal=account_of)
    await once.migrate()
    task = asyncio.ensure_future(work(backend, once, user))
    await asyncio.wait({task})
    assert task.cancelled()
    await leave()


@pytest.mark.parametrize("work", WORKS)
async def test_cancelled_inside_its_handler_a_transaction_is_rolled_back_and_says_so(
    backend: Backend, work: Work
) -> None:
    class Waiting(User):
        async def end_async(self) -> None:
            await cancel_itself()

    user = Waiting("waiting", fails=False)
    await be_cancelled(backend, work, user)
    assert (user.ends, user.heard, await backend.effects()) == ([False], ["undone"], [])


@pytest.mark.parametrize("work", WORKS)
async def test_a_hook_that_is_cancelled_keeps_none_of_the_others_from_being_called(
    backend: Backend, work: Work
) -> None:
    class Stuck(User):
        def begin(self, tx: Transaction[Any]) -> None:
            tx.after_commit(self.heard.append, "first")
            tx.after_commit(cancel_itself)
            super().begin(tx)

    user = Stuck("stuck", fails=False)
    await be_cancelled(backend, work, user)
    assert (user.ends, user.heard, await backend.effects()) == ([True], ["first", "kept"], ["stuck"])


# --- threads --------------------------------------------------------------------------------------------------


def in_view(once: Onefold, user: User, *, key: str | None) -> None:
    app = flask.Flask(__name__)

    @app.post("/orders")
    @once.idempotent()
    def view() -> str:
        user.begin(tx := current_transaction())
        tx.connection.execute("INSERT INTO effects VALUES (?)", (user.name,))
        user.end()
        return ""

    once.install(app)
    headers = {"x-account": "acme", **({} if key is None else {"idempotency-key": key})}
    app.test_client().post("/orders", headers=headers)


def in_keyed_view(once: Onefold, user: User) -> None:
    in_view(once, user, key=f'"{user.name}"')


def in_unkeyed_view(once: Onefold, user: User) -> None:
    in_view(once, user, key=None)


def in_block(once: Onefold, user: User) -> None:
    with once.transaction() as tx:
        user.begin(tx)
        tx.connection.execute("INSERT INTO effects VALUES (?)", (user.name,))
        user.end()


def in_handled_message(once: Onefold, user: User) -> None:
    with once.handling("mail", user.name) as tx:
        assert tx is not None
        user.begin(tx)
        tx.connection.execute("INSERT INTO effects VALUES (?)", (user.name,))
        user.end()


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
@pytest.mark.parametrize("work", [in_keyed_view, in_unkeyed_view, in_block, in_handled_message])
def test_wherever_its_thread_is_interrupted_a_transaction_is_concluded_once_and_truly(
    sqlite_path: Path, work: Callable[[Onefold, User], None], fails: bool
) -> None:
    file = SqliteDatabase(sqlite_path)
    plain = Onefold(file)
    plain.migrate()
    with plain.transaction() as tx:
        tx.connection.execute("CREATE TABLE effects (id text NOT NULL)")
    wrong, struck = [], 0
    for strike in strikes(interrupt_thread):
        boundaries = Boundaries(strike)
        once = Onefold(boundaries.around(file), source="shop", principal=account_of)
        user = User(f"work {strike.number}", fails=fails)
        with contextlib.suppress(KeyboardInterrupt, Refused):
            work(once, user)
        with plain.transaction() as tx:
            rows = [name for (name,) in tx.connection.execute("SELECT id FROM effects")]
        wrong += user.complaints(rows, strike.struck)
        struck += strike.struck is not None
        assert boundaries.out == 0
    file.close()
    assert wrong == []
    assert struck >= 5
