"""Failures that are not worth another attempt: exceptions, by class, that make a message a dead letter at once.

Invariant: what the database raises when it is busy or away is never among them, so no message dies of an outage. That
goes for the drivers' own errors, too, which handlers raise as they come: they are recognised by SQLSTATE, or by
the names that PEP 249 gives them.
"""

from __future__ import annotations

from collections.abc import Iterable

from onefold._kernel.sqlstates import PASSING, sqlstate_of
from onefold.errors import ConfigurationError, PayloadInvalid, StoreError, WorkParked


def check_classes(consumer: str, given: object) -> tuple[type[Exception], ...]:
    """The classes, or a refusal that says what is wrong with them."""
    classes = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for one in classes:
        if not isinstance(one, type) or not issubclass(one, Exception):
            raise ConfigurationError(
                f"consumer {consumer!r} has dead_letter_on={given!r}, and {one!r} is not a class of exceptions; give "
                "those that another attempt cannot help, such as dead_letter_on=(OrderInvalid, CardUnknown)"
            )
        if issubclass(StoreError, one) or issubclass(one, StoreError) or _passes(one, one):
            raise ConfigurationError(
                f"consumer {consumer!r} has dead_letter_on={given!r}: {one.__name__} is also what a busy or lost "
                "database raises, which passes. Name the classes that you mean, or have only one attempt for "
                "whatever fails: attempts=1"
            )
    return classes


def is_final(error: BaseException, classes: tuple[type[Exception], ...]) -> bool:
    """Whether another attempt is in vain. A group (of asyncio.TaskGroup) is final if one in it is."""
    if isinstance(error, ExceptionGroup) and any(is_final(one, classes) for one in error.exceptions):
        return True
    if not isinstance(error, (PayloadInvalid, WorkParked, *classes)) or getattr(error, "connection_invalidated", False):
        return False
    origin = getattr(error, "orig", None) or error  # SQLAlchemy has the driver's inside of its own
    return not _passes(origin, type(origin))


def _passes(given: object, kind: type) -> bool:
    """Whether an error of a driver, or a class of them, means that its database is busy or down."""
    sqlstate = sqlstate_of(given)
    if sqlstate is not None:
        return sqlstate.startswith(PASSING)
    names = {base.__name__ for base in kind.__mro__}
    return names >= {"OperationalError", "DatabaseError"} or kind.__name__ == "InterfaceError"
