"""What a message is known by: its consumer, its source and its id, as CloudEvents has it.

Theory of operation. The ledger and the failed messages name a message by its id, as the release did that knew no
sources, so that both may work on one database: each finds what the other has handled. Only where another source had the
same id first is a message named apart, by its id and a digest of its source. A row without a source (of that release,
or of a receiver that has none) stands for every source.

One message has one ledger row: what is written apart takes the id first, and waits for a delivery of the same message
that saw the id free; where the id is free after all, it keeps both names.

Where a name is taken, the flow looks whether by this message or another's, and tries again apart. A message that was
named apart stays known when the one that had its id is forgotten: a claim looks for both names.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold._kernel.messages import name_apart


@dataclass(frozen=True, slots=True)
class Identity:
    """The name that a message goes by, the one that it has where its id is taken, and its source."""

    name: str
    apart: str
    source: str | None

    def set_apart(self) -> Identity:
        return Identity(self.apart, self.apart, self.source)


def identity_of(message_id: str, source: str | None) -> Identity:
    if source is None:
        return Identity(message_id, message_id, None)
    return Identity(message_id, name_apart(message_id, source), source)
