"""FastAPI, SQLAlchemy, Postgres and NATS: an order and its event commit together; its parcel is packed once.

ONEFOLD_DATABASE=postgresql://... ONEFOLD_BROKER=nats://... python -m examples.fastapi_postgres_nats
python -m onefold.testing.servers postgres nats -- python -m examples.fastapi_postgres_nats
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onefold import AsyncOnefold, Message, Request
from onefold.fastapi import AsyncSessionTx
from onefold.sqlalchemy import tx_of

API_KEYS = {"Bearer sk-acme-1": "acme"}  # yours are in a table, hashed


class Table(DeclarativeBase):
    """The application's own tables."""


class OrderRow(Table):
    """An order that was placed."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class ParcelRow(Table):
    """A parcel that was packed."""

    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Order(BaseModel):
    """What a customer sends."""

    item: str


def account(request: Request) -> str | None:
    """Whose key it is: the account that this API key authenticates."""
    return API_KEYS.get(request.header("authorization") or "")


engine = create_async_engine(os.environ["ONEFOLD_DATABASE"].replace("postgresql://", "postgresql+asyncpg://"))
once = AsyncOnefold(engine, principal=account, source="orders", broker=os.environ["ONEFOLD_BROKER"])
sessions = async_sessionmaker(engine)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One process does all: in production migrations run before, relay and consumer beside it."""
    await once.migrate()
    async with engine.begin() as connection:
        await connection.run_sync(Table.metadata.create_all)
    async with once.relaying(), once.consuming():
        yield
    await once.close()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)
once.install(app)


@app.post("/orders", status_code=201)
@once.idempotent(required=True)
async def place(order: Order, session: AsyncSessionTx) -> dict[str, int]:
    """The row, the event, the key and the answer: one commit."""
    row = OrderRow(item=order.item)
    session.add(row)
    await session.flush()
    await tx_of(session).publish("order.placed", {"item": order.item}, key=row.id)
    return {"id": row.id}


@once.consumer("packing", topic="order.placed")
async def pack(message: Message, session: AsyncSession) -> None:
    """Once for each order, however often NATS delivers it."""
    session.add(ParcelRow(item=message.json()["item"]))


@app.get("/parcels")
async def parcels() -> list[str]:
    """What was packed."""
    async with sessions() as session:
        return list(await session.scalars(select(ParcelRow.item)))


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), log_level="warning")
