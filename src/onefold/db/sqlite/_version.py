"""Whether a SQLite is new enough for our statements."""

from __future__ import annotations

import sqlite3
from typing import Any

from onefold.errors import ConfigurationError

#: Of March 2021: RETURNING.
OLDEST = (3, 35)


def check_version(driver: Any = sqlite3) -> None:
    """Refuse a driver that is linked with a SQLite that is too old."""
    if driver.sqlite_version_info < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise ConfigurationError(
            f"this Python is linked with SQLite {driver.sqlite_version}; onefold needs {needed} or later. Use a build "
            "with a newer one, or Postgres"
        )
