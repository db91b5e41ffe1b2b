"""Everything that a target may name, and some that it may not."""

from __future__ import annotations

from fastapi import FastAPI
from flask import Flask

from onefold import AsyncOnefold, Onefold
from onefold._kernel.messages import Message


def handle(message: Message) -> None:
    """Never called: these consumers are only looked at."""


def sync_one() -> Onefold:
    made = Onefold("shop.db", broker="local")
    made.consumer("listener", topic="order.placed")(handle)
    return made


async def async_one() -> AsyncOnefold:
    made = AsyncOnefold("shop.db", broker="local")
    made.consumer("listener", topic="order.placed")(handle)
    return made


def no_one() -> None:
    pass


def needy(address: str) -> Onefold:
    return Onefold(address)


def broken() -> Onefold:
    raise LookupError("no\nconfiguration")


class Lazy:
    """Such as Flask's `current_app` outside of an application."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("not set up")


lazy = Lazy()


class Nested:
    once = sync_one()


once = Nested.once
fastapi_app, flask_app, bare_app = FastAPI(), Flask(__name__), FastAPI()
once.install(fastapi_app)
once.install(flask_app)
text = "once"
idle = Onefold("shop.db", broker="local")
