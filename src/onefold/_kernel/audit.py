"""The audit: one line for each thing that a person does to what is stored, in the transaction that does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from onefold._kernel.effects import Value
from onefold.errors import ConfigurationError

#: In Postgres' words. `consumer` is empty where it is not about one.
AUDIT: Final = """
    INSERT INTO onefold_audit (actor, action, consumer, details)
    VALUES ($1::text, $2::text, $3::text, $4::text)
"""

_ACTOR_CHARS_MAX: Final = 255
_WHY_CHARS_MAX: Final = 1000


def audit_values(actor: str, action: str, details: Mapping[str, Any], *, consumer: str = "") -> tuple[Value, ...]:
    return (check_actor(actor), action, consumer, json.dumps(details))


def with_why(details: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The details of a line, with what the person gave as the reason, if anything."""
    if len(why) > _WHY_CHARS_MAX:
        raise ConfigurationError(f"the reason for the audit has {len(why)} characters, at most {_WHY_CHARS_MAX}")
    return {**details, "why": why.strip()} if why.strip() else dict(details)


def check_actor(actor: str) -> str:
    """Who does this, if that can be told from it."""
    if not actor.strip() or len(actor) > _ACTOR_CHARS_MAX or not actor.isprintable():
        raise ConfigurationError(
            f"actor={actor!r} must say who does this, in 1 to {_ACTOR_CHARS_MAX} printable characters"
        )
    return actor
