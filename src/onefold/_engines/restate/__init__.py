"""Sagas on a Restate server: one service, whose workflows are sagas and whose keys are their ids."""
