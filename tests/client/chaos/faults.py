"""Faults on a seeded schedule: what the network does between the customers and the bank, again and again.

How many of them struck is not counted here but by the customers: a fault that nobody felt has tested nothing.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from onefold.testing.fault_proxy import FaultProxy

#: Longer than a customer waits for an answer, so that a black hole is felt.
HOLE_S = 0.5

#: A few answers go through between two faults, or customers on a machine that is hardly given time are never done.
THROUGH_BYTES = 1_000

KINDS = ("cut", "lost", "reset", "delay", "black_hole")
OFTEN = (12, 12, 4, 4, 1)


@dataclass(slots=True)
class Faults:
    """What was done to the network."""

    proxy: FaultProxy
    done: Counter[str] = field(default_factory=Counter)

    def strike(self, name: str, chance: random.Random) -> float:
        """One fault; how long it lasts."""
        self.done[name] += 1
        match name:
            case "cut":
                self.proxy.cut_after("up", chance.randrange(400))
                return 0.01
            case "lost":  # the payment is made, and of its answer these bytes arrive
                self.proxy.cut_after("down", chance.randrange(200))
                return 0.01
            case "reset":
                self.proxy.switch("reset")
                return 0.01
            case "delay":
                self.proxy.latency_s = chance.uniform(0.001, 0.05)
                return 0.1
            case _:
                self.proxy.switch("black_hole")
                return HOLE_S


def forecast(chance: random.Random) -> Iterator[str]:
    """One of each kind, so that also a short campaign has them all; then as it comes."""
    yield from chance.sample(KINDS, len(KINDS))
    while True:
        yield chance.choices(KINDS, OFTEN)[0]


@contextmanager
def inject_faults(proxy: FaultProxy, seed: int, pause_s: float) -> Iterator[Faults]:
    """Until the end of the block, about one fault in every `pause_s`, as long as answers go through."""
    faults = Faults(proxy)
    chance, over = random.Random(seed), threading.Event()

    def rage() -> None:
        while proxy.traffic.connections == 0:  # faults before the first call would be wasted
            if over.wait(0.01):
                return
        for name in forecast(chance):
            enough = proxy.traffic.bytes_down + THROUGH_BYTES
            wait_s = chance.uniform(0.5, 1.5) * pause_s
            while not over.wait(wait_s) and proxy.traffic.bytes_down < enough:
                wait_s = 0.01
            if over.is_set():
                return
            over.wait(faults.strike(name, chance))
            if name not in ("cut", "lost"):  # a cut waits for the connection that it will end
                proxy.heal()

    thread = threading.Thread(target=rage, name="faults")
    thread.start()
    try:
        yield faults
    finally:
        over.set()
        thread.join()
        proxy.heal()
