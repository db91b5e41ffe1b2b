"""The work of a message whose handler works in steps. Its end is the ledger row: committed with it, the work is
forgotten."""

from __future__ import annotations

from typing import NamedTuple

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Isolation, Statement
from onefold._kernel.telemetry import Listener
from onefold._kernel.tracing import Tracer
from onefold._steps.model import Held, WorkAsk, digest_of, lease_of
from onefold._steps.sealing import Sealing
from onefold._steps.sql.unfinished_works import STATEMENTS
from onefold._steps.step_telemetry import StepReporter
from onefold._steps.work_attempt import Work
from onefold._steps.work_ports import LeaseRenewals
from onefold._steps.works import Works, note_taken_over


class MessageName(NamedTuple):
    """The identity of a message's work."""

    consumer: str
    source: str
    message_id: str

    @property
    def digest(self) -> bytes:
        return digest_of("message", *self)


class MessageWork(Work):
    """The work of one message."""

    def __init__(
        self,
        works: Works,
        name: MessageName,
        *,
        stored_id: str,
        lease_s: float,
        retention_s: float,
        before: tuple[BatchItem, ...],
        settle: tuple[Statement, ...],
        known: Statement,
        unless: tuple[Statement, ...],
        isolation: Isolation | None,
        sealing: Sealing,
        renewals: LeaseRenewals,
        listener: Listener | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`stored_id` is what the ledger and failed messages call it. `settle` writes the ledger row, and is refused
        (RequiredValueMissing) where it may not; `known` answers a row once that is committed."""
        digest = name.digest
        ask = WorkAsk(
            digest=digest,
            kind="message",
            operation=write_operation(name),
            fingerprint=digest,
            lease_s=lease_of(None, lease_s),
            retention_s=retention_s,
            phase_s=lease_s,
        )
        super().__init__(
            works,
            ask,
            what=f"message {stored_id} of consumer {name.consumer!r}",
            isolation=isolation,
            sealing=sealing,
            renewals=renewals,
            reporter=StepReporter(listener, name.consumer),
            tracer=tracer,
            before=before,
            unless=unless,
        )
        self._name = name
        self._settle = settle
        self._known = known

    def forget(self) -> tuple[Statement, ...]:
        """See `forget_message`."""
        return forget_message(self.works.dialect, *self._name)

    def end(self, held: Held, result: bytes | None) -> tuple[Statement, ...]:
        return (*self._settle, *self.works.sql.forget(held))

    async def is_ended(self, held: Held) -> bool | None:
        async def look() -> bool | None:
            await Batch((Boundary.BEGIN,))
            rows = await Fetch(self.works.sql.look(held))
            ended = await Fetch(self._known)
            await Batch((Boundary.ROLLBACK,))
            if ended:
                return True
            if not rows:  # its transaction still has the row, perhaps
                return None
            if rows[0][0] != held.fence:
                raise note_taken_over(held)
            return False

        return await with_connection(look)


def write_operation(name: MessageName) -> str:
    """The name of a message's work, for logs and lists."""
    return f"{name.consumer}: {name.message_id} from {name.source}"


def read_operation(operation: str) -> MessageName:
    """The message of a work. Names of consumers have no colon, and sources no spaces."""
    consumer, _, rest = operation.partition(": ")
    message_id, _, source = rest.rpartition(" from ")
    return MessageName(consumer, source, message_id)


def forget_message(dialect: str, consumer: str, source: str, message_id: str) -> tuple[Statement, ...]:
    """Statements that delete the work of a discarded message, with its records. A work that is running stays, and
    ends."""
    return STATEMENTS[dialect].forget_idle(MessageName(consumer, source, message_id).digest)
