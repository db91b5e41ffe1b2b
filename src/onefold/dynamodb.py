"""DynamoDB (`onefold[aws]`): a key, your items and your events in one TransactWriteItems. See docs/aws.md."""

from onefold._dynamodb.cancellations import ItemRefused
from onefold._dynamodb.dynamo_relay import DynamoRelay, WaitingEvent
from onefold._dynamodb.dynamo_table import DynamoEvent, DynamoTable, OnceResult

__all__ = ["DynamoEvent", "DynamoRelay", "DynamoTable", "ItemRefused", "OnceResult", "WaitingEvent"]
