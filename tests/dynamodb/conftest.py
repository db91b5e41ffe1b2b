"""A table of onefold's and one of the application's, on moto, for each test."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from onefold.dynamodb import DynamoTable
from tests.support.moto_server import PrivateMoto


@pytest.fixture
def client(moto: PrivateMoto) -> Any:
    return moto.client("dynamodb")


@pytest.fixture
def table(client: Any) -> DynamoTable:
    made = DynamoTable(f"onefold-{secrets.token_hex(6)}", client=client, source="shop", shards=2)
    made.create()
    return made


@pytest.fixture
def orders(client: Any) -> str:
    name = f"orders-{secrets.token_hex(6)}"
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    return name
