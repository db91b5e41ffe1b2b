"""Load shedding: an application takes in what it can do in time, and turns the rest away at once."""

from onefold._http.shedding import Shedding, shed_asgi, shed_wsgi

__all__ = [
    "Shedding",
    "shed_asgi",
    "shed_wsgi",
]
