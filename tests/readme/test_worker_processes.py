"""The commands for worker processes in docs/containers.md: duplicates that reach both workers are one payment."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from onefold.testing.fault_proxy import reserve_port
from tests.readme.test_containers import PAGE, TUTORIAL
from tests.support.built_package import outside
from tests.support.patience import PATIENCE_S

COMMANDS = {line.split()[0]: line for line in re.findall(r"^\$ ((?:uvicorn|gunicorn) .*)$", PAGE, re.MULTILINE)}

#: Around the page's application, and so around onefold: a replay has the number of the worker that replays it.
NUMBERED = """\
import os

from payments import app as inner


async def app(scope, receive, send):
    async def send_numbered(message):
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-worker", str(os.getpid()).encode())]
        await send(message)

    await inner(scope, receive, send_numbered)
"""

KEYS = [f"order-{number}" for number in range(6)]
AT_ONCE = 8


@contextmanager
def serving(command: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address that the page's command serves, with its two workers."""
    with reserve_port() as placeholder:
        address = f"127.0.0.1:{placeholder.getsockname()[1]}"
    program, *words = shlex.split(command.replace("payments:app", "numbered:app"))
    assert words[words.index("--workers") + 1] == "2"
    words += ["--bind", address] if program == "gunicorn" else ["--port", address.rpartition(":")[2]]
    # A group of its own: workers of a server that fails to stop are ended with it.
    with subprocess.Popen(
        [sys.executable, "-m", program, *words], cwd=folder, env=environment, start_new_session=True
    ) as server:
        try:
            wait_until_it_listens(server, address)
            yield address
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE_S) in (0, -signal.SIGTERM)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)


def wait_until_it_listens(server: subprocess.Popen[bytes], address: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            httpx.get(f"http://{address}/")
        except httpx.TransportError:
            assert server.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        else:
            return


def send_to_both(address: str, key: str) -> set[str]:
    """Duplicates, some at once, until both workers have answered; the bodies of the answers."""
    headers = {"Authorization": "Bearer sk-acme-1", "Idempotency-Key": f'"{key}"'}

    def ask(_: int) -> httpx.Response:
        # A connection each: workers take connections, not requests.
        return httpx.post(f"http://{address}/payments", headers=headers, json={"amount": 500}, timeout=PATIENCE_S)

    workers: set[str] = set()
    bodies: set[str] = set()
    give_up_at = time.monotonic() + PATIENCE_S
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while len(workers) < 2:
            assert time.monotonic() < give_up_at, f"only {workers} answered"
            for answer in pool.map(ask, range(AT_ONCE)):
                assert answer.status_code in (201, 409), answer.text
                if answer.status_code == 201:
                    workers.add(answer.headers["x-worker"])
                    bodies.add(answer.text)
    return bodies


@pytest.mark.parametrize("server", ["uvicorn", "gunicorn"])
def test_duplicates_that_reach_both_workers_are_one_payment(server: str, tmp_path: Path, postgres_dsn: str) -> None:
    for name, text in (TUTORIAL | {"numbered.py": NUMBERED}).items():
        (tmp_path / name).write_text(text)
    environment = outside() | {"PYTHONPATH": ":".join(sys.path), "DATABASE_URL": postgres_dsn}
    for words in (["-m", "onefold", "migrate", "-d", postgres_dsn], ["schema.py"]):
        subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
    with serving(COMMANDS[server], tmp_path, environment) as address:
        answers = {key: send_to_both(address, key) for key in KEYS}
    assert all(len(bodies) == 1 for bodies in answers.values()), answers
    with psycopg.connect(postgres_dsn) as database:
        assert database.execute("SELECT count(*) FROM payments").fetchone() == (len(KEYS),)
        assert database.execute("SELECT count(*) FROM onefold_outbox").fetchone() == (len(KEYS),)
