"""The statements of the local broker: one set, and per dialect the texts that differ.

Positions come as a JSON array: one statement however many there are. A free row is one that no consumer holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onefold._kernel.dialects import SQLITE_NOW_MS, sqlite_values
from onefold._kernel.effects import BatchItem, Boundary, Statement, Value
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.wakeup_signals import DELIVERY_CHANNEL

#: Postgres: what this transaction does may be lost in a crash of the server. Only a lease may: what was confirmed to a
#: relay is marked, and forgotten, by one that outlives the server and comes back to it.
_UNFLUSHED: Final = "set_config('synchronous_commit', 'off', true)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What the local broker asks of its database. Texts are written for Postgres with `$1::type` for values."""

    casts: bool
    """Whether values are written as $1::type (Postgres), or as ?1 (SQLite)."""
    now: str
    held_until: str
    until: str
    """The end of a lease that begins now and lasts {} milliseconds."""
    elements: str
    """The numbers in the JSON array $1."""
    texts: str
    """The texts in it."""
    take_free: str
    opens: tuple[BatchItem, ...] = ()
    """What must stand in front of a `take`: its rows are read before COMMIT follows."""
    deliver_all: str = ""
    """What delivers any number of messages in one statement, and answers which of their topics have consumers, and
    which patterns of topics there are."""

    def topics(self) -> Statement:
        return Statement("SELECT DISTINCT topic FROM onefold_subscription")

    def subscribe(self, consumer: str, topic: str) -> Statement:
        sql = "INSERT INTO onefold_subscription (consumer, topic) VALUES ($1::text, $2::text) ON CONFLICT DO NOTHING"
        return self._statement(sql, consumer, topic)

    def unsubscribe(self, consumer: str, topics: str) -> Statement:
        """`topics` as a JSON array."""
        sql = f"DELETE FROM onefold_subscription WHERE consumer = $2::text AND topic IN ({self.texts})"
        return self._statement(sql, topics, consumer)

    def subscriptions(self) -> Statement:
        """Consumer and topic; consumers that have lost their last topic and still have messages have none."""
        sql = """
        SELECT consumer, topic FROM onefold_subscription
        UNION SELECT DISTINCT consumer, NULL FROM onefold_delivery
        ORDER BY 1, 2
        """
        return self._statement(sql)

    def count(self, consumer: str) -> Statement:
        return self._statement("SELECT count(*) FROM onefold_delivery WHERE consumer = $1::text", consumer)

    def count_some(self, limit: int, consumers_max: int) -> Statement:
        """The consumers that have subscribed, by name, each with how many messages it has: at most so many."""
        sql = """
        SELECT known.consumer, (
            SELECT count(*) FROM (
                SELECT 1 FROM onefold_delivery AS waiting WHERE waiting.consumer = known.consumer LIMIT $1::bigint
            ) AS counted
        )
        FROM (SELECT DISTINCT consumer FROM onefold_subscription ORDER BY consumer LIMIT $2::bigint) AS known
        """
        return self._statement(sql, limit, consumers_max)

    def remove_subscription(self, consumer: str) -> Statement:
        return self._statement("DELETE FROM onefold_subscription WHERE consumer = $1::text", consumer)

    def remove_waiting(self, consumer: str, limit: int) -> Statement:
        sql = """
        DELETE FROM onefold_delivery WHERE consumer = $1::text AND position IN (
            SELECT position FROM onefold_delivery WHERE consumer = $1::text ORDER BY position LIMIT $2::int)
        """
        return self._statement(sql, consumer, limit)

    def deliver(self, topic: str, name: str, headers: str, data: bytes) -> Statement:
        """Give a message to everyone who subscribed to its topic, unless it waits there already: under a name that no
        other source's message has."""
        sql = """
        INSERT INTO onefold_delivery (consumer, id, headers, data)
        SELECT consumer, $2::text, $3::text, $4::bytea FROM onefold_subscription WHERE topic = $1::text
        ON CONFLICT (consumer, id) DO NOTHING
        """
        return self._statement(sql, topic, name, headers, data)

    def deliver_together(self, messages: str, sender: str) -> Statement:
        """`deliver` for a JSON array of messages: topic, id, headers and, in base64, data."""
        return self._statement(self.deliver_all, messages, sender)

    def waiting(self, consumer: str) -> Statement:
        """A row if there is something to take."""
        return self._statement(f"SELECT 1 FROM onefold_delivery WHERE {self._free} LIMIT 1", consumer)

    def take(self, consumer: str, holder: str, limit: int, lease_ms: int) -> Statement:
        """Lease the oldest free rows: position, headers, data, how often it was taken."""
        lease = f"taken = taken + 1, holder = $2::text, {self.held_until} = {self.until.format('$4::bigint')}"
        return self._statement(self.take_free.format(lease=lease, free=self._free), consumer, holder, limit, lease_ms)

    def remove(self, positions: str, holder: str) -> Statement:
        return self._statement(f"DELETE FROM onefold_delivery WHERE {self._these}", positions, holder)

    def give_back(self, positions: str, holder: str) -> Statement:
        sql = f"UPDATE onefold_delivery SET holder = NULL, {self.held_until} = NULL WHERE {self._these}"
        return self._statement(sql, positions, holder)

    def keep(self, positions: str, holder: str, lease_ms: int) -> Statement:
        lease = f"{self.held_until} = {self.until.format('$3::bigint')}"
        return self._statement(f"UPDATE onefold_delivery SET {lease} WHERE {self._these}", positions, holder, lease_ms)

    @property
    def _free(self) -> str:
        return f"consumer = $1::text AND ({self.held_until} IS NULL OR {self.held_until} <= {self.now})"

    @property
    def _these(self) -> str:
        return f"holder = $2::text AND position IN ({self.elements})"

    def _statement(self, sql: str, *values: Value) -> Statement:
        return Statement(qualified(sql) if self.casts else sqlite_values(sql), values)


STATEMENTS: Final = {
    "postgres": Statements(
        casts=True,
        now="now()",
        held_until="held_until",
        until="now() + ({} * interval '1 millisecond')",
        elements="SELECT value::bigint FROM json_array_elements_text($1::text::json)",
        texts="SELECT value FROM json_array_elements_text($1::text::json)",
        # Consumers of other processes are notified in the relay's own transaction, which no request waits for.
        deliver_all=f"""
        WITH sent AS MATERIALIZED (
            SELECT * FROM json_to_recordset($1::text::json)
            AS each (number int, topic text, id text, headers text, data text)
        ),
        delivered AS (
            INSERT INTO onefold_delivery (consumer, id, headers, data)
            SELECT s.consumer, m.id, m.headers, decode(m.data, 'base64')
            FROM sent AS m JOIN onefold_subscription AS s ON s.topic = m.topic
            ORDER BY m.number
            ON CONFLICT (consumer, id) DO NOTHING
        ),
        told AS MATERIALIZED (SELECT pg_notify('{DELIVERY_CHANNEL}', $2::text) AS heard)
        SELECT DISTINCT topic FROM onefold_subscription CROSS JOIN told
        WHERE topic IN (SELECT topic FROM sent) OR topic ~ '[*>]'
        """,
        # It commits by itself: a process that is stopped in between would keep its rows from all others, for ever.
        take_free="""
        WITH t AS (SELECT position FROM onefold_delivery WHERE {free} ORDER BY position LIMIT $3::int
                   FOR UPDATE SKIP LOCKED)
        UPDATE onefold_delivery AS d SET {lease} FROM t
        WHERE d.consumer = $1::text AND d.position = t.position AND (SELECT """
        + _UNFLUSHED
        + """) IS NOT NULL
        RETURNING d.position, d.headers, d.data, d.taken
        """,
    ),
    "sqlite": Statements(
        casts=False,
        now=SQLITE_NOW_MS,
        held_until="held_until_ms",
        until=SQLITE_NOW_MS + " + {}",
        elements="SELECT value FROM json_each($1::json)",
        texts="SELECT value FROM json_each($1::json)",
        opens=(Boundary.BEGIN_LIGHT,),
        take_free="""
        UPDATE onefold_delivery SET {lease}
        WHERE position IN (SELECT position FROM onefold_delivery WHERE {free} ORDER BY position LIMIT $3::int)
        RETURNING position, headers, data, taken
        """,
    ),
}
