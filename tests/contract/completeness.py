"""Which tests claim which rows in which worlds, and what is missing.

The same marker that this reads decides in which worlds a test runs, so a claim cannot be made without a run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.rows import ALL, Row, WorldName


@dataclass(frozen=True, slots=True)
class Claims:
    """The rows a test is about, and the worlds it runs in."""

    rows: tuple[str, ...]
    worlds: tuple[WorldName, ...]


def claims_of(function: Callable[..., Any]) -> Claims:
    """What `@pytest.mark.contract("C07", worlds=POSTGRES)` says. Worlds are all four unless named."""
    marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "contract"]
    if not marks:
        raise AssertionError(f"{function.__qualname__} has no @pytest.mark.contract: which row is it about?")
    rows = tuple(row for mark in marks for row in mark.args)
    worlds = [mark.kwargs["worlds"] for mark in marks if "worlds" in mark.kwargs]
    if len(worlds) > 1:
        raise AssertionError(f"{function.__qualname__} names its worlds {len(worlds)} times")
    return Claims(rows, worlds[0] if worlds else ALL)


def contract_tests() -> Iterator[Callable[..., Any]]:
    """Every test function of this package that runs in worlds."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.contract.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and "world" in inspect.signature(function).parameters:
                yield function


def shortcomings(rows: Mapping[str, Row], claims: list[Claims]) -> list[str]:
    """What is wrong between a table of rows and what the tests claim."""
    claimed = {(row, world) for claim in claims for row in claim.rows for world in claim.worlds}
    found = [f"{row} is claimed by a test but is no row" for row in sorted({row for row, _ in claimed} - rows.keys())]
    for name, row in rows.items():
        for world in ALL:
            if world in row.absent and not row.absent[world].strip():
                found.append(f"{name} is absent from {world} without a reason")
            elif world in row.absent and (name, world) in claimed:
                found.append(f"{name} has a test in {world}, which the table calls impossible")
            elif world not in row.absent and (name, world) not in claimed:
                found.append(f"{name} has no test in {world}: {row.meaning}")
    return found
