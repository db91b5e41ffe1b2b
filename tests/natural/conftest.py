"""One Postgres database for all tests of the folder in a worker: to make one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.natural.stages import TABLES, look


@pytest.fixture(scope="session")
def furnished_postgres(postgres: PrivatePostgres) -> Iterator[str]:
    """With the tables. `address_for` empties them."""
    dsn = postgres.fresh_database()
    for statement in TABLES:
        look(dsn, statement)
    yield dsn
    postgres.drop_database(dsn)
