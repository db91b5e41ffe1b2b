"""What onefold's own tests stand on, for the tests of those who use it.

- `servers`: private PostgreSQL, NATS, Valkey and RabbitMQ servers and a mock Kafka, that can be killed and leave
  nothing behind.
- `proxy`: a TCP proxy that loses, delays and cuts what passes through it, on command.
- `scripted`: an HTTP server that answers, resets, stalls and breaks off as its script says, for testing clients.
- `memory`: a broker in memory, for unit tests of consumers: what is published is handled there and then.
- `waiting`: clients that retry at once instead of waiting.
- `conformance`: what every database driver must do, for threads and for asyncio.
- `scripts`: a flow run against a script of answers.
- `crash`: something going wrong before, during and after every effect: a lost connection, a cancellation, kill -9.
- `crash_brokers`: the same at a broker: around publish, receive, ack and give back.
- `schedules`: every order in which two requests can meet, and samples of three.
- `invariants`: what must hold afterwards, whatever happened.
"""
