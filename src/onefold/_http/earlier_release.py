"""Whether an application looks for names and answers of onefold 0.1, beside its own.

`earlier_records=True` or `False` says so. With None the database is asked whether 0.1 may have used it, once in a
process and before its first claim: what 0.1 has left there does not change. Processes that came to different answers
still exclude each other: all use the names and locks of this release, and some use those of 0.1 besides.
"""

from __future__ import annotations

from onefold._http.request_identity import Naming
from onefold._http.route_policy import is_bool
from onefold._http.stored_response import Reading
from onefold._idempotency.encryption import Sealer, peppers_of
from onefold.errors import ConfigurationError


class ApplicationNaming:
    """How an application names its requests, and reads its stored answers."""

    __slots__ = ("_dialect", "_possible", "known", "reading")

    def __init__(
        self,
        dialect: str = "postgres",
        earlier_records: bool | None = True,
        sealer: Sealer | None = None,
        unsealed_answers: bool = False,
    ) -> None:
        is_bool("unsealed_answers", unsealed_answers)
        if earlier_records is not None and not isinstance(earlier_records, bool):
            raise ConfigurationError(
                f"earlier_records={earlier_records!r} must be True or False, or None: where onefold 0.1 may have had "
                "the database"
            )
        self._dialect = dialect
        self.reading = Reading(sealer, unsealed_answers, self.has_earlier_release)
        on = earlier_records is not False
        self._possible = Naming(on, on, peppers_of(sealer), self.reading.head)
        self.known = None if earlier_records is None else self._possible
        """None: the database was not queried yet."""

    async def find(self) -> Naming:
        """The naming, once the database has answered. Threads and tasks that come at the same time all query it."""
        if self.known is None:
            from onefold._idempotency.database_origin import may_be_of_0_1  # for those who answer requests

            self.known = self._possible._replace(earlier_release=await may_be_of_0_1(self._dialect))
        return self.known

    def has_earlier_release(self) -> bool:
        """Whether 0.1 may have stored answers, as far as it is known."""
        return (self.known or self._possible).earlier_release
