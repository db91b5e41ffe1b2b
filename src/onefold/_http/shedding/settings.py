"""How an application protects itself from more work than it can do. One frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from onefold._http.request import Request
from onefold._kernel.arguments import named_settings
from onefold._kernel.deadlines import HEADER
from onefold._policy.limiter import STANDARD_CONFIG as STANDARD_LIMIT
from onefold._policy.limiter import Gradient2, Law, LimiterConfig
from onefold._policy.ranges import require
from onefold._policy.shedder import STANDARD_CONFIG as STANDARD_WAIT
from onefold._policy.shedder import SheddingConfig
from onefold.errors import ConfigurationError

Level: TypeAlias = Literal["low", "normal", "high"]
Priority: TypeAlias = Callable[[Request], int | Level]

#: Paths of health checks by orchestrators, balancers and frameworks. Turned away, they would have a process that is
#: busy taken for dead, and restarted.
HEALTH_CHECKS = (
    "/health", "/health/*", "/healthz", "/healthz/*", "/healthcheck", "/health-check", "/live", "/livez", "/livez/*",
    "/liveness", "/ready", "/readyz", "/readyz/*", "/readiness", "/startupz", "/ping", "/up", "/heartbeat",
    "/__heartbeat__", "/__lbheartbeat__", "/-/healthy", "/-/ready",
)  # fmt: skip

LEVELS: dict[str, int] = {"low": -10, "normal": 0, "high": 10}


@named_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class Shedding:
    """When requests wait, when they are turned away, and with what answer.

    `limit` is how many may run at once: bounds within which `law` finds it out, or a number that stays. Others wait,
    at most `queue_most` of them and for at most `wait_most_s`; `wait` says when a queue is overload. `priority`
    says of a request how important it is: "low", "normal", "high", or any whole number, more for more important.
    `exempt` are paths that always pass, by default those of health checks (`HEALTH_CHECKS`); one that ends in `/*`
    means all below it. What is given takes the place of the default: `exempt=[*Shedding.HEALTH_CHECKS, "/metrics"]`.
    `status` is 429 where the caller itself is the cause. `retry_after_s` are the bounds between which each refusal
    draws its own Retry-After, so that those who were turned away together do not come back together.
    `deadline_header` is where a request says how many milliseconds its client still waits; None ignores it.
    """

    HEALTH_CHECKS: ClassVar[tuple[str, ...]] = HEALTH_CHECKS

    limit: int | LimiterConfig = STANDARD_LIMIT
    law: Callable[[], Law] = Gradient2
    wait: SheddingConfig = STANDARD_WAIT
    queue_most: int = 100
    wait_most_s: float = 5.0
    priority: Priority | None = None
    exempt: Collection[str] = HEALTH_CHECKS
    status: Literal[429, 503] = 503
    retry_after_s: tuple[int, int] = (1, 5)
    deadline_header: str | None = HEADER

    def __post_init__(self) -> None:
        if not isinstance(self.limit, LimiterConfig):
            require("limit", self.limit, least=1, most=100_000, whole=True)
        require("queue_most", self.queue_most, least=0, most=100_000, whole=True)
        require("wait_most_s", self.wait_most_s, least=0.001, most=3600)
        if self.status not in (429, 503):
            raise ConfigurationError(f"status={self.status!r} is not one of 429, 503")
        if isinstance(self.exempt, str):
            raise ConfigurationError(f"exempt={self.exempt!r} is one text: give a list of paths, as [{self.exempt!r}]")
        for path in self.exempt:
            if not path.startswith("/"):
                raise ConfigurationError(f"exempt names {path!r}, which is not a path: paths start with '/'")
        low, high = self.retry_after_s
        require("retry_after_s[0]", low, least=1, most=3600)
        require("retry_after_s[1]", high, least=low, most=3600)

    @property
    def limiter_config(self) -> LimiterConfig:
        """The bounds of the limit. A number that stays is a limit without room to move."""
        if isinstance(self.limit, int):
            return LimiterConfig(initial=self.limit, least=self.limit, most=self.limit)
        return self.limit
