"""Create the tables of services: onefold's and their own. SERVICE is a module with `once` and `TABLES`.

python -m examples.shop.migrate SERVICE...
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

from examples.shop.database import execute


async def migrate(*services: str) -> None:
    for service in map(import_module, services):
        await service.once.migrate()
        async with service.once.transaction() as tx:
            for table in service.TABLES:
                await execute(tx, table)
        await service.once.close()


if __name__ == "__main__":
    asyncio.run(migrate(*sys.argv[1:]))
