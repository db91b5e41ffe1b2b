"""DynamoDB: an idempotency key, the application's items and its events in one TransactWriteItems; and their relay."""
