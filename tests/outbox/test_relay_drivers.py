"""A relay over every asyncio driver: each reads and writes the same rows."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.status_report import report, retry
from tests.db.drivers import POSTGRES_ASYNC, SQLITE_ASYNC
from tests.outbox.relaying import Stage, refusing
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("driver", [*SQLITE_ASYNC, *POSTGRES_ASYNC])
async def test_a_relay_works_over_every_driver(request: pytest.FixtureRequest, driver: str) -> None:
    of_sqlite = driver in SQLITE_ASYNC
    address = str(request.getfixturevalue("sqlite_path" if of_sqlite else "postgres_dsn"))
    async with (SQLITE_ASYNC | POSTGRES_ASYNC)[driver](address, PATIENCE_S) as subject:
        database: Any = subject.database
        stage = Stage(database)
        await stage.migrate()
        await stage.write(("a1", "a"), ("a2", "a"), ("b", "b"), ("x", None), headers={"correlation-id": "c"})
        dead = await stage.entered(keep_published_s=60)
        await stage.run(dead.tick(), refusing("a1", "x"))
        await stage.expire(dead)
        session = stage.session()
        assert (await stage.run(session.enter())).buckets == 64
        found = await stage.run(report(stage.dialect))
        assert (len(found.stopped), len(found.relays), found.pending[0].waiting) == (2, 1, 1)
        assert await stage.run(retry(stage.dialect, [found.stopped[0].id])) == 1
        await stage.make_due()
        assert await stage.run(make_due_claimable(stage.dialect)) is None
        await stage.drain(session)
        assert sorted(stage.broker.names) == ["a1", "a2", "x"]
        assert stage.broker.first_versions() == {"a": [1, 2]}
        assert stage.broker.taken[0].headers == {"correlation-id": "c"}
        assert await stage.run(session.renew_and_rebalance()) is not None
        await stage.run(session.leave())
