"""What onefold's statements look up is Postgres's own, whatever others have put on the search path.

Who may create in a schema of the search path can offer functions and operators that fit the types of a call better than
those of pg_catalog, or, where the path has pg_catalog last, the same ones. None of ours may be such a call: it would
run a stranger's code with our rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import psycopg
import pytest

from onefold._app.migrations import MIGRATIONS
from onefold._client.journal import schema as journal_schema
from onefold._client.journal import sql as journal
from onefold._idempotency.model import Answer, Ask
from onefold._idempotency.sql import postgres as idempotency
from onefold._inbox import sql as inbox
from onefold._kernel import dialects
from onefold._kernel.effects import Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.pg_catalog import FUNCTIONS, qualified
from onefold._kernel.runners import run
from onefold._outbox import debezium
from onefold._outbox import sql as outbox
from onefold._outbox.sql import postgres as outbox_postgres
from onefold._saga import effect_rows
from onefold._steps import sql as works
from onefold._steps.model import Held, WorkAsk
from onefold._steps.sql import completer_statements, unfinished_works
from onefold._worker import notify_listener, wakeup
from onefold.brokers.local import _sql as local
from onefold.db import _migrations as migrations
from onefold.db import _postgres_session
from onefold.db._migrations import migrate
from onefold.db._postgres_text import qualify_tables
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import PsycopgDatabase
from onefold.errors import ConfigurationError
from onefold.testing.servers import PrivatePostgres
from tests.db.parts import PARTS
from tests.db.roles import create_login

TYPES = (
    "bytea", "text", "bigint", "integer", "smallint", "numeric", "timestamp with time zone", "interval", "oid", "name",
    "boolean", "double precision",
)  # fmt: skip
OPERATORS = ("=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", ">>", "&", "~")
PATHS = {"as it is": '"$user", public', "with pg_catalog last": "public, pg_catalog"}

_STRANGER = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a stranger''s code runs as %', current_user; END $$"


def _plants(connection: psycopg.Connection[Any], *, with_types: bool) -> Iterator[str]:
    """Everything that a role that may create in `public` can offer for what our statements call."""
    for left in TYPES:
        for right in TYPES:
            name = re.sub(r"\W", "_", f"stranger_{left}_{right}")
            yield f"CREATE FUNCTION public.{name}({left}, {right}) RETURNS boolean {_STRANGER}"
            for operator in OPERATORS:
                arguments = f"LEFTARG = {left}, RIGHTARG = {right}"
                yield f"CREATE OPERATOR public.{operator} (FUNCTION = public.{name}, {arguments})"
    rows = connection.execute(
        "SELECT proname, oidvectortypes(proargtypes) FROM pg_proc WHERE proname = ANY (%s) "
        "AND pronamespace = 'pg_catalog'::regnamespace AND NOT EXISTS (SELECT FROM unnest(proargtypes) AS t "
        "WHERE (SELECT typtype FROM pg_type WHERE oid = t) = 'p')",
        [list(FUNCTIONS)],
    ).fetchall()
    signatures = {(name, arguments) for name, arguments in rows}
    signatures |= {(name, kind) for name, arguments in rows if arguments and "," not in arguments for kind in TYPES}
    for name, arguments in sorted(signatures):
        yield f"CREATE FUNCTION public.{name}({arguments}) RETURNS text {_STRANGER}"
    if with_types:
        yield f"CREATE FUNCTION public.stranger() RETURNS boolean {_STRANGER}"
        for kind in ("bytea", "json", "text", "timestamptz"):
            yield f"CREATE DOMAIN public.{kind} AS pg_catalog.{kind} CHECK (public.stranger())"


@pytest.fixture(params=PATHS, scope="module")
def invaded(request: pytest.FixtureRequest, postgres: PrivatePostgres) -> str:
    """A database in which a stranger has planted everything, and our tables beside it."""
    path = PATHS[request.param]
    dsn = postgres.fresh_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        database = connection.info.dbname
        stranger = f"stranger_in_{database}"
        connection.execute(f"CREATE ROLE {stranger}; GRANT CREATE ON SCHEMA public TO {stranger}".encode())
        with connection.transaction():
            connection.execute(f"SET LOCAL ROLE {stranger}".encode())
            for plant in list(_plants(connection, with_types="last" in request.param)):
                connection.execute(plant.encode())
        connection.execute(f"ALTER DATABASE {database} SET search_path = {path}".encode())
    opened = PsycopgDatabase(dsn)
    run(migrate("postgres", MIGRATIONS["postgres"]), ThreadExecutor(opened))
    opened.close()
    return dsn


async def test_every_part_runs_and_calls_no_stranger(invaded: str) -> None:
    with psycopg.connect(invaded, autocommit=True) as connection, pytest.raises(psycopg.Error, match="stranger"):
        connection.execute("SELECT 1::smallint * 1::numeric")  # the control: the plants work
    database = AsyncpgDatabase(invaded)
    try:
        for part in PARTS.values():
            await part(database)
    finally:
        await database.close()


# --- a table that looks like ours ---------------------------------------------------------------------------------

#: How a stranger has its code run by who reads or writes a table of its own, and the code.
TRAPS = {
    "a trigger": "CREATE TABLE onefold_migration (version int PRIMARY KEY, applied_at timestamptz);"
    "CREATE FUNCTION trap() RETURNS trigger {stranger};"
    "CREATE TRIGGER trap BEFORE INSERT ON onefold_migration FOR EACH ROW EXECUTE FUNCTION trap()",
    "a policy": "CREATE TABLE onefold_migration (version int PRIMARY KEY, applied_at timestamptz);"
    "INSERT INTO onefold_migration VALUES (1, now());"
    "CREATE FUNCTION trap() RETURNS boolean {stranger}; CREATE POLICY trap ON onefold_migration USING (trap());"
    "ALTER TABLE onefold_migration ENABLE ROW LEVEL SECURITY",
    "a view": "CREATE FUNCTION trap() RETURNS int {stranger};"
    "CREATE VIEW onefold_migration AS SELECT trap() AS version, now() AS applied_at",
}


@pytest.mark.parametrize("migrates_as", ["superuser", "a role of its own"])
@pytest.mark.parametrize("trap", TRAPS)
def test_a_stranger_who_makes_a_table_of_our_name_first_has_no_code_run_by_who_migrates(
    postgres: PrivatePostgres, trap: str, migrates_as: str
) -> None:
    dsn = postgres.fresh_database()
    database = dsn.rpartition("/")[2]
    stranger = create_login(f"stranger_in_{database}", dsn)
    ours = dsn if migrates_as == "superuser" else create_login(f"ours_in_{database}", dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("GRANT CREATE ON SCHEMA public TO public")
    with psycopg.connect(stranger, autocommit=True) as connection:
        connection.execute(TRAPS[trap].format(stranger=_STRANGER).encode())
        connection.execute("GRANT ALL ON onefold_migration TO public")
    if (trap, migrates_as) != ("a policy", "superuser"):  # the control: the trap works; no policy binds a superuser
        sql = "INSERT INTO onefold_migration VALUES (2, now())" if trap == "a trigger" else "TABLE onefold_migration"
        with psycopg.connect(ours) as connection, pytest.raises(psycopg.Error, match="a stranger's code runs as"):
            connection.execute(sql.encode())
    with (
        closing(PsycopgDatabase(ours)) as opened,
        pytest.raises(ConfigurationError, match=f"onefold_migration belongs to the role 'stranger_in_{database}'"),
    ):
        run(migrate("postgres", MIGRATIONS["postgres"]), ThreadExecutor(opened))
    postgres.drop_database(dsn)


def test_a_member_of_the_role_that_owns_the_tables_may_migrate_and_a_reader_finds_them_up_to_date(
    postgres: PrivatePostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader is warned: a stranger who has made all tables first, with triggers of its own, looks the same."""
    dsn = postgres.fresh_database()
    database = dsn.rpartition("/")[2]
    owner, member, reader = (create_login(f"{name}_in_{database}", dsn) for name in ("owner", "member", "reader"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("GRANT CREATE ON SCHEMA public TO public")
        connection.execute(f"GRANT owner_in_{database} TO member_in_{database}".encode())
    known = MIGRATIONS["postgres"]
    applied = [set(_migrate_as(owner, {1: known[1]})), set(_migrate_as(member, known))]
    assert applied == [{1}, known.keys() - {1}]
    assert [_migrate_as(each, known) for each in (owner, member)] == [[], []]
    assert caplog.text == ""
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("GRANT SELECT ON onefold_migration TO public")
    assert _migrate_as(reader, known) == []
    [warning] = caplog.records
    assert (warning.name, warning.levelname) == ("onefold.database", "WARNING")
    assert f"onefold_migration belongs to another role, 'owner_in_{database}'" in caplog.text
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE onefold_migration OWNER TO current_user")
    assert _migrate_as(reader, known) == []  # a superuser could do as it likes anyway
    assert len(caplog.records) == 1
    postgres.drop_database(dsn)


def _migrate_as(dsn: str, known: Mapping[int, tuple[str, ...]]) -> list[int]:
    with closing(PsycopgDatabase(dsn)) as opened:
        return run(migrate("postgres", known), ThreadExecutor(opened))


# --- statement by statement ------------------------------------------------------------------------------------

_DML = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")


def _texts(holder: object) -> Iterator[str]:
    """The statements that a module, a class or a statement set holds."""
    for value in (vars(holder) if not isinstance(holder, dict) else holder).values():
        if isinstance(value, Statement):
            yield value.sql
        elif isinstance(value, str) and ("pg_catalog." in value or "FROM onefold_" in value):
            yield value
        elif isinstance(value, list):
            yield from _texts(dict(enumerate(value)))
        elif isinstance(value, dict) and holder is not value:
            yield from _texts(value)


def postgres_statements() -> set[str]:
    """The statements that onefold says to Postgres."""
    broker = local.STATEMENTS["postgres"]
    found = [
        *_texts(idempotency),
        *_of_requests(),
        *_texts(_postgres_session),
        *_texts(outbox_postgres),
        *_texts(type(outbox.STATEMENTS["postgres"])),
        *_texts(debezium),
        *_of_messages(),
        *(statement.sql for statement in inbox.STATEMENTS["postgres"].opening(1)),
        *_texts(journal.STATEMENTS["postgres"]),
        *(statement.sql for statement in journal.STATEMENTS["postgres"].durable),
        *_texts(journal_schema),
        *_of_works(),
        *_texts(completer_statements.STATEMENTS["postgres"]),
        *_texts(unfinished_works.STATEMENTS["postgres"]),
        *effect_rows.STATEMENTS["postgres"],
        *_texts(wakeup),
        *_texts(notify_listener),
        *_texts(dialects),
        dialects.postgres_lease(1.0).sql,
        *(broker.topics().sql, broker.subscribe("", "").sql, broker.deliver("", "", "", b"").sql),
        *(broker.waiting("").sql, broker.take("", "", 1, 1).sql, broker.remove("", "").sql),
        *(broker.give_back("", "").sql, broker.keep("", "", 1).sql, broker.remove_waiting("", 1).sql),
        *(qualified(sql) for sql in (migrations._EXISTS["postgres"], *migrations._LOCK["postgres"])),
    ]
    return {sql for sql in found if _DML.match(sql)}


def _of_messages() -> Iterator[str]:
    sql = inbox.STATEMENTS["postgres"]
    for holder in (sql, sql.runs, sql.in_hand, sql.registry, sql.stepped):
        yield from _texts(holder)


def _of_requests() -> Iterator[str]:
    """What is put together for a request, by what its key and its route are."""
    answer = Answer(201, b"", b"")
    for key_ms in (None, 1):
        for earlier in ((), (b"e" * 16,), (b"e" * 16, b"f" * 16)):
            ask = Ask(b"d" * 16, b"f" * 32, "", 1.0, 1.0, key_ms, earlier)
            made = (
                idempotency.lock,
                idempotency.check_free,
                idempotency.explain,
                idempotency.find,
                idempotency.reserve,
            )
            yield from (statement(ask).sql for statement in made)
            yield from (step.sql for step in idempotency.forget(ask) if isinstance(step, Statement))
            yield from (idempotency.settle(ask, answer, reserved=reserved).sql for reserved in (False, True))


def _of_works() -> Iterator[str]:
    """What is put together for a work, by how many names it may have."""
    sql = works.STATEMENTS["postgres"]
    for earlier in ((), (b"e" * 16,)):
        ask = WorkAsk(b"d" * 16, "work", "", b"", 1.0, 1.0, earlier)
        yield from (sql.insert(ask, 1).sql, sql.find(ask).sql, sql.seen(ask).sql)
    held = [Held(b"d" * 16, 1, "", 1.0)] * 2
    yield from (
        statement.sql for few in (held[:1], held) for statement in (sql.renewals.renew(few), sql.renewals.ours(few))
    )
    yield from (text for text in _texts(sql) if "{" not in text)


def _strangers(connection: psycopg.Connection[Any], sql: str) -> list[str]:
    """What is not Postgres's own of what a statement calls. A function's body says what it depends on."""
    types = dict(re.findall(r"\$(\d+)::(?:pg_catalog\.)?(\w+)", sql))
    arguments = ", ".join(f"pg_catalog.{_INTERNAL.get(types[str(n)], types[str(n)])}" for n in range(1, len(types) + 1))
    with connection.transaction(force_rollback=True):
        made = f"CREATE FUNCTION ours.caller({arguments}) RETURNS void LANGUAGE sql BEGIN ATOMIC {sql}; END"
        try:
            connection.execute(made.encode())
        except psycopg.Error as error:
            return [str(error)]  # it resolves to something that does not even fit
        rows = connection.execute(
            "SELECT pg_catalog.pg_describe_object(d.refclassid, d.refobjid, 0) FROM pg_catalog.pg_depend d "
            "WHERE d.objid OPERATOR(pg_catalog.=) 'ours.caller'::regproc::oid "
            "AND d.refclassid OPERATOR(pg_catalog.=) ANY (ARRAY['pg_operator'::regclass, 'pg_proc'::regclass, "
            "'pg_type'::regclass]::oid[])"
        )
        return [name for (name,) in rows]


_INTERNAL = {"bigint": "int8", "int": "int4", "integer": "int4", "smallint": "int2"}


def test_no_statement_of_ours_depends_on_a_stranger(invaded: str) -> None:
    statements = sorted(postgres_statements())
    assert len(statements) > 80
    qualifying = [sql for sql in statements if "pg_catalog." in sql]
    with psycopg.connect(invaded, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS ours")
        connection.execute("SET check_function_bodies = off")
        for sql in statements:
            assert _strangers(connection, sql) == [], sql
        # The control: without the qualification strangers are called, and where pg_catalog is last, by all of them.
        found = [sql for sql in qualifying if _strangers(connection, _unqualified(sql))]
        [(path,)] = connection.execute("SHOW search_path")
    assert len(found) == len(qualifying) if "pg_catalog" in path else len(found) > 10


def _unqualified(sql: str) -> str:
    return re.sub(r"OPERATOR\(pg_catalog\.([^)]+)\)", r"\1", sql).replace("pg_catalog.", "")


def test_a_qualified_statement_is_planned_as_it_would_be_without(postgres_dsn: str) -> None:
    opened = PsycopgDatabase(postgres_dsn)
    run(migrate("postgres", MIGRATIONS["postgres"]), ThreadExecutor(opened))
    opened.close()
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        for sql in sorted(postgres_statements()):
            plans = [
                connection.execute(f"EXPLAIN (GENERIC_PLAN, VERBOSE) {text}".encode()).fetchall()
                for text in (sql, _unqualified(sql))
            ]
            assert plans[0] == plans[1], sql


def test_every_table_of_ours_is_put_in_its_schema_and_nothing_else_is(postgres_dsn: str) -> None:
    texts = [*postgres_statements(), *(sql for statements in MIGRATIONS["postgres"].values() for sql in statements)]
    found = {name for sql in texts for name in re.findall(r'"ours"\.(\w+)', qualify_tables(sql, "ours"))}
    opened = PsycopgDatabase(postgres_dsn)
    run(migrate("postgres", MIGRATIONS["postgres"]), ThreadExecutor(opened))
    opened.close()
    with psycopg.connect(postgres_dsn) as connection:
        tables = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'onefold%' AND relkind = 'r'")
        assert found | {"onefold_migration"} == {name for (name,) in tables}
    meant = 'SELECT \'onefold_record\' FROM "a ""b".onefold_record'
    assert qualify_tables("SELECT 'onefold_record' FROM onefold_record", 'a "b') == meant
