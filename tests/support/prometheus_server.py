"""A private Prometheus, from Debian's package: `python -m tests.support.prometheus_server` has apt install it, without
starting its service. For tests only."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onefold.testing.fault_proxy import HOST
from onefold.testing.servers import PrivateServer, ServerUnavailable
from onefold.testing.servers._process import Launch, get, hand_over, unprivileged_account
from tests.support.debian_packages import install_package
from tests.support.patience import PATIENCE_S


class PrivatePrometheus(PrivateServer):
    """A Prometheus that scrapes the addresses of these jobs, and evaluates these rules, twice a second."""

    def __init__(self, rules: str = "", jobs: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__()
        self._rules = rules
        self._jobs = jobs or {}

    def _furnish(self) -> None:
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        (data / "rules.yml").write_text(self._rules)
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(data / "rules.yml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(targets)}]} for job, targets in self._jobs.items()
            ],
        }
        (data / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        hand_over(data)

    def _launch(self) -> Launch:
        data = self.directory / "data"
        command = [str(program("prometheus")), f"--config.file={data / 'prometheus.yml'}", "--log.level=warn"]
        command += [f"--storage.tsdb.path={data / 'tsdb'}", f"--web.listen-address={HOST}:{self.port}"]
        return Launch(command=command, environment={"HOME": str(data)}, account=unprivileged_account())

    def _answer(self) -> str | None:
        return None if get(self.port, "/-/ready") else "it is not ready"

    def ask(self, path: str, **query: str) -> Any:
        """The data that its API answers with."""
        address = f"http://{HOST}:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]


def program(name: str) -> Path:
    """Prometheus itself, or promtool."""
    found = shutil.which(name)
    if found is None:
        raise ServerUnavailable(f"no {name}: the way out, on Debian and as root, is `make prometheus`")
    return Path(found)


if __name__ == "__main__":
    install_package("prometheus")
