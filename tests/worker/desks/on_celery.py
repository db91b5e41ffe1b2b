"""A desk on Celery."""

from __future__ import annotations

import sys
from typing import Any

from celery import Celery

from onefold import Onefold, Transaction
from onefold._worker.celery_tasks import handled_once
from tests.worker.desks.orders import DATABASE, URL, get_into_trouble, insert

app = Celery("desk", broker=URL)
app.conf.update(
    broker_transport_options={"visibility_timeout": 1},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)
once = Onefold(DATABASE)


@handled_once(once, "desk", app.task, retry_backoff=False, default_retry_delay=0)
def ship(order: str, tx: Transaction[Any]) -> None:
    tx.connection.execute(insert(order))
    get_into_trouble(order, tx)


if __name__ == "__main__":
    for order in sys.argv[1:]:
        app.send_task("tests.worker.desks.on_celery.ship", (order,), task_id=f"m-{order}")
