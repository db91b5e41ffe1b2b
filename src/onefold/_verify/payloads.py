"""The payloads that are sent: a JSON template, rendered anew for each intent, and another one to mismatch it with.

In a template `{{unique}}` is a text and `{{n}}` a number that each payload has for itself; `{{run}}` is the same in all
payloads of a run, so that a count can be of this run only.
"""

from __future__ import annotations

import json
from typing import Any, Final

from onefold.errors import ConfigurationError

BODY_BYTES_MAX: Final = 1024 * 1024

_OWN: Final = ("{{unique}}", "{{n}}")


class Payloads:
    """Renders payloads. Without a template the body is empty."""

    def __init__(self, template: str | None, *, run: str, other: str | None = None) -> None:
        self._template, self._other, self._run = template, other, run
        self._number = 0
        for name, text in (("the payload", template), ("the other payload", other)):
            if text is not None:
                _parse(name, self._render(text, 1))
        if template is not None and len(template) > BODY_BYTES_MAX:
            raise ConfigurationError(f"the payload has {len(template)} characters, at most {BODY_BYTES_MAX} are sent")
        if other is not None and other == template and not self.distinct:
            raise ConfigurationError("the other payload is the payload itself: give one that differs from it")

    @property
    def distinct(self) -> bool:
        """Whether each fresh payload differs from the others."""
        return self._template is not None and any(mark in self._template for mark in _OWN)

    def fresh(self) -> bytes:
        """A payload for a new intent; another one than all before where the template has a mark for it."""
        self._number += 1
        return b"" if self._template is None else self._render(self._template, self._number).encode()

    def other(self, body: bytes) -> bytes | None:
        """A payload for another request; None if the payload cannot be varied."""
        if self._other is not None:
            self._number += 1
            return self._render(self._other, self._number).encode()
        if self.distinct:
            return self.fresh()
        if not body:
            return None
        varied, changed = _vary(json.loads(body))
        return json.dumps(varied).encode() if changed else None

    def _render(self, text: str, number: int) -> str:
        return (
            text.replace("{{unique}}", f"{self._run}-{number}")
            .replace("{{n}}", str(number))
            .replace("{{run}}", self._run)
        )


def _parse(name: str, text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{name} is not JSON once its marks are filled in: {error}: {text[:200]!r}") from error


def _vary(value: Any) -> tuple[Any, bool]:
    """The value with one part changed: its first number, else its first text."""
    for kind in ((int, float), (str,)):
        varied, changed = _vary_first(value, kind)
        if changed:
            return varied, True
    return value, False


def _vary_first(value: Any, kind: tuple[type[Any], ...]) -> tuple[Any, bool]:
    if isinstance(value, kind) and not isinstance(value, bool):
        more: Any = "x" if isinstance(value, str) else 1
        return value + more, True
    if isinstance(value, dict | list):
        for place, part in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
            varied, changed = _vary_first(part, kind)
            if changed:
                copy: Any = value.copy()
                copy[place] = varied
                return copy, True
    return value, False
