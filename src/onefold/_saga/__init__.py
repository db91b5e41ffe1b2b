"""Sagas: steps with compensations on an engine that exists.

Ours are the names and keys of steps, the fingerprint of a start, the order of compensations and what may begin them.
The journal, replay, recovery, timers and signals are the engine's: see `engine_context.py` for what is asked of one.
"""
