"""What the inbox asks of a database, written once in Postgres' words; a dialect says what it says differently.

The claim is one INSERT: its row count tells, in the round trip that begins the transaction, whether the handler runs.
Every other figure is computed by the flow from what it read under a lock, so the writes are plain.
"""

from __future__ import annotations

from typing import Protocol

from onefold._kernel.effects import Statement, Value


class Dialect(Protocol):
    """See `postgres.py` for what each is."""

    @property
    def now(self) -> str: ...
    @property
    def lock(self) -> str: ...
    @property
    def lock_free(self) -> str: ...
    @property
    def proof(self) -> Statement: ...
    @property
    def ended(self) -> Statement: ...

    def opening(self, lease_ms: int) -> tuple[Statement, ...]: ...
    def text(self, sql: str) -> str: ...
    def in_ms(self, ms: str) -> str: ...
    def until(self, moment: str) -> str: ...
    def epoch_ms(self, moment: str) -> str: ...
    def moment(self, ms: str) -> str: ...
    def items(self, array: str) -> str: ...
    def contains(self, text: str, part: str) -> str: ...


#: A message as a letter keeps it: the values of `Parcel.values()`.
CONTENT = "message_id, headers, data, body, envelope, source, topic, key, stream, epoch, version"
_CONTENT_VALUES = (
    "$2::text, $3::text, $4::bytea, $5::bytea, $6::text, $7::text, $8::text, $9::text, $10::bytea, "
    "$11::bigint, $12::bigint"
)
_THIS = "consumer = $1::text AND message_id = $2::text"
_STREAM = "consumer = $1::text AND stream = $2::bytea"


class Statements:
    """The statement set of one dialect."""

    def __init__(self, d: Dialect) -> None:
        self.opening = d.opening
        self.proof = d.proof
        self.ended = d.ended
        self._handling(d)
        self._ordering(d)
        self._keeping(d)
        self._driving(d)
        self._looking(d)

    # --- the ledger --------------------------------------------------------------------------------------

    def _handling(self, d: Dialect) -> None:
        insert = "INSERT INTO onefold_inbox (consumer, message_id) SELECT $1::text, $2::text WHERE"
        unkept = f"NOT EXISTS (SELECT 1 FROM onefold_letter WHERE {_THIS})"
        stands = "EXISTS (SELECT 1 FROM onefold_progress WHERE consumer = $1::text AND stream = $3::bytea AND"
        turns = {
            "none": "$1::text = $1::text",
            "strict": f"{stands} epoch = $4::bigint AND version = $5::bigint - 1)",
            "latest": f"{stands} (epoch, version) < ($4::bigint, $5::bigint))",
        }
        self._claim = {
            (order, kept): d.text(f"{insert} {turn} {'' if kept else f'AND {unkept}'} ON CONFLICT DO NOTHING")
            for order, turn in turns.items()
            for kept in (False, True)
        }
        self._claim_many = d.text(f"""
            INSERT INTO onefold_inbox (consumer, message_id)
            SELECT DISTINCT $1::text, item FROM {d.items("$2::text")}
            WHERE NOT EXISTS (SELECT 1 FROM onefold_letter WHERE consumer = $1::text AND message_id = item)
            ORDER BY 2
            ON CONFLICT DO NOTHING
            RETURNING message_id
        """)
        self._handled = d.text(f"SELECT 1 FROM onefold_inbox WHERE {_THIS}")
        self._reap = d.text(f"""
            DELETE FROM onefold_inbox WHERE consumer = $1::text AND message_id IN (
                SELECT message_id FROM onefold_inbox
                WHERE consumer = $1::text AND handled_at < {d.in_ms("$2::bigint")}
                ORDER BY handled_at LIMIT $3::int {d.lock_free})
        """)

    def claim(
        self, order: str, consumer: str, message_id: str, at: tuple[Value, Value, Value] | None, *, kept: bool
    ) -> Statement:
        """One row: the message is ours to handle, and in its turn. `kept`: it is a letter, and may be one."""
        return Statement(self._claim[order, kept], (consumer, message_id, *(at or ())))

    def claim_many(self, consumer: str, ids: str) -> Statement:
        """The ids, of a JSON array of them, that are ours to handle."""
        return Statement(self._claim_many, (consumer, ids))

    def handled(self, consumer: str, message_id: str) -> Statement:
        return Statement(self._handled, (consumer, message_id))

    def reap(self, consumer: str, retention_ms: int, limit: int) -> Statement:
        return Statement(self._reap, (consumer, -retention_ms, limit))

    # --- order -------------------------------------------------------------------------------------------

    def _ordering(self, d: Dialect) -> None:
        self._ensure = d.text("""
            INSERT INTO onefold_progress (consumer, stream, epoch, version)
            VALUES ($1::text, $2::bytea, $3::bigint, 0) ON CONFLICT DO NOTHING
        """)
        self._lock = d.text(f"SELECT 1 FROM onefold_progress WHERE {_STREAM} {d.lock}")
        self._look = d.text(f"""
            SELECT epoch, version, {d.until("settle_at")},
                   (SELECT min(version) FROM onefold_letter
                    WHERE {_STREAM} AND epoch = $3::bigint AND message_id <> $4::text),
                   EXISTS (SELECT 1 FROM onefold_inbox WHERE consumer = $1::text AND message_id = $4::text),
                   EXISTS (SELECT 1 FROM onefold_letter WHERE consumer = $1::text AND message_id = $4::text)
            FROM onefold_progress WHERE {_STREAM}
        """)
        self._advance = d.text(f"""
            UPDATE onefold_progress SET epoch = $3::bigint, version = $4::bigint, settle_at = NULL WHERE {_STREAM}
        """)
        self._await = d.text(f"""
            UPDATE onefold_progress
            SET settle_at = CASE WHEN epoch = $3::bigint AND settle_at IS NOT NULL THEN settle_at
                                 ELSE {d.in_ms("$4::bigint")} END,
                epoch = $3::bigint, version = 0
            WHERE {_STREAM}
        """)
        self._wake = d.text(f"""
            UPDATE onefold_letter SET due_at = {d.now}
            WHERE {_STREAM} AND state = 'waiting'
              AND (epoch < $3::bigint OR (epoch = $3::bigint AND version = $4::bigint))
        """)
        self._wake_first = d.text(f"""
            UPDATE onefold_letter SET due_at = {d.now}
            WHERE consumer = $1::text AND state = 'waiting' AND due_at IS NULL AND message_id = (
                SELECT message_id FROM onefold_letter
                WHERE {_STREAM} AND state = 'waiting' ORDER BY epoch, version LIMIT 1)
        """)

    def ensure(self, consumer: str, stream: bytes, epoch: int) -> Statement:
        """The stream's row, so that it can be locked and nobody begins elsewhere."""
        return Statement(self._ensure, (consumer, stream, epoch))

    def lock(self, consumer: str, stream: bytes) -> Statement:
        return Statement(self._lock, (consumer, stream))

    def look(self, consumer: str, stream: bytes, epoch: int, message_id: str) -> Statement:
        """Where the stream stands, the smallest other version that is kept, and what is known of this message."""
        return Statement(self._look, (consumer, stream, epoch, message_id))

    def advance(self, consumer: str, stream: bytes, epoch: int, version: int) -> Statement:
        return Statement(self._advance, (consumer, stream, epoch, version))

    def wait(self, consumer: str, stream: bytes, epoch: int, wait_ms: int) -> Statement:
        """Wait for where this epoch begins, unless it is waited for already."""
        return Statement(self._await, (consumer, stream, epoch, wait_ms))

    def wake(self, consumer: str, stream: bytes, epoch: int, version: int) -> Statement:
        """This version is due now, and so is whatever is left of earlier epochs: to be told that it is too late."""
        return Statement(self._wake, (consumer, stream, epoch, version))

    def wake_first(self, consumer: str, stream: bytes) -> Statement:
        """What stands first in a stream is judged again."""
        return Statement(self._wake_first, (consumer, stream))

    # --- letters -----------------------------------------------------------------------------------------

    def _keeping(self, d: Dialect) -> None:
        self._known = d.text(f"SELECT state, started, failed, history FROM onefold_letter WHERE {_THIS} {d.lock}")
        self._keep = d.text(f"""
            INSERT INTO onefold_letter (consumer, {CONTENT}, state, reason, started, failed, history, due_at, died_at)
            VALUES ($1::text, {_CONTENT_VALUES}, $13::text, $14::text, $15::int, $16::int, $17::text,
                    {d.in_ms("$18::bigint")}, CASE WHEN $13::text = 'dead' THEN {d.now} END)
            ON CONFLICT (consumer, message_id) DO UPDATE
            SET state = excluded.state, reason = excluded.reason, started = excluded.started, failed = excluded.failed,
                history = excluded.history, due_at = excluded.due_at, died_at = excluded.died_at
        """)
        self._keep_new = d.text(f"""
            INSERT INTO onefold_letter (consumer, {CONTENT}, state, reason, started, failed, history, due_at)
            SELECT $1::text, {_CONTENT_VALUES}, 'waiting', $13::text, 1, 0, '[]', {d.in_ms("$14::bigint")}
            WHERE NOT EXISTS (SELECT 1 FROM onefold_inbox WHERE {_THIS})
            ON CONFLICT DO NOTHING
        """)
        self._drop = d.text(f"DELETE FROM onefold_letter WHERE {_THIS}")
        self._next_due = d.text(f"""
            SELECT {d.until("due_at")}, started > failed FROM onefold_letter
            WHERE consumer = $1::text AND state = 'waiting' AND due_at IS NOT NULL ORDER BY due_at LIMIT 1
        """)
        due = f"consumer = $1::text AND state = 'waiting' AND due_at <= {d.now}"
        self._bury = d.text(f"""
            UPDATE onefold_letter SET state = 'dead', reason = $2::text, due_at = NULL, died_at = {d.now}
            WHERE {due} AND started - failed >= $3::int RETURNING topic
        """)
        self._take = {
            suspects: d.text(f"""
                UPDATE onefold_letter SET started = started + 1, due_at = {d.in_ms("$2::bigint")}
                WHERE consumer = $1::text AND message_id IN (
                    SELECT message_id FROM onefold_letter WHERE {due} AND started {sign} failed
                    ORDER BY due_at, stream, epoch, version LIMIT $3::int {d.lock_free})
                RETURNING {CONTENT}, started, failed, history
            """)
            for suspects, sign in ((False, "<="), (True, ">"))
        }
        self._unstart = d.text(f"""
            UPDATE onefold_letter SET started = started - 1, due_at = {d.now}
            WHERE {_THIS} AND state = 'waiting' AND started > failed
        """)

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
        """Write the letter, or how it stands now. `due_ms` from now; None: not by time."""
        return Statement(self._keep, (consumer, *content, state, reason, started, failed, history, due_ms))

    def keep_new(self, consumer: str, content: tuple[Value, ...], *, reason: str, lease_ms: int) -> Statement:
        """A row: it is kept, and counts as started by us. None: it was handled, or is kept already."""
        return Statement(self._keep_new, (consumer, *content, reason, lease_ms))

    def drop(self, consumer: str, message_id: str) -> Statement:
        return Statement(self._drop, (consumer, message_id))

    def next_due(self, consumer: str) -> Statement:
        return Statement(self._next_due, (consumer,))

    def bury(self, consumer: str, reason: str, deaths_max: int) -> Statement:
        return Statement(self._bury, (consumer, reason, deaths_max))

    def take(self, consumer: str, lease_ms: int, limit: int, *, suspects: bool) -> Statement:
        """Start letters that are due. A suspect was at hand when a process died."""
        return Statement(self._take[suspects], (consumer, lease_ms, limit))

    def unstart(self, consumer: str, message_id: str) -> Statement:
        return Statement(self._unstart, (consumer, message_id))

    # --- what people do with letters -----------------------------------------------------------------------

    def _driving(self, d: Dialect) -> None:
        chosen = f"""
            consumer = $1::text
            AND ($2::text IS NULL OR topic = $2::text)
            AND ($3::text IS NULL OR {d.contains("reason", "$3::text")})
            AND ($4::bigint IS NULL OR died_at >= {d.moment("$4::bigint")})
            AND ($5::bigint IS NULL OR died_at < {d.moment("$5::bigint")})
            AND ($6::text IS NULL OR message_id IN (SELECT item FROM {d.items("$6::text")}))
        """
        able = f"(source IS NOT NULL AND died_at >= {d.in_ms('$7::bigint')})"
        in_order = "stream, epoch, version, created_at, message_id"
        self._tally = d.text(f"""
            SELECT topic, reason, count(*), sum(CASE WHEN {able} THEN 0 ELSE 1 END) FROM onefold_letter
            WHERE state = 'dead' AND {chosen} GROUP BY topic, reason ORDER BY 3 DESC, 1, 2 LIMIT 100
        """)
        self._sample = d.text(f"""
            SELECT message_id FROM onefold_letter WHERE state = 'dead' AND {chosen} AND {able}
            ORDER BY {in_order} LIMIT $8::int
        """)
        self._redrive = d.text(f"""
            UPDATE onefold_letter
            SET state = 'waiting', started = 0, failed = 0, redrive = $9::text,
                due_at = {d.in_ms("(picked.turn * $10::bigint / 1000)")}
            FROM (SELECT message_id AS picked_id, row_number() OVER (ORDER BY {in_order}) - 1 AS turn
                  FROM (SELECT message_id, stream, epoch, version, created_at FROM onefold_letter
                        WHERE state = 'dead' AND {chosen} AND {able} ORDER BY {in_order} LIMIT $8::int) AS few
                 ) AS picked
            WHERE consumer = $1::text AND message_id = picked.picked_id AND state = 'dead'
        """)

    def _looking(self, d: Dialect) -> None:
        self._job = d.text("""
            INSERT INTO onefold_redrive (id, consumer, actor, filter, letters)
            VALUES ($1::text, $2::text, $3::text, $4::text,
                    (SELECT count(*) FROM onefold_letter WHERE redrive = $1::text))
        """)
        self._job_state = d.text("""
            SELECT consumer, letters, cancelled_at IS NOT NULL,
                   (SELECT count(*) FROM onefold_letter WHERE redrive = $1::text AND state = 'waiting'),
                   (SELECT count(*) FROM onefold_letter WHERE redrive = $1::text AND state = 'dead')
            FROM onefold_redrive WHERE id = $1::text
        """)
        self._cancel = d.text(f"""
            UPDATE onefold_redrive SET cancelled_at = {d.now} WHERE id = $1::text AND cancelled_at IS NULL
        """)
        self._recall = d.text(f"""
            UPDATE onefold_letter
            SET state = 'dead', due_at = NULL, redrive = NULL, died_at = COALESCE(died_at, {d.now})
            WHERE redrive = $1::text AND state = 'waiting' AND started = 0 AND failed = 0
        """)
        self._audit = d.text("""
            INSERT INTO onefold_audit (actor, action, consumer, details)
            VALUES ($1::text, $2::text, $3::text, $4::text)
        """)
        self._audited = d.text(f"""
            SELECT {d.epoch_ms("audit_at")}, actor, action, consumer, details FROM onefold_audit
            ORDER BY id DESC LIMIT $1::int
        """)
        self._discard = d.text(f"""
            DELETE FROM onefold_letter
            WHERE consumer = $1::text AND message_id IN (SELECT item FROM {d.items("$2::text")})
              AND (state = 'dead' OR $3::int = 1)
            RETURNING message_id, topic, stream
        """)
        self._letter = d.text(f"""
            SELECT state, topic, key, stream, epoch, version FROM onefold_letter WHERE {_THIS} {d.lock}
        """)
        self._mark = d.text(f"UPDATE onefold_letter SET reason = $3::text WHERE {_THIS}")
        self._listed = d.text(f"""
            SELECT {CONTENT}, started, failed, history, state, reason, {d.epoch_ms("created_at")},
                   {d.until("due_at")}, {d.epoch_ms("died_at")}, redrive
            FROM onefold_letter
            WHERE consumer = $1::text AND ($2::text IS NULL OR state = $2::text)
              AND ($3::text IS NULL OR topic = $3::text) AND ($4::text IS NULL OR message_id > $4::text)
            ORDER BY message_id LIMIT $5::int
        """)
        self._counts = d.text(f"""
            SELECT consumer, topic, state, count(*), {d.epoch_ms("min(created_at)")} FROM onefold_letter
            GROUP BY consumer, topic, state ORDER BY consumer, topic, state LIMIT 1000
        """)

    def tally(self, chosen: tuple[Value, ...], age_ms: int) -> Statement:
        return Statement(self._tally, (*chosen, -age_ms))

    def sample(self, chosen: tuple[Value, ...], age_ms: int, limit: int) -> Statement:
        return Statement(self._sample, (*chosen, -age_ms, limit))

    def redrive(self, chosen: tuple[Value, ...], age_ms: int, limit: int, job: str, pause_us: int) -> Statement:
        """Dead letters become due one after the other, in their order, `pause_us` apart."""
        return Statement(self._redrive, (*chosen, -age_ms, limit, job, pause_us))

    def job(self, job: str, consumer: str, actor: str, filtered: str) -> Statement:
        return Statement(self._job, (job, consumer, actor, filtered))

    def job_state(self, job: str) -> Statement:
        return Statement(self._job_state, (job,))

    def cancel(self, job: str) -> Statement:
        return Statement(self._cancel, (job,))

    def recall(self, job: str) -> Statement:
        return Statement(self._recall, (job,))

    def audit(self, actor: str, action: str, consumer: str, details: str) -> Statement:
        return Statement(self._audit, (actor, action, consumer, details))

    def audited(self, limit: int) -> Statement:
        return Statement(self._audited, (limit,))

    def discard(self, consumer: str, ids: str, *, force: bool) -> Statement:
        return Statement(self._discard, (consumer, ids, int(force)))

    def letter(self, consumer: str, message_id: str) -> Statement:
        return Statement(self._letter, (consumer, message_id))

    def mark(self, consumer: str, message_id: str, reason: str) -> Statement:
        return Statement(self._mark, (consumer, message_id, reason))

    def listed(self, consumer: str, state: str | None, topic: str | None, after: str | None, limit: int) -> Statement:
        return Statement(self._listed, (consumer, state, topic, after, limit))

    def counts(self) -> Statement:
        return Statement(self._counts)
