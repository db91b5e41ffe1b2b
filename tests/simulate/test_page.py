"""docs/storms.md shows what the command prints, and its pictures are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold._simulate import experiments
from onefold._simulate.entrants import DEFAULT, FIXED, NO_RETRIES, STANDARD, Entrant
from onefold._simulate.experiments import FAILURES, FIFO, FULL, PROCESSES, RATES_RPS, SERVERS, Effort
from onefold._simulate.pages import refresh_tables
from onefold._simulate.tables import recovery
from onefold.errors import ConfigurationError

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "storms.md").read_text()
SEED = 1


def row(page: str, key: str, policy: str) -> list[str]:
    """The cells of a policy in a table of the page."""
    _, _, rest = page.partition(f"<!-- storm: {key} -->\n")
    table, _, _ = rest.partition("\n<!-- storm end -->")
    [line] = [line for line in table.splitlines() if line.startswith(f"| {policy} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_page_names_the_seed_it_was_made_with() -> None:
    assert f"$ onefold storm --seed {SEED} --plots docs/storms" in PAGE


@pytest.mark.parametrize(("failure", "rps"), [(1 / 3, 0.4), (0.5, 4.0)])
def test_the_page_says_what_failures_come_to(failure: float, rps: float) -> None:
    cell = experiments.failures(DEFAULT, failure, rps, SEED, FULL)
    shown = row(PAGE, f"failures {rps:g}", DEFAULT.name)[FAILURES.index(failure)]
    assert shown == f"{cell.success:.3f} / {cell.load:.2f}"


@pytest.mark.parametrize("processes", [20, 100])
def test_the_page_says_how_long_the_default_takes_after_a_stall(processes: int) -> None:
    cell = experiments.stall(DEFAULT, FIFO, processes, SEED, FULL)
    shown = row(PAGE, "stall", DEFAULT.name)
    assert shown[PROCESSES.index(processes)] == recovery(cell)
    if processes == experiments.USUAL_PROCESSES:
        assert shown[-2:] == [f"{cell.amplification:.2f}", f"{cell.wasted:.0%}"]


@pytest.mark.parametrize("policy", [NO_RETRIES, DEFAULT], ids=lambda policy: policy.name)
def test_the_page_says_what_an_overload_leaves(policy: Entrant) -> None:
    cell = experiments.overload(policy, FIFO, SEED)
    assert row(PAGE, "overload", policy.name)[0] == f"{cell.during_rps:.0f} / {cell.after_rps:.0f}"


def test_the_page_has_a_cell_for_everything() -> None:
    for policy in STANDARD:
        for rps in RATES_RPS:
            assert len(row(PAGE, f"failures {rps:g}", policy.name)) == len(FAILURES)
        assert len(row(PAGE, "stall", policy.name)) == len(PROCESSES) + 2
        assert len(row(PAGE, "other stalls", policy.name)) == 2 * len(PROCESSES)
        assert len(row(PAGE, "servers", policy.name)) == len(row(PAGE, "overload", policy.name)) == len(SERVERS)
    assert row(PAGE, "stall", FIXED.name)[:4] == ["never"] * 4


@pytest.mark.soak
def test_every_number_of_the_page_is_what_the_command_prints() -> None:
    assert refresh_tables(PAGE, experiments.run(STANDARD, SEED, FULL)) == PAGE


def test_refreshing_puts_tables_between_their_marks_and_nothing_else() -> None:
    storm = experiments.run((NO_RETRIES,), SEED, Effort(failing_calls=100, seeds=1, after_stall_s=10, servers=(FIFO,)))
    page = refresh_tables(PAGE, storm)
    assert row(page, "stall", NO_RETRIES.name) != row(PAGE, "stall", NO_RETRIES.name)
    assert f"| {FIXED.name} | `attempts_max=4" in page
    assert refresh_tables(page, storm) == page
    with pytest.raises(ConfigurationError, match="has 0 blocks '<!-- storm: stall -->'"):
        refresh_tables(PAGE.replace("storm: stall", "storm: calm"), storm)


@pytest.mark.parametrize("picture", ["failures", "stall", "overload"])
def test_its_pictures_are_there_and_small(picture: str) -> None:
    content = (DOCS / "storms" / f"{picture}.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert 3_000 < len(content) < 60_000
