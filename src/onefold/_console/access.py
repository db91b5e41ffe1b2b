"""Decides who may see the console: by the host application's `authorize`, or by a token at sign-in.

A session is a cookie: its end, a random id, the operator's name, and a signature. The key of the signature is derived
from the token of the sign-in, and fixes the role: no cookie can claim another one, and a replaced token ends all of its
sessions. Nothing is stored, so every process that has the tokens knows every session. A sign-out is a line of the
audit, which every process checks: a copy of the cookie is refused everywhere. While the database is away, only the
process that handled the sign-out knows of it; pages show nothing of the database then.
"""

from __future__ import annotations

import hmac
import inspect
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request

from onefold._console.roles import Operator, Role
from onefold._kernel.arguments import name_type
from onefold.errors import AuthenticationBroken, ConfigurationError, OnefoldError

COOKIE: Final = "onefold_console_session"
SESSION_S: Final = 8 * 3600
TOKEN_CHARS_MIN: Final = 16

_COOKIE_CHARS_MAX: Final = 2048
_ENDED_MAX: Final = 10_000

Verdict: TypeAlias = Role | Operator | None
Authorize: TypeAlias = Callable[[Request], Verdict | Awaitable[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """An operator who has access."""

    operator: Operator
    session: str
    """The session that forms are bound to: each sign-in has another."""
    ends_at: float | None = None
    """When the session ends, in seconds since 1970; None where the host application decides."""


class HostAccess:
    """The host application's own function decides about each request."""

    def __init__(self, authorize: Authorize) -> None:
        if not callable(authorize):
            raise ConfigurationError(
                f"authorize={authorize!r} must be a function of the request that returns Role.VIEW, Role.ACT, an "
                "Operator, or None to refuse"
            )
        self._authorize = authorize

    async def identify(self, request: Request, now: float) -> SignedIn | None:
        try:
            verdict = self._authorize(request)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except OnefoldError as error:  # an Operator that cannot be one
            raise AuthenticationBroken(f"authorize of the console failed: {error}") from error
        match verdict:
            case None:
                raise HTTPException(403, "You may not see this console.")
            case Role():
                operator = Operator(role=verdict)
            case Operator():
                operator = verdict
            case _:
                # True, a user, a status: taking any of them for a role would give access to strangers.
                raise AuthenticationBroken(
                    f"authorize of the console returned {name_type(verdict)}; it must return Role.VIEW, "
                    "Role.ACT, an Operator, or None to refuse"
                )
        return SignedIn(operator=operator, session=f"{operator.role.value} {operator.name}")


class TokenAccess:
    """A token per role, and sessions signed with a key derived from it."""

    def __init__(self, *, view_token: str | None, act_token: str | None) -> None:
        tokens = {Role.VIEW: view_token, Role.ACT: act_token}
        #: Signatures of signed-out sessions, and when they would have ended.
        self._ended: dict[str, float] = {}
        self._tokens = {role: _check(role, token) for role, token in tokens.items() if token is not None}
        if view_token is not None and view_token == act_token:
            raise ConfigurationError(
                "view_token and act_token are the same: those who may look could act. Give two tokens"
            )

    async def identify(self, request: Request, now: float) -> SignedIn | None:
        return self.read(request.cookies.get(cookie_of(request), ""), now)

    def role_of(self, token: str) -> Role | None:
        """The role that a token is for. All are compared, each in constant time."""
        fits = [role for role, expected in self._tokens.items() if hmac.compare_digest(_hash(token), _hash(expected))]
        return fits[0] if fits else None

    def begin(self, operator: Operator, now: float) -> str:
        """The cookie of a new session."""
        name = urlsafe_b64encode(operator.name.encode()).decode().rstrip("=")
        signed = f"{int(now) + SESSION_S}.{secrets.token_urlsafe(16)}.{name}"
        return f"{signed}.{self._sign(operator.role, signed)}"

    def read(self, cookie: str, now: float) -> SignedIn | None:
        """The session of a cookie that we signed and that has not ended."""
        signed, _, signature = cookie.rpartition(".")
        if len(cookie) > _COOKIE_CHARS_MAX or not signature.isascii() or signature in self._ended:
            return None
        for role in self._tokens:
            if hmac.compare_digest(signature, self._sign(role, signed)):
                ends_at, _, name = signed.split(".")
                if now >= int(ends_at):
                    return None
                operator = Operator(role=role, name=urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode())
                return SignedIn(operator=operator, session=cookie, ends_at=float(ends_at))
        return None

    def end(self, cookie: str, now: float) -> None:
        """Refuse a signed-out session from now on."""
        if (signed_in := self.read(cookie, now)) is not None and signed_in.ends_at is not None:
            for signature in [known for known, ends_at in self._ended.items() if ends_at <= now]:
                del self._ended[signature]
            if len(self._ended) >= _ENDED_MAX:
                self._ended.pop(next(iter(self._ended)))
            self._ended[cookie.rpartition(".")[2]] = signed_in.ends_at

    def _sign(self, role: Role, signed: str) -> str:
        key = hmac.digest(self._tokens[role].encode(), f"onefold console session {role.value}".encode(), "sha256")
        return hmac.new(key, signed.encode("utf-8", "replace"), sha256).hexdigest()


Access: TypeAlias = HostAccess | TokenAccess


def session_id(cookie: str) -> str:
    """The id of a session in the audit: 30 hexadecimal digits, from which no cookie can be made."""
    return sha256(f"onefold console session\0{cookie}".encode("utf-8", "replace")).hexdigest()[:30]


def cookie_of(request: Request) -> str:
    """The name of the session's cookie at this address. Browsers send a cookie to every port of its host: two consoles
    on one machine would end each other's sessions."""
    try:
        port = request.url.port
    except ValueError:  # a Host that is none
        port = None
    return COOKIE if port is None else f"{COOKIE}_{port}"


def access_of(authorize: Authorize | None, view_token: str | None, act_token: str | None) -> Access:
    """The access rules of these arguments. Refuses none at all: the console is never open."""
    if authorize is not None:
        if view_token is not None or act_token is not None:
            raise ConfigurationError("console() has both authorize and a token: give one of them")
        return HostAccess(authorize)
    if view_token is None and act_token is None:
        raise ConfigurationError(
            "console() would be open to everyone who reaches it: give authorize=, a function of the request that "
            "returns Role.VIEW, Role.ACT or None, or view_token= and act_token="
        )
    return TokenAccess(view_token=view_token, act_token=act_token)


def _check(role: Role, token: object) -> str:
    name = f"{role.value}_token"
    if not isinstance(token, str):
        raise ConfigurationError(f"{name} is {name_type(token)}; it must be a str")
    if len(token) < TOKEN_CHARS_MIN or not token.isprintable() or token != token.strip():
        raise ConfigurationError(
            f"{name} has {len(token)} characters; it must have at least {TOKEN_CHARS_MIN}, all of them printable, and "
            "no blank at its ends: python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )
    return token


def _hash(token: str) -> bytes:
    # Hashes have one length: the time of a comparison does not reveal the token's.
    return sha256(token.encode("utf-8", "replace")).digest()
