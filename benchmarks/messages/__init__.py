"""Benchmarks of the outbox, the relay and the consumers: `python -m benchmarks.messages`."""
