"""The ledger for a handler in recorded steps: was its message handled, when it begins and when it ends?

Where it was, a statement inserts NULL into a column that refuses it: the batch ends before COMMIT.
"""

from __future__ import annotations

from onefold._inbox.message_identity import Identity
from onefold._inbox.sql.dialect import Dialect, mine
from onefold._kernel.effects import Statement, Value


class SteppedStatements:
    """The statements of one dialect."""

    def __init__(self, d: Dialect) -> None:
        handled = mine("onefold_inbox")
        columns = "INSERT INTO onefold_inbox (consumer, message_id, source)"
        self._unless_handled = d.text(f"{columns} SELECT $1::text, NULL, $4::text WHERE {handled}")
        turn = """
            EXISTS (SELECT 1 FROM onefold_progress WHERE consumer = $1::text AND stream = $5::bytea
                    AND epoch = $6::bigint AND version = ($7::bigint - 1))
        """
        kept = """
            FROM onefold_letter WHERE consumer = $1::text AND message_id IN ($2::text, $3::text)
              AND (message_id = $3::text OR source IS NULL OR $4::text IS NULL OR source = $4::text)
        """
        self._kept, self._drop_kept = d.text(f"SELECT message_id {kept}"), d.text(f"DELETE {kept}")
        free = f"NOT ({handled})"
        self._settle = {
            is_ordered: d.text(f"{columns} VALUES ($1::text, CASE WHEN {when} THEN $2::text END, $4::text)")
            for is_ordered, when in ((False, free), (True, f"{free} AND {turn}"))
        }

    def unless_handled(self, consumer: str, who: Identity) -> Statement:
        """Refused where it was handled, under either name."""
        return Statement(self._unless_handled, (consumer, who.name, who.apart, who.source))

    def settle(self, consumer: str, who: Identity, at: tuple[Value, Value, Value] | None) -> Statement:
        """The ledger row. Refused where it is there, or where it is not the turn of this version of a strict stream."""
        return Statement(self._settle[at is not None], (consumer, who.name, who.apart, who.source, *(at or ())))

    def drop_kept(self, consumer: str, who: Identity) -> Statement:
        """Deletes what is kept of this message, under either name; another source's of the same id stays."""
        return Statement(self._drop_kept, (consumer, who.name, who.apart, who.source))

    def kept(self, consumer: str, who: Identity) -> Statement:
        """The names under which this message is kept."""
        return Statement(self._kept, (consumer, who.name, who.apart, who.source))
