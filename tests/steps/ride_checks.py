"""What must hold of a ride once its request is decided."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.steps.places import Place
from tests.steps.ride_processes import FileProcessor, Ride

_numbers = count()


def new_key() -> str:
    return f"r-{next(_numbers)}"


def wrongs(place: Place, ride: Ride, answers: list[tuple[int, Any]], last: tuple[int, Any]) -> Iterator[str]:
    """What is not as it must be. `answers` are those that clients got, `last` is that of the last retry."""
    if last[0] != 201:
        yield f"the last answer is {last}"
    for answer in answers:
        if answer[0] == 201 and answer != last:
            yield f"a client got {answer}, and another one {last}"
    rows = [name for (name,) in place.rows("SELECT name FROM effects") if name.startswith(f"{ride.key} ")]
    if sorted(rows) != [f"{ride.key} created", f"{ride.key} paid"]:
        yield f"the rows are {rows}"
    keys = FileProcessor(Path(ride.processor)).keys(ride.key)
    if len(keys) != 1:
        yield f"the processor was asked under {len(keys)} keys"
    if place.works_left() or place.steps_left():
        yield f"{place.works_left()} works and the steps {place.steps_left()} are left"
