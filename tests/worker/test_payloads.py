"""Typed payloads: a handler gets the data as the type it is annotated with; what does not fit is a dead letter."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from onefold import AsyncOnefold, Message, Onefold, Transaction
from onefold._inbox.handling import Inbox
from onefold._worker.pydantic_payloads import PydanticPayload
from onefold.errors import ConfigurationError
from onefold.telemetry import DeadLettered, Event, Handled
from tests.inbox.backends import Backend, message
from tests.worker.consuming import until

CARD = "4111-1111"


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    total: int
    sku: str = "tea"

    @field_validator("sku")
    @classmethod
    def check_sku(cls, sku: str) -> str:
        if sku == CARD:
            raise ValueError(f"{sku} is a card")
        return sku


@dataclass
class Line:
    total: int


class Note(TypedDict):
    total: int


def typed(backend: Backend, handler: Callable[..., Any], **settings: Any) -> Inbox:
    return backend.inbox(handler, payload_of=PydanticPayload, **settings)


async def test_the_first_parameter_gets_the_data_as_its_type(backend: Backend) -> None:
    seen: list[object] = []

    async def model(order: Order, tx: Transaction[Any]) -> None:
        await backend.write(tx, str(order.total))
        seen.append(order)

    async def data(line: Line) -> None:
        seen.append(line)

    async def typed_dict(note: Note, message: Message) -> None:
        seen.append((note, message.id))

    async def mapping(amounts: dict[str, int]) -> None:
        seen.append(amounts)

    async def constrained(message: Message, order: Annotated[Order, Field(strict=True)]) -> None:
        seen.append(order)

    handlers: list[Callable[..., Any]] = [model, data, typed_dict, mapping, constrained]
    for number, handler in enumerate(handlers):
        given = message(f"m{number}", data=b'{"total": 42}')
        assert isinstance(await backend.deliver(typed(backend, handler), given), Handled)
    assert seen == [Order(total=42), Line(total=42), ({"total": 42}, "m2"), {"total": 42}, Order(total=42)]
    assert await backend.effects() == ["42"]


async def test_a_batch_is_a_list_of_them(backend: Backend) -> None:
    sizes: list[int] = []

    async def handler(orders: list[Order]) -> None:
        sizes.append(sum(order.total for order in orders))

    await backend.deliver(typed(backend, handler, batch=10), message(data=b'{"total": 3}'))
    assert sizes == [3]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b'{"total": "many"}', "total: int_parsing"),
        (b'{"sku": "tea"}', "total: missing"),
        (
            f'{{"total": 1, "sku": "{CARD}"}}'.encode(),
            "sku: value_error",
        ),
        (f'{{"total": 1, "{CARD}": 1}}'.encode(), "*: extra_forbidden"),
        (CARD.encode(), "data: json_invalid"),
    ],
)
async def test_what_does_not_fit_is_dead_at_once_and_what_it_contains_is_not_logged(
    backend: Backend, data: bytes, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    reason = f"PayloadInvalid: the message's data is not a valid Order: {where}"

    async def handler(order: Order) -> None:
        backend.calls.append("never")

    event = await backend.deliver(typed(backend, handler), message(data=data))
    assert event == DeadLettered("billing", "order.placed", reason, "m1")
    failed_message = (await backend.failed_messages())["m1"]
    assert (failed_message.state, failed_message.failed, failed_message.reason, failed_message.data) == (
        "dead",
        1,
        reason,
        data,
    )
    assert reason in caplog.text
    assert CARD not in caplog.text
    assert CARD not in repr(event)
    assert backend.calls == []


async def test_the_record_has_what_pydantic_says(backend: Backend) -> None:
    async def handler(order: Order) -> None: ...

    await backend.deliver(typed(backend, handler), message(data=b'{"total": "many"}'))
    [failure] = (await backend.failed_messages())["m1"].history
    assert "total: Input should be a valid integer, unable to parse string as an integer" in failure["traceback"]


async def test_it_can_be_redriven_when_the_handler_is_repaired(backend: Backend) -> None:
    async def strict(order: Order) -> None: ...

    async def lenient(order: dict[str, Any]) -> None:
        backend.calls.append(order["total"])

    await backend.deliver(typed(backend, strict), message(data=b'{"total": "many"}'))
    await backend.change("UPDATE onefold_letter SET state = 'waiting', started = 0, failed = 0")
    column, now = ("due_at", "now()") if backend.dialect == "postgres" else ("due_at_ms", "1")
    await backend.change(f"UPDATE onefold_letter SET {column} = {now}")
    assert [type(event) for event in await backend.run_due(typed(backend, lenient))] == [Handled]
    assert backend.calls == ["many"]


@pytest.mark.parametrize("threads", [False, True])
async def test_consumers_of_both_faces_have_typed_handlers(sqlite_path: Path, threads: bool) -> None:
    seen: list[Event] = []
    totals: list[int] = []
    once = AsyncOnefold(sqlite_path, source="shop", listener=seen.append)

    def on_a_thread(order: Order) -> None:
        totals.append(order.total)

    async def on_the_loop(order: Order) -> None:
        totals.append(order.total)

    once.consumer("orders", topic="order.placed")(on_a_thread if threads else on_the_loop)
    async with once.relaying(), once.consuming():
        async with once.transaction() as tx:
            await tx.publish("order.placed", Order(total=7), key="a")
            await tx.publish("order.placed", {"total": "many"}, key="b")
        await until(lambda: {type(event) for event in seen} >= {Handled, DeadLettered})
    assert totals == [7]
    await once.close()


class Own:
    """What pydantic knows nothing of."""


def takes_its_own(order: Own) -> None: ...


def takes_text(order: str) -> None: ...


def takes_one(order: Order) -> None: ...


@pytest.mark.parametrize(
    ("handler", "batch", "says"),
    [
        (takes_its_own, 1, r"parameter order: 'Own': pydantic cannot read a message's data as Own"),
        (takes_text, 1, r"a message's data is not read as str"),
        (takes_one, 10, r"with batch=10 it gets a list; annotate list"),
    ],
)
def test_an_annotation_that_data_cannot_be_read_as_is_refused_at_definition(
    sqlite_path: Path, handler: Callable[..., Any], batch: int, says: str
) -> None:
    once = Onefold(sqlite_path)
    with pytest.raises(ConfigurationError, match=says):
        once.consumer("orders", topic="order.placed", batch=batch)(handler)
    once.close()


def test_without_pydantic_it_is_said_what_to_install(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["pydantic"] = None
from dataclasses import dataclass
from onefold import Message, Onefold
once = Onefold({str(tmp_path / "a.db")!r})

@once.consumer("plain", topic="order.placed")
def plain(message: Message) -> None: ...

@dataclass
class Line:
    total: int

try:
    @once.consumer("typed", topic="order.placed")
    def typed(line: Line) -> None: ...
except ModuleNotFoundError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "pydantic is not installed: pip install 'onefold[pydantic]'\n"
