"""Finds the request that `onefold keys show` and `erase` name: by its id, or by principal, route and Idempotency-Key.
Shares the search of the console's pages. Bodies are not shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import typer

from onefold._app.base_app import run_flow
from onefold._app.operator_actions import find_message_works
from onefold._cli.session import session
from onefold._cli.targets import AnyOnefold, close_onefold, load_target, open_target
from onefold._console.key_search import FoundKey, KeySearch, NotSearchable, find_stored, plan_search, stored_ms
from onefold._console.key_verdicts import KeyVerdict
from onefold._http.route_policy import Policy
from onefold._idempotency.stored_keys import KeyView, read_digest
from onefold._kernel.effects import Flow
from onefold._kernel.readable import moment
from onefold.errors import ConfigurationError

T = TypeVar("T")

NAME = typer.Argument(
    metavar="KEY",
    help="An Idempotency-Key, with --principal and --route (--app may say both); without them the id that `onefold "
    "keys list` shows, or the id of a failed message whose handler works in steps.",
    show_default=False,
)
PRINCIPAL = typer.Option(
    "--principal", help="Whose key it is: what the application calls the caller ('single' with single_principal)."
)
ROUTE = typer.Option("--route", help="As in 'POST /orders/{id}'. With --app each route is tried where it is not given.")
APP = typer.Option(
    "--app",
    metavar="TARGET",
    help="module:attribute of the Onefold, instead of --database: it knows its routes, and its answer cache.",
)


class KeyPlace:
    """Searches for keys in a database, or through the Onefold of an application, which knows its routes."""

    def __init__(self, run_made: Callable[[Callable[[str], Flow[Any]]], Any], once: AnyOnefold | None = None) -> None:
        self._run = run_made
        self._once = once

    def run(self, make_flow: Callable[[str], Flow[T]]) -> T:
        result: T = self._run(make_flow)
        return result

    @property
    def operations(self) -> dict[str, Policy]:
        applications = () if self._once is None else self._once._layer.applications
        return {name: policy for routes in applications for name, policy in routes.operations().items()}

    def forget(self, names: tuple[bytes, ...]) -> None:
        """Delete these keys from the application's answer cache."""
        if self._once is not None and (cached := self._once._layer.cached) is not None:
            self.run(lambda _: cached.forget(names))

    def search(self, name: str, principal: str, route: str) -> KeySearch:
        """The one request that these arguments name. Raises ConfigurationError: none, or several."""
        if not (principal or route or self.operations):
            return KeySearch(names=self._digests(name), route="digest")
        try:
            searches = plan_search(principal, route, name, self.operations)
        except NotSearchable as problem:
            raise ConfigurationError(str(problem)) from None
        found = self.run(partial(find_stored, searches=searches))
        if len(found) > 1:
            raise ConfigurationError(f"more than one route has this key: give --route, one of {', '.join(found)}")
        if not found:
            raise ConfigurationError(
                f"none of {len(searches)} routes has something stored or running under this principal and key"
            )
        return next(iter(found.values()))

    def _digests(self, name: str) -> tuple[bytes, ...]:
        """What the id of a work, of a stored answer or of a failed message stands for. Raises ConfigurationError."""
        digest = read_digest(name)
        works = self.run(partial(find_message_works, message_id=name))
        if len(works) > 1:
            listed = ", ".join(f"{work.id} ({work.operation})" for work in works)
            raise ConfigurationError(
                f"several consumers have message {name!r} in recorded steps: show one by the id of its work: {listed}"
            )
        digests = (*(() if digest is None else (digest,)), *(bytes.fromhex(work.id) for work in works))
        if not digests:
            raise ConfigurationError(
                f"{name[:100]!r} is not an id of a work, of a stored answer, or of a failed message with recorded "
                "steps. Is it an Idempotency-Key? Give --principal and --route, or --app"
            )
        return digests


@contextmanager
def key_place(database: str, target: str) -> Iterator[KeyPlace]:
    """A KeyPlace, open until the block ends."""
    if not target:
        with session(database) as db:
            yield KeyPlace(lambda make_flow: db.run(make_flow(db.dialect)))
        return
    value = load_target(target)
    with asyncio.Runner() as runner:
        once = runner.run(open_target(target, value))
        try:
            yield KeyPlace(lambda make_flow: runner.run(run_flow(once, make_flow)), once)
        finally:
            runner.run(close_onefold(once))


def describe_key(
    search: KeySearch, found: FoundKey, verdict: KeyVerdict, operations: Mapping[str, Policy]
) -> dict[str, Any]:
    """The outcome of a key, without its answer's body."""
    key = verdict.key
    stored = {} if key is None else stored_ms([key], operations)
    described: dict[str, Any] = {
        "state": verdict.state,
        "operation": key.operation if key is not None else found.work and found.work.operation,
        "what": verdict.what,
        "retry_gets": verdict.gets,
        "way_out": verdict.way_out or None,
        "attempts": found.work and found.work.attempts,
        "running_since": found.holder and moment(found.holder.since_ms),
        "running_pid": found.holder and found.holder.pid,
        **_describe_answer(key),
        "stored": None if key is None else moment(stored.get(key.id)),
        "erased": None,
        "key_hash": search.key_hash or None,
        "ids": [name.hex() for name in search.names],
    }
    if (line := found.erased) is not None:
        described["erased"] = {"at": moment(line.at_ms), "actor": line.actor, "why": line.details.get("why")}
    return described


def _describe_answer(key: KeyView | None) -> dict[str, Any]:
    has_answer = key is not None and key.state != "elsewhere"
    return {
        "status": key.status if key is not None and has_answer else None,
        "body_bytes": key.body_bytes if key is not None and has_answer else None,
        "sealed": key.is_sealed if key is not None and has_answer else None,
        "expires": None if key is None else moment(key.expires_ms),
    }


def describe_stored(key: KeyView) -> dict[str, Any]:
    """A stored answer in a list."""
    return {"id": key.id, "operation": key.operation, "state": key.state, **_describe_answer(key)}
