"""The package as it is installed: its version, its command, and what it says where a library is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.specifiers import SpecifierSet

import onefold
from tests.cli.commands import onefold as command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

ADAPTERS = {
    "onefold._http.fastapi_dependencies": ("fastapi", "fastapi"),
    "onefold._http.starlette_routes": ("starlette", "starlette"),
    "onefold._http.flask_views": ("flask", "flask"),
    "onefold._http.fastapi_sessions": ("sqlalchemy", "sqlalchemy"),
    "onefold.db.asyncpg": ("asyncpg", "asyncpg"),
    "onefold.db.psycopg": ("psycopg", "psycopg"),
    "onefold.db.sqlalchemy": ("sqlalchemy", "sqlalchemy"),
    "onefold.brokers.nats": ("nats", "nats"),
    "onefold.brokers.redis": ("redis", "redis"),
    "onefold.brokers.rabbitmq": ("aio_pika", "rabbitmq"),
    "onefold.brokers.kafka": ("confluent_kafka", "kafka"),
    "onefold.brokers.sqs": ("boto3 botocore", "aws"),
    "onefold.dynamodb": ("boto3 botocore", "aws"),
    "onefold.brokers.webhook": ("httpx", "webhook"),
    "onefold.console": ("starlette", "console"),
    "onefold._console.rendering": ("jinja2", "console"),
    "onefold.prometheus": ("prometheus_client", "prometheus"),
    "onefold.otel": ("opentelemetry", "otel"),
    "onefold._engines.dbos.dbos_engine": ("dbos", "dbos"),
    "onefold._worker.faststream_subscribers": ("faststream", "faststream"),
    "onefold._worker.cron": ("cronsim", "cron"),
    "onefold._worker.celery_tasks": ("celery", "celery"),
    "onefold._worker.dramatiq_actors": ("dramatiq", "dramatiq"),
    "onefold._worker.arq_jobs": ("arq", "arq"),
    "onefold._worker.taskiq_tasks": ("taskiq", "taskiq"),
    "onefold.sagas.restate": ("restate", "restate"),
    "onefold.sagas.temporal": ("temporalio", "temporal"),
}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)


def test_the_version_is_the_packages() -> None:
    assert onefold.__version__ == version("onefold") == PROJECT["version"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onefold.nothing


def test_the_package_is_a_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "onefold", "--version"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, f"onefold {onefold.__version__}\n")


@pytest.mark.parametrize(("adapter", "library", "extra"), [(name, *needs) for name, needs in ADAPTERS.items()])
def test_an_adapter_without_its_library_names_the_extra_that_brings_it(adapter: str, library: str, extra: str) -> None:
    ran = run(f"import sys; sys.modules.update(dict.fromkeys({library.split()!r})); import {adapter}")
    assert ran.returncode != 0
    last = ran.stderr.strip().splitlines()[-1]
    assert re.fullmatch(rf"ModuleNotFoundError: \w+ is not installed: pip install 'onefold\[{extra}\]'", last), last
    assert extra in PROJECT["optional-dependencies"]


def test_a_psycopg_without_libpq_is_told_by_its_real_cause() -> None:
    ran = run(
        "import sys, ctypes.util\n"
        "sys.modules['psycopg_binary'] = sys.modules['psycopg_c'] = None\n"
        "ctypes.util.find_library = lambda name: None\n"
        "from onefold import Onefold\n"
        "Onefold('postgresql://localhost/shop')\n"
    )
    last = ran.stderr.strip().splitlines()[-1]
    assert "finds no libpq" in last, ran.stderr
    assert "pip install 'psycopg[binary]'" in last


@pytest.mark.parametrize("missing", ["psycopg", "asyncpg"])
def test_commands_run_over_whichever_driver_of_postgres_is_there(postgres_dsn: str, missing: str) -> None:
    for words in (("migrate", "-d", postgres_dsn), ("reap", "-d", postgres_dsn), ("outbox", "-d", postgres_dsn)):
        ran = command(*words, without=missing)
        assert ran.returncode == 0, ran.stderr


def missing_of_wheel(packed: set[str]) -> set[str]:
    """Files of the package that are no modules, and that a wheel must have."""
    package = Path(__file__).parents[2] / "src"
    kept = {".html", ".css", ".js", ".json", ".yml", ".typed"}
    return {path.relative_to(package).as_posix() for path in package.rglob("*") if path.suffix in kept} - packed


def test_the_wheel_has_the_consoles_templates_and_every_other_file() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(Path(__file__).parents[2])).recurse_included_files()}
    assert missing_of_wheel(packed) == set()
    assert "onefold/_console/templates/layout.html" in packed
    css = "onefold/_console/static/console.css"
    assert missing_of_wheel(packed - {css}) == {css}, "the control"


def imported_by(*words: str) -> set[str]:
    """The modules that a command has imported by its end."""
    ran = run(
        f"import sys; sys.argv[1:] = {words!r}\n"
        "from onefold._cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)\n"
    )
    return set(ran.stderr.split())


def test_a_command_imports_no_adapter_and_no_other_command() -> None:
    """What it does not import does not delay its start."""
    every = imported_by("--help")
    assert {"onefold._cli.storm", "onefold._cli.relay", "onefold._simulate"} <= every, "the control: they can be seen"
    libraries = {library for library, _ in ADAPTERS.values()} | {"aiohttp", "matplotlib", "requests"}
    assert not every & libraries
    one = imported_by("outbox", "--help")
    assert {name for name in one if name.startswith(("onefold._cli.", "onefold._simulate"))} == {
        "onefold._cli.commands",
        "onefold._cli.manual",
        "onefold._cli.session",
        "onefold._cli.times",
        "onefold._cli.options",
        "onefold._cli.outbox",
        "onefold._cli.output",
    }


def find_too_new(pins: str, oldest: str) -> list[str]:
    """What does not install on the oldest Python that we support; of pins that are installed here."""
    found = []
    for name in re.findall(r"^([\w.-]+)==", pins, re.MULTILINE):
        with suppress(PackageNotFoundError):
            asks = metadata(name)["Requires-Python"]
            if asks and not SpecifierSet(asks).contains(oldest):
                found.append(f"{name} {asks}")
    return found


def test_every_pin_installs_on_the_oldest_python() -> None:
    """Debian 12 has 3.11.2: a pin that asks for 3.11.5 ended `make` on a bare checkout."""
    pins = (ROOT / "constraints.txt").read_text()
    assert find_too_new(pins, "3.11.0") == []
    assert len(find_too_new(pins, "3.8.0")) > 20
