"""Where scenarios run: an executor of their own, more executors for other connections, and user code on the handle.

A scenario is a flow, so the same lines run on threads and on asyncio; only this module knows the difference.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import (
    Acquire,
    Batch,
    Call,
    Effect,
    Fetch,
    Flow,
    HandlerStatement,
    Query,
    Release,
    Statement,
    Value,
)
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.ports import AsyncDatabase, Database, Queryable
from onefold._kernel.runners import run, run_async
from onefold.errors import OnefoldError


class NotConforming(OnefoldError):
    """The driver does not do what the port promises."""


class Outage(Protocol):
    """A server that can be taken away and brought back, as `PrivatePostgres` can."""

    def kill(self) -> None:
        """Take it away, at once."""
        ...

    def restart(self) -> None:
        """Bring it back, with its data."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A driver under test, and what user code does with its handle. Async drivers give functions to await."""

    database: Database[Any] | AsyncDatabase[Any]
    """What the driver makes, over an empty database or one with nothing of the suite's in it."""
    execute: Callable[[Any, str], Any]
    """Execute SQL on the handle."""
    nested: Callable[[Any, str, bool], Any]
    """Execute SQL in the handle's own nested transaction; with True, make that one roll back."""
    commit: Callable[[Any], Any]
    """What a handler must not do: commit the transaction by itself. May raise."""
    connections_max: int | None = None
    """How many connections the pool holds; None if it has no bound."""
    outage: Outage | None = None
    """The database's server, for it to be killed."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One promise of the port: the flow keeps it or raises. `applies` says to which drivers it does."""

    flow: FlowOn
    applies: Callable[[Subject], bool]

    def __str__(self) -> str:
        return self.flow.__name__


def promise(applies: Callable[[Subject], bool] = lambda subject: True) -> Callable[[FlowOn], Scenario]:
    """Make a flow a scenario, for the drivers it applies to."""
    return lambda flow: Scenario(flow, applies)


def on_postgres(subject: Subject) -> bool:
    return subject.database.dialect == "postgres"


class Stage:
    """What a scenario sees of the driver, the `subject`; `executor` has a connection of it."""

    def __init__(self, subject: Subject, executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> None:
        self.subject = subject
        self._executor = executor

    def sql(self, text: str, *values: Value) -> Statement:
        """A statement written for Postgres, with every $1 cast to its type, in the driver's dialect."""
        return Statement(in_dialect(self.subject.database.dialect, text), values)

    def insert(self, *ids: int, name: str | None = "ours") -> Statement:
        """One statement that inserts these rows, under this `name`."""
        rows = ", ".join(f"({id_}, $1::text)" for id_ in ids)
        return self.sql(f"INSERT INTO onefold_conformance (id, name) VALUES {rows}", name)

    @property
    def can_query(self) -> bool:
        """Whether the driver executes statements for the handler: one of the user's own may do without."""
        return isinstance(self._executor.connection, Queryable)

    def query(self, text: str, *values: object) -> Query:
        """A statement as `sql` makes it, on the handle and in its transaction."""
        return Query(HandlerStatement(in_dialect(self.subject.database.dialect, text), values))

    def user(self, work: Callable[..., Any], *args: object) -> Call:
        """User code on the handle."""
        return Call(lambda: work(self._executor.connection.handle, *args))

    def user_inserts(self, id_: int) -> Call:
        """A row from user code."""
        return self.user(self.subject.execute, f"INSERT INTO onefold_conformance (id, name) VALUES ({id_}, 'theirs')")

    def elsewhere(self, *flows: FlowOn) -> Call:
        """Run flows on executors of their own, all at once; a list of what they return."""
        if isinstance(self._executor, ThreadExecutor):
            return Call(lambda: on_threads(self.subject, flows))
        return Call(lambda: on_tasks(self.subject, flows))

    async def ids(self) -> list[int]:
        """The rows this connection sees."""
        return [id_ for (id_,) in await Fetch(self.sql("SELECT id FROM onefold_conformance ORDER BY id"))]

    async def sees(self, *ids: int) -> None:
        """This connection must see these rows and no others."""
        expect((found := await self.ids()) == list(ids), f"this connection sees {found}, not {list(ids)}")

    async def others_see(self, *ids: int) -> None:
        """Another connection must see these rows and no others: they are what is committed."""
        [found] = await self.elsewhere(lambda other: with_connection(other.ids))
        expect(found == list(ids), f"another connection sees {found}, not {list(ids)}")


FlowOn: TypeAlias = Callable[[Stage], Flow[Any]]


def check(scenario: Scenario, subject: Subject) -> None:
    """Run a scenario on a driver for threads."""
    on_threads(subject, [prepare])
    on_threads(subject, [scenario.flow])


async def check_async(scenario: Scenario, subject: Subject) -> None:
    """Run a scenario on a driver for asyncio."""
    await on_tasks(subject, [prepare])
    await on_tasks(subject, [scenario.flow])


async def prepare(stage: Stage) -> None:
    """An empty table of the suite's own."""
    table = "CREATE TABLE onefold_conformance (id bigint NOT NULL PRIMARY KEY, name text NOT NULL, data bytea)"

    async def work() -> int:
        return await Batch((stage.sql("DROP TABLE IF EXISTS onefold_conformance"), stage.sql(table)))

    await with_connection(work)


def in_dialect(dialect: str, text: str) -> str:
    """SQL written for Postgres, as the dialect has it."""
    if dialect == "postgres":
        return text
    return re.sub(r"::\w+", "", text.replace("$", "?").replace("bytea", "blob"))


def expect(held: bool, otherwise: str) -> None:
    """Say what went wrong, if it did."""
    if not held:
        raise NotConforming(otherwise)


async def refuses(effect: Effect[Any], *kinds: type[OnefoldError]) -> None:
    """The effect must fail with one of these errors."""
    try:
        answer = await effect
    except kinds:
        return
    except Exception as error:
        raise NotConforming(f"{effect} raised {error!r} instead of {kinds}") from error
    raise NotConforming(f"{effect} answered {answer!r} instead of raising one of {kinds}")


async def fails(effect: Effect[Any]) -> None:
    """The effect, which is user code's, must fail: with whatever its driver says."""
    try:
        answer = await effect
    except Exception:
        return
    raise NotConforming(f"{effect} answered {answer!r} instead of raising")


async def holding(stage: Stage, count: int, then: FlowOn) -> None:
    """Hold so many connections at once, and with the last one do something."""
    await Acquire()
    if count > 1:
        await stage.elsewhere(lambda other: holding(other, count - 1, then))
    else:
        await then(stage)
    await Release()


def on_threads(subject: Subject, flows: Sequence[FlowOn]) -> list[Any]:
    """Run flows at once, each on a thread and an executor of its own."""
    results: list[Any] = [None] * len(flows)

    def perform(number: int) -> None:
        executor = ThreadExecutor(cast(Database[Any], subject.database))
        try:
            results[number] = run(flows[number](Stage(subject, executor)), executor)
        except Exception as error:
            results[number] = error
        finally:
            executor.abandon()

    threads = [threading.Thread(target=perform, args=(number,)) for number in range(len(flows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _unless_failed(results)


async def on_tasks(subject: Subject, flows: Sequence[FlowOn]) -> list[Any]:
    """Run flows at once, each in a task and on an executor of its own."""

    async def perform(flow: FlowOn) -> Any:
        executor = TaskExecutor(cast(AsyncDatabase[Any], subject.database))
        try:
            return await run_async(flow(Stage(subject, executor)), executor)
        finally:
            await executor.discard()

    return _unless_failed(await asyncio.gather(*map(perform, flows), return_exceptions=True))


def _unless_failed(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
