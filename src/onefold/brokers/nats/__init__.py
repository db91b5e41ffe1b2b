"""NATS JetStream: one stream, a subject per topic, a durable pull consumer per consumer name.

Invariant: what is confirmed is in a stream that drops nothing which a consumer has not acknowledged. Every send carries
the message's id and source as `Nats-Msg-Id`, so what is sent twice within the stream's duplicate window is stored once.

A connection that is lost is not waited for: the next call that needs one makes a new one, or raises BrokerUnavailable.
"""

from onefold.brokers.nats._broker import NatsBroker

__all__ = ["NatsBroker"]
