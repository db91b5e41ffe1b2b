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


def audit_values(actor: str, action: str, details: Mapping[str, Any], *, consumer: str = "") -> tuple[Value, ...]:
    return (check_actor(actor), action, consumer, json.dumps(details))


def check_actor(actor: str) -> str:
    """Who does this, if that can be told from it."""
    if not actor.strip() or len(actor) > _ACTOR_CHARS_MAX or not actor.isprintable():
        raise ConfigurationError(
            f"actor={actor!r} must say who does this, in 1 to {_ACTOR_CHARS_MAX} printable characters"
        )
    return actor
