"""Run the conformance suite as a program: `python -m tests.db.scenarios DRIVER[,DRIVER] DSN [SCENARIO ...]`.

It says on standard output which versions of the drivers it has run with.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version

from onefold.testing.conformance import SCENARIOS, check, check_async, check_cancellation
from tests.db.drivers import POSTGRES, POSTGRES_ASYNC

PATIENCE_S = 10.0

#: They need an outage, or a pool without patience.
LEFT_OUT = ("an_exhausted_pool_is_said_to_be_unavailable", "a_server_that_dies_and_returns_is_lost_and_found")


async def run_async(driver: str, dsn: str, names: list[str]) -> None:
    for scenario in SCENARIOS:
        if str(scenario) in names:
            async with POSTGRES_ASYNC[driver](dsn, PATIENCE_S) as subject:
                await check_async(scenario, subject)
    if "cancellation" in names:
        async with POSTGRES_ASYNC[driver](dsn, PATIENCE_S) as subject:
            await check_cancellation(subject)


def run(driver: str, dsn: str, names: list[str]) -> None:
    for scenario in SCENARIOS:
        if str(scenario) in names:
            with POSTGRES[driver](dsn, PATIENCE_S) as subject:
                check(scenario, subject)


def main() -> None:
    drivers, dsn, *names = sys.argv[1:]
    names = names or [str(scenario) for scenario in SCENARIOS if str(scenario) not in LEFT_OUT] + ["cancellation"]
    for driver in drivers.split(","):
        if driver in POSTGRES:
            run(driver, dsn, names)
        else:
            asyncio.run(run_async(driver, dsn, names))
    print(*(f"{package}=={version(package)}" for package in ("asyncpg", "psycopg", "sqlalchemy")))


if __name__ == "__main__":
    main()
