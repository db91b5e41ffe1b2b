"""A Kafka to test against: librdkafka's mock cluster, from the wheel confluent-kafka, or a real one that is named.

Invariant: a private cluster keeps its ports over `kill` and `restart`, and nothing else: its log is in memory only.
So it is a harsh at-least-once broker and good for that. It can prove nothing about Kafka's transactions and
idempotent producers, which it accepts and does not honour: for those, KAFKA_BOOTSTRAP names a real cluster.
"""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from onefold.errors import ConfigurationError
from onefold.testing.fault_proxy import HOST
from onefold.testing.servers import _kafka_mock
from onefold.testing.servers._process import Launch, PrivateServer, ServerUnavailable, converse, file_of_wheel

_BROKERS_MAX: Final = 10
# ApiVersions, the first question of every client: length, key, version, correlation id, no client id.
_CORRELATION: Final = struct.pack(">i", 1)
_API_VERSIONS: Final = struct.pack(">ihh", 10, 18, 0) + _CORRELATION + struct.pack(">h", -1)


class PrivateKafka(PrivateServer):
    """A mock Kafka cluster of your own: `with PrivateKafka() as cluster: Producer({... cluster.bootstrap})`.

    Topics are made, with four partitions each, when they are first named; CreateTopics is not answered. Unlike the
    other private servers it asks for no password, as librdkafka's mock knows none: every account of the machine can
    use it while it runs. The cluster has so many `brokers`.
    """

    def __init__(self, *, brokers: int = 3) -> None:
        if not 1 <= brokers <= _BROKERS_MAX:
            raise ConfigurationError(f"brokers={brokers}: give 1 to {_BROKERS_MAX}")
        super().__init__(ports=brokers)

    @property
    def bootstrap(self) -> str:
        """What `bootstrap.servers` takes."""
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    def _launch(self) -> Launch:
        program = [sys.executable, "-I", "-S", str(Path(_kafka_mock.__file__).resolve()), str(_library())]
        return Launch(command=[*program, HOST, *map(str, self.ports)])

    def _answer(self) -> str | None:
        for port in self.ports:
            if _CORRELATION not in converse(port, _API_VERSIONS, _CORRELATION):
                return f"the broker on port {port} does not answer"
        return None


@dataclass(frozen=True, slots=True)
class GivenKafka:
    """A real cluster that others run: it can be used, not killed."""

    bootstrap: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to stop."""


def kafka_cluster() -> PrivateKafka | GivenKafka:
    """The cluster that the environment variable KAFKA_BOOTSTRAP names, else a private one; use it in a `with`."""
    bootstrap = os.environ.get("KAFKA_BOOTSTRAP")
    return GivenKafka(bootstrap) if bootstrap else PrivateKafka()


def _library() -> Path:
    """librdkafka, as the wheel carries it."""
    if (library := file_of_wheel("confluent-kafka", "librdkafka*.so*")) is None:
        raise ServerUnavailable(
            "no mock Kafka: the wheel confluent-kafka, with librdkafka in it, is not there; "
            "the way out is `pip install onefold[servers]`, or a real cluster named by KAFKA_BOOTSTRAP"
        )
    return library
