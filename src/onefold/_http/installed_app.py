"""An application that a layer was put around, as the completer calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from onefold._http.request import Request
from onefold._http.route_policy import Route


class _Living(Protocol):
    lives_with: Callable[[dict[str, Any]], None] | None


M = TypeVar("M", bound=_Living)


@dataclass(slots=True, eq=False)
class InstalledApp:
    """The application, and how its routes are found."""

    protocol: Literal["asgi", "wsgi"]
    app: Any
    resolve: Callable[[Request], Route | None]
    state: dict[str, Any] = field(default_factory=dict)
    """What its lifespan leaves for its requests."""

    def share_state(self, layer: M) -> M:
        """Get from the layer around the application the state that its lifespan leaves."""
        layer.lives_with = self._keep
        return layer

    def _keep(self, state: dict[str, Any]) -> None:
        self.state = state
