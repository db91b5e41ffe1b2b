"""Records what a release leaves in a database: `python -m tests.upgrade.record tests/upgrade/release_0_1`, run with
that release's code.

For each dialect: a dump of every table after a few scenes, as SQL text, and every statement the release sent on the
way, with its values. The tests beside this read the dump with today's code and send the statements to today's schema.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg

from onefold import Keyring, Onefold, Request
from onefold._app.migrations import MIGRATIONS
from onefold._kernel.effects import BatchItem, Boundary, Row, Statement
from onefold._kernel.executors import ThreadExecutor
from onefold.db._migrations import script
from onefold.policies import raw_bytes, selected_fields
from onefold.testing.servers import PrivatePostgres
from tests.upgrade.scenes import KEYS, SCENES, Scene

#: Far enough for every test to come.
_FAR = {"postgres": "expires_at = '2999-01-01'", "sqlite": "expires_at_ms = 32472144000000"}


def account_of(request: Request) -> str | None:
    return request.header("x-account")


def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Publishes an event and answers what it was asked."""
    body = environ["wsgi.input"].read()
    environ["onefold.transaction"].publish("orders", {"path": environ["PATH_INFO"]}, key="k")
    start_response("201 Created", [("Content-Type", "application/json"), ("Location", "/orders/1")])
    return [b"first answer to %d bytes" % len(body)]


def ask(app: Any, scene: Scene) -> str:
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": scene.path,
        "QUERY_STRING": scene.query,
        "CONTENT_TYPE": scene.media_type,
        "CONTENT_LENGTH": str(len(scene.body)),
        "HTTP_X_ACCOUNT": "acme",
        "HTTP_IDEMPOTENCY_KEY": f'"{scene.key}"',
        "wsgi.input": BytesIO(scene.body),
    }
    said: list[str] = []
    list(app(environ, lambda status, headers, exc_info=None: said.append(status)))
    return said[0]


def play(address: str) -> None:
    """Everything a release does to its tables, in a few scenes."""
    for sealer in (None, Keyring(KEYS, write="ring")):
        once = Onefold(address, principal=account_of, sealer=sealer, source="recorded")
        once.migrate()
        app = once.wsgi(
            application,
            {
                "POST /orders": once.policy(retention_s=3600),
                "POST /orders/{id}/refunds": once.policy(retention_s=3600),
                "POST /raw": once.policy(fingerprint=raw_bytes),
                "POST /fields": once.policy(fingerprint=selected_fields("item")),
            },
        )
        for scene in SCENES:
            if scene.sealed == (sealer is not None):
                for _ in range(2):  # first, then replayed
                    assert ask(app, scene) == "201 Created", scene
        with once.transaction() as tx:
            _ = tx.publish("orders", {"by": "hand"})
        with once.handling("mailer", f"message-{sealer is None}") as tx:
            assert tx is not None
        once.reap()
        once.close()


@contextmanager
def listened() -> Iterator[list[Any]]:
    """Every batch and fetch, in order."""
    heard: list[Any] = []
    batch, fetch = ThreadExecutor.batch, ThreadExecutor.fetch

    def heard_batch(executor: ThreadExecutor[Any], items: Sequence[BatchItem]) -> int:
        heard.append([written(item) for item in items])
        return batch(executor, items)

    def heard_fetch(executor: ThreadExecutor[Any], statement: Statement) -> list[Row]:
        heard.append(written(statement))
        return fetch(executor, statement)

    ThreadExecutor.batch, ThreadExecutor.fetch = heard_batch, heard_fetch  # type: ignore[method-assign, assignment]
    try:
        yield heard
    finally:
        ThreadExecutor.batch, ThreadExecutor.fetch = batch, fetch  # type: ignore[method-assign]


def written(item: BatchItem) -> Any:
    if isinstance(item, Boundary):
        return item.name
    assert isinstance(item, Statement), "what is recorded has no savepoints of a handler's"
    return {
        "sql": item.sql,
        "values": [
            {"hex": bytes(v).hex()} if isinstance(v, bytes | bytearray | memoryview) else v for v in item.values
        ],
    }


def postgres_dump(address: str) -> str:
    lines = [script("postgres", MIGRATIONS["postgres"])]
    with psycopg.connect(address, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'onefold%' ORDER BY relname"
        ).fetchall()
        for (table,) in tables:
            if table == "onefold_migration":
                continue
            lines.append(f"DELETE FROM {table};\n")
            names = [
                name
                for (name,) in connection.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                    "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
                    (table,),
                )
            ]
            quoted = " || ', ' || ".join(f"quote_nullable({name})" for name in names)
            for (values,) in connection.execute(f"SELECT {quoted} FROM {table} ORDER BY 1".encode()):
                lines.append(f"INSERT INTO {table} ({', '.join(names)}) OVERRIDING SYSTEM VALUE VALUES ({values});\n")
    return "".join(lines)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, PrivatePostgres(version=18) as server:
        for dialect, address in (("sqlite", f"{place}/recorded.db"), ("postgres", server.fresh_database())):
            once = Onefold(address)
            once.migrate()
            once.close()
            with listened() as heard:
                play(address)
            if dialect == "sqlite":
                with closing(sqlite3.connect(address, isolation_level=None)) as file:
                    file.execute(f"UPDATE onefold_record SET {_FAR[dialect]}")
                    dump = "\n".join(line for line in file.iterdump() if "sqlite_sequence" not in line) + "\n"
            else:
                with psycopg.connect(address, autocommit=True) as connection:
                    connection.execute(f"UPDATE onefold_record SET {_FAR[dialect]}".encode())
                dump = postgres_dump(address)
            (folder / f"{dialect}.sql").write_text(dump)
            (folder / f"{dialect}.json").write_text(json.dumps(heard, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
