"""Where the journal is by default: a file of the user's own, which other users cannot read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from onefold.db._drivers import file_of
from onefold.errors import ConfigurationError

#: Names the journal's file, for all clients of an environment.
VARIABLE: Final = "ONEFOLD_JOURNAL"


def default_journal() -> Path:
    """The file that ONEFOLD_JOURNAL names, else onefold/intents.db where this user's programs keep their state."""
    if given := os.environ.get(VARIABLE):
        file = file_of(given)
        if file is None:
            raise ConfigurationError(
                f"{VARIABLE} names a server, and this client was given no database; the journal that it makes by "
                "itself is a file: give the client the server's address, or let the variable name a file"
            )
        return file
    return _state() / "onefold" / "intents.db"


def make_private(path: Path) -> Path:
    """The path, with its directories (0700) and an empty file (0600) made where they are missing.

    New directories are flushed, for a file is only as durable as its name; SQLite does the same for the last of them.
    What is there already keeps the rights that it has.
    """
    try:
        missing = [folder for folder in path.absolute().parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            _flush(folder.parent)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigurationError(
            f"the key journal {str(path)!r} cannot be made: {error.strerror or error}; let journal=, or without it "
            f"{VARIABLE}, name a file that can be written"
        ) from error
    return path


def _state() -> Path:
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    if given.is_absolute():  # the standard has others ignored
        return given
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise ConfigurationError(
            f"there is no home directory to keep the key journal in; let {VARIABLE} name a file"
        ) from error


def _flush(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
