"""Roles that log in to a private PostgreSQL, which lets nobody in without a password."""

from __future__ import annotations

import psycopg

_VERIFIER = "SELECT rolpassword FROM pg_authid WHERE rolname = current_user"


def dsn_of(role: str, dsn: str) -> str:
    """The same database, as this role."""
    return dsn.replace("//postgres:", f"//{role}:")


def create_login(role: str, dsn: str, options: str = "") -> str:
    """Make a role with the password of the server's own; returns its DSN."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        [(verifier,)] = connection.execute(_VERIFIER).fetchall()
        connection.execute(f"CREATE ROLE {role} LOGIN {options} PASSWORD '{verifier}'".encode())
    return dsn_of(role, dsn)
