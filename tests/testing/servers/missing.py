"""Which servers the tests can do without: RabbitMQ, which no wheel brings. Its absence is a skip that names the way out
(`make rabbitmq`); that of any other, which came with the tests' own requirements, is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onefold.testing.servers import PrivateRabbitmq, PrivateServer, ServerUnavailable


@contextmanager
def unless_missing(kind: type[PrivateServer]) -> Iterator[None]:
    """Around the start of a server."""
    try:
        yield
    except ServerUnavailable as reason:
        if kind is not PrivateRabbitmq:
            raise
        pytest.skip(str(reason))
