"""The outbox statements, one set per dialect."""
