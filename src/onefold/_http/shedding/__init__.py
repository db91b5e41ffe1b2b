"""Load shedding: an application takes in what it can do in time, and turns the rest away at once, with a way out.

`Onefold(..., shedding=Shedding())` puts it inside the idempotency layer, so that replays are served before it. These
wrap an application that has no such layer.
"""

from __future__ import annotations

from onefold._http import asgi, wsgi
from onefold._http.shedding.admission_controller import AdmissionController
from onefold._http.shedding.asgi import SheddingMiddleware as _Asgi
from onefold._http.shedding.settings import Level, Priority, Shedding
from onefold._http.shedding.wsgi import SheddingMiddleware as _Wsgi
from onefold._kernel.telemetry import Listener

__all__ = ["Level", "Priority", "Shedding", "shed_asgi", "shed_wsgi"]


def shed_asgi(app: asgi.Application, shedding: Shedding, *, listener: Listener | None = None) -> asgi.Application:
    """The same ASGI application, which does not take in more than it can do. It has its own limit and its own queue;
    `listener` gets its events."""
    return _Asgi(app, AdmissionController(shedding, listener), shedding)


def shed_wsgi(app: wsgi.Application, shedding: Shedding, *, listener: Listener | None = None) -> wsgi.Application:
    """The same WSGI application, which does not take in more than it can do. It has its own limit and its own queue;
    `listener` gets its events."""
    return _Wsgi(app, AdmissionController(shedding, listener), shedding)
