"""The outbox for operators: lists of events, a page at a time. Each statement finds its rows by an index, and reads no
more of them than the page has, however many there are.

What waits in its turn is listed bucket by bucket, as its indexes are: the first rows of each, and of those the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from onefold._kernel.dialects import begin_in_json, sqlite_values
from onefold._kernel.effects import Statement
from onefold._kernel.pg_catalog import qualified
from onefold._outbox.schema import POSTGRES_TRACE, SQLITE_TRACE, TRACE_CHARS

#: Events behind a stopped one are counted up to this.
BEHIND_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The expressions that differ by dialect."""

    text: Callable[[str], str]
    ms: Callable[[str], str]
    """A time, in milliseconds since 1970."""
    published: str
    due: str
    written: str
    died: str
    first: str
    never: str
    no_stream: str
    trace: str
    contains: str
    """Whether the headers may have it: cheaper than to find the one that does."""
    length: str
    in_bucket: str


_POSTGRES: Final = _Words(
    text=qualified,
    ms=lambda moment: f"(extract(epoch FROM {moment}) * 1000)::bigint",
    published="published_at",
    due="due_at",
    written="written_at",
    died="died_at",
    first="'-infinity'",
    never="'infinity'",
    no_stream="''::bytea",
    trace=POSTGRES_TRACE,
    contains="position($2::text IN o.headers) > 0",
    length="octet_length(data)",
    # A range and no equality: what ANALYZE saw of buckets is not kept, see `schema.py`.
    in_bucket="(w.bucket, w.position) > (b.bucket, $1::bigint) AND w.bucket <= b.bucket",
)

_SQLITE: Final = _Words(
    text=sqlite_values,
    ms=lambda moment: moment,
    published="published_at_ms",
    due="due_at_ms",
    written="written_at_ms",
    died="died_at_ms",
    first="0",
    never=str(2**62),
    no_stream="x''",
    trace=SQLITE_TRACE,
    contains="instr(o.headers, $2::text) > 0",
    length="length(data)",
    in_bucket="w.bucket = b.bucket AND w.position > $1::bigint",
)


class EventLists:
    """The statement set of one dialect."""

    def __init__(self, d: _Words) -> None:
        self._d = d
        self._ready = f"w.{d.published} IS NULL AND w.{d.due} IS NULL"
        self._refused = f"o.{d.published} IS NULL AND o.{d.due} IS NOT NULL AND o.error IS NOT NULL"
        due = d.ms(f"o.{d.due}")
        finite = f"CASE WHEN o.{d.due} < {d.never} THEN {due} WHEN o.{d.due} IS NOT NULL THEN 0 END"
        self._columns = f"""o.position, o.id, o.source, o.topic, o.destination, o.key, o.version, o.headers,
            {d.ms(f"o.{d.written}")}, {finite}, {d.ms(f"o.{d.died}")}, {d.ms(f"o.{d.published}")}, o.started, o.error,
            o.content_type, {d.length.replace("data", "o.data")}"""
        self._behind = f"""(SELECT count(*) FROM (
            SELECT 1 FROM onefold_outbox AS w
            WHERE w.bucket = o.bucket AND coalesce(w.destination, w.topic) = coalesce(o.destination, o.topic)
              AND coalesce(w.stream, {d.no_stream}) = o.stream AND w.position > o.position AND {self._ready}
            LIMIT {BEHIND_MAX}) AS counted)"""
        self._prepare_waiting()
        self._prepare_stopped()
        self._prepare_trace()

    def _prepare_waiting(self) -> None:
        d, columns = self._d, self._columns
        self._waiting = d.text(self._by_bucket(f"{d.in_bucket} AND {self._ready}", "w.bucket, w.position"))
        turns = f"w.bucket, coalesce(w.destination, w.topic), coalesce(w.stream, {d.no_stream}), w.position"
        of_topic = "w.bucket = b.bucket AND coalesce(w.destination, w.topic) = $1::text"
        self._of_topic = d.text(self._by_bucket(f"{of_topic} AND {self._ready}", turns))
        of_key = f"""o.bucket = $1::smallint AND coalesce(o.destination, o.topic) = $2::text
            AND coalesce(o.stream, {d.no_stream}) = $3::bytea"""
        self._of_key = d.text(f"""
            SELECT {columns}, 0 FROM onefold_outbox AS o
            WHERE {of_key} AND o.position > $4::bigint AND {self._ready.replace("w.", "o.")}
            ORDER BY o.position LIMIT $5::integer
        """)
        self._stopped_of_key = d.text(f"""
            SELECT {columns}, 0 FROM onefold_outbox AS o
            WHERE o.stream = $1::bytea AND o.{d.published} IS NULL AND o.{d.due} IS NOT NULL
            ORDER BY o.position LIMIT $2::integer
        """)
        self._version = d.text("SELECT version FROM onefold_stream WHERE stream = $1::bytea")

    def _by_bucket(self, where: str, order: str) -> str:
        some = f"SELECT w.position FROM onefold_outbox AS w WHERE {where} ORDER BY {order} LIMIT $2::integer"
        if self._d is _SQLITE:  # which has no LATERAL: as many rows, found by their position
            found = f"o.position IN ({some})"
            return f"""
                SELECT {self._columns}, 0 FROM onefold_bucket AS b JOIN onefold_outbox AS o ON {found}
                ORDER BY o.position LIMIT $2::integer
            """
        # The list becomes an array: a join could be planned as a walk through all positions.
        return f"""
            SELECT {self._columns}, 0 FROM onefold_outbox AS o WHERE o.position IN (
                SELECT few.position FROM onefold_bucket AS b CROSS JOIN LATERAL ({some}) AS few
                ORDER BY few.position LIMIT $2::integer)
            ORDER BY o.position
        """

    def _prepare_stopped(self) -> None:
        d = self._d
        listed = f"SELECT {self._columns}, {self._behind} FROM onefold_outbox AS o WHERE {self._refused}"
        # Where the last one of the page before stands now; one that is gone, or moved, begins at the beginning.
        last = f"SELECT last.{d.due} FROM onefold_outbox AS last WHERE last.position = $1::bigint"
        after = f"coalesce(({last}), {d.first})"
        self._dead = d.text(f"""
            {listed} AND (o.{d.due}, o.position) > ({d.never}, $1::bigint)
            ORDER BY o.{d.due}, o.position LIMIT $2::integer
        """)
        self._retrying = d.text(f"""
            {listed} AND o.{d.due} < {d.never} AND o.{d.due} >= {after}
              AND (o.{d.due} > {after} OR o.position > $1::bigint)
            ORDER BY o.{d.due}, o.position LIMIT $2::integer
        """)

    def _prepare_trace(self) -> None:
        d = self._d
        self._trace = d.text(f"""
            SELECT {self._columns}, 0 FROM onefold_outbox AS o
            WHERE (o.{d.published} IS NOT NULL OR o.{d.due} IS NOT NULL)
              AND {d.trace} IN ($1::text, $2::text) LIMIT $3::integer
        """)
        self._trace_waiting = d.text(f"""
            SELECT {self._columns}, 0 FROM (
                SELECT * FROM onefold_outbox AS w WHERE {self._ready}
                ORDER BY w.bucket, w.position LIMIT $4::integer) AS o
            WHERE CASE WHEN {d.contains} OR o.id = $1::text THEN {d.trace} IN ($1::text, $2::text) ELSE false END
            ORDER BY o.position LIMIT $3::integer
        """)

    def waiting(self, after: int, limit: int) -> Statement:
        """What waits in its turn, the oldest first."""
        return Statement(self._waiting, (after, limit))

    def waiting_of_topic(self, destination: str, limit: int) -> Statement:
        """Some of what waits for one topic or endpoint."""
        return Statement(self._of_topic, (destination, limit))

    def waiting_of_key(self, bucket: int, destination: str, stream: bytes, after: int, limit: int) -> Statement:
        """What waits of one key, in its order."""
        return Statement(self._of_key, (bucket, destination, stream, after, limit))

    def stopped_of_key(self, stream: bytes, limit: int) -> Statement:
        """What is stopped, or delayed, of one key."""
        return Statement(self._stopped_of_key, (stream, limit))

    def version(self, stream: bytes) -> Statement:
        return Statement(self._version, (stream,))

    def dead(self, after: int, limit: int) -> Statement:
        """Dead letters of the outbox, in the order they were written, and how many events wait behind each."""
        return Statement(self._dead, (after, limit))

    def retrying(self, after: int, limit: int) -> Statement:
        """What is tried again, the next first, and how many events wait behind each."""
        return Statement(self._retrying, (after, limit))

    def trace(self, name: str, limit: int) -> Statement:
        """What has this correlation id, or this id where it has none, and is not about to leave; and some whose ids
        begin like it, see `begin_in_json`. In no order: one could be had by a walk through all positions."""
        return Statement(self._trace, (name[:TRACE_CHARS], begin_in_json(name)[:TRACE_CHARS], limit))

    def trace_waiting(self, name: str, limit: int, looked_at: int) -> Statement:
        """The same of what is about to leave: among so many rows."""
        names = (name[:TRACE_CHARS], begin_in_json(name)[:TRACE_CHARS])
        return Statement(self._trace_waiting, (*names, limit, looked_at))


EVENT_LISTS: Final = {"postgres": EventLists(_POSTGRES), "sqlite": EventLists(_SQLITE)}
