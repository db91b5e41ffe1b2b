"""The block of an intent whose key is in the journal when it begins: a key to hand over to the code that makes the
call.

Failure windows. A crash in the block leaves the intent open, and the next block of its name has the same key. A call
through a client of onefold is resolved by its answer; where no such client saw one, a block that ends
without an error resolves it, and one that ends with an error leaves it open. Where the journal cannot be written then,
the intent stays open, with a warning: the call may have succeeded, and the block must not fail in its place.
"""

from __future__ import annotations

from contextvars import Token
from math import inf
from types import TracebackType
from typing import Final

from onefold._client.call_executors import AsyncCallExecutor, CallExecutor
from onefold._client.journal_notes import note_end
from onefold._client.journal_store import JournalStore
from onefold._kernel import deadlines
from onefold._kernel.call_blocks import Block, enter, leave
from onefold._kernel.effects import Flow
from onefold._kernel.runners import run, run_async

#: The status of an intent whose answer no client of onefold saw.
UNSEEN: Final = 0


class JournalledIntent:
    """`with retrying.intent("pay:ord-42") as key: ...`, or `async with`."""

    def __init__(self, name: str, store: JournalStore) -> None:
        self._block = Block(name)
        self._name = name
        self._store = store
        self._token: Token[Block | None] | None = None

    def __enter__(self) -> str:
        self._block.key = run(self._claim(), CallExecutor(self._store.threads, _until()))
        self._token = enter(self._block)
        return self._block.key

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ends_unseen(error):
            run(self._resolve(), CallExecutor(self._store.threads, _until()))

    async def __aenter__(self) -> str:
        self._block.key = await run_async(self._claim(), AsyncCallExecutor(self._store.tasks, _until()))
        self._token = enter(self._block)
        return self._block.key

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ends_unseen(error):
            await run_async(self._resolve(), AsyncCallExecutor(self._store.tasks, _until()))

    def _claim(self) -> Flow[str]:
        return self._store.journal.claim_ahead(self._name, self._block.key, until=_until())

    def _resolve(self) -> Flow[None]:
        return note_end(self._name, self._store.journal.resolve(self._name, UNSEEN, until=_until()))

    def _ends_unseen(self, error: BaseException | None) -> bool:
        assert self._token is not None
        leave(self._token)
        return error is None and not self._block.used


def _until() -> float:
    """The deadline of the work that the block is part of."""
    return inf if (at := deadlines.current()) is None else at
