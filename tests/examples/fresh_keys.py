"""The shop's payments with a planted bug: the processor gets a new key whenever a charge is tried again."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from examples.shop import payments

once = payments.once
TABLES = payments.TABLES


def key_of(placed: dict[str, Any]) -> str:
    return f"pay:{placed['order']}:{uuid4()}"


payments.key_of = key_of
