"""How an application protects itself from more work than it can do. One frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from onefold._kernel.deadlines import HEADER
from onefold.errors import ConfigurationError
from onefold.http.messages import Request
from onefold.policy.limiter import STANDARD_TERMS as STANDARD_LIMIT
from onefold.policy.limiter import Gradient2, Law, LimiterTerms
from onefold.policy.ranges import require
from onefold.policy.shedding import STANDARD_TERMS as STANDARD_WAIT
from onefold.policy.shedding import SheddingTerms

Level: TypeAlias = Literal["low", "normal", "high"]
Priority: TypeAlias = Callable[[Request], int | Level]

LEVELS: dict[str, int] = {"low": -10, "normal": 0, "high": 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shedding:
    """When requests wait, when they are turned away, and with what answer.

    `limit` is how many may run at once: bounds within which `law` finds it out, or a number that stays. `priority`
    says of a request how important it is: "low", "normal", "high", or any whole number, more for more important.
    `exempt` are paths that always pass, such as health checks; one that ends in `/*` means all below it.
    `status` is 429 where the caller itself is the cause. `retry_after_s` are the bounds between which each refusal
    draws its own Retry-After, so that those who were turned away together do not come back together.
    `deadline_header` is where a request says how many milliseconds its client still waits; None ignores it.
    """

    limit: int | LimiterTerms = STANDARD_LIMIT
    law: Callable[[], Law] = Gradient2
    wait: SheddingTerms = STANDARD_WAIT
    queue_most: int = 100
    wait_most_s: float = 5.0
    priority: Priority | None = None
    exempt: Collection[str] = ()
    status: Literal[429, 503] = 503
    retry_after_s: tuple[int, int] = (1, 5)
    deadline_header: str | None = HEADER

    def __post_init__(self) -> None:
        if isinstance(self.limit, int):
            require("limit", self.limit, least=1, most=100_000)
        require("queue_most", self.queue_most, least=0, most=100_000)
        require("wait_most_s", self.wait_most_s, least=0.001, most=3600)
        if self.status not in (429, 503):
            raise ConfigurationError(f"status={self.status!r} is not one of 429, 503")
        if isinstance(self.exempt, str):
            raise ConfigurationError(f"exempt={self.exempt!r} is one text: give a list of paths, as [{self.exempt!r}]")
        for path in self.exempt:
            if not path.startswith("/"):
                raise ConfigurationError(f"exempt names {path!r}, which is no path: paths start with '/'")
        low, high = self.retry_after_s
        require("retry_after_s[0]", low, least=1, most=3600)
        require("retry_after_s[1]", high, least=low, most=3600)

    @property
    def limiter_terms(self) -> LimiterTerms:
        """The bounds of the limit. A number that stays is a limit without room to move."""
        if isinstance(self.limit, int):
            return LimiterTerms(initial=self.limit, least=self.limit, most=self.limit)
        return self.limit
