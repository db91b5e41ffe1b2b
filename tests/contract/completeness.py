"""Which tests claim which rows in which backends, and what is missing.

The same marker that this reads decides in which backends a test runs, so a claim cannot be made without a run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.rows import ALL, BackendName, Row


@dataclass(frozen=True, slots=True)
class Claims:
    """The rows a test is about, and the backends it runs in."""

    rows: tuple[str, ...]
    backends: tuple[BackendName, ...]


def claims_of(function: Callable[..., Any]) -> Claims:
    """What `@pytest.mark.contract("C07", backends=POSTGRES)` says. Backends are all four unless named."""
    marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "contract"]
    if not marks:
        raise AssertionError(f"{function.__qualname__} has no @pytest.mark.contract: which row is it about?")
    rows = tuple(row for mark in marks for row in mark.args)
    backends = [mark.kwargs["backends"] for mark in marks if "backends" in mark.kwargs]
    if len(backends) > 1:
        raise AssertionError(f"{function.__qualname__} names its backends {len(backends)} times")
    return Claims(rows, backends[0] if backends else ALL)


def contract_tests() -> Iterator[Callable[..., Any]]:
    """Every test function of this package that runs in backends."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.contract.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and "backend" in inspect.signature(function).parameters:
                yield function


def shortcomings(rows: Mapping[str, Row], claims: list[Claims]) -> list[str]:
    """What is wrong between a table of rows and what the tests claim."""
    claimed = {(row, backend) for claim in claims for row in claim.rows for backend in claim.backends}
    found = [
        f"{row} is claimed by a test but is not a row" for row in sorted({row for row, _ in claimed} - rows.keys())
    ]
    for name, row in rows.items():
        for backend in ALL:
            if backend in row.absent and not row.absent[backend].strip():
                found.append(f"{name} is absent from {backend} without a reason")
            elif backend in row.absent and (name, backend) in claimed:
                found.append(f"{name} has a test in {backend}, which the table calls impossible")
            elif backend not in row.absent and (name, backend) not in claimed:
                found.append(f"{name} has no test in {backend}: {row.meaning}")
    return found
