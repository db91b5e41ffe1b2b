"""Running a handler: its work and what goes with it are committed together, or it is said why not.

The proof in front of COMMIT is what finds a transaction that the handler has ended or broken: COMMIT alone would answer
a broken one with a silent rollback.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from onefold._kernel.borrow import borrowing, undoing
from onefold._kernel.effects import Batch, Boundary, Call, Discard, Fetch, Now, Release, Row, Statement
from onefold._kernel.messages import Message, carried
from onefold._kernel.misuse import COMMITTED_BY_HANDLER, translated
from onefold._kernel.transaction import Transaction, close_sessions
from onefold.errors import ConnectionLost, OnefoldError, ProgrammerError, StoreError, TransactionMisused
from onefold.inbox.model import Consumer
from onefold.inbox.sql.statements import Statements

_log = logging.getLogger("onefold")


class HandlerTookTooLong(OnefoldError):
    """The transaction of a message ran out of its lease."""


class Handling:
    """How one consumer's handler is run, in a transaction that has begun. `call` calls it."""

    def __init__(self, consumer: Consumer, sql: Statements, call: Callable[..., Any]) -> None:
        self._consumer = consumer
        self._sql = sql
        self._call = call
        self._returned_garbage = False

    async def run(
        self, message_id: str, messages: list[Message], tx: Transaction[Any], after: tuple[Statement, ...]
    ) -> Exception | None:
        """Call the handler and commit. What it returns is why the handler's work is undone. StoreError: who knows."""
        tx.carried = functools.partial(_carried, messages)
        tx.open()
        began_at = await Now()
        try:
            self._check(await Call(functools.partial(self._call, *self._arguments(messages, tx))))
            await close_sessions(tx, True)
        except Exception as error:
            return await self._undo(tx, error)
        tx.end()
        try:
            # First the proof that the transaction is still ours: nothing else may be written outside of it.
            await Batch((self._sql.proof, *tx.flush(), *after, Boundary.COMMIT))
        except ConnectionLost as error:
            await Discard()
            if not await self._committed(message_id):
                if await Now() - began_at >= self._consumer.lease_s:
                    return _too_long(self._consumer, error)
                raise
        except StoreError:
            await Discard()
            raise
        except Exception as error:
            await Discard()
            return translated(error)
        else:
            await Release()
        tx.committed()
        return None

    def _arguments(self, messages: list[Message], tx: Transaction[Any]) -> tuple[Any, ...]:
        given = messages if self._consumer.batch > 1 else messages[0]
        return (given, tx) if self._consumer.takes_tx else (given,)

    def _check(self, answer: object) -> None:
        if answer is None:
            return
        error = ProgrammerError(
            f"the handler of consumer {self._consumer.name!r} returned {answer!r:.200}; a handler returns None, and "
            "raises to say that it failed"
        )
        if not self._returned_garbage:
            self._returned_garbage = True
            _log.error("%s", error)
        raise error

    async def _undo(self, tx: Transaction[Any], error: Exception) -> Exception:
        try:
            await close_sessions(tx, False)
        except Exception:
            _log.warning(
                "%s: a session could not be closed; its connection rolls back", self._consumer.name, exc_info=True
            )
        tx.end()
        ended = 0
        if tx.touched:
            with suppress(OnefoldError):  # aborted, or lost: then the server has undone it, or does so now
                ended = await Batch((self._sql.ended,))
        await undoing()
        if ended:
            misused = TransactionMisused(COMMITTED_BY_HANDLER)
            misused.__cause__ = error
            return misused
        return error

    async def _committed(self, message_id: str) -> bool:
        """Whether a COMMIT without an answer took place. If nobody can tell now, the ledger will when it is delivered
        again."""
        try:
            rows = await borrowing(lambda: _rows(self._sql.handled(self._consumer.name, message_id)))
        except StoreError:
            return False
        return bool(rows)


def _too_long(consumer: Consumer, error: Exception) -> HandlerTookTooLong:
    slow = HandlerTookTooLong(
        f"the handler of consumer {consumer.name!r} took longer than lease_s={consumer.lease_s:g}, and its transaction "
        "was rolled back; make it quicker, or raise lease_s"
    )
    slow.__cause__ = error
    return slow


def _carried(messages: Sequence[Message]) -> dict[str, str]:
    """Trace and correlation go on where there is one message they can come from."""
    return carried(messages[0].headers) if len(messages) == 1 else {}


async def _rows(statement: Statement) -> list[Row]:
    return await Fetch(statement)
