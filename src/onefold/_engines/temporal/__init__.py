"""Sagas on a Temporal server: a workflow for each, and an activity for each attempt at a step."""
