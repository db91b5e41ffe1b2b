"""Sagas: steps with compensations on an existing engine.

onefold has the names and keys of steps, the fingerprint of a start, and the triggers and order of compensations. The
engine has the journal, replay, recovery, timers and signals: see its port in `engine_context.py`.
"""
