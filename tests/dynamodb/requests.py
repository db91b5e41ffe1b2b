"""The request that the tests make: an order, with an event, under a key. And its process, to be killed."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import boto3

from onefold.dynamodb import DynamoEvent, DynamoTable, OnceResult

ASKED = {"order": "ord-42", "total": 5000}


def place(table: DynamoTable, orders: str, *, key: str = "k1", asked: Any = ASKED, id: str = "ord-42") -> OnceResult:  # noqa: A002
    return table.once(
        key,
        asked,
        principal="acme",
        operation="place order",
        items=[{"Put": {"TableName": orders, "Item": {"id": id, "total": 5000}}}],
        events=[DynamoEvent("order.placed", {"order": id}, key=id, headers={"x-shop": "1"})],
        answer={"order": id},
    )


def count(client: Any, table: str) -> int:
    return int(client.scan(TableName=table, ConsistentRead=True)["Count"])


def main(url: str, table: str, orders: str) -> None:
    """Killed when DynamoDB has answered, and before the caller knows."""
    client = boto3.client(
        "dynamodb", endpoint_url=url, region_name="eu-central-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.meta.events.register(
        "after-call.dynamodb.TransactWriteItems", lambda **_: os.kill(os.getpid(), signal.SIGKILL)
    )
    place(DynamoTable(table, client=client, source="shop"), orders)


if __name__ == "__main__":
    main(*sys.argv[1:])
