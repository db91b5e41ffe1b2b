"""What onefold's own tests stand on, for the tests of those who use it.

- `servers`: private PostgreSQL, NATS, Valkey, RabbitMQ and Restate servers and a mock Kafka, that can be killed and
  leave nothing behind.
- `fault_proxy`: a TCP proxy that loses, delays and cuts what passes through it, on command.
- `scripted_server`: an HTTP server that answers, resets, stalls and breaks off as its script says, to test clients.
- `memory_broker`: a broker in memory, for unit tests of consumers: what is published is handled there and then.
- `endpoint`: `assert_idempotent`, the whole contract played against one endpoint.
- `crashing`: a request that dies at its COMMIT, in the test's own process.
- `outbox`: what an application has published, taken by the test instead of a relay.
- `time_travel`: what is stored becomes older, for tests of retention.
- `pytest_plugin`: fixtures: an app on a database of the test's own, a private PostgreSQL.
- `no_waiting`: clients that retry at once instead of waiting.
- `conformance`: what every database driver and every broker adapter must do, for threads and for asyncio.
"""

__all__: list[str] = []
