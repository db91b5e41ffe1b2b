"""Recorded steps: work that continues where it was interrupted."""
