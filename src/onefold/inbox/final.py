"""Failures that are not worth another attempt: exceptions, by class, that make a message a dead letter at once.

Invariant: what the database raises when it is busy or away is never among them, so no message dies of an outage.
"""

from __future__ import annotations

from collections.abc import Iterable

from onefold.errors import ConfigurationError, PayloadInvalid, StoreError


def checked_classes(consumer: str, given: object) -> tuple[type[Exception], ...]:
    """The classes, or a refusal that says what is wrong with them."""
    classes = tuple(given) if isinstance(given, Iterable) else (given,)
    for one in classes:
        if not isinstance(one, type) or not issubclass(one, Exception):
            raise ConfigurationError(
                f"consumer {consumer!r} has dead_letter_on={given!r}, and {one!r} is no class of exceptions; give "
                "those that another attempt cannot help, such as dead_letter_on=(ValueError, KeyError)"
            )
        if issubclass(StoreError, one) or issubclass(one, StoreError):
            raise ConfigurationError(
                f"consumer {consumer!r} has dead_letter_on={given!r}: {one.__name__} is also what a busy or lost "
                "database raises, which passes. Name the classes that you mean, or have only one attempt for "
                "whatever fails: attempts=1"
            )
    return classes


def is_final(error: BaseException, classes: tuple[type[Exception], ...]) -> bool:
    """Whether another attempt is in vain. A group (of asyncio.TaskGroup) is final if one in it is."""
    final: tuple[type[Exception], ...] = (PayloadInvalid, *classes)
    return isinstance(error, final) or (isinstance(error, ExceptionGroup) and error.subgroup(final) is not None)
