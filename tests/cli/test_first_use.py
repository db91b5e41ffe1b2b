"""What a newcomer types at first, and gets told: the thing, its value, the way out."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Message, Onefold
from onefold.db import _drivers
from onefold.errors import ConfigurationError
from tests.cli.commands import Shop, one_line, onefold, started, until


def words(text: str) -> str:
    """Without the frame that is drawn around errors."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("migrate", "payments.db"), "--database payments.db, or ONEFOLD_DATABASE"),
        (("migrate", "payments:once"), "it takes the database as an option: --database app.db"),
        (("migrate", "postgresql://u:hunter2@h/shop"), "--database postgresql://h/shop"),
        (("migrate",), "give --database, or set ONEFOLD_DATABASE"),
    ],
)
def test_migrate_says_that_it_takes_the_database_as_an_option(
    given: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    answer = onefold(*given, cwd=tmp_path)
    assert answer.returncode == 2
    assert said in words(answer.stderr), answer.stderr
    assert "hunter2" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


ADDRESS = "postgresql://u:hunter2@h/shop"


@pytest.mark.parametrize(
    "given",
    [
        (ADDRESS,),
        ("reap", ADDRESS),
        ("intents", ADDRESS),
        ("outbox", "list", ADDRESS),
        ("outbox", "cancel", ADDRESS, "-d", "app.db"),
        ("dlq", "list", "host=h password=hunter2"),
        ("docs", "postgresql://u:hunter2'\\@h/shop"),
        ("init", "shop", "-d", ADDRESS),
        ("init", "shop", f"--broker={ADDRESS}"),
        ("init", "shop", f"-b{ADDRESS}"),
    ],
)
def test_an_address_in_the_wrong_place_is_not_repeated_with_its_password(
    given: tuple[str, ...], tmp_path: Path
) -> None:
    sqlite3.connect(tmp_path / "app.db").close()
    answer = onefold(*given, cwd=tmp_path)
    assert answer.returncode == 2, answer
    assert "hunter2" not in answer.stderr + answer.stdout
    assert "..." in answer.stderr if "password" in given[-1] else "postgresql://h/shop" in words(answer.stderr)


def test_migrate_shows_how_it_is_used() -> None:
    [usage] = [line for line in onefold("migrate", "--help").stdout.splitlines() if "Usage:" in line]
    assert usage.strip().endswith("migrate [OPTIONS]")


@pytest.mark.parametrize("words", [(), ("migrate",), ("dlq",), ("dlq", "show")])
def test_help_has_the_short_name_that_other_commands_give_it(words: tuple[str, ...]) -> None:
    short, long = (onefold(*words, option) for option in ("-h", "--help"))
    assert (short.returncode, short.stdout) == (0, long.stdout)


def test_migrate_names_what_it_could_not_read(tmp_path: Path) -> None:
    assert "'payments' names no database" in one_line(onefold("migrate", "-d", "payments", cwd=tmp_path))


def test_migrate_says_which_file_it_made(tmp_path: Path) -> None:
    made = onefold("migrate", "-d", "typo.db", cwd=tmp_path).stdout.splitlines()
    assert made[0] == f"created the SQLite file '{tmp_path}/typo.db', which was not there"
    assert made[1].startswith("applied to typo.db: 1, ")
    assert onefold("migrate", "-d", "typo.db", cwd=tmp_path).stdout == "up to date\n"


def test_a_file_in_a_directory_that_is_not_there_names_the_directory(tmp_path: Path) -> None:
    said = one_line(onefold("migrate", "-d", "nowhere/app.db", cwd=tmp_path))
    assert f"there is no directory '{tmp_path}/nowhere'" in said


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop.py:once", "write shop:once"),
        ("./shop.py:once", "write shop:once"),
        ("src/shop.py:once", "write src.shop:once"),
        ("shop.py", "write shop: and the name of the Onefold in it"),
        ("shop", "for example shop:once"),
        ("shpo:once", "did you mean 'shop'?"),
    ],
)
def test_a_target_that_is_a_file_or_misspelt_is_told_what_to_write(target: str, said: str, shop: Shop) -> None:
    assert said in one_line(shop.onefold("consume", target, "--check"))


def test_a_broker_that_is_misspelt_is_told_so_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "app.db").touch()
    said = one_line(onefold("relay", "-d", "app.db", "-b", "ntas://localhost", cwd=tmp_path))
    assert "'ntas://localhost' is unknown: did you mean nats://?" in said


def test_relay_and_reap_say_that_they_have_made_the_tables_of_a_file(tmp_path: Path) -> None:
    for name, command in (("relay.db", ("relay", "--until-empty")), ("reap.db", ("reap",))):
        with closing(sqlite3.connect(tmp_path / name)) as file:
            file.execute("CREATE TABLE orders (id INTEGER)")
        said = onefold(*command, "-d", name, cwd=tmp_path).stderr
        assert f"onefold: SQLite file '{name}': onefold's tables were created (versions 1, " in said
        assert "tables were" not in onefold(*command, "-d", name, cwd=tmp_path).stderr


def test_an_application_that_logs_by_itself_is_not_logged_for(tmp_path: Path) -> None:
    (tmp_path / "logged.py").write_text(
        "import logging\n"
        "from onefold import AsyncOnefold\n"
        "logging.basicConfig(level=logging.INFO, format='own: %(message)s')\n"
        "once = AsyncOnefold('logged.db', source='logged', broker='nats://127.0.0.1:1')\n"
    )
    with started("relay", "logged:once", cwd=tmp_path) as relay:
        relay.until_said("own: relay ")
        assert "onefold: relay " not in relay.said


def test_dlq_list_says_how_many_wait_for_their_next_try(shop: Shop) -> None:
    once = Onefold(shop.database, source="shop")

    @once.consumer("ship", topic="order.placed", retry_base_s=600)
    def ship(message: Message) -> None:
        raise RuntimeError("the printer is on fire")

    with once.consuming():
        until(lambda: shop.rows("SELECT 1 FROM onefold_subscription"))
        [event_id] = shop.place("a")
        with once.relaying():
            until(lambda: shop.rows("SELECT 1 FROM onefold_letter WHERE failed > 0"))
    once.close()
    listed = shop.onefold("dlq", "list", "-d", "shop.db").stdout.splitlines()
    assert listed[0] == "dead letters: 0"
    assert listed[1].endswith("1; see --state waiting")
    assert event_id in shop.onefold("dlq", "list", "-d", "shop.db", "--state", "waiting").stdout
    assert shop.onefold("dlq", "list", "-d", "shop.db", "-t", "other").stdout == "dead letters: 0\n"
    assert shop.onefold("dlq", "list", "-d", "shop.db", "--json").stdout == "[]\n"


def test_the_help_of_intents_says_what_a_try_is() -> None:
    assert "how often a call was begun" in words(onefold("intents", "--help").stdout)


@pytest.mark.parametrize("kind", [Onefold, AsyncOnefold])
def test_a_missing_driver_is_named_once(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_drivers, "find_spec", lambda name: None)
    for name in ("asyncpg", "psycopg"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, f"onefold.db.{name}", raising=False)
    with pytest.raises(ConfigurationError) as refused:
        kind("postgresql://shop@localhost/shop")
    driver = "psycopg" if kind is Onefold else "asyncpg"
    assert str(refused.value) == f"this database needs {driver}: pip install 'onefold[{driver}]'"


def test_a_module_that_fails_in_a_library_names_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "unset.py").write_text("import os\n\nURL = os.environ['NOT_SET_ANYWHERE']\n")
    said = one_line(onefold("consume", "unset:once", cwd=tmp_path))
    assert f"KeyError: 'NOT_SET_ANYWHERE' ({tmp_path}/unset.py, line 3)" in said
