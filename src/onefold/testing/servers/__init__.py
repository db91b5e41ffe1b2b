"""Private servers for tests and benchmarks: real ones, on loopback, to be killed at any moment.

Invariant: nothing outlives the process that asked for a server, however that process ends.

How it is built:

- `_keeper`: the small process that runs one server and removes all that is left of it;
- `_process`: what every private server has: a directory, ports, `start`, `kill`, `restart`, `stop`;
- `_postgres`, `_nats`, `_valkey`, `_rabbitmq`, `_kafka`, `_restate`: where each server's program comes from, how it is
  run, and how one knows that it is ready.

Every server is used in a `with`, wants a password, has a `url` with that password in it, and raises
`ServerUnavailable`, with the way out, where it cannot be had. Kafka has a `bootstrap`, Restate an `ingress` and
an `admin`; neither Restate nor the mock of Kafka has a password.
"""

from onefold.testing.servers._kafka import GivenKafka, PrivateKafka, kafka_cluster
from onefold.testing.servers._nats import PrivateNats
from onefold.testing.servers._postgres import PrivatePostgres
from onefold.testing.servers._process import PrivateServer, ServerFailed, ServerUnavailable
from onefold.testing.servers._rabbitmq import PrivateRabbitmq, install_rabbitmq
from onefold.testing.servers._restate import PrivateRestate, install_restate
from onefold.testing.servers._valkey import PrivateValkey

__all__ = [
    "GivenKafka",
    "PrivateKafka",
    "PrivateNats",
    "PrivatePostgres",
    "PrivateRabbitmq",
    "PrivateRestate",
    "PrivateServer",
    "PrivateValkey",
    "ServerFailed",
    "ServerUnavailable",
    "install_rabbitmq",
    "install_restate",
    "kafka_cluster",
]
