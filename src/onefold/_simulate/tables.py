"""What was found out, as tables of text: the terminal, the HTML page and the documentation show the same cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onefold._simulate.experiments import (
    FAILURES,
    FIFO,
    LOOK_S,
    PROCESSES,
    USUAL_PROCESSES,
    USUAL_STALL_S,
    ServerStall,
    Storm,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A title, a row of names, and rows of text. The key is what a page refers to it by."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(storm: Storm) -> list[Table]:
    """All tables, in the order of the experiments."""
    failures = [_failures(storm, rps) for rps in storm.effort.rates_rps]
    others = [_other_stalls(storm)] if set(storm.effort.stalls_s) > {USUAL_STALL_S} else []
    return [*failures, _stall(storm), *others, _servers(storm), _overload(storm)]


def _failures(storm: Storm, rps: float) -> Table:
    cells = {
        (cell.policy, cell.failure): f"{cell.success:.3f} / {cell.load:.2f}"
        for cell in storm.failures
        if cell.rps == rps
    }
    return Table(
        key=f"failures {rps:g}",
        title=f"Failures by chance, {rps:g} calls/s per process: share of calls that succeed / attempts per call",
        columns=("policy", *(f"{failure:.0%} fail" for failure in FAILURES)),
        rows=tuple((name, *(cells[name, failure] for failure in FAILURES)) for name in names(storm)),
    )


def _stall(storm: Storm) -> Table:
    return Table(
        key="stall",
        title=f"A stall of {USUAL_STALL_S} s, FIFO server: seconds until well again "
        f"(never: not within {horizon_s(storm)} s)",
        columns=(
            "policy",
            *map(_processes, PROCESSES),
            f"attempts per call in the stall ({USUAL_PROCESSES})",
            f"wasted work ({USUAL_PROCESSES})",
        ),
        rows=tuple(_stall_rows(storm)),
    )


def _other_stalls(storm: Storm) -> Table:
    cells = {
        (cell.policy, cell.stall_s, cell.processes): recovery(cell) for cell in storm.stalls if cell.server == FIFO.name
    }
    others = [(stall_s, count) for stall_s in storm.effort.stalls_s if stall_s != USUAL_STALL_S for count in PROCESSES]
    return Table(
        key="other stalls",
        title="Shorter and longer stalls, FIFO server: seconds until well again",
        columns=("policy", *(f"{stall_s} s, {_processes(count)}" for stall_s, count in others)),
        rows=tuple((name, *(cells[name, *which] for which in others)) for name in names(storm)),
    )


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _stall_rows(storm: Storm) -> Iterator[tuple[str, ...]]:
    cells = {
        (cell.policy, cell.processes): cell
        for cell in storm.stalls
        if cell.server == FIFO.name and cell.stall_s == USUAL_STALL_S
    }
    for name in names(storm):
        usual = cells[name, USUAL_PROCESSES]
        recoveries = (recovery(cells[name, count]) for count in PROCESSES)
        yield (name, *recoveries, f"{usual.amplification:.2f}", f"{usual.wasted:.0%}")


def _servers(storm: Storm) -> Table:
    cells = {
        (cell.policy, cell.server): recovery(cell)
        for cell in storm.stalls
        if cell.processes == USUAL_PROCESSES and cell.stall_s == USUAL_STALL_S
    }
    servers = [server.name for server in storm.effort.servers]
    return Table(
        key="servers",
        title=f"The same stall on other servers, {USUAL_PROCESSES} processes: seconds until well again",
        columns=("policy", *servers),
        rows=tuple((name, *(cells[name, server] for server in servers)) for name in names(storm)),
    )


def _overload(storm: Storm) -> Table:
    cells = {(cell.policy, cell.server): f"{cell.during_rps:.0f} / {cell.after_rps:.0f}" for cell in storm.overloads}
    servers = [server.name for server in storm.effort.servers]
    return Table(
        key="overload",
        title="150 calls/s on a server of 100/s for 60 s: goodput per second during it / after it (80 offered)",
        columns=("policy", *servers),
        rows=tuple((name, *(cells[name, server] for server in servers)) for name in names(storm)),
    )


def names(storm: Storm) -> Sequence[str]:
    """The policies, in the order they were run."""
    return list(dict.fromkeys(cell.policy for cell in storm.failures))


def recovery(cell: ServerStall) -> str:
    """Seconds, as a table says them."""
    return "never" if cell.recovery_s is None else str(cell.recovery_s)


def horizon_s(storm: Storm) -> int:
    """How long recovery is looked for: a policy that takes longer counts as never recovered."""
    return storm.effort.after_stall_s - LOOK_S
