"""Statements on failed messages that a process has started. Each comes with the counts that its start wrote (`held`,
a JSON array): where the row has others, another process has taken it or a person has decided on it, and it is left
alone."""

from __future__ import annotations

from onefold._inbox.sql.dialect import Dialect
from onefold._kernel.effects import Statement


class InHandStatements:
    """The statements of one dialect."""

    def __init__(self, d: Dialect) -> None:
        held = d.held("$2::text")
        ours = """
            onefold_letter.consumer = $1::text AND onefold_letter.message_id = each.name
            AND onefold_letter.state = 'waiting'
            AND onefold_letter.started = each.started AND onefold_letter.failed = each.failed
        """
        self._ours = d.text(f"SELECT 1 FROM {held}, onefold_letter WHERE {ours}")
        self._give_back = d.text(f"""
            UPDATE onefold_letter
            SET started = onefold_letter.started - 1, due_at = {d.in_ms("$3::bigint")},
                reason = COALESCE($4::text, onefold_letter.reason)
            FROM {held} WHERE {ours}
        """)
        self._dead_letter = d.text(f"""
            UPDATE onefold_letter SET state = 'dead', reason = $3::text, due_at = NULL, died_at = {d.now}
            FROM {held} WHERE {ours}
        """)
        # What is locked is being settled just now: waiting for it could be waiting for each other.
        self._renew = d.text(f"""
            WITH free AS (
                SELECT message_id FROM onefold_letter
                WHERE consumer = $1::text AND EXISTS (SELECT 1 FROM {held} WHERE {ours})
                  AND message_id IN (SELECT each.name FROM {held}) {d.lock_free})
            UPDATE onefold_letter SET due_at = {d.in_ms("$3::bigint")}
            WHERE consumer = $1::text AND message_id IN (SELECT message_id FROM free)
        """)
        self._wake_stranded = d.text(f"""
            UPDATE onefold_letter SET due_at = {d.now}
            WHERE consumer = $1::text AND state = 'waiting' AND due_at IS NULL AND started > failed
        """)

    def ours(self, consumer: str, held: str) -> Statement:
        """A row for each that is still ours."""
        return Statement(self._ours, (consumer, held))

    def give_back(self, consumer: str, held: str, due_ms: int | None, reason: str | None = None) -> Statement:
        """That they were started does not count. They are due so many milliseconds from now; None: in their turn."""
        return Statement(self._give_back, (consumer, held, due_ms, reason))

    def dead_letter(self, consumer: str, held: str, reason: str) -> Statement:
        """They are dead letters."""
        return Statement(self._dead_letter, (consumer, held, reason))

    def renew(self, consumer: str, held: str, lease_ms: int) -> Statement:
        """No other process takes them for so long."""
        return Statement(self._renew, (consumer, held, lease_ms))

    def wake_stranded(self, consumer: str) -> Statement:
        """Suspects without a lease, which wait for their turn, are judged again."""
        return Statement(self._wake_stranded, (consumer,))
