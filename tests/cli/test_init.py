"""`onefold init`: what it writes runs at once, by the commands that it prints, and nothing is overwritten."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import httpx
import pytest

from onefold._cli.starter import Starter, StarterBroker, StarterDatabase, StarterFramework, choose_lines
from onefold.testing.fault_proxy import reserve_port
from tests.cli.commands import one_line, onefold, told
from tests.support.fork_server import ROOT, fork_server
from tests.support.patience import PATIENCE_S

#: Each framework with each database, and each kind of broker with both; two of them in `make test`.
STARTERS = (
    ("fastapi", "sqlite", "local"),
    ("flask", "postgres", "none"),
    *(
        pytest.param(*choices, marks=pytest.mark.soak)
        for choices in (
            ("fastapi", "postgres", "nats"),
            ("flask", "sqlite", "nats"),
            ("starlette", "sqlite", "none"),
            ("starlette", "postgres", "local"),
        )
    ),
)
HEADERS = {"Authorization": "Bearer sk-acme-1", "Idempotency-Key": '"order-1"'}


@contextmanager
def served(folder: Path, command: str) -> Iterator[str]:
    """The address of what a starter's last command starts, on a port of its own."""
    with reserve_port() as placeholder:
        port = str(placeholder.getsockname()[1])
    words = shlex.split(command)
    words += ["--port", port] if "uvicorn" in words else []
    program = [sys.executable, *(["-m"] if words[0] != "python" else []), *words[words[0] == "python" :]]
    environment = os.environ | {"PORT": port, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with subprocess.Popen(program, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            give_up_at = time.monotonic() + PATIENCE_S
            while not answers(f"http://127.0.0.1:{port}/"):
                assert server.poll() is None, "the starter ended"
                assert time.monotonic() < give_up_at, "the starter does not answer"
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/orders"
        finally:
            server.terminate()


def run_tests(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The starter's own, without the plugins that these tests have."""
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *words)
    return fork_server().run(*words, cwd=folder, environment=environment, within_s=PATIENCE_S)


def answers(url: str) -> bool:
    try:
        httpx.get(url)
    except httpx.TransportError:
        return False
    return True


@pytest.mark.parametrize(("framework", "database", "broker"), STARTERS)
def test_a_starter_passes_its_tests_and_serves_a_retry(
    tmp_path: Path, framework: str, database: str, broker: str
) -> None:
    written = told(onefold("init", "orders", "-f", framework, "-d", database, "-b", broker, "--json", cwd=tmp_path))
    [enter, install, test, serve] = written["commands"]
    folder = tmp_path / enter.removeprefix("cd ")
    assert (install, test) == ("pip install -r requirements.txt", "pytest")
    readme = (folder / "README.md").read_text()
    assert f"$ {install}\n$ {test}\n$ {serve}\n" in readme
    ran = run_tests(folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with served(folder, serve) as url:
        first, again = (httpx.post(url, json={"item": "book"}, headers=HEADERS) for _ in range(2))
    assert (first.status_code, first.json()) == (201, {"id": 1, "item": "book"})
    assert (again.status_code, again.text) == (201, first.text)
    assert again.headers["idempotent-replayed"] == "true"


def test_the_starters_tests_on_sqlite_leave_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onefold("init", cwd=tmp_path)
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    ran = run_tests(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert list(temporary.iterdir()) == []


def test_what_to_do_next_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    lines = onefold("init", "tea & co's", cwd=tmp_path).stdout.splitlines()
    [enter] = [line for line in lines if line.startswith("  cd ")]
    assert shlex.split(enter) == ["cd", "tea & co's"]


def test_control_the_starters_tests_find_a_handler_that_is_not_protected(tmp_path: Path) -> None:
    onefold("init", cwd=tmp_path)
    app = tmp_path / "app.py"
    app.write_text(app.read_text().replace("required=True", "required=False"))
    ran = run_tests(tmp_path, "-k", "without_a_key")
    assert "test_an_order_without_a_key_is_refused" in ran.stdout
    assert ran.returncode == 1


@pytest.mark.parametrize(
    ("broker", "found"),
    [
        # Nothing was executed on tx; and where an event was published by it, the row is there twice after a crash.
        ("none", "without using its transaction"),
        ("local", "crash before COMMIT: the effect happened 2 times"),
    ],
)
def test_control_the_starters_tests_find_a_row_that_is_written_past_tx(tmp_path: Path, broker: str, found: str) -> None:
    onefold("init", "-f", "flask", "-b", broker, cwd=tmp_path)
    app = tmp_path / "app.py"
    text, handler = app.read_text(), "row = tx.connection.execute("
    assert handler in text
    own = 'row = __import__("sqlite3").connect(os.environ["ONEFOLD_DATABASE"], isolation_level=None).execute('
    app.write_text(text.replace(handler, own))
    ran = run_tests(tmp_path, "-k", "however")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert found in ran.stdout + ran.stderr


def test_the_tests_of_a_starter_need_no_client_that_starlette_calls_deprecated(tmp_path: Path) -> None:
    """With httpx alone Starlette's TestClient warns; what the starter asks for is enough, and httpx is not needed."""
    onefold("init", cwd=tmp_path)
    assert "httpx2" in (tmp_path / "requirements.txt").read_text()
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['httpx'] = None\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "-k", "belongs"],
        cwd=tmp_path,
        env=os.environ
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{tmp_path}:{os.pathsep.join(sys.path)}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_choice_is_a_program_without_marks(tmp_path: Path) -> None:
    for framework, database, broker in product(StarterFramework, StarterDatabase, StarterBroker):
        starter = Starter(framework=framework, database=database, broker=broker)
        for name, text in starter.write().items():
            assert "#?" not in text
            if name.endswith(".py"):
                compile(text, name, "exec")
                (tmp_path / f"{framework}_{database}_{broker}_{name}").write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,B", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def test_its_readme_has_the_name_of_its_folder(tmp_path: Path) -> None:
    onefold("init", "bookings", cwd=tmp_path)
    (tmp_path / "parcels").mkdir()
    onefold("init", cwd=tmp_path / "parcels")
    titles = [(tmp_path / folder / "README.md").read_text().splitlines()[0] for folder in ("bookings", "parcels")]
    assert titles == ["# Bookings", "# Parcels"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text("mine")
    said = one_line(onefold("init", cwd=tmp_path))
    assert "test_app.py in '.' would be overwritten, so nothing was written" in said
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("test_app.py", "mine")]


def test_a_line_is_kept_where_all_its_words_were_chosen() -> None:
    text = "always\nboth  #? a b\na  #? a\n #? b\n"
    assert choose_lines(text, {"a"}) == "always\na\n"
    assert choose_lines(text, {"a", "b"}) == "always\nboth\na\n\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no server: name servers of postgres, nats"),
        (("oracle",), "oracle: name servers of postgres, nats"),
        (("nats", "redis"), "name one broker at the most"),
        (("nats", "--", "no-such-program"), "'no-such-program' cannot be started"),
    ],
)
def test_the_command_for_private_servers_says_what_it_cannot_do(words: tuple[str, ...], said: str) -> None:
    ran = fork_server().run("-m", "onefold.testing.servers", *words, within_s=PATIENCE_S)
    assert ran.returncode == 2
    assert said in ran.stderr


def test_the_command_for_private_servers_prints_its_usage() -> None:
    ran = fork_server().run("-m", "onefold.testing.servers", "--help", within_s=PATIENCE_S)
    assert (ran.returncode, ran.stderr) == (0, "")
    for said in (
        "usage: python -m onefold.testing.servers SERVER",
        "-- COMMAND",
        "ONEFOLD_DATABASE",
        "ONEFOLD_BROKER",
        "rabbitmq",
    ):
        assert said in ran.stdout


def test_private_servers_say_how_they_end() -> None:
    command = [sys.executable, "-m", "onefold.testing.servers", "nats"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("export ONEFOLD_BROKER=nats://")
        assert running.stderr is not None
        assert "Running until Ctrl-C" in running.stderr.readline()
        running.send_signal(signal.SIGTERM)  # a shell has what it starts in the background ignore Ctrl-C
        assert running.wait(PATIENCE_S) == 0
    finally:
        running.kill()
        running.communicate()


def test_a_shell_has_private_servers_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    begin, read = re.findall(r"^\$ (.*servers\.env.*)$", page, re.MULTILINE)
    script = f"""
        {begin.replace("python", sys.executable, 1).rstrip(" &")} 2> said & servers=$!
        until grep -q "Running until Ctrl-C" said; do sleep 0.05; done
        {read}
        echo "$ONEFOLD_DATABASE"
        kill $servers; wait $servers
    """
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert re.fullmatch(r"postgres(ql)?://\S+\n", ran.stdout), ran
    assert ran.returncode == 0, ran


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("")
    assert "'app.py' is a file; give a folder" in one_line(onefold("init", "app.py", cwd=tmp_path))
