"""The statements of the inbox, written once in the SQL of Postgres; a dialect overrides those that differ.

The claim is one INSERT: its row count decides, in the round trip that begins the transaction, whether the handler runs.
Every other figure is computed by the flow from what it read under a lock, so the writes are plain.

What takes failed messages up to a limit stands in a WITH, which Postgres evaluates once; what deletes up to a limit,
in an IN, of which `pg_catalog.py` makes an array.
"""

from __future__ import annotations

from typing import Literal

from onefold._inbox.message_identity import Identity
from onefold._inbox.sql.catching_up import Runs
from onefold._inbox.sql.dialect import CONTENT, CONTENT_VALUES, STREAM, THIS, Dialect, failed_columns, mine, others
from onefold._inbox.sql.in_hand import InHandStatements
from onefold._inbox.sql.operators import OperatorStatements
from onefold._inbox.sql.registry import RegistryStatements
from onefold._inbox.sql.stepped import SteppedStatements
from onefold._kernel.effects import Statement, Value


class Statements(OperatorStatements):
    """The statement set of one dialect."""

    def __init__(self, d: Dialect) -> None:
        super().__init__(d)
        self.opening = d.opening
        self.notify_consumers = d.notify_consumers
        self._opening_values = d.opening_values
        self.proof = d.proof
        self.ended = d.ended
        self.runs = Runs(d)
        self.in_hand = InHandStatements(d)
        self.registry = RegistryStatements(d)
        self.stepped = SteppedStatements(d)
        self._prepare_claims(d)
        self._prepare_ledger(d)
        self._prepare_order(d)
        self._prepare_failed(d)

    # --- the ledger --------------------------------------------------------------------------------------

    def _prepare_claims(self, d: Dialect) -> None:
        select = "INSERT INTO onefold_inbox (consumer, message_id, source) SELECT $1::text, $2::text, $4::text"
        insert = f"{select} WHERE"
        new = "NOT EXISTS (SELECT 1 FROM onefold_inbox WHERE consumer = $1::text AND message_id = $3::text)"
        unkept = """
            NOT EXISTS (SELECT 1 FROM onefold_letter WHERE consumer = $1::text AND message_id IN ($2::text, $3::text))
        """
        stands = "EXISTS (SELECT 1 FROM onefold_progress WHERE consumer = $1::text AND stream = $5::bytea AND"
        turns = {
            "none": new,
            "strict": f"{stands} epoch = $6::bigint AND version = ($7::bigint - 1)) AND {new}",
            "latest": f"{stands} (epoch, version) < ($6::bigint, $7::bigint)) AND {new}",
        }
        self._claim = {
            (order, kept): d.text(f"{insert} {turn} {'' if kept else f'AND {unkept}'} ON CONFLICT DO NOTHING")
            for order, turn in turns.items()
            for kept in (False, True)
        }
        self._claim_started = {
            order: d.text(f"{insert} {turn} AND {_is_ours(5 if order == 'none' else 8)} ON CONFLICT DO NOTHING")
            for order, turn in turns.items()
        }
        ours = _is_ours(5)
        self._open_and_claim = d.text(f"{select} {d.opening_where(5)} {new} AND {unkept} ON CONFLICT DO NOTHING")
        self._open_and_claim_started = d.text(f"{select} {d.opening_where(7)} {new} AND {ours} ON CONFLICT DO NOTHING")

    def _prepare_ledger(self, d: Dialect) -> None:
        ledger, failed_message = "onefold_inbox", "onefold_letter"
        self._id_conflict = {
            True: d.text(f"SELECT 1 WHERE {others(ledger)} AND NOT {mine(ledger)}"),
            False: d.text(f"""
                SELECT 1 WHERE ({others(ledger)} OR {others(failed_message)}) AND NOT ({mine(ledger)} OR
                {mine(failed_message)})
            """),
        }
        each = ("each.name", "each.apart", "each.source")
        self._any_id_conflict = d.text(f"""
            SELECT 1 FROM {d.identities("$2::text")}
            WHERE ({others(ledger, each)} OR {others(failed_message, each)})
              AND NOT ({mine(ledger, each)} OR {mine(failed_message, each)})
            LIMIT 1
        """)
        self._claim_many = d.text(f"""
            INSERT INTO onefold_inbox (consumer, message_id, source)
            SELECT DISTINCT $1::text, each.name, each.source FROM {d.identities("$2::text")}
            WHERE NOT EXISTS (SELECT 1 FROM onefold_letter
                              WHERE consumer = $1::text AND message_id IN (each.name, each.apart))
              AND (SELECT 1 FROM onefold_inbox WHERE consumer = $1::text AND message_id = each.apart) IS NULL
            ORDER BY 2
            ON CONFLICT DO NOTHING
            RETURNING message_id, source
        """)
        self._handled = d.text(f"""
            SELECT 1 FROM onefold_inbox
            WHERE {THIS} AND (source IS NULL OR $3::text IS NULL OR source = $3::text)
        """)
        self._take_id = d.text("""
            INSERT INTO onefold_inbox (consumer, message_id, source) VALUES ($1::text, $2::text, $3::text)
            ON CONFLICT DO NOTHING
        """)
        self._reap = d.text(f"""
            DELETE FROM onefold_inbox WHERE consumer = $1::text AND message_id IN (
                SELECT message_id FROM onefold_inbox
                WHERE consumer = $1::text AND handled_at < {d.in_ms("$2::bigint")}
                ORDER BY handled_at LIMIT $3::int {d.lock_free})
        """)

    def claim(
        self, order: str, consumer: str, who: Identity, at: tuple[Value, Value, Value] | None, *, kept: bool
    ) -> Statement:
        """One row: the message is ours to handle, and in its turn. `kept`: it is a failed message, and may be one."""
        return Statement(self._claim[order, kept], (consumer, who.name, who.apart, who.source, *(at or ())))

    def claim_started(
        self, order: str, consumer: str, who: Identity, at: tuple[Value, Value, Value] | None, counts: tuple[int, int]
    ) -> Statement:
        """`claim` of a failed message that this process has started: its row still has these counts."""
        values = (consumer, who.name, who.apart, who.source, *(at or ()), *counts)
        return Statement(self._claim_started[order], values)

    def open_and_claim(self, consumer: str, who: Identity, counts: tuple[int, int] | None, lease_ms: int) -> Statement:
        """`opening`, and the `claim` of a consumer without order, or with counts its `claim_started`. No row: the
        transaction may not be opened."""
        values = (consumer, who.name, who.apart, who.source, *(counts or ()), *self._opening_values(lease_ms))
        return Statement(self._open_and_claim if counts is None else self._open_and_claim_started, values)

    def id_conflict(self, consumer: str, who: Identity, *, kept: bool = False) -> Statement:
        """One row: its name is that of another source's message, and it was not handled itself, nor is it kept."""
        return Statement(self._id_conflict[kept], (consumer, who.name, who.apart, who.source))

    def claim_many(self, consumer: str, those: str) -> Statement:
        """Name and source of those, of a JSON array of identities, that are ours to handle."""
        return Statement(self._claim_many, (consumer, those))

    def any_id_conflict(self, consumer: str, those: str) -> Statement:
        """One row if one of them has such a conflict."""
        return Statement(self._any_id_conflict, (consumer, those))

    def handled(self, consumer: str, who: Identity) -> Statement:
        """One row: it was handled under this name."""
        return Statement(self._handled, (consumer, who.name, who.source))

    def take_id(self, consumer: str, who: Identity) -> Statement:
        """A row: no other transaction has this name, and none gets it before this one has ended."""
        return Statement(self._take_id, (consumer, who.name, who.source))

    def reap(self, consumer: str, retention_ms: int, limit: int) -> Statement:
        return Statement(self._reap, (consumer, -retention_ms, limit))

    # --- order -------------------------------------------------------------------------------------------

    def _prepare_order(self, d: Dialect) -> None:
        self._ensure = d.text("""
            INSERT INTO onefold_progress (consumer, stream, epoch, version)
            VALUES ($1::text, $2::bytea, $3::bigint, 0) ON CONFLICT DO NOTHING
        """)
        self._lock = d.text(f"SELECT 1 FROM onefold_progress WHERE {STREAM} {d.lock}")
        placed = ("$4::text", "$5::text", "$6::text")
        self._look = d.text(f"""
            SELECT epoch, version, {d.until("settle_at")},
                   CASE WHEN version = 0 THEN (SELECT min(version) FROM onefold_letter
                    WHERE {STREAM} AND epoch = $3::bigint AND message_id <> $4::text) END,
                   {mine("onefold_inbox", placed)}, {mine("onefold_letter", placed)},
                   ({others("onefold_inbox", placed)} OR {others("onefold_letter", placed)})
            FROM onefold_progress WHERE {STREAM}
        """)
        self._advance = d.text(f"""
            UPDATE onefold_progress SET epoch = $3::bigint, version = $4::bigint, settle_at = NULL WHERE {STREAM}
        """)
        self._await = d.text(f"""
            UPDATE onefold_progress
            SET settle_at = CASE WHEN epoch = $3::bigint AND settle_at IS NOT NULL THEN settle_at
                                 ELSE {d.in_ms("$4::bigint")} END,
                epoch = $3::bigint, version = 0
            WHERE {STREAM}
        """)
        self._wake = d.text(f"""
            UPDATE onefold_letter SET due_at = {d.now}
            WHERE {STREAM} AND state = 'waiting' AND (started <= failed OR due_at IS NULL)
              AND (epoch < $3::bigint OR (epoch = $3::bigint AND version = $4::bigint))
        """)
        self._wake_first = d.text(f"""
            UPDATE onefold_letter SET due_at = {d.now}
            WHERE consumer = $1::text AND state = 'waiting' AND due_at IS NULL AND message_id = (
                SELECT message_id FROM onefold_letter
                WHERE {STREAM} AND state = 'waiting' ORDER BY epoch, version LIMIT 1)
        """)

    def ensure(self, consumer: str, stream: bytes, epoch: int) -> Statement:
        """The stream's row, so that it can be locked and no other process begins elsewhere."""
        return Statement(self._ensure, (consumer, stream, epoch))

    def lock(self, consumer: str, stream: bytes) -> Statement:
        return Statement(self._lock, (consumer, stream))

    def look(self, consumer: str, stream: bytes, epoch: int, who: Identity) -> Statement:
        """Where the stream stands, while none of it was handled the smallest other version that is kept (not
        needed later, and those that were deleted would be walked over), and of this message whether it was handled, is
        kept, and whether its name is another source's."""
        return Statement(self._look, (consumer, stream, epoch, who.name, who.apart, who.source))

    def advance(self, consumer: str, stream: bytes, epoch: int, version: int) -> Statement:
        return Statement(self._advance, (consumer, stream, epoch, version))

    def wait(self, consumer: str, stream: bytes, epoch: int, wait_ms: int) -> Statement:
        """Wait for where this epoch begins, unless it is waited for already."""
        return Statement(self._await, (consumer, stream, epoch, wait_ms))

    def wake(self, consumer: str, stream: bytes, epoch: int, version: int) -> Statement:
        """This version is due now, and so is whatever is left of earlier epochs: to be refused as too late. What
        is in hand has its turn, and keeps its lease: without that it would be started again, as a suspect. What is
        in no hand has no lease."""
        return Statement(self._wake, (consumer, stream, epoch, version))

    def wake_first(self, consumer: str, stream: bytes) -> Statement:
        """What stands first in a stream is judged again."""
        return Statement(self._wake_first, (consumer, stream))

    # --- failed messages -----------------------------------------------------------------------------------------

    def _prepare_failed(self, d: Dialect) -> None:
        self._known = d.text(f"SELECT state, started, failed, history FROM onefold_letter WHERE {THIS} {d.lock}")
        self._keep = d.text(f"""
            INSERT INTO onefold_letter (consumer, {CONTENT}, state, reason, started, failed, history, due_at, died_at)
            VALUES ($1::text, {CONTENT_VALUES}, $13::text, $14::text, $15::int, $16::int, $17::text,
                    {d.in_ms("$18::bigint")}, CASE WHEN $13::text = 'dead' THEN {d.now} END)
            ON CONFLICT (consumer, message_id) DO UPDATE
            SET state = CASE WHEN onefold_letter.source IS NULL OR excluded.source IS NULL
                                  OR onefold_letter.source = excluded.source THEN excluded.state
                             ELSE {d.refuse("excluded.message_id")} END,
                reason = excluded.reason, started = excluded.started, failed = excluded.failed,
                history = excluded.history, due_at = excluded.due_at, died_at = excluded.died_at
        """)
        self._keep_new = d.text(f"""
            INSERT INTO onefold_letter (consumer, {CONTENT}, state, reason, started, failed, history, due_at)
            SELECT $1::text, {CONTENT_VALUES}, 'waiting', $13::text, $16::int, 0, '[]', {d.in_ms("$14::bigint")}
            WHERE NOT EXISTS (SELECT 1 FROM onefold_inbox
                              WHERE consumer = $1::text AND message_id IN ($2::text, $15::text))
              AND NOT EXISTS (SELECT 1 FROM onefold_letter WHERE consumer = $1::text AND message_id = $15::text)
            ON CONFLICT DO NOTHING
        """)
        self._rename = d.text(f"""
            UPDATE onefold_letter
            SET message_id = $3::text, headers = $4::text, data = $5::bytea, body = $6::bytea, envelope = $7::text,
                source = $8::text, topic = $9::text, key = $10::text, stream = $11::bytea, epoch = $12::bigint,
                version = $13::bigint
            WHERE {THIS}
              AND NOT EXISTS (SELECT 1 FROM onefold_inbox
                              WHERE consumer = $1::text AND message_id IN ($3::text, $14::text))
              AND NOT EXISTS (SELECT 1 FROM onefold_letter AS other
                              WHERE other.consumer = $1::text AND other.message_id IN ($3::text, $14::text))
        """)
        self._drop = d.text(f"DELETE FROM onefold_letter WHERE {THIS}")
        self._next_due = d.text(f"""
            SELECT {d.until("due_at")} FROM onefold_letter
            WHERE consumer = $1::text AND state = 'waiting' AND due_at IS NOT NULL AND {_not_others(d, "$2::text")}
            ORDER BY due_at LIMIT 1
        """)
        due = f"consumer = $1::text AND state = 'waiting' AND due_at <= {d.now}"
        self._kill_suspects = d.text(f"""
            UPDATE onefold_letter SET state = 'dead', reason = $2::text, due_at = NULL, died_at = {d.now}
            WHERE {due} AND started - failed >= $3::int RETURNING topic, message_id
        """)
        self._take = {
            suspects: d.text(f"""
                WITH picked AS (
                    SELECT message_id FROM onefold_letter
                    WHERE {due} AND started {sign} failed AND {_not_others(d, "$4::text")}
                    ORDER BY due_at, stream, epoch, version LIMIT $3::int {d.lock_free})
                UPDATE onefold_letter SET started = started + 1, due_at = {d.in_ms("$2::bigint")}
                WHERE consumer = $1::text AND message_id IN (SELECT message_id FROM picked)
                RETURNING {failed_columns(d)}
            """)
            for suspects, sign in ((False, "<="), (True, ">"))
        }

    def known(self, consumer: str, message_id: str) -> Statement:
        return Statement(self._known, (consumer, message_id))

    def keep(
        self,
        consumer: str,
        content: tuple[Value, ...],
        *,
        state: str,
        reason: str,
        started: int,
        failed: int,
        history: str,
        due_ms: int | None,
    ) -> Statement:
        """Write the failed message, or how it stands now. `due_ms` from now; None: not by time. One of another source's
        that has the name, since a moment ago, breaks the transaction."""
        return Statement(self._keep, (consumer, *content, state, reason, started, failed, history, due_ms))

    def keep_new(
        self,
        consumer: str,
        content: tuple[Value, ...],
        apart: str,
        *,
        reason: str,
        lease_ms: int,
        started: Literal[0, 1] = 1,
    ) -> Statement:
        """A row: it is kept, and counts as started by us, or not. None: it was handled, or is kept already, or its name
        is taken."""
        return Statement(self._keep_new, (consumer, *content, reason, lease_ms, apart, started))

    def rename(self, consumer: str, name: str, content: tuple[Value, ...], apart: str) -> Statement:
        """The failed message of this name gets this content, and its name. None: what is called so was handled, or is
        kept, or the name is taken."""
        return Statement(self._rename, (consumer, name, *content, apart))

    def drop(self, consumer: str, message_id: str) -> Statement:
        return Statement(self._drop, (consumer, message_id))

    def next_due(self, consumer: str, others: str) -> Statement:
        """`others` has topics of other processes, to be passed over, as a JSON array: also below."""
        return Statement(self._next_due, (consumer, others))

    def kill_suspects(self, consumer: str, reason: str, deaths_max: int) -> Statement:
        return Statement(self._kill_suspects, (consumer, reason, deaths_max))

    def take(self, consumer: str, lease_ms: int, limit: int, others: str, *, suspects: bool) -> Statement:
        """Start failed messages that are due. A suspect was at hand when a process died."""
        return Statement(self._take[suspects], (consumer, lease_ms, limit, others))


def _not_others(d: Dialect, topics: str) -> str:
    """A message that was not read has no source, and its topic is the one that it was sent to."""
    kept = f"source IS NULL AND topic IN (SELECT item FROM {d.items(topics)})"
    return f"({topics} = '[]' OR topic IS NULL OR NOT ({kept}))"


def _is_ours(first: int) -> str:
    """Whether the failed message waits with the counts that are the values from this one on."""
    counts = f"started = ${first}::int AND failed = ${first + 1}::int"
    return f"EXISTS (SELECT 1 FROM onefold_letter WHERE {THIS} AND state = 'waiting' AND {counts})"
