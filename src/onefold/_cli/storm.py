"""`onefold storm`: what retry policies do to a server in trouble; fails on one that does harm."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onefold._cli.options import JSON
from onefold._cli.output import echo_stderr, print_json, print_table
from onefold._cli.targets import load_target
from onefold._kernel.arguments import name_type
from onefold._kernel.readable import harmless
from onefold._policy.retry import RetryPolicy
from onefold._simulate import entrants, experiments
from onefold._simulate.drawing import draw_plots, require_matplotlib
from onefold._simulate.entrants import Entrant
from onefold._simulate.experiments import Storm
from onefold._simulate.pages import html, refresh_tables
from onefold._simulate.tables import tables
from onefold._simulate.verdicts import PolicyVerdict, judge
from onefold.errors import ConfigurationError

_GIVE = "give a RetryPolicy, or a function that returns one"


def command(
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", help="module:attribute of a RetryPolicy to judge; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same storm.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer policies, servers and seeds: for CI.")] = False,
    as_json: Annotated[bool, JSON] = False,
    plots: Annotated[Path | None, typer.Option(help="Draw plots (PNG) into this directory.")] = None,
    report: Annotated[Path | None, typer.Option("--html", help="Write a page with tables and plots.")] = None,
    page: Annotated[Path | None, typer.Option(hidden=True, help="Refresh the tables of this Markdown page.")] = None,
) -> None:
    """Run clients against servers in trouble, in virtual time. Exit code 1: a given policy is metastable, or worse than
    no retries."""
    candidates = [Entrant(name=target, policy=_policy(target)) for target in dict.fromkeys(policies or [])]
    if plots is not None or report is not None:
        require_matplotlib()
    storm = _run(candidates, seed, quick=quick)
    verdicts = [judge(entrant, storm) for entrant in candidates]
    _write(storm, verdicts, plots, report, page)
    if as_json:
        print_json(_plain(storm, verdicts))
    else:
        for table in tables(storm):
            print_table(f"\n{table.title}", table.columns, table.rows)
    for verdict in verdicts:
        _print_verdict(verdict)
    if any(not verdict.passes for verdict in verdicts):
        raise typer.Exit(1)


def _policy(target: str) -> RetryPolicy:
    value: Any = load_target(target)
    if inspect.isroutine(value):
        try:
            value = value()
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigurationError(f"calling {target!r} failed: {text}") from error
    if not isinstance(value, RetryPolicy):
        raise ConfigurationError(f"{target!r} is {name_type(value)}; {_GIVE}")
    return value


def _run(candidates: Sequence[Entrant], seed: int, *, quick: bool) -> Storm:
    effort = experiments.QUICK if quick else experiments.FULL
    compared: tuple[Entrant, ...] = entrants.QUICK if quick else entrants.STANDARD
    if quick and candidates:
        compared = tuple(entrant for entrant in compared if entrant is not entrants.FIXED)  # known, and slow
    with _progress() as show_cell:
        return experiments.run((*compared, *candidates), seed, effort, show_cell)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A progress line, on a terminal."""
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda done, total, cell: None
        return
    with console.status("") as status:
        yield lambda done, total, cell: status.update(f"{done} of {total}: {harmless(cell)}")


def _write(
    storm: Storm, verdicts: Sequence[PolicyVerdict], plots: Path | None, report: Path | None, page: Path | None
) -> None:
    try:
        pictures = draw_plots(storm) if plots is not None or report is not None else {}
        if plots is not None:
            plots.mkdir(parents=True, exist_ok=True)
            for name, content in pictures.items():
                (plots / f"{name}.png").write_bytes(content)
        if report is not None:
            report.write_text(html(storm, verdicts, pictures), encoding="utf-8")
        if page is not None:
            page.write_text(refresh_tables(page.read_text(encoding="utf-8"), storm), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}") from error


def _plain(storm: Storm, verdicts: Sequence[PolicyVerdict]) -> dict[str, object]:
    timelines = ("goodput_rps", "load_rps")
    return {
        "seed": storm.seed,
        "failures": [asdict(cell) for cell in storm.failures],
        "stalls": [
            {name: value for name, value in asdict(cell).items() if name not in timelines} for cell in storm.stalls
        ],
        "overloads": [asdict(cell) for cell in storm.overloads],
        "verdicts": [
            {**asdict(verdict), "metastable": verdict.metastable, "passes": verdict.passes} for verdict in verdicts
        ],
    }


def _print_verdict(verdict: PolicyVerdict) -> None:
    name = harmless(verdict.policy)
    if verdict.passes:
        echo_stderr(f"{name} passes: it recovers in every experiment, and is never worse than no retries")
        return
    if verdict.metastable:
        echo_stderr(f"{name} is metastable: it keeps a server down that is well again")
    else:
        echo_stderr(f"{name} is worse than no retries")
    for finding in verdict.findings:
        echo_stderr(f"  {finding}")
