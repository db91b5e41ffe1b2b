"""Loops: what runs beside requests, and how it is woken, supervised and stopped."""
