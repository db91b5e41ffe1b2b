"""How batches that come again are sent by psycopg: what the sessions of a pool prepare, and what is kept of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from onefold._kernel.effects import BatchItem, Boundary, Nested, Statement
from onefold.db._postgres_batches import ITEMS_MAX, Binder, PreparedPlan, Preparer, has_secrets, places_of_values
from onefold.db._postgres_text import BOUNDARIES

#: How a connection begins that chooses nothing.
AS_CHOSEN: Final = BOUNDARIES[Boundary.BEGIN_AS_CHOSEN]


class PipelinePlan(NamedTuple):
    """Batches of one shape whose values are bound, in a session that has all their statements."""

    places: tuple[int, ...]
    """Where the items with values stand in the batch."""
    steps: tuple[tuple[bytes, int | None], ...]
    """For each statement that is sent: its name, and which of `places` has its values."""


class PlannedBatch(NamedTuple):
    """How batches of one shape are sent."""

    plan: PreparedPlan | PipelinePlan
    undoes: bool


class PreparedNames:
    """What the sessions of one pool prepare, by name."""

    __slots__ = ("binder", "on", "preparer")

    def __init__(self) -> None:
        #: False once a session was found to have other statements than it was given: a pooler changes sessions under
        #: us, or the application discards what they have.
        self.on = True
        self.preparer = Preparer()
        #: For batches whose values are bound.
        self.binder = Binder(self.preparer.mark)

    def plan(
        self, items: Sequence[BatchItem], sent: Sequence[BatchItem], begin: str, schema: str | None
    ) -> PreparedPlan | PipelinePlan | None:
        """For batches like these items, which are sent as those, to a session that has all that can be prepared. None:
        not all of it can, or they have too many items to be kept."""
        if len(items) > ITEMS_MAX:
            return None
        if not has_secrets(items):
            return self.preparer.plan(items, sent, schema=schema) if begin == AS_CHOSEN else None
        # No session has a BEGIN that the connection chooses, nor a savepoint's number, under a name.
        if any(is_nameless(item) for item in items):
            return None
        numbers = iter(range(len(sent)))
        steps = (
            (
                self.binder.find(item, schema).name.encode(),
                next(numbers) if isinstance(item, Statement) and item.values else None,
            )
            for item in sent
        )
        return PipelinePlan(places_of_values(items), tuple(steps))


def is_nameless(item: BatchItem) -> bool:
    """Whether the text is another from connection to connection, or from batch to batch."""
    return isinstance(item, Nested) or item is Boundary.BEGIN_AS_CHOSEN


def undoes(items: Sequence[BatchItem]) -> bool:
    """Whether the batch rolls something back."""
    crossed = (item.boundary if isinstance(item, Nested) else item for item in items)
    return any(item is Boundary.ROLLBACK or item is Boundary.ROLLBACK_TO_SAVEPOINT for item in crossed)
