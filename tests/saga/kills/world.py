"""The outside of a saga: what was executed, and what stands. A SQLite file that survives every process of a test.

`executions` has a row for each time that a step's function ran; `effects` one for each effect that stands, by its key,
as a server that knows idempotency keys would have it. Without keys it has one for each execution: the control.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Moment = Literal["before", "mid", "end", "stop"]

STEPS = ("reserve", "charge", "ship")
UNDOS = {"reserve": "release", "charge": "refund", "ship": "unship"}


@dataclass(frozen=True)
class Outside:
    """The file, and where the process is to die."""

    path: Path
    kill_at: str = ""
    keyed: bool = True
    victims: tuple[int, ...] = ()
    """Who dies: the processes with these ids, of which 0 is the own one; none: it alone."""

    def create(self) -> None:
        with closing(self._open()) as db:
            db.execute("CREATE TABLE executions (action TEXT, key TEXT)")
            db.execute("CREATE TABLE effects (key TEXT PRIMARY KEY, action TEXT)")
            db.execute("CREATE TABLE deaths (at TEXT PRIMARY KEY)")
            db.commit()

    def act(self, action: str, key: str) -> None:
        """Have an effect, unless it stands already. The process may die before it, or before it is told."""
        self.die(action, "before")
        with closing(self._open()) as db:
            db.execute("INSERT INTO executions VALUES (?, ?)", (action, key))
            (count,) = db.execute("SELECT count(*) FROM executions").fetchone()
            name = key if self.keyed else f"{key} {count}"
            db.execute("INSERT OR IGNORE INTO effects VALUES (?, ?)", (name, action))
            db.commit()
        self.die(action, "mid")
        self.die(action, "stop")

    def die(self, action: str, moment: Moment) -> None:
        """Die, the first time that it comes here."""
        at = f"{action}:{moment}"
        if at != self.kill_at:
            return
        with closing(self._open()) as db:
            first = db.execute("INSERT OR IGNORE INTO deaths VALUES (?)", (at,)).rowcount
            db.commit()
        for victim in self.victims or (0,):
            if first:
                os.kill(victim or os.getpid(), signal.SIGSTOP if moment == "stop" else signal.SIGKILL)

    def effects(self) -> Counter[str]:
        with closing(self._open()) as db:
            return Counter(action for (action,) in db.execute("SELECT action FROM effects"))

    def executions(self) -> Counter[str]:
        with closing(self._open()) as db:
            return Counter(action for (action,) in db.execute("SELECT action FROM executions"))

    def died(self) -> bool:
        with closing(self._open()) as db:
            return bool(db.execute("SELECT 1 FROM deaths").fetchone())

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=60)
        db.execute("PRAGMA synchronous=FULL")
        return db


def problems(outside: Outside, *, completes: bool) -> list[str]:
    """What is wrong with the effects that stand: each net 0 or 1, and no half of a saga."""
    effects = outside.effects()
    found = [f"{action} stands {count} times" for action, count in effects.items() if count > 1]
    for step in STEPS:
        net = effects[step] - effects[UNDOS[step]]
        # A compensation may run for a step that never applied, which it tolerates: it then undoes nothing.
        if completes and net != 1:
            found.append(f"{step}: net {net} of a saga that completed")
        if not completes and effects[step] and not effects[UNDOS[step]]:
            found.append(f"{step} stands in a saga that was compensated")
    return found
