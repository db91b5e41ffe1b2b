"""The examples do what they say, in this environment; and all of them from the built wheel in a clean one (soak)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from onefold.testing.fault_proxy import reserve_port
from tests.support.built_package import build, copy_examples, make_environment, outside
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

HEADERS = {"Authorization": "Bearer sk-acme-1", "Idempotency-Key": '"order-1"'}
SERVERS = ("-m", "onefold.testing.servers")


class Place:
    """An interpreter, and a folder with the examples to run them from."""

    def __init__(self, python: str, folder: Path, environment: dict[str, str]) -> None:
        self.python, self.folder, self.environment = python, folder, environment

    def run(self, *words: str) -> str:
        if self.python == sys.executable:  # a fork is cheaper
            forked = fork_server().run(*words, cwd=self.folder, environment=self.environment, within_s=PATIENCE_S)
            assert forked.returncode == 0, forked.stdout + forked.stderr
            return forked.stdout
        ran = subprocess.run(
            [self.python, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=PATIENCE_S * 5, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    @contextmanager
    def served(self, *words: str) -> Iterator[str]:
        with reserve_port() as placeholder:
            port = str(placeholder.getsockname()[1])
        log = (self.folder / "server.log").open("wb")
        with (
            log,
            subprocess.Popen(
                [self.python, *words], cwd=self.folder, env=self.environment | {"PORT": port}, stderr=log
            ) as server,
        ):
            try:
                give_up_at = time.monotonic() + PATIENCE_S
                while not answers(f"http://127.0.0.1:{port}/"):
                    assert server.poll() is None, (self.folder / "server.log").read_text()
                    assert time.monotonic() < give_up_at
                    time.sleep(0.05)
                yield f"http://127.0.0.1:{port}"
            finally:
                server.terminate()


def answers(url: str) -> bool:
    try:
        httpx.get(url)
    except httpx.TransportError:
        return False
    return True


@pytest.fixture
def here(tmp_path: Path) -> Place:
    folder = copy_examples(tmp_path)
    return Place(sys.executable, folder, dict(os.environ))


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wheel")
    [wheel] = build(folder / "dist", "wheel")
    extras = ("fastapi", "flask", "sqlalchemy", "asyncpg", "nats", "httpx", "cli", "servers")
    return str(make_environment(folder / "clean", wheel, extras, ("uvicorn", "stripe")))


@pytest.fixture
def clean(clean_python: str, tmp_path: Path) -> Place:
    return Place(clean_python, copy_examples(tmp_path), outside())


def check_client_and_flask(place: Place) -> None:
    with place.served("-m", "examples.flask_sqlite") as url:
        first, again = (place.run("-m", "examples.client_only", url, "pay:ord-42") for _ in range(2))
        other = place.run("-m", "examples.client_only", url, "pay:ord-43")
    assert first == again == "201 {'amount': 500, 'id': 1}\n"
    assert other == "201 {'amount': 500, 'id': 2}\n"


def check_stripe(place: Place) -> None:
    assert place.run("-m", "examples.stripe_sdk") == "pi_1, asked 2 times, payments: 1\n"


def check_consumer(place: Place) -> None:
    said = place.run(*SERVERS, "nats", "--", place.python, "-m", "examples.consumer_only")
    assert said == "[('book', 1), ('the last', 1)]\n"


def check_orders(place: Place) -> None:
    program = (*SERVERS, "postgres", "nats", "--", place.python, "-m", "examples.fastapi_postgres_nats")
    with place.served(*program) as url:
        first, again = (httpx.post(f"{url}/orders", json={"item": "book"}, headers=HEADERS) for _ in range(2))
        assert (first.status_code, first.json(), again.json()) == (201, {"id": 1}, {"id": 1})
        assert again.headers["idempotent-replayed"] == "true"
        give_up_at = time.monotonic() + PATIENCE_S
        while not (parcels := httpx.get(f"{url}/parcels").json()):
            assert time.monotonic() < give_up_at, "the order was not packed"
            time.sleep(0.05)
        assert parcels == ["book"]


def test_a_client_pays_once_at_an_api_of_flask_and_the_sdk_of_stripe_at_its_own(here: Place) -> None:
    check_stripe(here)
    check_client_and_flask(here)


@pytest.mark.soak
def test_an_order_over_postgres_and_nats_is_packed_once(here: Place) -> None:
    check_orders(here)


@pytest.mark.soak
def test_a_consumer_beside_other_producers_handles_each_message_once(here: Place) -> None:
    check_consumer(here)


@pytest.mark.soak
def test_all_examples_run_from_the_built_wheel_in_a_clean_environment(clean: Place) -> None:
    where = clean.run("-c", "import onefold; print(onefold.__file__)").strip()
    assert Path(where).is_relative_to(Path(clean.python).parents[1]), where
    for check in (check_client_and_flask, check_stripe, check_consumer, check_orders):
        check(clean)
