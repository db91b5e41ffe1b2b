"""Python instructions that are executed, counted: what a metric costs of a request, the same on every machine.

They are not CPU time (what C functions do is not seen), but cannot be moved by what else a machine does.
`metrics_cost.py` measures the CPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import prometheus_client

import onefold

#: Whose instructions metrics may add. `<string>`: the constructors of events, which dataclasses writes.
_MEASURING: Final = (*(str(Path(module.__file__ or "").parent) for module in (onefold, prometheus_client)), "<string>")


@contextmanager
def counted_instructions() -> Iterator[Counter[CodeType]]:
    """Of all Python code that this thread enters or resumes from now on, by code."""
    counts: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: object) -> object:
        if event == "opcode":
            counts[frame.f_code] += 1
        return count

    def enter(frame: FrameType, event: str, _: object) -> object:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    sys.settrace(enter)  # type: ignore[arg-type]
    try:
        yield counts
    finally:
        sys.settrace(None)


def added_instructions(measured: Counter[CodeType], plain: Counter[CodeType]) -> int:
    """What metrics add. How often a loop or a driver looks for bytes is left to chance: so what is added is looked for
    in onefold and prometheus_client alone."""
    return sum(measured[code] - plain[code] for code in measured | plain if code.co_filename.startswith(_MEASURING))
