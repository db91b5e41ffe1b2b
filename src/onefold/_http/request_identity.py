"""What a request is called: the scope and the digest of its intent, its fingerprint, and its names in earlier schemes.

An operation is the method and the route's template without the names and types of its parameters: what no client sees
does not change it. The template begins with where the application is that has the route: its host, and the prefix of
its mount. Two applications on one database may have the same routes, and must not answer each other's retries.

A route that moves keeps its keys by an `operation` of its own. Keys may be stored, and requests may run, under earlier
names: those of a deploy before the route was given its `operation`, and those of onefold 0.1, whose operations had the
names of parameters in them, and no mount. Both are looked for as far as the application's `Naming` says. Parameters are
taken to have had the names in 0.1 that they have today, or in the `operation`, if that is a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from onefold._http.request import Request, first_line
from onefold._http.route_policy import Policy, Route
from onefold._idempotency.fingerprint import (
    RequestContent,
    canonical_json,
    earlier_hash,
    form_name,
    form_of,
    frame_content,
    hash_form,
    is_large,
    is_ours,
    is_raw,
    raw_bytes,
)
from onefold._idempotency.model import Ask, Record, Scope, lock_ids
from onefold._idempotency.record_matching import Compared, is_same_request

#: `{id}` and `{id:int}`; `<id>`, `<int:id>` and `<any(a, b):id>`.
_PARAMETER = re.compile(r"\{[^{}]*\}|<(?:[A-Za-z_]\w*(?:\(.*?\))?:)?[A-Za-z_]\w*>")

_BOUNDARY = re.compile(r"""\s*boundary=("?)([0-9A-Za-z'()+_,\-./:=?]{1,70})\1\s*""", re.IGNORECASE)

#: Another parameter of a media type, as every parser reads it.
_OTHER = re.compile(r"""\s*(?!boundary)([0-9a-z._-]+)=("?)([^\s";=\\]+)\2\s*""", re.IGNORECASE)


class Naming(NamedTuple):
    """What an application's requests are named by, besides themselves."""

    earlier_release: bool = True
    """Whether names and locks of onefold 0.1 are used too."""
    earlier_deploys: bool = True
    """Whether those are that a route had before it was given its `operation`."""
    peppers: tuple[bytes, ...] = ()
    open_headers: Callable[[Record], object] | None = None
    """Raises where the keys that a record was made with are not known."""


@lru_cache(maxsize=1024)
def operations_of(method: str, template: str, given: str | None, earlier_release: bool = True) -> tuple[str, ...]:
    """The operation of a route, and then its earlier names: the one it had before its operation was `given` and, with
    `earlier_release`, those of onefold 0.1."""
    nameless, automatic = (f"{method} {_without_names(name)}" for name in (given or template, template))
    if not earlier_release:
        return tuple(dict.fromkeys((nameless, automatic)))
    before = [f"{method} {template}", automatic]
    if given is not None:
        # The signpost stands at the first. Of a route that has moved, a deploy before this one knows only its template.
        before.insert(0 if nameless == automatic else 1, f"{method} {given}")
    return tuple(dict.fromkeys((nameless, *before)))


@lru_cache(maxsize=1024)
def _without_names(template: str) -> str:
    return _PARAMETER.sub("{}", template)


@lru_cache(maxsize=1024)
def _as_given(unmounted: str, given: str | None) -> str:
    """The template as onefold 0.1 had it: with the names of parameters that are given, if they are."""
    nameless = _without_names(given or "")
    return given if given and given != nameless == _without_names(unmounted) else unmounted


def scopes_of(principal: str, method: str, route: Route, naming: Naming) -> tuple[Scope, ...]:
    """The scope of a request, and then those it may have been stored under before."""
    # The name of a mounted route has the mount in it: none that onefold 0.1 gave.
    earlier_release = naming.earlier_release and route.unmounted is None
    operations = operations_of(method, route.name, route.policy.operation, earlier_release)
    if len(operations) == 1 or not naming.earlier_deploys:
        return (Scope(principal, operations[0]),)
    return tuple([Scope(principal, operation) for operation in operations])


def names_of(principal: str, operation: str, key: str, known: Mapping[str, Policy]) -> tuple[bytes, ...]:
    """All digests that a request may be stored under, for people who know its operation (`POST /orders/{id}`) as its
    application, a list of records or an earlier release has it. `known`: the operations of the application, if they
    are known."""
    method, _, template = operation.partition(" ")
    names = dict.fromkeys(operations_of(method, template, None))
    for each, policy in known.items():
        verb, _, own = each.partition(" ")
        found = dict.fromkeys(operations_of(verb, own, policy.operation))
        if names.keys() & found.keys():
            names = {**found, **names}
    return tuple([Scope(principal, name).digest(key) for name in names])


def _values_of(request: Request, route: Route) -> tuple[str, ...] | None:
    """The values in the path. With an operation that was given, mounts have one name: the prefix distinguishes them.

    Not in WSGI, where the prefix may be a proxy's, and a given operation is what keeps keys when that changes.
    """
    values = route.values if route.pattern is None else route.parameters(request)
    if route.mount and values is not None and route.policy.operation is not None and "root_path" in request.source:
        return (route.mount, *values)
    return values


class _RequestIdentity(NamedTuple):
    """What is kept of a request for what not every request needs: its locks, and its comparison with a record."""

    content: RequestContent
    form: bytes
    fingerprint: bytes
    key: str
    secret: bytes
    frame: bytes
    plain: bytes
    policy: Policy
    naming: Naming
    scopes: tuple[Scope, ...]
    earlier: bytes
    """The digest that onefold 0.1 has."""
    before: Scope | None
    """The scope of the lock that a deploy takes from before the route was given its operation."""

    def is_same(self, record: Record) -> bool:
        """Whether a record is of this request."""
        if record.fingerprint == self.fingerprint:
            return True
        policy, naming = self.policy, self.naming
        scopes = {scope.digest(self.key): scope for scope in self.scopes}
        strategies = (policy.fingerprint, *policy.fingerprint_before)
        compared = Compared(
            self.content, self.fingerprint, self.key, scopes, strategies, naming.peppers, naming.open_headers
        )
        return is_same_request(compared, record)

    def request_locks(self) -> tuple[int, ...]:
        """Under a pepper or not, the locks are the same: a ring may be changing its keys in one process after the
        other. So may a route its strategy: who sends the same bytes again is known by these."""
        content, form, ours = self.content, self.form, is_ours(self.policy.fingerprint)
        hashes = [self.plain]
        if not is_raw(form, ours=ours):
            frame = self.frame if ours else frame_content(content, ours=True)
            hashes.append(hash_form(frame, raw_bytes(content), self.secret))
        if self.naming.earlier_release:
            hashes.append(earlier_hash(content, form, ours=ours, key=self.earlier))
        if self.before is not None:
            hashes.append(hash_form(self.frame, form, self.before.fingerprint_key(self.key)))
        return lock_ids(hashes)


def make_ask(
    request: Request, route: Route, naming: Naming, principal: str, key: str, key_ms: int | None, body: bytes
) -> Ask:
    """A request's claim on its key."""
    policy = route.policy
    strategy = policy.fingerprint
    media_type, boundary, others = content_type_of(first_line(request.headers, "content-type") or "")
    content = RequestContent(
        request.path, request.query, media_type, body, boundary, _values_of(request, route), others
    )
    form, ours = form_of(strategy, content), is_ours(strategy)
    scopes = scopes_of(principal, request.method, route, naming)
    scope = scopes[0]
    digest, secret = scope.derive(key)
    earlier = tuple([other.digest(key) for other in scopes[1:]]) if len(scopes) > 1 else ()
    signposts, before = earlier[:1], None
    if earlier and policy.operation is not None:
        automatic = f"{request.method} {_without_names(route.name)}"
        named = [number for number, other in enumerate(scopes[1:]) if other.operation == automatic]
        before = scopes[1 + named[0]] if named else scopes[-1]
        # A process of that deploy may know that 0.1 was never here, and does not look where the first signpost is.
        signposts = tuple(dict.fromkeys((earlier[0], *[earlier[number] for number in named])))
    unmounted, distinguishes_mounts = None, False
    if route.unmounted is not None and naming.earlier_release:
        name = _as_given(route.unmounted, policy.operation)
        unmounted = Scope(principal, f"{request.method} {name}").digest(key)
        # In the path that onefold 0.1 compared is the mount, where the framework leaves it there, but never the host.
        distinguishes_mounts = (
            route.earlier is None and "//" not in route.mount and request.path_below_root != request.path
        )
    frame = frame_content(content, ours=ours)
    printed = plain = hash_form(frame, form, secret)
    if naming.peppers:
        printed = hash_form(frame, form, scope.fingerprint_key(key, naming.peppers[0]))
    fingerprint = printed + (form[:1] if strategy is canonical_json else form_name(strategy, form))
    first = unmounted or (earlier[0] if earlier else digest)
    identity = _RequestIdentity(
        content, form, fingerprint, key, secret, frame, plain, policy, naming, scopes, first, before
    )
    return Ask(
        digest,
        fingerprint,
        scope.operation,
        policy.lease_s,
        policy.retention_s,
        key_ms,
        earlier,
        unmounted,
        distinguishes_mounts,
        identity.request_locks,
        identity.is_same,
        # onefold 0.1 compares large bodies by value; an earlier strategy made another lock. It may be another payload.
        not policy.fingerprint_before and not (is_large(body) and naming.earlier_release and ours),
        policy.isolation,
        policy.work_lease_s,
        signposts,
    )


@lru_cache(maxsize=64)
def content_type_of(header: str) -> tuple[str, bytes, bytes]:
    """The media type; the boundary, where all parsers find the same one; and then its other parameters."""
    media_type, _, parameters = header.partition(";")
    boundaries, others = [], {}
    for parameter in parameters.split(";"):
        if found := _BOUNDARY.fullmatch(parameter):
            boundaries.append(found[2].encode())
        elif (found := _OTHER.fullmatch(parameter)) and (name := found[1].lower()) not in others:
            others[name] = f"{name}={found[3]}".encode("utf-8", "surrogatepass")
        else:  # not read by all in the same way, as a name that occurs twice
            boundaries.clear()
            break
    if len(boundaries) != 1:
        return media_type.strip().lower(), b"", b""
    return media_type.strip().lower(), boundaries[0], b";".join(sorted(others.values()))
