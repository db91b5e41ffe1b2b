"""A work that is no request: `once.work("import:42")`. Its name is its identity, and its end is remembered.

Theory of operation. The block claims the work, or finds it done; each way it runs. An exception keeps what is recorded
and gives the lease back: the next block of this name goes on. The end, with the function of `finish` or without, is
remembered with its steps for the retention: a block that comes later gets every answer from the record.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from onefold._kernel.checkout import run_batch, with_connection
from onefold._kernel.effects import Batch, Boundary, Discard, Isolation, ReleaseCommitted, Statement, Step
from onefold._kernel.handler_errors import rethrow
from onefold._kernel.lost_commits import look_until_known
from onefold._kernel.owned_transaction import OwnedTransaction, commit
from onefold._kernel.results import encode_result
from onefold._kernel.telemetry import Listener
from onefold._policy.ranges import require
from onefold._steps.model import Busy, Differs, Done, Held, WaitsForPerson, WorkAsk, digest_of
from onefold._steps.performing import Performing
from onefold._steps.ports import LeaseRenewals
from onefold._steps.sealing import Sealing
from onefold._steps.step_telemetry import tell_steps
from onefold._steps.steps import MakeStep, Steps
from onefold._steps.works import Works, taken_over
from onefold.errors import (
    ConfigurationError,
    ConnectionLost,
    OutcomeUnknown,
    RequiredValueMissing,
    StoreUnavailable,
    WorkInProgress,
    WorkMismatch,
    WorkParked,
)

_NAME_CHARS_MAX: Final = 200


class NamedWork:
    """One block of `once.work(...)`, and how its work ends (`WorkEnd`)."""

    before: tuple[Step, ...] = ()
    records_result = True

    def __init__(
        self,
        works: Works,
        name: str,
        *,
        data: object,
        lease_s: float,
        retention_s: float,
        peppers: tuple[bytes, ...],
        isolation: Isolation | None,
        sealing: Sealing,
        renewals: LeaseRenewals,
        listener: Listener | None = None,
    ) -> None:
        _check_name(name)
        require("once.work(...): lease_s", lease_s, least=0.1, most=86_400)
        require("once.work(...): retention_s", retention_s, least=1, most=366 * 86_400)
        self._works = works
        self._isolation = isolation
        self._sealing = sealing
        self._renewals = renewals
        self._listener = listener
        prints = [_fingerprint(name, data, pepper) for pepper in (*peppers, b"")]
        self._ask = WorkAsk(
            digest=digest_of("work", name),
            kind="work",
            operation=name,
            fingerprint=prints[0],
            lease_s=lease_s,
            retention_s=retention_s,
            same=lambda _, fingerprint: fingerprint in prints,
        )
        self._held: Held | None = None
        self._performing: Performing | None = None
        self._is_over = False

    async def begin(self) -> None:
        """Raises WorkInProgress, WorkMismatch, WorkParked."""
        name = self._ask.operation
        claim = await self._works.claim(self._ask)
        match claim:
            case Busy():
                raise WorkInProgress(f"the work {name!r} is being done elsewhere")
            case Differs():
                raise WorkMismatch(f"the work {name!r} was begun with other data: another work needs another name")
            case WaitsForPerson(reason):
                raise WorkParked(f"the work {name!r} waits for a person: {reason}. See `onefold keys`")
            case Held():
                self._held = claim
                self._renewals.hold(claim)
            case Done():
                self._is_over = True
        self._performing = Performing(
            self._works,
            claim,
            end=self,
            operation=f"the work {name!r}",
            isolation=self._isolation,
            sealing=self._sealing,
            beats=self._renewals,
            ended=tell_steps(self._listener, "work"),
        )

    def steps(self, perform: Callable[[MakeStep], Any], *, asynchronous: bool) -> Steps:
        assert self._performing is not None
        return Steps(self._performing, perform, asynchronous=asynchronous)

    async def end(self) -> None:
        """The block has ended. Raises WorkTakenOver, WorkChanged, WorkMisused."""
        assert self._performing is not None
        try:
            self._performing.check_end()
        except Exception:
            await self.fail()
            raise
        if self._held is not None and not self._is_over:
            self._renewals.drop(self._held)
            try:
                await self._finish_alone(self._held)
            except OutcomeUnknown:
                raise
            except Exception:
                await self.fail()
                raise

    async def fail(self) -> None:
        """The block raised: what is recorded stays, and the next block goes on."""
        held = self.abandon()
        if held is not None:
            await self._works.give_back(held)

    def abandon(self) -> Held | None:
        """Its lease is renewed no more. The work, if it is to be given back now: a step that is still under way does so
        itself."""
        held, performing = self._held, self._performing
        if held is None or performing is None:
            return None
        self._renewals.drop(held)
        return held if performing.leave() and not held.taken_over and not self._is_over else None

    async def finish(self, tx: OwnedTransaction[Any], held: Held, result: bytes | None) -> None:
        """Commit what the function of `finish` wrote together with the end of the work."""
        await commit(tx, functools.partial(self._commit, held, result))
        self._is_over = True

    async def _commit(self, held: Held, result: bytes | None, events: tuple[Statement, ...]) -> None:
        sql = self._works.sql
        try:
            await Batch((*sql.proof, *events, *sql.finish(held, result, self._ask.retention_s), Boundary.COMMIT))
        except ConnectionLost as error:
            await Discard()
            await self._look_for(held, error)
        except RequiredValueMissing as error:
            await Discard()
            raise taken_over(held) from error
        except Exception as error:
            await Discard()
            rethrow(error)
        else:
            await ReleaseCommitted()

    async def _finish_alone(self, held: Held) -> None:
        sql = self._works.sql
        steps: tuple[Step, ...] = (
            Boundary.BEGIN, sql.lock(held), *sql.finish(held, None, self._ask.retention_s), Boundary.COMMIT,
        )  # fmt: skip
        try:
            await with_connection(functools.partial(run_batch, *steps))
        except RequiredValueMissing as error:
            raise taken_over(held) from error
        except ConnectionLost as error:
            await self._look_for(held, error)
        self._is_over = True

    async def _look_for(self, held: Held, error: ConnectionLost) -> None:
        """COMMIT was sent and its answer lost. Returns where it took place."""
        found, asked = await look_until_known(functools.partial(self._works.is_finished, held))
        what = f"the connection of the work {held.operation!r} was lost during its last COMMIT"
        if found is None:
            raise OutcomeUnknown(f"{what} and {'it is not decided yet' if asked else 'the store cannot be asked'}")
        if not found:
            raise StoreUnavailable(f"{what}, and nothing of it was committed; the next block ends it") from error


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME_CHARS_MAX or not name.isprintable():
        raise ConfigurationError(
            f"once.work({name!r:.120}): a work is named by 1 to {_NAME_CHARS_MAX} printable characters, the same "
            "whenever it is begun, as in once.work('import:42')"
        )


def _fingerprint(name: str, data: object, pepper: bytes) -> bytes:
    """Of what a work is begun with, whatever the order of its members."""
    plain = json.loads(encode_result(data, what=f"data of once.work({name!r})"))
    framed = f"{len(name)}:{name}{json.dumps(plain, sort_keys=True)}".encode("utf-8", "surrogatepass")
    return blake2b(framed, digest_size=32, key=pepper, person=b"onefold.workdata").digest()
