"""Two processes on one database, one that looks for what the previous release has left and one that does not: a request
happens once all the same, whichever of them is asked first, and both tell its state alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import permutations
from pathlib import Path

import pytest

from onefold import Onefold
from tests.support.fork_server import Child, fork_server
from tests.upgrade.one_process import Answered, Asked
from tests.upgrade.places import dialect_of, rows

RAN, REPLAYED = Answered(status=201, replayed=False, ran=True), Answered(status=201, replayed=True, ran=False)


class Process:
    """One of them."""

    def __init__(self, child: Child) -> None:
        self.child = child

    def begin(self, asked: Asked) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(asdict(asked)) + "\n")

    def hear(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def end(self) -> Answered:
        return Answered(**json.loads(self.hear()))

    def ask(self, key: str, body: str = '{"cents": 5}') -> Answered:
        self.begin(Asked(key=key, body=body))
        return self.end()

    def go_on(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write("\n")


@pytest.fixture(params=["postgres", "sqlite"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    """A database that this release has made."""
    address = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))
    once = Onefold(address)
    once.migrate()
    once.close()
    return address


Start = Callable[..., Process]


@pytest.fixture
def start(address: str) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(known: bool | None, level: str = "") -> Process:
            words = ("-m", "tests.upgrade.one_process", address, json.dumps(known), level)
            child = fork_server().start_with_pipes(*words)
            stack.callback(child.close)
            return Process(child)

        yield start


@pytest.mark.parametrize("level", ["", "serializable"])
@pytest.mark.parametrize("known", list(permutations((True, None))), ids=str)
def test_what_either_has_in_flight_or_done_is_so_for_the_other(
    start: Start, known: tuple[bool | None, bool | None], level: str, address: str
) -> None:
    first, second = (start(each, level) for each in known)
    for key in ("k-1", "k-2"):
        first.begin(Asked(key=key, held=True))
        assert first.hear() == "runs"
        assert second.ask(key).status == 409
        assert second.ask(key, "{}").status == 422
        first.go_on()
        assert first.end() == RAN
        for process in (second, first):
            assert process.ask(key) == REPLAYED
            assert process.ask(key, "{}").status == 422
    live = "expires_at > now()" if dialect_of(address) == "postgres" else "true"
    # The control: it is the one that looks for 0.1 that leaves a signpost for it.
    assert rows(address, f"SELECT count(*) FROM onefold_record WHERE {live}") == [(4 if known[0] else 2,)]


@pytest.mark.parametrize("level", ["", "serializable"])
def test_of_two_that_are_asked_at_once_one_runs(start: Start, level: str) -> None:
    processes = [start(True, level), start(None, level)]
    for number in range(20):
        for process in processes:
            process.begin(Asked(key=f"k-{number}"))
        answers = [process.end() for process in processes]
        assert sum(answer.ran for answer in answers) == 1, answers
        assert {answer.status for answer in answers} <= {201, 409}
        assert [process.ask(f"k-{number}") for process in processes] == [REPLAYED, REPLAYED]
