"""prometheus_client's multiprocess mode: the numbers of several workers are one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WORKER = """
import sys
from onefold.prometheus import prometheus_metrics
from onefold.telemetry import Claimed, LimitMoved, OutboxMeasured, Settled
tell = prometheus_metrics()
tell(Claimed("POST /a", "run"))
tell(Settled("POST /a", 201, True, 0.5))
tell(LimitMoved(10))
tell(OutboxMeasured({"orders": int(sys.argv[1])}, 1.0, 0, 0, 0, 1))
"""

PAGE = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_counters_are_summed_and_gauges_are_what_they_mean(tmp_path: Path) -> None:
    """The processes are there while they are asked for: gauges of those that are gone are not counted."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", f"{WORKER}print('ready', flush=True); sys.stdin.read()"]
    workers = [
        subprocess.Popen([*command, pending], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for pending in ("3", "5")
    ]
    try:
        assert [worker.stdout.readline() for worker in workers if worker.stdout] == ["ready\n"] * 2
        read = [sys.executable, "-c", PAGE]
        page = subprocess.run(read, env=environment, capture_output=True, text=True, check=True).stdout
    finally:
        for worker in workers:
            worker.communicate()
    assert {
        'onefold_requests_total{operation="POST /a",outcome="run"} 2.0',
        'onefold_request_duration_seconds_count{end="stored",operation="POST /a"} 2.0',
        "onefold_concurrency_limit 20.0",
        'onefold_outbox_pending{destination="orders"} 5.0',
        "onefold_relays 1.0",
    } <= set(page.splitlines())
