"""APIs that onefold protects pass: the shop of the demo, the shop behind Flask, and one of FastAPI with strict keys."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from examples.shop.settings import API_KEY
from tests.cli.commands import onefold
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S
from tests.verify.flask_shop import OTHER_API_KEY

ROOT = Path(__file__).parents[2]

UVICORN = ("-m", "uvicorn", "--log-level", "warning", "--port")
FLASK = ("-m", "flask", "--app", "tests.verify.flask_shop", "run", "--port")

#: Without other options these checks have nothing to test, or the shop does not do what they look for.
NOT_ASKED = {"replay-mark", "expiry", "redelivery"}
ONE_PRINCIPAL = {"other-principal", "other-route", "cookies"}


@contextmanager
def serving(database: Path, *command: str) -> Iterator[str]:
    """The address of a server that is started by this command, with a free port at its end."""
    environment = {**os.environ, "ORDERS_DATABASE": str(database), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    migrated = fork_server().run(
        "-m", "examples.shop.migrate", "examples.shop.orders", cwd=ROOT, environment=environment, within_s=PATIENCE_S
    )
    assert migrated.returncode == 0, migrated.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = database.with_suffix(".log")
    with Path(os.devnull).open() as nothing, log.open("wb") as file:
        server = fork_server().start(
            *command, str(port), cwd=ROOT, environment=environment, streams=(nothing, file, file)
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, log, lambda: server.poll() is None)
        yield url
    finally:
        server.kill()
        server.wait(PATIENCE_S)


def _wait_for(url: str, log: Path, lives: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at and lives():
        try:
            httpx.get(url, timeout=1)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize(
    ("command", "skipped", "counted"),
    [
        pytest.param(
            (*UVICORN[:2], "examples.shop.orders:app", *UVICORN[2:]), NOT_ASKED | ONE_PRINCIPAL, True, id="shop"
        ),
        pytest.param((*UVICORN[:2], "tests.verify.fastapi_shop:app", *UVICORN[2:]), NOT_ASKED, False, id="fastapi"),
        pytest.param(FLASK, NOT_ASKED, True, id="flask"),
    ],
)
def test_a_shop_that_onefold_protects_passes(
    command: tuple[str, ...], skipped: set[str], counted: bool, tmp_path: Path
) -> None:
    database = tmp_path / "shop.db"
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=60);"
        " print(c.execute('SELECT count(*) FROM orders WHERE card = ?', sys.argv[2:]).fetchone()[0])"
    )
    count = shlex.join([sys.executable, "-I", "-S", "-c", program, str(database), "{{run}}"])
    with serving(database, *command) as url:
        others = ("--other-header", f"Authorization: Bearer {OTHER_API_KEY}", "--other-url", f"{url}/gifts")
        answer = onefold(
            *(
                "verify",
                f"{url}/orders",
                "--body",
                '{"cart": "{{unique}}", "card": "{{run}}", "amount": {{n}}}',
                "--duplicates",
                "4",
            ),
            *(("--count", count) if counted else ()),
            *("--header", f"Authorization: Bearer {API_KEY}", "--header", "Correlation-Id: of-the-probe"),
            *(others if skipped == NOT_ASKED else ()),
        )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert set(re.findall(r"^skipped  ([\w-]+)", answer.stdout, re.MULTILINE)) - {"retry-after"} == skipped
