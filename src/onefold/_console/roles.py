"""Operators of the console, and their roles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from onefold._kernel.audit import check_actor
from onefold.errors import ConfigurationError


class Role(Enum):
    """What an operator may do: VIEW looks, ACT changes, and sees bodies."""

    VIEW = "view"
    ACT = "act"

    def allows(self, needed: Role) -> bool:
        """Whether this role includes `needed`."""
        return self is Role.ACT or needed is Role.VIEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A person at the console: what they may do there (`role`), and what the audit calls them (`name`)."""

    role: Role
    name: str = "console"

    def __post_init__(self) -> None:
        if not isinstance(self.role, Role):
            raise ConfigurationError(f"role={self.role!r} of an operator must be Role.VIEW or Role.ACT")
        check_actor(self.name)
