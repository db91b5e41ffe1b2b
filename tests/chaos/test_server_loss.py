"""The servers die: a broker, or Postgres, is killed -9 and restarted while events flow from a relay process to a
consumer process. Both recover by themselves; nothing is lost, nothing is doubled, and every key stays in order.

Kafka is left out: its mock keeps its log in memory, so that a kill loses what was confirmed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.testing.servers import PrivateNats, PrivatePostgres, PrivateRabbitmq, PrivateServer, PrivateValkey
from tests.chaos.job_processes import JobProcesses
from tests.chaos.places import subscribe
from tests.chaos.running import Running, running
from tests.chaos.stages import Stage
from tests.testing.servers.missing import unless_missing

#: After the server is back: the longest pause of who waits for it is 10 s, reached only after many.
RECOVERY_S_MAX = 120.0

#: So many events arrive before each kill.
FLOWING = 20

KINDS: dict[str, type[PrivateServer]] = {"nats": PrivateNats, "valkey": PrivateValkey, "rabbitmq": PrivateRabbitmq}


@pytest.fixture(params=["nats", "valkey", pytest.param("rabbitmq", marks=pytest.mark.soak)])
def mortal_broker(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    kind = KINDS[request.param]
    with unless_missing(kind), kind() as server:
        yield server


async def write_until(path: Running, stop: asyncio.Event, chance: random.Random) -> None:
    while not stop.is_set():
        await path.write(chance, keys=5)
        await asyncio.sleep(0.01)


async def survive(stage: Stage, processes: JobProcesses, server: PrivateServer, *, losses: int) -> None:
    place = stage.place(await stage.new_database())
    chance = random.Random(1)
    async with running(place, processes) as path:
        await subscribe(place, path.database)
        path.start("consumer")
        path.start("relay")
        stop = asyncio.Event()
        writing = asyncio.create_task(write_until(path, stop, chance))
        for _ in range(losses):
            await path.more_arrive(FLOWING, within_s=RECOVERY_S_MAX)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
        stop.set()
        await writing
        recovery_s = await path.complete(within_s=RECOVERY_S_MAX)
        assert not await path.violations()
        told = [fate.told for fate in path.end()]
        print(f"{losses} losses, {len(path.written.committed)} events, recovered after {recovery_s:.1f} s, {told}")
        assert not any(counts.get("DeadLettered") for counts in told)
        assert sum(counts.get("RelayPaused", 0) + counts.get("ConsumerPaused", 0) for counts in told), (
            "nobody noticed that the server was gone"
        )


async def test_a_broker_that_dies_and_comes_back_costs_nothing(
    mortal_broker: PrivateServer, campaigns_dsn: str, processes: JobProcesses, tmp_path: Path
) -> None:
    url: str = getattr(mortal_broker, "url").replace("valkey://", "redis://")  # noqa: B009
    await survive(Stage(url, tmp_path, campaigns_dsn), processes, mortal_broker, losses=2)


@pytest.mark.parametrize("broker", ["local", "nats"])
async def test_a_postgres_that_dies_and_comes_back_costs_nothing(
    broker: str, mortal_postgres: PrivatePostgres, nats: PrivateNats, processes: JobProcesses, tmp_path: Path
) -> None:
    url = "local" if broker == "local" else nats.url
    stage = Stage(url, tmp_path, mortal_postgres.fresh_database())
    await survive(stage, processes, mortal_postgres, losses=2)
