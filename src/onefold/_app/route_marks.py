"""Declares routes: by a decorator on the handler, or by a policy for routes that are listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack

from onefold._http.decorator import name_of
from onefold._http.install import Layer
from onefold._http.route_policy import Policy, Settings
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._http.conditional import Etag

F = TypeVar("F", bound=Callable[..., Any])


class RouteMarks:
    """The marks of both apps."""

    _layer: Layer
    _database: Any

    def idempotent(self, *without_parentheses: Never, **settings: Unpack[Settings]) -> Callable[[F], F]:
        """Mark a handler: its requests happen once. Goes below the framework's own route decorator."""
        if without_parentheses:
            raise ConfigurationError(
                "@once.idempotent is missing its parentheses: write @once.idempotent(), or with settings, as in "
                "@once.idempotent(required=True)"
            )
        return self._mark(settings)

    def conditional(
        self, *, etag: Etag, condition_required: bool = True, repeatable_delete: bool = False,
        **settings: Unpack[Settings],
    ) -> Callable[[F], F]:  # fmt: skip
        """Mark a handler whose requests depend on the state of what they write, by If-Match and If-None-Match, or that
        reads it: its answers have an ETag. `etag` names the field with the version, or gets it from the row. A handler
        that writes has the condition judged by `condition.lock(...)`. `condition_required`: a write without one is
        428. `repeatable_delete`: a DELETE of what is gone is answered as the first. Its requests happen once, as those
        of `idempotent`, whose settings it takes as well."""
        from onefold._http.conditional import Conditional

        rules = Conditional(etag=etag, required=condition_required, repeatable_delete=repeatable_delete)
        return self._mark({**settings, "conditional": rules})

    def _mark(self, settings: Settings) -> Callable[[F], F]:
        mark = self._layer.marker(settings)

        def decorate(function: F) -> F:
            from onefold._app.handle_annotations import check_handles

            marked = mark(function)
            check_handles(function, name_of(function), self._layer.name, self._database)
            return marked

        return decorate

    def policy(self, **settings: Unpack[Settings]) -> Policy:
        """The policy that the same settings give, for routes that are listed instead of decorated."""
        return self._layer.policy(settings)
