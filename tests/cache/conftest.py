"""The caches that every scenario is run with, and stages that are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from onefold._idempotency.cache.answer_cache import CacheSettings
from onefold.caches import MemoryCache
from tests.cache.stage import COLOURS, Colour, Stage

MakeCache: TypeAlias = Callable[..., CacheSettings]
MakeStage: TypeAlias = Callable[..., Stage]

CACHES = ("memory",)


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> Colour:
    found: Colour = request.param
    return found


@pytest.fixture(params=CACHES)
def make_cache(request: pytest.FixtureRequest) -> MakeCache:
    """Makes the settings of a cache, with what they are to differ in."""
    return MemoryCache


@pytest.fixture
def open_stage(colour: Colour, sqlite_path: Path, make_cache: MakeCache) -> Iterator[MakeStage]:
    """Opens applications on one database, each with a cache of its own (`cache`: what its settings differ in)."""
    with ExitStack() as stack:

        def open_one(cache: dict[str, Any] | None = None, **how: Any) -> Stage:
            return stack.enter_context(Stage(colour, sqlite_path, make_cache(**(cache or {})), **how))

        yield open_one
