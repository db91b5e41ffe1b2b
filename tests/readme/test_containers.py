"""The files of docs/containers.md: systemd reads the units, and the Dockerfile's command starts, answers and stops.

There is no Docker here: what its lines say is done without it. `make soak` installs as the image does, from the wheel.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from onefold._worker.consumer_runner import ConsumerRunner
from onefold._worker.consumer_worker import ACK_S_MAX
from onefold._worker.failed_message_loop import PUT_BACK_S_MAX
from onefold.testing.fault_proxy import reserve_port
from tests.support.built_package import build, make_environment, outside
from tests.support.patience import PATIENCE_S

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "containers.md").read_text(encoding="utf-8")
TUTORIAL = dict(
    re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", (DOCS / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
)
UNITS = dict(re.findall(r"^```ini\n# /etc/systemd/system/(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
[DOCKERFILE] = re.findall(r"^```text\n(FROM .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line.split(maxsplit=1) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]

#: Where the units have the program from.
PROGRAMS = "/srv/payments/.venv/bin"


def verify(folder: Path, units: dict[str, str]) -> list[str]:
    """What systemd says about them, each program being there."""
    for program in ("onefold", "uvicorn"):
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    for name, text in units.items():
        (folder / name).write_text(text.replace(PROGRAMS, str(folder)))
    ran = subprocess.run(
        ["systemd-analyze", "verify", *(str(folder / name) for name in units)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return [line for line in ran.stderr.splitlines() if str(folder) in line or any(name in line for name in units)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    assert UNITS.keys() == {"payments-relay.service", "payments-reap.service", "payments-reap.timer"}
    assert verify(tmp_path, UNITS) == []
    planted = UNITS["payments-relay.service"].replace("RestartSec", "RestartSecs").replace("onefold relay", "onefolds")
    [key, program] = verify(tmp_path, {"payments-relay.service": planted})
    assert "RestartSecs" in key
    assert "onefolds" in program


def test_the_manifests_are_whole() -> None:
    """Kubernetes itself is not asked: they are YAML, labels and named ports fit."""
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    load_all: Any = importlib.import_module("yaml").safe_load_all
    job, relay = load_all(text)
    assert (job["kind"], relay["kind"]) == ("Job", "Deployment")
    pod = relay["spec"]["template"]
    assert relay["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert ports[container["livenessProbe"]["httpGet"]["port"]] in container["command"]
    assert all(isinstance(word, str) for word in container["command"])


STOP_S = {
    "containers.md": [r"stop --time (\d+)", r"grace_period: (\d+)s", r"PeriodSeconds: (\d+)$", r"StopSec=(\d+)"],
    "deployment.md": [r"allow them (\d+) seconds"],
    "production.md": [r"Stops: (\d+) seconds"],
}


def test_all_pages_give_a_process_the_same_time_to_stop_and_it_is_enough_for_a_consumer() -> None:
    found = {
        (page, pattern): re.findall(pattern, (DOCS / page).read_text(), re.MULTILINE)
        for page, patterns in STOP_S.items()
        for pattern in patterns
    }
    assert set(map(tuple, found.values())) == {("60",)}
    grace_s = inspect.signature(ConsumerRunner).parameters["grace_s"].default
    assert grace_s + PUT_BACK_S_MAX + ACK_S_MAX < 60


def test_the_lines_of_the_dockerfile_are_those_that_are_tried_here() -> None:
    assert [word for word, _ in LINES] == [
        "FROM", "RUN", "WORKDIR", "COPY", "RUN", "COPY", "USER", "EXPOSE", "CMD",
    ]  # fmt: skip
    assert LINES[4][1] == "pip install --no-cache-dir -r requirements.txt"
    files = LINES[5][1].split()[:-1]
    assert set(files) <= TUTORIAL.keys()
    assert "onefold[fastapi,asyncpg,cli]" in PAGE


def answer_once(programs: Path, folder: Path, database: str, environment: dict[str, str]) -> None:
    """Migrate, run the image's command, ask twice with one key, and stop it as `docker stop` does."""
    for name, text in TUTORIAL.items():
        (folder / name).write_text(text)
    environment |= {"DATABASE_URL": database}
    for words in ([str(programs / "onefold"), "migrate", "-d", database], [str(programs / "python"), "schema.py"]):
        subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, timeout=PATIENCE_S)
    with reserve_port() as placeholder:
        port = str(placeholder.getsockname()[1])
    program, *words = [port if word == "8000" else word for word in json.loads(LINES[-1][1])]
    headers = {"Authorization": "Bearer sk-acme-1", "Idempotency-Key": '"order-1"'}
    with subprocess.Popen([str(programs / program), *words], cwd=folder, env=environment) as server:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
                give_up_at = time.monotonic() + PATIENCE_S
                while not listens(client):
                    assert server.poll() is None
                    assert time.monotonic() < give_up_at
                    time.sleep(0.05)
                answers = [client.post("/payments", json={"amount": 500}).json() for _ in range(2)]
            assert answers == [{"id": 1, "amount": 500}] * 2
            server.send_signal(signal.SIGTERM)
            # uvicorn ends by the signal that it was sent.
            assert server.wait(PATIENCE_S) in (0, -signal.SIGTERM)
        finally:
            server.kill()


def listens(client: httpx.Client) -> bool:
    try:
        client.get("/")
    except httpx.TransportError:
        return False
    return True


def test_the_command_of_the_image_answers_and_stops(tmp_path: Path, postgres_dsn: str) -> None:
    answer_once(Path(sys.executable).parent, tmp_path, postgres_dsn, outside() | {"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.soak
def test_the_image_installs_and_answers_from_the_wheel(tmp_path: Path, postgres_dsn: str) -> None:
    [wheel] = build(tmp_path / "dist", "wheel")
    python = make_environment(tmp_path / "venv", wheel, ["fastapi", "asyncpg", "cli"], ["uvicorn", "psycopg[binary]"])
    folder = tmp_path / "app"
    folder.mkdir()
    answer_once(python.parent, folder, postgres_dsn, outside())
