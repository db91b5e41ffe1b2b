"""The options of one call, or of those in a block: checked where they are given, as a policy checks its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onefold._client.retry_conditions import check_condition
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

#: The least, the most, and whether it must be a whole number. A day is what a policy allows.
_RANGES: Final = {
    "deadline_s": (0, 86_400, False),
    "attempts_max": (1, 100, True),
    "attempt_s": (0.001, 86_400, False),
    "hedge_s": (0, 86_400, False),
}

#: The names of the options of a call.
OPTIONS: Final = frozenset({*_RANGES, "intent", "retry_if", "stream"})


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse by name and value what is out of range; None: not given."""
    for name, (least, most, whole) in _RANGES.items():
        if (value := options.get(name)) is not None:
            require(name, value, least=least, most=most, whole=whole)
    stream = options.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ConfigurationError(f"stream={stream!r} must be True or False")
    check_condition(options.get("retry_if"))
