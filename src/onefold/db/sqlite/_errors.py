"""What sqlite3 raises, as our errors."""

from __future__ import annotations

import os
import sqlite3

from onefold.errors import (
    OnefoldError,
    RequiredValueMissing,
    SchemaMissing,
    StatementRefused,
    StoreBusy,
    StoreReadOnly,
    StoreUnavailable,
    TransactionEnded,
    UniqueViolated,
)

#: Also what sqlite3 raises for a value that does not fit: an integer beyond 64 bits, half a character.
VENDOR_ERRORS = (sqlite3.Error, OverflowError, UnicodeError)

#: SQLite result codes (extended first, then primary) to errors.
CODES: dict[int, type[OnefoldError]] = {
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: UniqueViolated,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: UniqueViolated,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: RequiredValueMissing,
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
    sqlite3.SQLITE_CANTOPEN: StoreUnavailable,
    sqlite3.SQLITE_IOERR: StoreUnavailable,
    sqlite3.SQLITE_FULL: StoreUnavailable,
    sqlite3.SQLITE_CORRUPT: StoreUnavailable,
    sqlite3.SQLITE_NOTADB: StoreUnavailable,
}


def error_for(error: Exception, where: str = "SQLite", opening: str | None = None) -> OnefoldError:
    """Our error for sqlite3's. It has no code where SQLite only reports "error", or was not called. `opening`: the file
    that was being opened."""
    text = str(error)
    if any(sign in text for sign in ("no such table", "no such column", "has no column")):
        return SchemaMissing(f"{where}: {text}; run `onefold migrate` to create onefold's tables")
    if "no such savepoint" in text:
        return TransactionEnded(f"{where}: {text}")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    kind = CODES.get(code) or CODES.get(code & 0xFF) or StatementRefused
    if opening is not None and code & 0xFF == sqlite3.SQLITE_CANTOPEN:
        text += _why(opening)
    return kind(f"{where}: {text}")


def _why(path: str) -> str:
    """Why SQLite cannot open a file, which its error does not say."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"; there is no directory {folder!r}: create it, or correct the path"
    if os.path.isdir(path):
        return f"; {path!r} is a directory: name a file"
    if not os.access(folder, os.W_OK):
        return f"; this process may not write in its directory {folder!r}"
    return ""
