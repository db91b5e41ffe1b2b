"""Engines of sagas: adapters that give `_saga` its journal, timers and signals."""
