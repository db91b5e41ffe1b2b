"""The results of a work's steps: encoded when they are done, and decoded from the record afterwards."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from onefold._kernel.results import decode_result, encode_result, read_back
from onefold._steps.model import RecordedStep, StepKind
from onefold._steps.sealing import Sealing, end_context, step_context
from onefold._steps.step_order import NewStep

_ENTERED: Final = (
    "It was entered (`onefold keys resume --result`) in a wrong form, or before the type was changed: enter it "
    "again, or, if that is refused, let the type take both forms"
)


class StepResults(NamedTuple):
    """The results of one work."""

    digest: bytes
    operation: str
    sealing: Sealing

    def record(self, step: NewStep, kind: StepKind, returns: object, value: object) -> tuple[RecordedStep, Any]:
        """The record of a step, and its result as decoded from it: a value that would change in a round trip does so at
        once, and not after a crash only; one that cannot be decoded is refused."""
        what = self._name(kind, step.name)
        plain = encode_result(value, returns, what=what)
        stored = self.sealing.seal(plain, step_context(self.digest, step.position, step.name))
        return RecordedStep(step.position, step.name, kind, "done", stored), read_back(plain, returns, what=what)

    def record_end(self, returns: object, value: object) -> tuple[bytes, Any]:
        """The same for `finish`: the stored bytes, and the decoded result."""
        plain = encode_result(value, returns, what=self._name_end)
        return self.sealing.seal(plain, end_context(self.digest)), read_back(plain, returns, what=self._name_end)

    def read(self, recorded: RecordedStep, returns: object) -> Any:
        """Raises ResultUnreadable, WorkUnreadable."""
        if recorded.result is None:
            return None
        what = self._name(recorded.kind, recorded.name)
        context = step_context(self.digest, recorded.position, recorded.name)
        plain = self.sealing.unseal(recorded.result, context, what=what)
        if recorded.state == "told":
            return decode_result(plain, returns, what=what, cause=_ENTERED)
        return decode_result(plain, returns, what=what)

    def read_end(self, stored: bytes | None, returns: object) -> Any:
        if stored is None:
            return None
        plain = self.sealing.unseal(stored, end_context(self.digest), what=self._name_end)
        return decode_result(plain, returns, what=self._name_end)

    def _name(self, kind: StepKind, name: str) -> str:
        return f"the result of {kind} {name!r} of {self.operation}"

    @property
    def _name_end(self) -> str:
        return f"the result of finish of {self.operation}"
