"""The ports of a work's steps: lease renewals, transactions, and the end of the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from onefold._kernel.effects import BatchItem, Flow
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._steps.model import Held

#: Makes the transaction of a step, over the executor that the step runs on.
NewTransaction: TypeAlias = Callable[[], OwnedTransaction[Any]]


class LeaseRenewals(Protocol):
    """Renews the leases of works that are in a call."""

    def hold(self, work: Held) -> object: ...
    def drop(self, work: Held) -> object: ...


class WorkEnd(Protocol):
    """Ends a work."""

    @property
    def before(self) -> tuple[BatchItem, ...]:
        """Statements before the lock in the transaction of `finish`."""
        ...

    @property
    def records_result(self) -> bool:
        """Whether a later attempt may ask for the result of `finish`."""
        ...

    def describe_parked(self, reason: str) -> str:
        """The error text for callers when the work waits for a person."""
        ...

    def finish(self, tx: OwnedTransaction[Any], held: Held, result: bytes | None) -> Flow[None]:
        """The function of `finish` has returned: commit, or leave that to the owner of the work."""
        ...
