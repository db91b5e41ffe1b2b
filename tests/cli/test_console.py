"""`onefold console`: never open, its token shown once, and nothing of it on the command line."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import Running, Shop, one_line, started

TOKEN = "a-token-that-the-tests-gave"


def address_of(running: Running) -> str:
    running.until_said("console of 'shop.db' at http://127.0.0.1:")
    [found] = re.findall(r"console of \S+ at (http://127\.0\.0\.1:\d+\S*)/\n", running.said)
    return str(found)


def get(address: str) -> httpx.Response:
    return httpx.get(address, timeout=60, trust_env=False)


@contextmanager
def sign_in(base: str, token: str) -> Iterator[httpx.Client]:
    """A client that has sent the form of the sign-in."""
    client = httpx.Client(timeout=60, trust_env=False, headers={"Sec-Fetch-Site": "same-origin"})
    page = client.get(f"{base}/login")
    [csrf] = re.findall(r'name="csrf" value="([0-9a-f]+)"', page.text)
    client.post(f"{base}/login", data={"csrf": csrf, "token": token})
    yield client
    client.close()


def test_without_a_token_it_makes_one_and_says_where_to_sign_in(shop: Shop) -> None:
    with shop.started("console", "-d", "shop.db", "--port", "0") as running:
        running.until_said("sign in at ")
        [link] = re.findall(r"sign in at (\S+)", running.said)
        base, _, token = link.partition("/login?token=")
        assert len(token) >= 32
        assert f'value="{token}"' in get(link).text, "the form is filled in"
        assert get(f"{base}/audit").status_code == 303
        with sign_in(base, token) as client:
            assert client.get(f"{base}/audit").status_code == 200
        running.tell(signal.SIGTERM)
        assert running.ended() == 0
        assert running.said.count(token) == 1


def test_tokens_come_from_the_environment_or_from_files_and_are_not_shown(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "view-token"
    file.write_text("view-" + TOKEN + "\n")
    words = ("console", "-d", "shop.db", "--port", "0", "--view-token-file", str(file), "--root-path", "ops/")
    with started(*words, cwd=shop.folder, ONEFOLD_CONSOLE_ACT_TOKEN=TOKEN) as running:
        base = address_of(running)
        assert base.endswith("/ops")
        behind = base.removesuffix("/ops")  # the proxy strips it
        assert "/ops/static/console.css" in get(f"{behind}/login").text
        assert TOKEN not in running.said


def test_a_file_without_onefolds_tables_is_not_written_to(shop: Shop) -> None:
    file = shop.folder / "another.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE anything (id INTEGER)")
    answer = shop.onefold("console", "-d", "another.db", "--host", "192.0.2.7", ONEFOLD_CONSOLE_ACT_TOKEN=TOKEN)
    assert answer.returncode == 1
    assert "'another.db' lacks onefold's migrations 1, 2" in answer.stderr
    assert "run `onefold migrate`" in answer.stderr
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("anything",)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "console.example.org"])
def test_it_is_not_opened_to_the_network_without_a_token(shop: Shop, host: str) -> None:
    answer = shop.onefold("console", "-d", "shop.db", "--host", host)
    assert answer.returncode == 2
    assert f"--host {host} is open to the network" in " ".join(answer.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("-d", "shop.db"), {"ONEFOLD_CONSOLE_ACT_TOKEN": "short"}, "act_token has 5 characters"),
        (("-d", "shop.db", "--token-file", "nowhere"), {}, "the token file 'nowhere' cannot be read"),
        (("-d", "shop.db", "--token-file", "empty"), {}, "the token file 'empty' is empty"),
    ],
)
def test_a_token_that_is_none_is_told(
    shop: Shop, words: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    (shop.folder / "empty").touch()
    assert said in one_line(shop.onefold("console", *words, **environment))


def test_a_port_that_is_taken_is_told(shop: Shop) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = one_line(shop.onefold("console", "-d", "shop.db", "--port", port))
    assert f"cannot listen on 127.0.0.1 port {port}" in said
    assert "choose another --port" in said


def test_without_a_database_both_ways_to_give_one_are_told(shop: Shop) -> None:
    said = " ".join(shop.onefold("console").stderr.replace("│", " ").split())
    assert "give --database (or set ONEFOLD_DATABASE), or --app module:attribute" in said


def test_a_database_that_is_not_there_is_told_and_not_made(shop: Shop) -> None:
    answer = shop.onefold("console", "-d", "shpo.db")
    assert "there is no SQLite file 'shpo.db'" in " ".join(answer.stderr.replace("│", " ").split())
    assert not shop.has("shpo.db")


@pytest.mark.parametrize("library", ["jinja2", "starlette", "uvicorn"])
def test_without_its_libraries_it_names_the_extra(shop: Shop, library: str) -> None:
    said = one_line(shop.onefold("console", "-d", "shop.db", without=library))
    assert said == f"onefold: {library} is not installed: pip install 'onefold[console]'"
