"""A work that is not a request: `once.work("import:42")`. Its name is its identity, and its end is remembered with its
steps for the retention: a block that comes later gets every answer from the record."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Final

from onefold._kernel.effects import Isolation, Statement
from onefold._kernel.results import encode_result
from onefold._kernel.telemetry import Listener
from onefold._kernel.tracing import Tracer
from onefold._policy.ranges import require
from onefold._steps.model import Held, WorkAsk, digest_of, lease_of
from onefold._steps.sealing import Sealing
from onefold._steps.step_telemetry import StepReporter
from onefold._steps.work_attempt import Work
from onefold._steps.work_ports import LeaseRenewals
from onefold._steps.works import Works
from onefold.errors import ConfigurationError

_NAME_CHARS_MAX: Final = 200


class NamedWork(Work):
    """The work of a block of `once.work(...)`."""

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
        tracer: Tracer | None = None,
    ) -> None:
        _check_name(name)
        self.name = name
        require("once.work(...): lease_s", lease_s, least=0.1, most=86_400)
        require("once.work(...): retention_s", retention_s, least=1, most=366 * 86_400)
        prints = [_fingerprint(name, data, pepper) for pepper in (*peppers, b"")]
        ask = WorkAsk(
            digest=digest_of("work", name),
            kind="work",
            operation=name,
            fingerprint=prints[0],
            lease_s=lease_of(None, lease_s),
            retention_s=retention_s,
            phase_s=lease_s,
            same=lambda _, fingerprint: fingerprint in prints,
        )
        super().__init__(
            works,
            ask,
            what=f"the work {name!r}",
            isolation=isolation,
            sealing=sealing,
            renewals=renewals,
            reporter=StepReporter(listener, "work"),
            tracer=tracer,
        )

    def end(self, held: Held, result: bytes | None) -> tuple[Statement, ...]:
        return self.works.sql.finish(held, result, self.ask.retention_s)

    async def is_ended(self, held: Held) -> bool | None:
        return await self.works.is_finished(held)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME_CHARS_MAX or not name.isprintable():
        raise ConfigurationError(
            f"once.work({name!r:.120}): a work is named by 1 to {_NAME_CHARS_MAX} printable characters, the same "
            "whenever it is begun, as in once.work('import:42')"
        )


def _fingerprint(name: str, data: object, pepper: bytes) -> bytes:
    """A hash of the work's data that does not depend on the order of its members."""
    plain = json.loads(encode_result(data, what=f"data of once.work({name!r})"))
    framed = f"{len(name)}:{name}{json.dumps(plain, sort_keys=True)}".encode("utf-8", "surrogatepass")
    return blake2b(framed, digest_size=32, key=pepper, person=b"onefold.workdata").digest()
