"""The tables and the one Postgres database of the tests of natural writes."""

from __future__ import annotations

from tests.natural.conftest import furnished_postgres as furnished_postgres
