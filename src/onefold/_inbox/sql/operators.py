"""What operators do with failed messages, as statements: choose, redrive, discard, skip, look; and the audit of it."""

from __future__ import annotations

from typing import Final

from onefold._inbox.sql.dialect import THIS, Dialect, failed_columns
from onefold._kernel.effects import Statement, Value

#: After everything that has died: the last second of the year 9999.
_FAR_MS: Final = 253_402_300_799_000
_LAST: Final = 1000 * _FAR_MS


def _fits(d: Dialect) -> str:
    """The condition of a filter on any failed message."""
    return f"""
        consumer = $1::text
        AND ($2::text IS NULL OR topic = $2::text)
        AND ($3::text IS NULL OR {d.contains("reason", "$3::text")})
        AND ($6::text IS NULL OR message_id IN (SELECT item FROM {d.items("$6::text")}))
    """


def _chosen(d: Dialect) -> str:
    """Its condition on dead letters. Always a range, so that their index has it; what is dead has died."""
    return f"""
        {_fits(d)} AND died_at >= {d.moment("COALESCE($4::bigint, 0)")}
        AND died_at < {d.moment(f"COALESCE($5::bigint, {_FAR_MS})")}
    """


class OperatorStatements:
    """The statements behind `onefold dlq`, of one dialect."""

    def __init__(self, d: Dialect) -> None:
        self._prepare_redrives(d)
        self._prepare_jobs(d)
        self._prepare_letters(d)
        self._prepare_pauses(d)

    def _prepare_redrives(self, d: Dialect) -> None:
        fits, chosen = _fits(d), _chosen(d)
        within = f"""
            ($4::bigint IS NULL OR died_at >= {d.moment("$4::bigint")})
            AND ($5::bigint IS NULL OR died_at < {d.moment("$5::bigint")})
        """
        shown = f"""
            SELECT message_id, headers, $7::bytea, NULL, envelope, source, topic, key, stream, epoch, version,
                   started, failed, '[]', state, reason, {d.epoch_ms("created_at")}, {d.until("due_at")},
                   {d.epoch_ms("died_at")}, redrive
            FROM onefold_letter WHERE
        """
        self._list_summaries = {
            "dead": d.text(f"{shown} state = 'dead' AND {chosen} ORDER BY died_at LIMIT $8::int"),
            "waiting": d.text(f"{shown} state = 'waiting' AND {fits} AND {within} ORDER BY message_id LIMIT $8::int"),
            "next": d.text(f"{shown} state = 'waiting' AND {fits} AND {within} ORDER BY due_at LIMIT $8::int"),
            None: d.text(f"{shown} {fits} AND {within} ORDER BY message_id LIMIT $8::int"),
        }
        # From the newest on. The plain bound is for the index, which does not have the id.
        before = f"died_at <= {d.at('$9::bigint')} AND (died_at, message_id) < ({d.at('$9::bigint')}, $10::text)"
        self._newest_dead = d.text(f"""
            {shown.replace("redrive", f"redrive, {d.exact('died_at')}")} state = 'dead' AND {chosen} AND {before}
            ORDER BY died_at DESC, message_id DESC LIMIT $8::int
        """)
        self._discard_some = d.text(f"""
            DELETE FROM onefold_letter WHERE consumer = $1::text AND state = 'dead' AND message_id IN (
                SELECT message_id FROM onefold_letter
                WHERE state = 'dead' AND {chosen} AND died_at >= {d.at("$7::bigint")} ORDER BY died_at LIMIT $8::int)
            RETURNING message_id, topic, stream, source, envelope, {d.exact("died_at")}
        """)
        able = f"died_at >= {d.in_ms('$7::bigint')}"
        unfit = f"sum(CASE WHEN {able} THEN 0 ELSE 1 END)"
        in_order = "stream, epoch, version, created_at, message_id"
        self._tally = d.text(f"""
            SELECT topic, reason, count(*), {unfit}, sum(count(*)) OVER (), sum({unfit}) OVER ()
            FROM (SELECT topic, reason, died_at FROM onefold_letter
                  WHERE state = 'dead' AND {chosen} LIMIT $8::int) AS few
            GROUP BY topic, reason ORDER BY 3 DESC, 1, 2 LIMIT 100
        """)
        self._sample = d.text(f"""
            SELECT message_id FROM onefold_letter WHERE state = 'dead' AND {chosen} AND {able}
            ORDER BY {in_order} LIMIT $8::int
        """)
        self._redrive = d.text(f"""
            WITH picked AS MATERIALIZED (
                SELECT message_id AS picked_id, row_number() OVER (ORDER BY {in_order}) - 1 AS turn
                FROM (SELECT message_id, stream, epoch, version, created_at FROM onefold_letter
                      WHERE state = 'dead' AND {chosen} AND {able} ORDER BY {in_order} LIMIT $8::int) AS few)
            UPDATE onefold_letter
            SET state = 'waiting', started = 0, failed = 0, redrive = $9::text,
                due_at = {d.in_ms("(picked.turn * $10::bigint / 1000)")}
            FROM picked WHERE consumer = $1::text AND message_id = picked.picked_id AND state = 'dead'
        """)

    def _prepare_jobs(self, d: Dialect) -> None:
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
        self._jobs = d.text(f"""
            SELECT id, actor, {d.epoch_ms("started_at")} FROM onefold_redrive ORDER BY id DESC LIMIT $1::int
        """)
        self._cancel = d.text(f"""
            UPDATE onefold_redrive SET cancelled_at = {d.now} WHERE id = $1::text AND cancelled_at IS NULL
        """)
        self._recall = d.text(f"""
            UPDATE onefold_letter
            SET state = 'dead', due_at = NULL, redrive = NULL, died_at = COALESCE(died_at, {d.now})
            WHERE redrive = $1::text AND state = 'waiting' AND started = 0 AND failed = 0
        """)
        self._audit = d.audit

    def _prepare_letters(self, d: Dialect) -> None:
        self._discard = d.text(f"""
            DELETE FROM onefold_letter
            WHERE consumer = $1::text AND message_id IN (SELECT item FROM {d.items("$2::text")})
              AND (state = 'dead' OR $3::int = 1)
            RETURNING message_id, topic, stream, source, envelope, NULL
        """)
        self._failed_message = d.text(f"""
            SELECT state, topic, key, stream, epoch, version FROM onefold_letter WHERE {THIS} {d.lock}
        """)
        self._mark = d.text(f"UPDATE onefold_letter SET reason = $3::text WHERE {THIS}")
        self._list_failed = d.text(f"""
            SELECT {failed_columns(d)} FROM onefold_letter
            WHERE consumer = $1::text AND ($2::text IS NULL OR state = $2::text)
              AND ($3::text IS NULL OR topic = $3::text) AND ($4::text IS NULL OR message_id > $4::text)
            ORDER BY message_id LIMIT $5::int
        """)
        self._find = d.text(f"SELECT {failed_columns(d)} FROM onefold_letter WHERE {THIS}")
        # From one name to the next by the index: DISTINCT would walk through all rows.
        # From name to name by an index, and not through all that each has.
        consumers = """
            WITH RECURSIVE found AS (
                SELECT min(consumer) AS consumer FROM onefold_letter
                UNION ALL
                SELECT (SELECT min(consumer) FROM onefold_letter WHERE onefold_letter.consumer > found.consumer)
                FROM found WHERE found.consumer IS NOT NULL
            )
        """
        self._consumers = d.text(f"{consumers} SELECT consumer FROM found WHERE consumer IS NOT NULL LIMIT 1000")
        self._counts = d.text("""
            SELECT consumer, topic, state, count(*) FROM onefold_letter
            GROUP BY consumer, topic, state ORDER BY consumer, topic, state LIMIT 1000
        """)
        # Each by an index of its own, and no further than the limit.
        of = "SELECT 1 FROM onefold_letter WHERE onefold_letter.consumer = {consumer} AND state ="
        some = f"""
            (SELECT count(*) FROM ({of} 'waiting' AND due_at IS NOT NULL LIMIT $1::int) AS due),
            (SELECT count(*) FROM ({of} 'waiting' AND due_at IS NULL LIMIT $1::int) AS parked),
            (SELECT count(*) FROM ({of} 'dead' LIMIT $1::int) AS dead)
        """
        self._count_some = d.text(f"SELECT {some.format(consumer='$2::text')}")
        self._tallies = d.text(f"""
            {consumers} SELECT consumer, {some.format(consumer="found.consumer")} FROM found
            WHERE consumer IS NOT NULL ORDER BY consumer LIMIT $2::int
        """)

    def _prepare_pauses(self, d: Dialect) -> None:
        self._pause = d.text("""
            INSERT INTO onefold_pause (consumer, actor) VALUES ($1::text, $2::text) ON CONFLICT DO NOTHING
        """)
        self._resume = d.text("DELETE FROM onefold_pause WHERE consumer = $1::text")
        self._pauses = d.text(f"""
            SELECT consumer, actor, {d.epoch_ms("paused_at")} FROM onefold_pause
            WHERE $1::text IS NULL OR consumer = $1::text ORDER BY consumer
        """)

    def pause(self, consumer: str, actor: str) -> Statement:
        return Statement(self._pause, (consumer, actor))

    def resume(self, consumer: str) -> Statement:
        return Statement(self._resume, (consumer,))

    def pauses(self, consumer: str | None) -> Statement:
        """Of one consumer, or of all: who paused it, and when."""
        return Statement(self._pauses, (consumer,))

    def list_summaries(self, chosen: tuple[Value, ...], state: str | None, limit: int) -> Statement:
        """As `list_failed` has them, without their data and history."""
        return Statement(self._list_summaries[state], (*chosen, b"", limit))

    def newest_dead(self, chosen: tuple[Value, ...], before: tuple[int, str] | None, limit: int) -> Statement:
        """As `list_summaries`, from behind this position on, and with the position of each at its end."""
        return Statement(self._newest_dead, (*chosen, b"", limit, *(before or (_LAST, ""))))

    def next_waiting(self, chosen: tuple[Value, ...], limit: int) -> Statement:
        """As `list_summaries`, in the order in which they are tried."""
        return self.list_summaries(chosen, "next", limit)

    def discard_some(self, chosen: tuple[Value, ...], since: int, limit: int) -> Statement:
        """Delete dead letters that fit, the oldest first, from those on that have died at this moment; with the moment
        of each at its end."""
        return Statement(self._discard_some, (*chosen, since, limit))

    def tally(self, chosen: tuple[Value, ...], age_ms: int, count_max: int) -> Statement:
        return Statement(self._tally, (*chosen, -age_ms, count_max))

    def sample(self, chosen: tuple[Value, ...], age_ms: int, limit: int) -> Statement:
        return Statement(self._sample, (*chosen, -age_ms, limit))

    def redrive(self, chosen: tuple[Value, ...], age_ms: int, limit: int, job: str, pause_us: int) -> Statement:
        """Dead letters become due one after the other, in their order, `pause_us` apart."""
        return Statement(self._redrive, (*chosen, -age_ms, limit, job, pause_us))

    def job(self, job: str, consumer: str, actor: str, filtered: str) -> Statement:
        return Statement(self._job, (job, consumer, actor, filtered))

    def job_state(self, job: str) -> Statement:
        return Statement(self._job_state, (job,))

    def jobs(self, limit: int) -> Statement:
        """The newest first: the beginning of an id is the time."""
        return Statement(self._jobs, (limit,))

    def cancel(self, job: str) -> Statement:
        return Statement(self._cancel, (job,))

    def recall(self, job: str) -> Statement:
        return Statement(self._recall, (job,))

    def audit(self, actor: str, action: str, consumer: str, details: str) -> Statement:
        return Statement(self._audit, (actor, action, consumer, details))

    def discard(self, consumer: str, ids: str, *, force: bool) -> Statement:
        return Statement(self._discard, (consumer, ids, int(force)))

    def failed_message(self, consumer: str, message_id: str) -> Statement:
        return Statement(self._failed_message, (consumer, message_id))

    def mark(self, consumer: str, message_id: str, reason: str) -> Statement:
        return Statement(self._mark, (consumer, message_id, reason))

    def list_failed(
        self, consumer: str, state: str | None, topic: str | None, after: str | None, limit: int
    ) -> Statement:
        return Statement(self._list_failed, (consumer, state, topic, after, limit))

    def find(self, consumer: str, message_id: str) -> Statement:
        return Statement(self._find, (consumer, message_id))

    def consumers_with_failed(self) -> Statement:
        return Statement(self._consumers)

    def count_some(self, consumer: str, limit: int) -> Statement:
        """Waiting, parked and dead, each at most so many."""
        return Statement(self._count_some, (limit, consumer))

    def tallies(self, limit: int, consumers_max: int) -> Statement:
        """The same of all consumers that have any, by name."""
        return Statement(self._tallies, (limit, consumers_max))

    def counts(self) -> Statement:
        return Statement(self._counts)
