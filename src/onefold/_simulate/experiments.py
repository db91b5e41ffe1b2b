"""The three experiments, and what each of their runs comes to.

    failures   every attempt fails with the same probability: how many calls succeed, and what load that makes
    stall      the server stands still for some seconds: how long after that until the calls succeed again
    overload   half as much again as the server can do, for a minute: what is done during it, and after it

Every cell has a seed of its own, made of the seed that was given and of what the cell is about, so a cell comes out
the same whatever else is run beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf

from onefold._http.shedding.settings import Shedding
from onefold._simulate.counters import Counters
from onefold._simulate.entrants import Entrant
from onefold._simulate.scenarios import WARM_UP_S, ServerScenario, flip
from onefold._simulate.servers import ServerConfig

FAILURES = (0.01, 0.1, 1 / 3, 0.5)
RATES_RPS = (0.2, 0.4, 4.0)
"""Calls per second of one process: a quiet one, and a busy one."""
USUAL_RPS = 0.4
FAILING_PROCESSES = 20
SETTLED_AFTER = 0.25
"""What happens in this first part of a run of failures is not counted: what was saved before must be spent."""
STALLS_S = (1, 10, 20)
USUAL_STALL_S = 10
PROCESSES = (1, 20, 100, 400)
USUAL_PROCESSES = 20

FIFO = ServerConfig()
DEADLINES = ServerConfig(name="drops expired", drops_expired=True)
BOUNDED = ServerConfig(name="queue of 50", queue_most=50)
DEAR = ServerConfig(name="refusal costs 10 %", queue_most=50, refusal_cost=0.1)
DEARER = ServerConfig(name="refusal costs 30 %", queue_most=50, refusal_cost=0.3)
SHEDDING = ServerConfig(name="sheds", shedding=Shedding())
SHEDDING_DEADLINES = ServerConfig(name="sheds, told deadlines", shedding=Shedding(), drops_expired=True)
SERVERS = (FIFO, DEADLINES, BOUNDED, DEAR, DEARER, SHEDDING, SHEDDING_DEADLINES)

OVERLOAD_RPS = 150.0
OVERLOAD_S = 60.0
WELL = 0.9
"""So many of the calls succeed where things are well again."""
LOOK_S = 5
"""Looked at over so many seconds: a single one is a matter of chance."""
WASTE_S = 60
"""Wasted work is counted from the stall until so long after it."""
CLOSING_S = 30
"""After an overload, the last seconds of the run show whether things have become well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much to run."""

    failing_calls: int
    """How many calls a run of failures has, about."""
    seeds: int
    after_stall_s: int
    servers: tuple[ServerConfig, ...]
    stalls_s: tuple[int, ...] = STALLS_S
    rates_rps: tuple[float, ...] = RATES_RPS


FULL = Effort(failing_calls=40_000, seeds=3, after_stall_s=130, servers=SERVERS)
QUICK = Effort(
    failing_calls=6000,
    seeds=1,
    after_stall_s=70,
    servers=(FIFO, DEADLINES, DEARER, SHEDDING_DEADLINES),
    stalls_s=(USUAL_STALL_S,),
    rates_rps=(USUAL_RPS,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures by chance: one policy, one probability, one rate of calls per process."""

    policy: str
    failure: float
    rps: float
    success: float
    load: float
    """Attempts per call."""
    calls: int
    """How many were counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStall:
    """A server that stood still: one policy, one server, so long, so many processes. The worst of all seeds."""

    policy: str
    server: str
    stall_s: int
    processes: int
    recovery_s: int | None
    """After the stall; None: not before the run was over."""
    amplification: float
    """Attempts per call while it lasted."""
    wasted: float
    """The share of the work whose caller had given up."""
    after_rps: float
    """The goodput at the end of the run."""
    kept_back: bool
    """At the end of the run most calls were not even tried."""
    goodput_rps: tuple[int, ...]
    """Second by second, of the first seed."""
    load_rps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """More than a server can do: one policy, one server."""

    policy: str
    server: str
    during_rps: float
    after_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """Everything that was found out."""

    seed: int
    effort: Effort
    failures: Sequence[Failures]
    stalls: Sequence[ServerStall]
    overloads: Sequence[Overload]


def failures(entrant: Entrant, failure: float, rps: float, seed: int, effort: Effort) -> Failures:
    """Run one cell."""
    seconds = max(20, round(effort.failing_calls / (FAILING_PROCESSES * rps)))
    counters = flip(
        entrant.policy,
        failure,
        f"{seed} failures {failure} {rps}",
        seconds=seconds,
        processes=FAILING_PROCESSES,
        rps_each=rps,
    )
    settled = round(SETTLED_AFTER * seconds)
    return Failures(
        policy=entrant.name,
        failure=failure,
        rps=rps,
        success=counters.success(settled),
        load=counters.load(settled),
        calls=sum(counters.calls[settled:]),
    )


def stall(
    entrant: Entrant, server: ServerConfig, processes: int, seed: int, effort: Effort, stall_s: int = USUAL_STALL_S
) -> ServerStall:
    """Run one cell, for all its seeds."""
    scenario = ServerScenario(server=server, processes=processes, trouble_s=stall_s, after_s=effort.after_stall_s)
    over = round(scenario.over_at)
    ledgers = [
        scenario.run(entrant.policy, f"{seed} stall {server.name} {stall_s} {processes} {number}")
        for number in range(effort.seeds)
    ]
    found = [recovery_s(counters, over) for counters in ledgers]
    slowest = max(found, key=lambda seconds: inf if seconds is None else seconds)
    return ServerStall(
        policy=entrant.name,
        server=server.name,
        stall_s=stall_s,
        processes=processes,
        recovery_s=slowest,
        amplification=max(counters.load(WARM_UP_S, over) for counters in ledgers),
        wasted=max(counters.waste(WARM_UP_S, over + WASTE_S) for counters in ledgers),
        after_rps=min(counters.goodput(counters.seconds - LOOK_S, counters.seconds) for counters in ledgers),
        kept_back=min(counters.load(counters.seconds - LOOK_S) for counters in ledgers) < 0.5,
        goodput_rps=tuple(ledgers[0].answered),
        load_rps=tuple(ledgers[0].attempts),
    )


def overload(entrant: Entrant, server: ServerConfig, seed: int) -> Overload:
    """Run one cell."""
    scenario = ServerScenario(
        server=server, processes=USUAL_PROCESSES, trouble_s=OVERLOAD_S, peak_rps=OVERLOAD_RPS, after_s=60
    )
    counters = scenario.run(entrant.policy, f"{seed} overload {server.name}")
    return Overload(
        policy=entrant.name,
        server=server.name,
        during_rps=counters.goodput(WARM_UP_S, round(scenario.over_at)),
        after_rps=counters.goodput(counters.seconds - CLOSING_S, counters.seconds),
    )


def recovery_s(counters: Counters, over: int) -> int | None:
    """The seconds after the trouble until things are well, and stay so until the end; None: they are not."""
    last = counters.seconds - LOOK_S
    second = last
    while second >= over and counters.success(second, second + LOOK_S) >= WELL:
        second -= 1
    return None if second == last else second + 1 - over


def closed_form(failure: float, retries: int) -> tuple[float, float]:
    """Success and load of a fixed number of retries, by arithmetic."""
    success = 1 - failure ** (retries + 1)
    return success, success / (1 - failure)


def run(
    entrants: Sequence[Entrant],
    seed: int,
    effort: Effort,
    on_cell: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Storm:
    """Run all experiments. `on_cell` is called before each cell: how many are done, of how many, and its name."""
    found: list[Failures | ServerStall | Overload] = []
    cells = list(_cells(entrants, seed, effort))
    for number, (what, cell) in enumerate(cells):
        on_cell(number, len(cells), what)
        found.append(cell())
    return Storm(
        seed=seed,
        effort=effort,
        failures=[cell for cell in found if isinstance(cell, Failures)],
        stalls=[cell for cell in found if isinstance(cell, ServerStall)],
        overloads=[cell for cell in found if isinstance(cell, Overload)],
    )


def _cells(
    entrants: Sequence[Entrant], seed: int, effort: Effort
) -> Iterator[tuple[str, Callable[[], Failures | ServerStall | Overload]]]:
    for entrant in entrants:
        for rps, failure in product(effort.rates_rps, FAILURES):
            yield f"{entrant.name}, failures", partial(failures, entrant, failure, rps, seed, effort)
        for stall_s, processes in product(effort.stalls_s, PROCESSES):
            yield f"{entrant.name}, stall", partial(stall, entrant, FIFO, processes, seed, effort, stall_s)
        for server in effort.servers:
            if server is not FIFO:
                yield f"{entrant.name}, stall", partial(stall, entrant, server, USUAL_PROCESSES, seed, effort)
            yield f"{entrant.name}, overload", partial(overload, entrant, server, seed)
