"""Qualifying a statement: what is looked up gets pg_catalog, and what would mean something else then is refused."""

from __future__ import annotations

import pytest

from onefold._kernel.pg_catalog import qualified
from onefold.errors import ProgrammerError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("SELECT now()", "SELECT pg_catalog.now()"),
        ("SELECT $1::text::bigint[]", "SELECT $1::pg_catalog.text::bigint[]"),
        ("SELECT a <= b AND c", "SELECT a OPERATOR(pg_catalog.<=) b AND c"),
        ("SELECT a * 2 > 3", "SELECT a OPERATOR(pg_catalog.*) 2 OPERATOR(pg_catalog.>) 3"),
        ("SELECT count(*), o.* FROM t", "SELECT pg_catalog.count(*), o.* FROM t"),
        (
            "UPDATE t SET a = b = c, d = e + 1 WHERE f = g RETURNING h",
            "UPDATE t SET a = b OPERATOR(pg_catalog.=) c, d = e OPERATOR(pg_catalog.+) 1 "
            "WHERE f OPERATOR(pg_catalog.=) g RETURNING h",
        ),
        (
            "SELECT a IN (SELECT 1), b IN ('x', 'y'), position(c IN d)",
            "SELECT a OPERATOR(pg_catalog.=) ANY (SELECT 1), b OPERATOR(pg_catalog.=) ANY (ARRAY ['x', 'y']), "
            "position(c IN d)",
        ),
        (
            "SELECT a IN (SELECT b FROM t LIMIT (1)) AND c",
            "SELECT a OPERATOR(pg_catalog.=) ANY (ARRAY (SELECT b FROM t LIMIT (1))) AND c",
        ),
        (
            "SELECT a IN (SELECT b FROM (SELECT b FROM t LIMIT 1) AS u)",
            "SELECT a OPERATOR(pg_catalog.=) ANY (ARRAY (SELECT b FROM (SELECT b FROM t LIMIT 1) AS u))",
        ),
        (
            "SELECT a IN (SELECT b FROM t FOR UPDATE SKIP LOCKED)",
            "SELECT a OPERATOR(pg_catalog.=) ANY (ARRAY (SELECT b FROM t FOR UPDATE SKIP LOCKED))",
        ),
        (
            "SELECT a IN (SELECT ' LIMIT ') LIMIT 1",
            "SELECT a OPERATOR(pg_catalog.=) ANY (SELECT ' LIMIT ') LIMIT 1",
        ),
        ("CASE WHEN a = b THEN 1 END = 2", "CASE WHEN a OPERATOR(pg_catalog.=) b THEN 1 END OPERATOR(pg_catalog.=) 2"),
        ("SELECT 'a = now()' FROM pg_locks", "SELECT 'a = now()' FROM pg_catalog.pg_locks"),
        (
            "CREATE TABLE t (a text) WITH (fillfactor = 7)",
            "CREATE TABLE t (a pg_catalog.text) WITH (fillfactor = 7)",
        ),
    ],
)
def test_what_is_looked_up_is_qualified_and_the_rest_is_left(written: str, meant: str) -> None:
    assert qualified(written) == meant


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("SELECT a + b * c", "brackets"),
        ("SELECT a = b - 1", "brackets"),
        ("SELECT a = b = c", "brackets"),
        ("SELECT a IS DISTINCT FROM b", "DISTINCT"),
        ("SELECT a BETWEEN 1 AND 2", "BETWEEN"),
        ("SELECT a NOT IN (SELECT 1)", "NOT IN"),
        ("SELECT CASE a WHEN 1 THEN 2 END", "WHEN"),
        ("SELECT upper(a)", "upper"),
        ("SELECT -a", "nothing on its left"),
        ("SELECT a; SELECT b", "cannot read"),
    ],
)
def test_what_cannot_be_qualified_without_changing_its_meaning_is_refused(written: str, why: str) -> None:
    with pytest.raises(ProgrammerError, match=why):
        qualified(written)
