"""The idempotency statements, one set per dialect."""
