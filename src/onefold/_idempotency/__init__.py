"""Idempotent requests: claim, run once, settle, replay."""
