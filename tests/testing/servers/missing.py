"""Which servers the tests can do without: RabbitMQ, Restate and Prometheus, which no wheel brings, and Temporal, whose
wheel is not its own. Their absence is a skip that names the way out (`make rabbitmq`, `make restate`, `make
prometheus`); that of any other, which came with the tests' own requirements, is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onefold.testing.servers import PrivateRabbitmq, PrivateRestate, PrivateServer, ServerUnavailable
from tests.support.prometheus_server import PrivatePrometheus
from tests.support.temporal_server import PrivateTemporal


@contextmanager
def unless_missing(kind: type[PrivateServer]) -> Iterator[None]:
    """Around the start of a server."""
    try:
        yield
    except ServerUnavailable as reason:
        if not issubclass(kind, PrivateRabbitmq | PrivateRestate | PrivateTemporal | PrivatePrometheus):
            raise
        pytest.skip(str(reason))
