"""The activity history: counts per minute and per hour of what happened, in the application's own database.

A replay is a read and leaves no row: what was absorbed yesterday is known only where it was counted. `counts.py` counts
in memory, `writing.py` writes the counts every few seconds, `history.py` reads them.
"""
