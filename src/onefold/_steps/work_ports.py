"""What the steps of a work need of those around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from onefold._kernel.effects import BatchItem, Flow
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._steps.model import Held

#: Makes the transaction of a step, over the executor that the step runs on.
NewTransaction: TypeAlias = Callable[[], OwnedTransaction[Any]]


class LeaseRenewals(Protocol):
    """What renews the leases of works that are in a call."""

    def hold(self, work: Held) -> object: ...
    def drop(self, work: Held) -> object: ...


class WorkEnd(Protocol):
    """How the work ends."""

    @property
    def before(self) -> tuple[BatchItem, ...]:
        """What stands before the lock in the transaction of `finish`."""
        ...

    @property
    def records_result(self) -> bool:
        """Whether a later attempt may ask for the result of `finish`."""
        ...

    def describe_parked(self, reason: str) -> str:
        """What those who asked for the work are told when it waits for a person."""
        ...

    def finish(self, tx: OwnedTransaction[Any], held: Held, result: bytes | None) -> Flow[None]:
        """The function of `finish` has returned: commit, or leave that to what ends the work."""
        ...
