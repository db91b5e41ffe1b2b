"""What a dialect defines for the inbox, and the parts that its statements share, in the SQL of Postgres."""

from __future__ import annotations

from typing import Final, Protocol

from onefold._kernel.effects import Statement


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
    @property
    def audit(self) -> str: ...
    @property
    def notify_consumers(self) -> tuple[Statement, ...]: ...

    def opening(self, lease_ms: int) -> tuple[Statement, ...]: ...
    def opening_where(self, place: int) -> str: ...
    def opening_values(self, lease_ms: int) -> tuple[str, ...]: ...
    def text(self, sql: str) -> str: ...
    def in_ms(self, ms: str) -> str: ...
    def until(self, moment: str) -> str: ...
    def epoch_ms(self, moment: str) -> str: ...
    def moment(self, ms: str) -> str: ...
    def exact(self, moment: str) -> str: ...
    def at(self, exact: str) -> str: ...
    def items(self, array: str) -> str: ...
    def identities(self, array: str) -> str: ...
    def held(self, array: str) -> str: ...
    def refuse(self, text: str) -> str: ...
    def contains(self, text: str, part: str) -> str: ...


#: A message as a failed message keeps it: the values of `StoredMessage.values()`.
CONTENT: Final = "message_id, headers, data, body, envelope, source, topic, key, stream, epoch, version"
CONTENT_VALUES = (
    "$2::text, $3::text, $4::bytea, $5::bytea, $6::text, $7::text, $8::text, $9::text, $10::bytea, "
    "$11::bigint, $12::bigint"
)


def failed_columns(d: Dialect) -> str:
    """A failed message's row, as `failed_messages.read_row` reads it."""
    return (
        f"{CONTENT}, started, failed, history, state, reason, {d.epoch_ms('created_at')}, {d.until('due_at')}, "
        f"{d.epoch_ms('died_at')}, redrive"
    )


#: An identity as statements have it by default.
_OWN: Final = ("$2::text", "$3::text", "$4::text")

THIS: Final = "consumer = $1::text AND message_id = $2::text"
STREAM: Final = "consumer = $1::text AND stream = $2::bytea"


def mine(table: str, identity: tuple[str, str, str] = _OWN) -> str:
    """Whether the table has this message, under either name. Looked up by key, one by one: a join could be planned as a
    walk through the whole table."""
    name, apart, source = identity
    return (
        f"(SELECT 1 FROM {table} WHERE consumer = $1::text AND message_id IN ({name}, {apart}) "
        f"AND (message_id = {apart} OR {table}.source IS NULL OR {source} IS NULL OR {table}.source = {source}) LIMIT 1"
        ") IS NOT NULL"
    )


def others(table: str, identity: tuple[str, str, str] = _OWN) -> str:
    """Whether the name is that of another source's message there."""
    name, _, source = identity
    this = f"consumer = $1::text AND message_id = {name}"
    return f"(SELECT 1 FROM {table} WHERE {this} AND {table}.source <> {source}) IS NOT NULL"
