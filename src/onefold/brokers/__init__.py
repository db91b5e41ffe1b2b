"""Brokers: one adapter each, on its well-kept client. Sends are confirmed; unsafe settings are refused at start.

Here is what an adapter for another broker is written against; `onefold.testing.conformance.brokers` checks it.
"""

from onefold._kernel.messages import Confirm, Delivery, Message
from onefold._kernel.ports import Broker, ManagesSubscriptions, MatchesPatterns, Subscription, SubscriptionSeen

__all__ = [
    "Broker",
    "Confirm",
    "Delivery",
    "ManagesSubscriptions",
    "MatchesPatterns",
    "Message",
    "Subscription",
    "SubscriptionSeen",
]
