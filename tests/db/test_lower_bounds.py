"""The lowest versions of the drivers that pyproject.toml allows, and some in between, keep the promises of the port."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from onefold.testing.conformance import SCENARIOS
from tests.db.scenarios import LEFT_OUT
from tests.support.patience import PATIENCE_S
from tests.support.versions import install

ROOT = Path(__file__).parents[2]

#: The handle, its transactions and savepoints, and values.
SMOKE = (
    "a_handle_that_is_kept_is_refused_once_its_transaction_is_over",
    "a_nested_transaction_of_the_handle_is_a_savepoint",
    "a_released_connection_leaves_nothing_open",
    "values_come_back_as_they_went",
)

#: Each is a set of packages, the lowest first; psycopg has wheels for Python 3.11 from 3.1.4 on.
ASYNCPG = ("asyncpg==0.29.0",)
PSYCOPG = ("psycopg==3.1.4", "psycopg-binary==3.1.4", "psycopg-pool==3.1.9")
SQLALCHEMY = ("sqlalchemy==2.0.0",)
LATER = {
    "asyncpg": (("asyncpg==0.30.0",), ("asyncpg==0.31.0",)),
    "psycopg": (
        ("psycopg==3.1.20", "psycopg-binary==3.1.20", "psycopg-pool==3.2.6"),
        ("psycopg==3.2.13", "psycopg-binary==3.2.13", "psycopg-pool==3.2.6"),
    ),
    "sqlalchemy": (("sqlalchemy==2.0.20",), ("sqlalchemy==2.0.40",)),
}

#: Until 2.0.37 SQLAlchemy begins each transaction of asyncpg at READ COMMITTED, whatever the server's default is.
LEVELS = "a_transaction_has_the_level_it_was_begun_at"


def installed(packages: tuple[str, ...]) -> Path:
    """Where they are: once for all runs of this user."""
    place = Path(tempfile.gettempdir()) / f"onefold-lower-bounds-{os.getuid()}"
    folder = place / "+".join(packages)
    if folder.exists():
        return folder
    place.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as unfinished:
        install(packages, Path(unfinished, "new"))
        try:
            Path(unfinished, "new").rename(folder)
        except OSError:  # another worker was first
            assert folder.exists()
    return folder


def keeps_promises(packages: tuple[str, ...], driver: str, dsn: str, *names: str) -> None:
    path = os.pathsep.join([str(installed(packages)), str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", "tests.db.scenarios", driver, dsn, *names],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ended.returncode == 0, ended.stderr
    assert packages[0] in ended.stdout, f"another version was used: {ended.stdout}"


@pytest.mark.parametrize(
    ("packages", "driver"),
    [(ASYNCPG, "asyncpg"), (PSYCOPG, "psycopg,psycopg-async"), (SQLALCHEMY, "sqlalchemy-psycopg,sqlalchemy-asyncpg")],
    ids=["asyncpg", "psycopg", "sqlalchemy"],
)
def test_the_lowest_version_works(packages: tuple[str, ...], driver: str, postgres_dsn: str) -> None:
    keeps_promises(packages, driver, postgres_dsn, *SMOKE)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("packages", "driver"),
    [
        *((packages, "asyncpg") for packages in (ASYNCPG, *LATER["asyncpg"])),
        *((packages, driver) for packages in (PSYCOPG, *LATER["psycopg"]) for driver in ("psycopg", "psycopg-async")),
        *(
            (packages, f"sqlalchemy-{driver}")
            for packages in (SQLALCHEMY, *LATER["sqlalchemy"])
            for driver in ("psycopg", "psycopg-async", "asyncpg")
        ),
    ],
)
def test_every_promise_is_kept(packages: tuple[str, ...], driver: str, postgres_dsn: str) -> None:
    names = {str(scenario) for scenario in SCENARIOS} | {"cancellation"}
    begins_by_itself = driver == "sqlalchemy-asyncpg" and packages[0] in ("sqlalchemy==2.0.0", "sqlalchemy==2.0.20")
    keeps_promises(packages, driver, postgres_dsn, *names - {*LEFT_OUT, LEVELS if begins_by_itself else ""})


def test_pyproject_allows_these_and_sets_no_upper_bound() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["asyncpg"] == ["asyncpg>=0.29"]
    assert extras["psycopg"] == ["psycopg[pool]>=3.1.4", "psycopg-pool>=3.1.9"]
    assert extras["sqlalchemy"] == ["sqlalchemy[asyncio]>=2.0"]
