"""Drivers: the kernel's database port on sqlite3, asyncpg, psycopg and SQLAlchemy, and nothing about any feature.

Here is what a driver for another library is written against; `onefold.testing.conformance` checks it. `Onefold(...)`
takes a `Database`, `AsyncOnefold(...)` an `AsyncDatabase`.
"""

from onefold._kernel.effects import BatchItem, Boundary, Nested, Row, Statement
from onefold._kernel.ports import AsyncConnection, AsyncDatabase, Connection, Database

__all__ = [
    "AsyncConnection",
    "AsyncDatabase",
    "BatchItem",
    "Boundary",
    "Connection",
    "Database",
    "Nested",
    "Row",
    "Statement",
]
