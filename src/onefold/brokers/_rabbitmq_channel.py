"""A connection to RabbitMQ, made on demand and again when it was lost; aio-pika's errors become onefold's.

Invariant: nothing here waits without a bound, and while the server is away callers get BrokerUnavailable at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import unquote, urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aiormq.exceptions import (
    AuthenticationError,
    ChannelAccessRefused,
    ChannelPreconditionFailed,
    ConnectionNotAllowed,
    InvalidFrameError,
    ProbableAuthenticationError,
)

from onefold._kernel.foreign_cancellations import is_foreign
from onefold.errors import BrokerUnavailable, ConfigurationError

PORTS: Final = {"amqp": 5672, "amqps": 5671}
#: For so long after a failed attempt to connect no other is made: callers get BrokerUnavailable at once.
_PAUSE_S: Final = 0.25
_CLOSE_S: Final = 5.0
_TELLING: Final = (AuthenticationError, ProbableAuthenticationError, InvalidFrameError, ConnectionNotAllowed)
#: How RabbitMQ answers a declaration that does not fit what is there, or that is not ours to make.
UNFIT: Final = (ChannelPreconditionFailed, ChannelAccessRefused)


class RabbitmqConnection:
    """One connection, made when it is needed and again when it was lost."""

    def __init__(self, url: str, patience_s: float) -> None:
        self._url = url
        self.patience_s = patience_s
        self._connection: AbstractConnection | None = None
        self._dialling = asyncio.Lock()
        self._shut = False
        self._failed: tuple[float, str] | None = None

    @property
    def major(self) -> int:
        """The server's version, its first number."""
        transport = self._connection.transport if self._connection else None
        properties = transport.connection.server_properties if transport else {}
        version = properties.get("version", "")
        first = (version.decode() if isinstance(version, bytes) else str(version)).partition(".")[0]
        return int(first) if first.isdigit() else 0

    async def channel(self, *, confirms: bool) -> AbstractChannel:
        connection = await self._live()
        async with translate_errors("opening a channel"), asyncio.timeout(self.patience_s):
            return await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)

    def allow(self) -> None:
        """Allow its use again after it was closed."""
        self._shut = False

    async def close(self) -> None:
        self._shut = True
        await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await end(connection)

    async def _live(self) -> AbstractConnection:
        async with self._dialling:
            if self._connection is not None and self._connection.connected.is_set():
                return self._connection
            await self._drop()
            if self._shut:
                raise BrokerUnavailable("this broker is closed: open it again, or make another")
            now_s = asyncio.get_running_loop().time()
            if self._failed is not None and now_s < self._failed[0]:
                raise BrokerUnavailable(self._failed[1])
            try:
                self._connection = await self._dial()
            except BrokerUnavailable as error:
                self._failed = (asyncio.get_running_loop().time() + _PAUSE_S, str(error))
                raise
            self._failed = None
            return self._connection

    async def _dial(self) -> AbstractConnection:
        address = urlsplit(self._url)
        host, port = address.hostname or "localhost", address.port or PORTS[address.scheme]
        try:
            async with translate_errors(f"connecting to {host}:{port}", but=_TELLING), asyncio.timeout(self.patience_s):
                # A plain TCP connection first: the client logs an error for each one that is refused.
                _, knock = await asyncio.open_connection(host, port)
                knock.close()
                return await aio_pika.connect(self._url, timeout=self.patience_s)
        except (AuthenticationError, ProbableAuthenticationError) as error:
            raise ConfigurationError(
                f"RabbitMQ at {host}:{port} refused the login: {text_of(error)}; see the URL's user and password"
            ) from error
        except (InvalidFrameError, ConnectionNotAllowed) as error:
            # The client does not say which: it fails at the answer that has the reason.
            raise BrokerUnavailable(
                f"RabbitMQ at {host}:{port} has no vhost {unquote(address.path[1:]) or '/'!r}, or is not ready"
            ) from error


async def declare_exchange(channel: AbstractChannel, name: str, patience_s: float) -> AbstractExchange:
    try:
        async with translate_errors(f"declaring the exchange {name!r}", but=UNFIT), asyncio.timeout(patience_s):
            return await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
    except UNFIT as error:
        raise ConfigurationError(
            f"exchange={name!r} is not a durable topic exchange that we may use: {text_of(error)}; "
            "choose another name, or delete the one that is there"
        ) from error


@asynccontextmanager
async def translate_errors(doing: str, *, but: tuple[type[Exception], ...] = ()) -> AsyncIterator[None]:
    """Translate the client's errors, except those that the caller handles."""
    try:
        yield
    except asyncio.CancelledError as error:
        if not is_foreign():
            raise
        # The client cancels its own tasks when the connection is lost; that does not cancel a caller that awaits one.
        raise BrokerUnavailable(f"{doing}: the connection was lost") from error
    except but:
        raise
    except TimeoutError as error:
        raise BrokerUnavailable(f"{doing}: RabbitMQ did not answer in time") from error
    except aio_pika.exceptions.CONNECTION_EXCEPTIONS as error:
        raise BrokerUnavailable(f"{doing}: {text_of(error)}") from error


async def end(closable: AbstractChannel | AbstractConnection) -> None:
    """Close what may be dead already. A failure to close is ignored: no caller could do anything about it."""
    with suppress(BrokerUnavailable):
        async with translate_errors("closing"), asyncio.timeout(_CLOSE_S):
            await closable.close()


def text_of(error: BaseException | None) -> str:
    if error is None:
        return "it was closed"
    return repr(error) if error.args else type(error).__name__
