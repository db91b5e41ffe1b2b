"""Writes that are single by nature: a row under its business key, a change of state, an entry that moves a balance, and
a lock where there is no row to lock yet."""
