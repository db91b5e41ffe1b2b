"""The caches that every scenario is run with, and stages that are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

from onefold._idempotency.cache.answer_cache import CacheSettings
from onefold.caches import MemoryCache, RedisCache
from onefold.testing.servers import PrivateValkey
from tests.cache.stage import COLOURS, Colour, Stage

MakeCache: TypeAlias = Callable[..., CacheSettings]
MakeStage: TypeAlias = Callable[..., Stage]

CACHES = ("memory", "redis")
SECRET = b"s" * 32


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> Colour:
    found: Colour = request.param
    return found


@pytest.fixture(params=CACHES)
def make_cache(request: pytest.FixtureRequest) -> MakeCache:
    """Makes the settings of a cache, with what they are to differ in."""
    if request.param == "memory":
        return MemoryCache
    server: PrivateValkey = request.getfixturevalue("valkey")
    # All that a test opens stands before the same answers, and no other test's.
    return partial(
        RedisCache, server.url, secret=SECRET, namespace="orders", prefix=f"test-{uuid4().hex}", timeout_s=5.0
    )


@pytest.fixture
def open_stage(colour: Colour, sqlite_path: Path, make_cache: MakeCache) -> Iterator[MakeStage]:
    """Opens applications on one database, each with a cache of its own (`cache`: what its settings differ in)."""
    with ExitStack() as stack:

        def open_one(cache: dict[str, Any] | None = None, **how: Any) -> Stage:
            return stack.enter_context(Stage(colour, sqlite_path, make_cache(**(cache or {})), **how))

        yield open_one
