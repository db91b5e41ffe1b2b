"""What a release consists of: the same bytes each time, extras that stand alone, licences that are listed."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.extras import FOR_USERS, closure, components
from tests.packaging.licences import PAGE, write_page, write_sbom
from tests.packaging.test_package import ADAPTERS, PROJECT
from tests.support.built_package import ROOT, build, make_environment, outside

#: Extras without an adapter of their own: what a program of theirs imports.
OTHERS = {
    "encryption": "onefold._idempotency.encryption",
    "pydantic": "onefold._worker.pydantic_payloads",
    "httpx": "onefold._client.httpx",
    "requests": "onefold._client.requests",
    "aiohttp": "onefold._client.aiohttp",
    "cli": "onefold._cli.commands",
    "storm": "onefold._cli.storm",
    "servers": "onefold.testing.servers",
}


#: It needs two extras.
_OF_TWO = "onefold._http.fastapi_sessions"


#: What arq asks for is not installed: see pyproject.toml.
ALONE = [extra for extra in FOR_USERS if extra != "arq"]
QUICK = ["asyncpg", "psycopg", "starlette", "encryption", "nats", "rabbitmq", "cron", "cli", "servers"]


def modules_of(extra: str) -> list[str]:
    found = [name for name, (_, brought_by) in ADAPTERS.items() if brought_by == extra and name != _OF_TWO]
    return found or [OTHERS[extra]]


def digests(files: list[Path]) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("target", ["wheel", pytest.param("sdist", marks=pytest.mark.soak)])
def test_what_is_built_twice_has_the_same_bytes(target: str, tmp_path: Path) -> None:
    first, second = (digests(build(tmp_path / name, target)) for name in ("first", "second"))
    assert first == second
    [name] = first
    assert name.startswith(f"onefold-{PROJECT['version']}"), "one version, from pyproject.toml"


@pytest.mark.parametrize("extras", [QUICK, pytest.param(ALONE, marks=pytest.mark.soak)], ids=["quick", "all"])
def test_an_extra_imports_where_nothing_else_is_to_be_had(extras: list[str]) -> None:
    words = [f"{extra}={','.join(modules_of(extra))}" for extra in extras]
    words.append("starlette=onefold.flask")  # the control: what it does not bring
    ran = subprocess.run(
        [sys.executable, "-m", "tests.packaging.imports_alone", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    [control] = ran.stdout.splitlines()
    assert "starlette: onefold.flask" in control
    assert "flask is not installed: pip install" in control


def test_what_the_extras_bring_is_listed_with_its_licence() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run python -m tests.packaging.licences"
    found = components()
    assert [each.name for each in found if each.licence == "not named"] == []
    assert {"starlette", "pydantic"} <= closure("fastapi")
    assert len(write_sbom()["components"]) == len(found) > 50


def test_the_version_is_in_one_place() -> None:
    """Neither the code nor a page names the version of this release."""
    version = re.escape(PROJECT["version"])
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(rf"onefold[ =-]+v?{version}\b", text), path


@pytest.mark.soak
def test_the_files_of_a_release_pass_the_checks_of_twine(tmp_path: Path) -> None:
    files = build(tmp_path / "dist")
    python = make_environment(tmp_path / "clean", next(file for file in files if file.suffix == ".whl"), more=["twine"])
    words = [str(python), "-m", "twine", "check", "--strict", *map(str, files)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, env=outside())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("PASSED") == 2


@pytest.mark.soak
@pytest.mark.parametrize("extra", FOR_USERS)
def test_every_extra_installs_and_imports_from_the_wheel_in_a_clean_environment(extra: str, tmp_path: Path) -> None:
    [wheel] = build(tmp_path / "dist", "wheel")
    python = make_environment(tmp_path / "clean", wheel, [extra])
    program = "; ".join(f"import {module}" for module in modules_of(extra))
    environment = {name: value for name, value in outside().items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [str(python), "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
