"""Each part of a deployment runs under a role that has what docs/postgres.md grants it, and no grant is one too many.

The grants are read from the page and executed as they stand there.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from onefold._app.migrations import MIGRATIONS
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.runners import run_async
from onefold.brokers.local import LocalBroker
from onefold.db._migrations import migrate, newer
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import OnefoldError, SchemaMissing, StatementRefused
from onefold.testing.servers import PrivatePostgres
from tests.db import parts
from tests.db.roles import create_login, dsn_of

PAGE = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text()
BLOCKS = [block for block in re.findall(r"^```sql\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "GRANT" in block]


class Grant(NamedTuple):
    """One privilege of one role."""

    privilege: str
    on: str
    role: str

    def __str__(self) -> str:
        return f"{self.privilege} ON {self.on}"


def _granted(blocks: list[str]) -> list[Grant]:
    statements = [line for block in blocks for line in block.splitlines()]
    matches = [re.fullmatch(r"GRANT ([A-Z, ]+) ON (.+) TO (\w+);", line) for line in statements]
    assert all(matches), statements
    return [Grant(each, found[2], found[3]) for found in matches if found for each in found[1].split(", ")]


GRANTS = _granted(BLOCKS)
ROLES = sorted({grant.role for grant in GRANTS})

#: What only the local broker needs: the block that grants to more than one role.
[_FOR_LOCAL] = [block for block in BLOCKS if len({grant.role for grant in _granted([block])}) > 1]
LOCAL = _granted([_FOR_LOCAL])
PLAIN = _granted([block for block in BLOCKS if block != _FOR_LOCAL])

Work = Callable[[AsyncpgDatabase, AsyncpgDatabase], Awaitable[None]]


def _alone(*works: parts.Part) -> Work:
    async def work(database: AsyncpgDatabase, owner: AsyncpgDatabase) -> None:
        for each in works:
            await each(database)

    return work


async def _migration(database: AsyncpgDatabase, owner: AsyncpgDatabase) -> None:
    assert await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
    assert not await run_async(newer("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
    assert not await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))


async def _relay_elsewhere(database: AsyncpgDatabase, owner: AsyncpgDatabase) -> None:
    """The broker is none of the relay's database: here it has another role's connection."""
    await parts.relay(database, LocalBroker(owner))


async def _subscriber(database: AsyncpgDatabase, owner: AsyncpgDatabase) -> None:
    await parts.subscriber(database, "a new topic")


class Case(NamedTuple):
    """A role at work."""

    role: str
    work: Work
    before: tuple[parts.Part, ...] = ()
    """What others have done by then."""
    local: bool = False

    @property
    def checked(self) -> list[Grant]:
        """The grants that this case shows to be needed."""
        return [grant for grant in (LOCAL if self.local else PLAIN) if grant.role == self.role]


_SENT = (parts.events, parts.subscriber)

CASES = {
    "migration": Case("shop_migration", _migration),
    "application": Case("shop_api", _alone(parts.requests, parts.events)),
    "cancellations": Case("shop_cancellations", _alone(parts.cancellations)),
    "recurring events": Case("shop_clock", _alone(parts.clock)),
    "answer cache": Case("shop_cache", _alone(parts.answer_cache)),
    "steps": Case("shop_steps", _alone(parts.steps)),
    "effects of sagas": Case("shop_sagas", _alone(parts.effects)),
    "reaper": Case("shop_reaper", _alone(parts.reaper), (parts.requests, parts.finished_works)),
    "relay": Case("shop_relay", _relay_elsewhere, _SENT),
    "consumers": Case("shop_consumers", _alone(parts.consumers)),
    "relay to the local broker": Case("shop_relay", _alone(parts.relay), _SENT, local=True),
    "consumers of the local broker": Case("shop_consumers", _subscriber, (*_SENT, parts.relay), local=True),
    "operators": Case("shop_operators", _alone(parts.operators), (parts.consumers,)),
    "administrators": Case("shop_administrators", _alone(parts.administrators), (parts.consumers,)),
    "keys": Case("shop_keys", _alone(parts.keys), (parts.requests, parts.left_works)),
    "activity": Case("shop_activity", _alone(parts.activity)),
    "client": Case("shop_client", _alone(parts.client)),
}


def _execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for sql in statements:
            connection.execute(sql.encode())


@contextmanager
def _copied(server: PrivatePostgres, dsn: str) -> Iterator[str]:
    before, _, template = dsn.rpartition("/")
    copy = f"{before}/copy_{secrets.token_hex(8)}"
    _execute(server.dsn, f"CREATE DATABASE {copy.rpartition('/')[2]} TEMPLATE {template} STRATEGY file_copy")
    try:
        yield copy
    finally:
        server.drop_database(copy)


async def _furnish(server: PrivatePostgres, case: Case) -> str:
    """A database as the case finds it, with the grants of the page."""
    dsn = server.fresh_database()
    _execute(dsn, "CREATE SCHEMA shop")
    with psycopg.connect(dsn, autocommit=True) as connection:
        there = {name for (name,) in connection.execute("SELECT rolname FROM pg_roles")}
    for role in set(ROLES) - there:
        create_login(role, dsn)
        _execute(dsn, f"ALTER ROLE {role} SET search_path = shop")
    for_migration = [block for block in BLOCKS if "shop_migration" in block]
    _execute(dsn, *for_migration)
    if case.role == "shop_migration":
        return dsn
    owner = AsyncpgDatabase(dsn_of("shop_migration", dsn))
    try:
        await _migration(owner, owner)
        for part in case.before:
            await part(owner)
    finally:
        await owner.close()
    blocks = [block for block in BLOCKS if block not in for_migration and (case.local or block != _FOR_LOCAL)]
    _execute(dsn, *blocks)
    return dsn


async def _work(case: Case, dsn: str) -> None:
    async with AsyncExitStack() as stack:
        opened = [AsyncpgDatabase(dsn_of(role, dsn)) for role in (case.role, "shop_migration")]
        for database in opened:
            stack.push_async_callback(database.close)
        await case.work(*opened)


async def _refusal(case: Case, dsn: str) -> OnefoldError | None:
    try:
        await _work(case, dsn)
    except OnefoldError as error:
        return error
    return None


def test_every_grant_of_the_page_is_checked() -> None:
    assert len(GRANTS) > 60
    checked = [grant for case in CASES.values() for grant in case.checked]
    assert sorted(checked) == sorted(GRANTS)


@pytest.mark.parametrize("name", CASES)
async def test_a_part_needs_what_the_page_grants_it_and_nothing_else(postgres: PrivatePostgres, name: str) -> None:
    case = CASES[name]
    furnished = await _furnish(postgres, case)
    with _copied(postgres, furnished) as dsn:
        await _work(case, dsn)
    spare = []
    for grant in case.checked:
        with _copied(postgres, furnished) as dsn:
            _execute(dsn, f"REVOKE {grant.privilege} ON {grant.on} FROM {grant.role}")
            if (refused := await _refusal(case, dsn)) is None:
                spare.append(str(grant))
            else:
                # A schema that may not be used is not looked into: its tables seem not to be there.
                kind = SchemaMissing if grant.privilege == "USAGE" else StatementRefused
                assert (type(refused), "onefold docs postgres" in str(refused)) == (kind, True), grant
    postgres.drop_database(furnished)
    assert spare == []


async def test_a_role_without_grants_is_told_where_they_are_listed(postgres: PrivatePostgres) -> None:
    """The control: the roles have nothing by themselves."""
    case = CASES["application"]
    dsn = await _furnish(postgres, case)
    _execute(dsn, "REVOKE ALL ON ALL TABLES IN SCHEMA shop FROM shop_api")
    with pytest.raises(StatementRefused, match=r"42501.*onefold docs postgres"):
        await _work(case, dsn)
    postgres.drop_database(dsn)
