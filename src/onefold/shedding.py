"""Load shedding: an application takes in what it can do in time, and turns the rest away at once."""

from onefold._http.shedding import Level, Priority, Shedding, shed_asgi, shed_wsgi
from onefold._policy.limiter import Aimd, Gradient2, LimiterConfig
from onefold._policy.shedder import SheddingConfig

__all__ = [
    "Aimd",
    "Gradient2",
    "Level",
    "LimiterConfig",
    "Priority",
    "Shedding",
    "SheddingConfig",
    "shed_asgi",
    "shed_wsgi",
]
