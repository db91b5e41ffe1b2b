"""Sagas on a Restate server: `pip install 'onefold[restate]'`. The server itself is licensed under BSL 1.1."""

from onefold._engines.restate.restate_engine import Restate

__all__ = ["Restate"]
