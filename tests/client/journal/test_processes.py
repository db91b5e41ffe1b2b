"""Processes that share a journal: racing for an intent, and dying with one in hand.

Two planted mistakes must be seen: a journal that looks before it writes, and one that hands out keys before COMMIT.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from onefold._client.journal.schema import prepare
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.db._drivers import sync_database
from tests.support.fork_server import Child, fork_server
from tests.support.patience import PATIENCE_S

PROCESSES = 3
INTENTS = 40


@pytest.fixture
def journal(address: str) -> str:
    """The address of a journal."""
    with closing(sync_database(address)) as database:
        run(prepare(database.dialect), ThreadExecutor(database))
    return address


@contextmanager
def life(journal: str, kind: str = "journal") -> Iterator[Child]:
    """A process as in `lives.py`, ready to be told what to do; killed at the end, if it still runs."""
    server = fork_server("import psycopg_pool, onefold._client.journal, onefold.db._drivers")
    process = server.start_with_pipes("-m", "tests.client.journal.lives", journal, kind)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.close()


def told(process: Child, *lines: str) -> list[tuple[str, bool]]:
    """What the process answers to these lines, its last."""
    said = process.communicate("".join(f"{line}\n" for line in lines), PATIENCE_S)
    answers = [line.split() for line in said.splitlines()]
    return [(key, known == "True") for key, known in answers]


def disagreements(journal: str, kind: str = "journal", prefix: str = "i") -> list[str]:
    """Have processes claim the same intents at the same moment; those that did not get one key, new to one of them."""
    intents = [f"{prefix}{number}" for number in range(INTENTS)]
    with ExitStack() as stack:
        racers = [stack.enter_context(life(journal, kind)) for _ in range(PROCESSES)]
        for intent in intents:  # all are told each name before anyone is waited for
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"claim {intent}\n")
                racer.stdin.flush()
        answers = [told(racer) for racer in racers]
    keys: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for answer in answers:
        assert len(answer) == INTENTS
        for intent, named in zip(intents, answer, strict=True):
            keys[intent].append(named)
    return [
        intent
        for intent, named in keys.items()
        if len({key for key, _ in named}) != 1
        or sorted(known for _, known in named) != [False] + [True] * (PROCESSES - 1)
    ]


def test_processes_that_claim_an_intent_at_once_get_one_key(journal: str) -> None:
    assert disagreements(journal) == []


def test_control_a_journal_that_looks_before_it_writes_is_seen_to_disagree(journal: str) -> None:
    # Races are a matter of chance.
    assert any(disagreements(journal, "hasty", f"round-{number}-") for number in range(20))


def killed_with_a_key(journal: str, kind: str = "journal") -> str:
    """The key that a process had got when it was killed."""
    with life(journal, kind) as process:
        [(key, known)] = told(process, "die pay")
        assert process.returncode == -signal.SIGKILL
    assert known is False
    return key


def test_a_process_that_is_killed_once_it_has_its_key_leaves_it_to_the_next(journal: str) -> None:
    key = killed_with_a_key(journal)
    with life(journal) as process:
        assert told(process, "claim pay", "claim other")[0] == (key, True)


def test_control_a_key_that_is_handed_out_before_commit_is_seen_to_be_lost(journal: str) -> None:
    key = killed_with_a_key(journal, "unwritten")
    with life(journal) as process:
        [(later, known)] = told(process, "claim pay")
    assert later != key
    assert known is False
