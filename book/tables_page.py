"""The page of onefold's own tables, read from its migrations."""

from __future__ import annotations

import re
from typing import Final

from book.files import ARCHITECTURE
from book.tables import code, write_table
from onefold._app.migrations import MIGRATIONS

_HEAD = """\
# Tables

What `onefold migrate` creates, after all migrations; `onefold migrate --print` has the SQL itself. Columns are only
added, so a query that names its columns goes on working. Read as you like; write through onefold's commands only. What
a record holds, and for how long, is in [records](../records.md).

"""

_CREATE: Final = re.compile(r"CREATE TABLE (\w+) \((.*)\)[^)]*", re.DOTALL)
_ALTER: Final = re.compile(r"ALTER TABLE (\w+) (ADD COLUMN .*)", re.DOTALL)
_CONSTRAINTS: Final = ("PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "CONSTRAINT")
_TYPE_ENDS: Final = r"\s+(?=NOT NULL|NULL|PRIMARY|DEFAULT|UNIQUE|CHECK|REFERENCES|GENERATED|COLLATE|STORAGE)"


def read_columns(dialect: str) -> dict[str, dict[str, str]]:
    """Of each table: its columns and what they are, in their order."""
    tables: dict[str, dict[str, str]] = {
        "onefold_migration": {"version": "integer NOT NULL PRIMARY KEY", "applied_at": ""}
    }
    for _, statements in sorted(MIGRATIONS[dialect].items()):
        for statement in statements:
            plain = re.sub(r"--[^\n]*", "", statement).strip()
            if created := _CREATE.fullmatch(plain):
                tables[created[1]] = dict(map(_read_column, _list_columns(created[2])))
            elif altered := _ALTER.fullmatch(plain):
                added = [part.strip().removeprefix("ADD COLUMN ") for part in _split(altered[2])]
                tables[altered[1]] |= dict(map(_read_column, added))
    tables["onefold_migration"]["applied_at"] = "timestamptz NOT NULL" if dialect == "postgres" else "TEXT NOT NULL"
    return tables


def make_page() -> str:
    purposes = dict(re.findall(r"^\| `(onefold_\w+)` \| ([^|]+) \| `[\w/]+\.py` \|$", ARCHITECTURE, re.MULTILINE))
    postgres, sqlite = read_columns("postgres"), read_columns("sqlite")
    text = _HEAD
    for table in sorted(postgres | sqlite):
        purpose = purposes.get(table, "")
        text += f"## {table}\n\n{purpose[:1].upper()}{purpose[1:]}{'.' if purpose else ''}\n\n"
        names = dict.fromkeys([*postgres.get(table, {}), *sqlite.get(table, {})])
        text += write_table(
            ["column", "Postgres", "SQLite"],
            ((code(name), *(code(each.get(table, {}).get(name, "")) for each in (postgres, sqlite))) for name in names),
        )
    return text


def _list_columns(body: str) -> list[str]:
    return [part for part in _split(body) if part.split()[0].upper() not in _CONSTRAINTS]


def _split(text: str) -> list[str]:
    """At the commas that are in no parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _read_column(text: str) -> tuple[str, str]:
    name, kind = text.split(None, 1)
    return name, " ".join(kind.split())
