"""Order under fire: overlapping transactions over a few keys, four relay processes, one more that stands still with
events in its hands, refusals, kill -9 and restarts all together. At a strict consumer nothing is lost and nothing is
out of order.

The relay of the tutorials, in the same storm but without the kills, must be seen to break the order.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from onefold.testing.servers import PrivateNats
from tests.chaos.job_processes import JobProcesses
from tests.chaos.jobs import Job, Role
from tests.chaos.ledger_checks import inversions
from tests.chaos.places import Place, subscribe
from tests.chaos.running import Running, running
from tests.chaos.stages import Stage

KEYS = 20
WRITERS = 6
RELAYS = 4
REFUSES = 0.01
#: So many events overtake those of the relay that stands still: each key has some among them.
OVERTAKE = 100
#: Before relays die by chance, three die one after the other, so many waves published and none marked. The oldest event
#: is at hand each time: it is a dead letter until an operator retries it, and its key waits. Where relays die faster
#: than a busy machine lets them work, chance does the same to other events.
DEATHS = (2, 1, 1)
#: A refused event is tried again after a second at most, then after two.
COMPLETE_S_MAX = 180.0


async def write_all(path: Running, transactions: int, seed: int, *, pause_s: float = 0.0) -> None:
    async def writer(chance: random.Random) -> None:
        for _ in range(transactions // WRITERS):
            await path.write(chance, keys=KEYS, overlap=True)
            await asyncio.sleep(chance.uniform(0.0, pause_s))

    async with asyncio.TaskGroup() as group:
        for number in range(WRITERS):
            group.create_task(writer(random.Random(seed * 100 + number)))


async def kill_relays(path: Running, relays: list[int], seed: int, kills: int) -> None:
    """Now and then one dies, and another is started in its place."""
    chance = random.Random(seed)
    for number in range(kills):
        await asyncio.sleep(chance.uniform(0.2, 0.5))
        victim = chance.randrange(len(relays))
        job = path.kill(relays[victim])
        relays[victim] = path.start(job.role, refuses=job.refuses, seed=seed * 1000 + number)


async def storm(place: Place, processes: JobProcesses, role: Role, *, transactions: int, kills: int, seed: int) -> int:
    """How many events were out of order; everything else that could be wrong is an error."""
    async with running(place, processes) as path:
        await subscribe(place, path.database)
        path.start("consumer")
        await write_all(path, transactions // 2, seed)  # a backlog, as after an outage
        if kills:
            for wave in DEATHS:
                victim = Job(role=role, place=place, act="kill", at=("publish", "after", wave))
                assert processes.run(victim).struck is not None
        straggler = path.start(role, act="stop", at=("publish", "before", 1))
        assert processes.wait(straggler).state == "stopped"
        relays = [path.start(role, refuses=REFUSES if kills else 0.0, seed=number) for number in range(RELAYS)]
        async with asyncio.TaskGroup() as group:
            # For as long as relays are killed.
            group.create_task(write_all(path, transactions // 2, seed + 50, pause_s=0.2 if kills else 0.0))
            group.create_task(kill_relays(path, relays, seed, kills))
            group.create_task(path.more_arrive(OVERTAKE, within_s=COMPLETE_S_MAX))
        processes.send(straggler, signal.SIGCONT)
        lasted_s = await path.complete(within_s=COMPLETE_S_MAX, attended=True)
        arrived = await path.arrived()
        assert not await path.violations()
        fates = path.end()
        told = {name: sum(fate.told.get(name, 0) for fate in fates) for name in ("Duplicate", "Parked", "DeadLettered")}
        counts = f"{len(arrived)} events, {path.kills} kills, {path.retried} retried"
        print(f"{counts}, complete after {lasted_s:.1f} s, {told}")
        assert path.kills == kills
        assert not told["DeadLettered"]
        if kills:
            assert told["Duplicate"], "no takeover published anything twice"
            assert path.retried, "no event was at hand at three deaths"
        return inversions(arrived)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
async def test_under_fire_every_key_is_handled_in_order_and_nothing_is_lost(
    nats: PrivateNats, campaigns_dsn: str, processes: JobProcesses, tmp_path: Path, seed: int
) -> None:
    stage = Stage(nats.url, tmp_path, campaigns_dsn)
    place = stage.place(await stage.new_database())
    assert await storm(place, processes, "relay", transactions=300, kills=8, seed=seed) == 0


async def test_control_the_relay_of_the_tutorials_breaks_the_order(
    nats: PrivateNats, campaigns_dsn: str, processes: JobProcesses, tmp_path: Path
) -> None:
    stage = Stage(nats.url, tmp_path, campaigns_dsn)
    place = stage.place(await stage.new_database(), order="none")
    assert await storm(place, processes, "textbook relay", transactions=300, kills=0, seed=1) > 0
