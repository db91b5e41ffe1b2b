"""Alembic: onefold's tables in a revision of yours, and out of what it compares."""

from onefold._app.alembic_revisions import include_name, upgrade

__all__ = [
    "include_name",
    "upgrade",
]
