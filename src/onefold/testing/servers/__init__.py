"""Private servers for tests and benchmarks: real ones, on loopback, to be killed at any moment.

Invariant: nothing outlives the process that asked for a server, however that process ends.

How it is built:

- `keeper`: the small process that runs one server and sees to it that nothing is left of it;
- `process`: what every private server has: a directory, ports, `start`, `kill`, `restart`, `stop`;
- `postgres`, `nats`, `valkey`, `rabbitmq`, `kafka`: what each says of itself: where its program comes from, how it is
  run, and how one knows that it is ready.

Every server is used in a `with`, wants a password, has a `url` with that password in it, and raises
`ServerUnavailable`, with the way out, where it cannot be had. Kafka has a `bootstrap`, and its mock no password.
"""

from onefold.testing.servers.kafka import GivenKafka, PrivateKafka, kafka_cluster
from onefold.testing.servers.nats import PrivateNats
from onefold.testing.servers.postgres import Installation, PrivatePostgres, find_installation, wheel_folder
from onefold.testing.servers.process import PrivateServer, ServerFailed, ServerUnavailable
from onefold.testing.servers.rabbitmq import PrivateRabbitmq, install_rabbitmq
from onefold.testing.servers.valkey import PrivateValkey

__all__ = [
    "GivenKafka",
    "Installation",
    "PrivateKafka",
    "PrivateNats",
    "PrivatePostgres",
    "PrivateRabbitmq",
    "PrivateServer",
    "PrivateValkey",
    "ServerFailed",
    "ServerUnavailable",
    "find_installation",
    "install_rabbitmq",
    "kafka_cluster",
    "wheel_folder",
]
