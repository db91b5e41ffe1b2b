"""The inbox on Postgres, in which the common statements are written.

`opening` bounds the transaction by the lease (a stopped peer would otherwise hold its ledger row for ever) and leaves a
mark in a setting that dies with the transaction. `proof` stands in front of COMMIT: it is refused in an aborted
transaction, and inserts NULL, which the table refuses, in one that does not carry the mark.
"""

from __future__ import annotations

from onefold._kernel.audit import NOTE
from onefold._kernel.dialects import POSTGRES_LEASE
from onefold._kernel.effects import Statement
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.wakeup_signals import ACTION, DELIVERY_CHANNEL

_CLOSED = f"({POSTGRES_LEASE} OR set_config('onefold.inbox', 'open', true) IS NULL)"

_OPENING = qualified(f"SELECT WHERE {_CLOSED}")

_UNMARKED = "coalesce(current_setting('onefold.inbox', true), '') <> 'open'"

_PROOF = Statement(qualified(f"INSERT INTO onefold_inbox (consumer, message_id) SELECT NULL, NULL WHERE {_UNMARKED}"))

_ENDED = Statement(qualified(f"SELECT WHERE {_UNMARKED}"))


class Postgres:
    """The statements that differ on Postgres."""

    now = "now()"
    lock = "FOR UPDATE"
    lock_free = "FOR UPDATE SKIP LOCKED"
    proof = _PROOF
    ended = _ENDED
    audit = NOTE["postgres"]
    #: Has consumers of all processes look for failed messages that are due.
    notify_consumers = (Statement(qualified(f"SELECT pg_notify('{DELIVERY_CHANNEL}', '{ACTION}')")),)

    def opening(self, lease_ms: int) -> tuple[Statement, ...]:
        return (Statement(_OPENING, (f"{lease_ms}ms",)),)

    def opening_where(self, place: int) -> str:
        """`opening` as a part of the statement that follows, behind what it selects: where each is a round trip. The
        row it comes from is made before any is written. Other conditions may be evaluated first, and then, where
        they do not hold, the transaction is not opened."""
        closed = _CLOSED.replace("$1::text", f"${place}::text")
        return f"FROM (SELECT {closed} AS closed OFFSET 0) AS opened WHERE NOT opened.closed AND"

    def opening_values(self, lease_ms: int) -> tuple[str, ...]:
        """What stands at that place."""
        return (f"{lease_ms}ms",)

    def text(self, sql: str) -> str:
        return qualified(sql)

    def in_ms(self, ms: str) -> str:
        """A moment so many milliseconds from now."""
        return f"(now() + ({ms} * interval '1 millisecond'))"

    def until(self, moment: str) -> str:
        """How many milliseconds until then."""
        return f"(extract(epoch FROM {moment} - now()) * 1000)::bigint"

    def epoch_ms(self, moment: str) -> str:
        """A moment in milliseconds since 1970."""
        return f"(extract(epoch FROM {moment}) * 1000)::bigint"

    def moment(self, ms: str) -> str:
        """And back."""
        return f"to_timestamp({ms} / 1000.0)"

    def exact(self, moment: str) -> str:
        """A moment as a number that loses nothing of it: the place of a row in a list."""
        return f"(extract(epoch FROM {moment}) * 1000000)::bigint"

    def at(self, exact: str) -> str:
        """And back."""
        return f"('epoch'::timestamptz + ({exact} * interval '1 microsecond'))"

    def items(self, array: str) -> str:
        """The texts of a JSON array, as rows of one column named item."""
        return f"json_array_elements_text({array}::json) AS each(item)"

    def identities(self, array: str) -> str:
        """The identities of a JSON array, as rows of name, apart and source."""
        return f"json_to_recordset({array}::json) AS each (name text, apart text, source text)"

    def held(self, array: str) -> str:
        """The failed messages of a JSON array, as rows of name, started and failed."""
        return f"json_to_recordset({array}::json) AS each (name text, started int, failed int)"

    def refuse(self, text: str) -> str:
        """Breaks the transaction where it is computed. A constraint would, but would put the whole row into the log."""
        return f"(('taken: ' || {text})::int)::text"

    def contains(self, text: str, part: str) -> str:
        return f"position({part} IN {text}) > 0"
