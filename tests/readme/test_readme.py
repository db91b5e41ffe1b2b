"""The README is true: its programs run, its console session happens as printed, its tables match the code."""

from __future__ import annotations

import dataclasses
import re
import shlex
import socket
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from onefold._http.route_policy import Policy
from onefold._http.stored_response import HEADERS_KEPT, NOT_STORED
from tests.support.fork_server import Child, fork_server
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(language: str, containing: str) -> str:
    """The fenced block of a language that contains some text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    [found] = [text for text in blocks if containing in text]
    return str(found)


@pytest.fixture
def payments_url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "payments.py").write_text(block("python", "# payments.py"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["-m", "uvicorn", "payments:app", "--port", str(port), "--log-level", "warning"]
    server = fork_server().start_with_pipes(*command, cwd=tmp_path)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, server)
        yield url
    finally:
        server.terminate()
        server.close()


def _wait_for(url: str, server: Child) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at and server.poll() is None:
        try:
            httpx.get(url, timeout=1)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"the README's program did not start (exit code {server.poll()})")


def test_the_console_session_happens_as_printed(payments_url: str) -> None:
    session = block("console", "order-42")
    exchanges = re.findall(r"^\$ (curl .*?)\n(.*?)(?=^\$ |\Z)", session, re.DOTALL | re.MULTILINE)
    assert len(exchanges) == 2
    for command, printed in exchanges:
        answer = _curl(command, payments_url)
        head, body = printed.strip().split("\n\n")
        status_line, *headers = head.splitlines()
        assert f"{answer.http_version} {answer.status_code} {answer.reason_phrase}" == status_line
        for header in headers:
            name, value = header.split(": ")
            assert answer.headers[name] == value
        assert answer.text == body
        assert ("idempotent-replayed" in answer.headers) == ("idempotent-replayed" in head)


def test_the_customer_pays_once_however_often_he_is_started(payments_url: str, tmp_path: Path) -> None:
    program = block("python", "# customer.py").replace("http://localhost:8000", payments_url)
    (tmp_path / "customer.py").write_text(program)
    for _ in range(2):
        ran = fork_server().run("customer.py", cwd=tmp_path, within_s=PATIENCE_S)
        assert (ran.stdout, ran.returncode) == ("201 {'id': 1, 'amount': 500}\n", 0), ran.stderr


def _curl(command: str, url: str) -> httpx.Response:
    words = shlex.split(command)
    address = next(word for word in words if word.startswith("localhost:8000"))
    headers = dict(words[i + 1].split(": ", 1) for i, word in enumerate(words) if word == "-H")
    body = words[words.index("--json") + 1]
    headers["content-type"] = "application/json"
    return httpx.post(address.replace("localhost:8000", url), content=body, headers=headers)


def test_the_flask_program_happens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shop = ModuleType("shop")
    exec(compile(block("python", "# shop.py"), "shop.py", "exec"), vars(shop))
    client, stranger = shop.app.test_client(), shop.app.test_client()
    headers = {"Idempotency-Key": '"o-1"'}
    assert client.post("/login/acme", data={"password": "wrong"}).status_code == 401
    assert client.post("/login/acme", data={"password": "password of acme"}).text == "welcome"
    first = client.post("/orders", json={"item": "tea"}, headers=headers)
    again = client.post("/orders", json={"item": "tea"}, headers=headers)
    assert (first.status_code, first.data) == (again.status_code, again.data) == (201, first.data)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert stranger.post("/orders", json={"item": "tea"}, headers=headers).status_code == 401
    shop.once.close()
    restarted = ModuleType("shop")
    exec(compile(block("python", "# shop.py"), "shop.py", "exec"), vars(restarted))
    client = restarted.app.test_client()
    assert client.post("/login/acme", data={"password": "password of acme"}).text == "welcome"
    assert client.post("/orders", json={"item": "tea"}, headers=headers).data == first.data
    assert client.post("/orders", json={"item": "tea"}, headers={"Idempotency-Key": '"o-2"'}).status_code == 201
    restarted.once.close()


def test_the_events_program_ships_its_order(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(block("python", "# orders.py"))
    for _ in range(2):  # a second run finds the file of the first
        ran = fork_server().run("orders.py", cwd=tmp_path, within_s=PATIENCE_S)
        assert (ran.stdout, ran.returncode) == ("shipping ord-42\n", 0), ran.stderr


def test_a_command_that_names_the_events_program_does_not_run_it(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(block("python", "# orders.py"))
    ran = fork_server().run("-m", "onefold", "asyncapi", "orders:once", cwd=tmp_path, within_s=PATIENCE_S)
    assert (ran.returncode, "fulfilment" in ran.stdout, "shipping ord-42" in ran.stdout) == (0, True, False), ran.stderr


def test_the_command_that_starts_the_flask_program_finds_its_routes(tmp_path: Path) -> None:
    [command] = re.findall(r"`(flask --app shop) run`", README)
    (tmp_path / "shop.py").write_text(block("python", "# shop.py"))
    ran = fork_server().run("-m", *command.split(), "routes", cwd=tmp_path, within_s=PATIENCE_S)
    assert (ran.returncode, "/orders" in ran.stdout) == (0, True), ran.stderr


def test_the_payments_api_survives_a_second_start(tmp_path: Path) -> None:
    (tmp_path / "payments.py").write_text(block("python", "# payments.py"))
    for _ in range(2):
        ran = fork_server().run("payments.py", cwd=tmp_path, within_s=PATIENCE_S)
        assert ran.returncode == 0, ran.stderr


def test_no_two_programs_share_a_file() -> None:
    named = [
        set(re.findall(r'"(\w+\.db)"', program)) for program in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    ]
    assert all(len(files) == 1 for files in named)
    assert len(set().union(*named)) == len(named) == 4


@pytest.mark.parametrize("program", ["payments", "shop", "orders", "customer"])
def test_each_program_is_preceded_by_what_to_install(program: str) -> None:
    before = README.partition(f"```python\n# {program}.py")[0].rpartition("```")[2]
    [line] = re.findall(r"`pip install ([^`]+)`", before.rpartition("## ")[2])
    extras = re.search(r"onefold\[(.*?)\]", line)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "onefold" in line
    assert extras is None or known.keys() >= set(extras[1].split(","))


def test_the_journal_it_lists_is_the_one_its_customer_writes() -> None:
    [journal] = re.findall(r'journal="(\S+?)"', README)
    assert f"`onefold intents -d {journal}`" in README


def test_every_program_is_run_by_a_test() -> None:
    assert set(re.findall(r"```python\n# (\w+)\.py", README)) == {"payments", "shop", "orders", "customer"}


#: Settings whose default says nothing by its name.
UNNAMED = {
    "authorize",
    "conditional",
    "fingerprint_before",
    "headers_kept",
    "isolation",
    "operation",
    "principal",
    "quota",
    "work_lease_s",
}


def test_the_settings_table_has_every_setting_with_its_default() -> None:
    section = README.split("## Settings")[1].split("\n## ")[0]
    printed = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))
    fields = {field.name: field for field in dataclasses.fields(Policy) if field.init}
    assert printed.keys() == fields.keys()
    for name, shown in printed.items():
        default = fields[name].default
        match default:
            case bool() | str():
                assert shown.strip("`") == (str(default) if isinstance(default, bool) else f'"{default}"'), name
            case int() | float():
                assert float(shown.strip("`")) == default, name
            case _:
                named = getattr(default, "__name__", None)
                assert shown.strip("`") == named or (name in UNNAMED and named is None), name


def test_the_headers_and_the_refusals_it_names_are_those_of_the_code() -> None:
    [kept] = re.findall(r"The headers that are kept: (.*?), and those", README, re.DOTALL)
    assert {name.strip("`").lower() for name in re.split(r",\s+", kept)} == HEADERS_KEPT
    [refusals] = re.findall(r"Not stored, so that a corrected retry runs: (.*?), and what", README)
    assert {int(status) for status in refusals.split(", ")} == NOT_STORED


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem
)
def test_no_page_shows_a_principal_that_anyone_can_write(page: Path) -> None:
    assert not re.findall(
        r"principal=lambda \w+: \w+\.header|x-account|x-user|x-tenant", page.read_text(), re.IGNORECASE
    )


def test_the_payments_api_shows_nothing_to_a_stranger(payments_url: str) -> None:
    headers = {"idempotency-key": '"s-1"', "authorization": "Bearer sk-acme-1"}
    assert httpx.post(f"{payments_url}/payments", json={"amount": 7}, headers=headers).status_code == 201
    for stranger in ({}, {"authorization": "Bearer acme"}, {"x-account": "acme"}):
        refused = httpx.post(
            f"{payments_url}/payments", json={"amount": 7}, headers=headers | {"authorization": ""} | stranger
        )
        assert (refused.status_code, '"id"' in refused.text) == (401, False)


def test_the_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[2] / target).exists(), target


@pytest.mark.parametrize("path", re.findall(r"`((?:src|examples)/[\w./]+)`", README))
def test_the_files_it_names_exist(path: str) -> None:
    assert (Path(__file__).parents[2] / path).exists()
