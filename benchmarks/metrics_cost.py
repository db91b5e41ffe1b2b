"""What metrics cost of a request's CPU: of the worker's process (user and system), not of the wall clock, so that the
machine's other work matters less.

Three applications in one process serve short blocks of requests, in an order that turns: one without metrics, one with
them, and the control, which has none either. A share is the lower quartile of its blocks' CPU divided by that of the
first application's, less one: what else a machine does takes caches away, and so only ever adds to a block. What the
control differs by is what this machine makes of nothing: where that is much, the other share proves little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import permutations
from statistics import quantiles
from time import process_time_ns
from typing import Final, Literal

from prometheus_client import CollectorRegistry

from benchmarks.applications import asyncpg_measured, asyncpg_onefold
from benchmarks.guards import WARM_UP, Application, serve_in_process
from benchmarks.stores import postgres_place, private_postgres
from onefold.prometheus import prometheus_metrics
from onefold.telemetry import Claimed, Settled

#: Of a request's CPU.
SHARE_MOST: Final = 0.03
#: A control that differs by more has measured the machine's other work.
CONTROL_MOST: Final = 0.01

ROUNDS: Final = 200
ROUNDS_QUICK: Final = 50
BLOCK: Final = 20
EVENTS: Final = 2000

Subject = Literal["first", "replay"]
SUBJECTS: Final[tuple[Subject, ...]] = ("first", "replay")  # of the same keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One kind of request: microseconds of CPU, and shares of them."""

    subject: Subject
    plain_us: float
    share: float
    control_share: float
    listener_us: float
    """For the events that one request tells, in a loop of nothing else: what it takes where all caches are warm."""

    @property
    def standing(self) -> Literal["PASS", "MISSED", "UNCLEAR"]:
        if abs(self.control_share) > CONTROL_MOST:
            return "UNCLEAR"
        return "PASS" if self.share <= SHARE_MOST else "MISSED"


def run(rounds: int, say: Callable[[str], None]) -> list[Cost]:
    """First requests and replays, on asyncpg."""
    with private_postgres() as server:
        return asyncio.run(_measure(postgres_place(server), rounds, say))


def table_of(costs: list[Cost]) -> str:
    lines = ["Metrics, CPU of the worker's process per request (asyncpg, one caller)",
             "         without us  metrics  control  listener alone us"]  # fmt: skip
    lines += [
        f"{cost.subject:<9}{cost.plain_us:>10.0f}{cost.share:>9.1%}{cost.control_share:>9.1%}{cost.listener_us:>19.1f}"
        f"  {cost.standing} (at most {SHARE_MOST:.0%})"
        for cost in costs
    ]
    return "\n".join(lines)


class _Side:
    """An application, and the CPU of its blocks."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.taken_us: dict[Subject, list[float]] = {subject: [] for subject in SUBJECTS}

    async def serve(self, subject: Subject, start: int) -> None:
        begun = process_time_ns()
        await self.application.post_all(BLOCK, start=start)
        self.taken_us[subject].append((process_time_ns() - begun) / BLOCK / 1e3)

    def share(self, subject: Subject, plain: _Side) -> float:
        return self.quartile_us(subject) / plain.quartile_us(subject) - 1

    def quartile_us(self, subject: Subject) -> float:
        return quantiles(self.taken_us[subject], n=4)[0]


async def _measure(place: str, rounds: int, say: Callable[[str], None]) -> list[Cost]:
    apps = (asyncpg_onefold(place, 1), asyncpg_onefold(place, 1), asyncpg_measured(place, 1))
    async with AsyncExitStack() as stack:
        sides = [_Side(await stack.enter_async_context(serve_in_process(app))) for app in apps]
        number = 0
        for side in sides:
            await side.application.post_all(WARM_UP, start=number)
            number += WARM_UP
        orders = tuple(permutations(sides))  # so that none always follows the same one
        for turn in range(rounds):
            say(f"round {turn + 1} of {rounds}")
            for side in orders[turn % len(orders)]:
                for subject in SUBJECTS:
                    await side.serve(subject, number)
                number += BLOCK
    plain, control, measured = sides
    return [
        Cost(
            subject=subject,
            plain_us=plain.quartile_us(subject),
            share=measured.share(subject, plain),
            control_share=control.share(subject, plain),
            listener_us=_listener_us(subject),
        )
        for subject in SUBJECTS
    ]


def _listener_us(subject: Subject) -> float:
    """The least of ten blocks, the making of the events included."""
    listener = prometheus_metrics(CollectorRegistry())
    blocks = []
    for _ in range(10):
        begun = process_time_ns()
        for _ in range(EVENTS):
            if subject == "first":
                listener(Claimed("POST /payments", "run"))
                listener(Settled("POST /payments", 201, body_kept=True, elapsed_s=0.004))
            else:
                listener(Claimed("POST /payments", "replay"))
        blocks.append((process_time_ns() - begun) / EVENTS / 1e3)
    return min(blocks)
