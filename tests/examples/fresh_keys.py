"""The shop's payments with a planted bug: the processor gets a new key whenever a charge is tried again. So that this
does not depend on what goes wrong by chance, the first answer for each order is lost."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from examples.shop import payments
from examples.shop.payments import charge_card

once = payments.once
TABLES = payments.TABLES

_answered: set[str] = set()


def key_of(placed: dict[str, Any]) -> str:
    return f"pay:{placed['order']}:{uuid4()}"


async def charge_and_lose_the_first_answer(placed: dict[str, Any], correlation: str) -> str:
    state = await charge_card(placed, correlation)
    if placed["order"] not in _answered:
        _answered.add(placed["order"])
        raise TimeoutError(f"the processor's answer for order {placed['order']} was lost")
    return state


payments.key_of = key_of
payments.charge_card = charge_and_lose_the_first_answer
