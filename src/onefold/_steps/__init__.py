"""Recorded steps: work that goes on where it was interrupted."""
