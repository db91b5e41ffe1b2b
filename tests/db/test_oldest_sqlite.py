"""No statement for SQLite needs a later one than the oldest that onefold takes: tests run with a later one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import onefold
from onefold.db.sqlite._version import OLDEST

SOURCE = Path(onefold.__file__).parent

#: What came later, by its version. Of a word of SQL that SQLite has always had, nothing is here.
LATER = {
    r"->>?": (3, 38),  # read a member of JSON
    r"\b(?:unixepoch|format)\s*\(": (3, 38),
    r"\bIS\s+(?:NOT\s+)?DISTINCT\b|\b(?:RIGHT|FULL)\s+(?:OUTER\s+)?JOIN\b": (3, 39),
    r"\bjson_error_position\s*\(|'subsec(?:ond)?'": (3, 42),
    r"\b(?:octet_length|timediff)\s*\(": (3, 43),
    r"\b(?:concat|concat_ws|string_agg)\s*\(": (3, 44),
    r"\bjsonb\w*\s*\(": (3, 45),
    r"\)\s*STRICT\b": (3, 37),
}


def texts_for_sqlite(path: str, source: str) -> Iterator[str]:
    """The texts of a module that SQLite is given: all of one that is named after it, elsewhere those that only it has
    a use for."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            is_statement = re.search(r"\b(?:SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|CREATE)\b", text)
            if is_statement and ("sqlite" in path or "json_each(" in text or "json_extract(" in text):
                yield text


def unknown_to_the_oldest(texts: Iterator[str]) -> list[str]:
    later = [pattern for pattern, version in LATER.items() if version > OLDEST]
    return [text for text in texts if any(re.search(pattern, text) for pattern in later)]


def test_no_statement_needs_a_later_sqlite_than_the_oldest() -> None:
    texts = [text for path in SOURCE.rglob("*.py") for text in texts_for_sqlite(path.name, path.read_text())]
    texts += [text for path in SOURCE.rglob("sqlite/*.py") for text in texts_for_sqlite("sqlite", path.read_text())]
    assert len(texts) > 50, "they are found"
    assert unknown_to_the_oldest(iter(texts)) == []


def test_control_what_came_later_is_found() -> None:
    planted = """
SQL = "UPDATE t SET a = f.a FROM (SELECT value ->> 'a' AS a FROM json_each(?1)) AS f"
FINE = "SELECT json_extract(value, '$.a') FROM json_each(?1)"
"""
    assert len(unknown_to_the_oldest(texts_for_sqlite("statements.py", planted))) == 1
    assert len(unknown_to_the_oldest(texts_for_sqlite("sqlite.py", 'X = "SELECT unixepoch() FROM t"'))) == 1
