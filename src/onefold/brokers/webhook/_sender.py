"""Making one HTTP request to an endpoint, whose address and answers cannot be trusted.

Invariants: no more than the beginning of an answer is read, and it is never unpacked, so that no endpoint can fill the
memory; and unless private addresses are allowed, the address that was checked is the one that is connected to, so that
a name that resolves to another address a moment later leads nowhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from onefold._kernel.extras import missing_extra

try:
    import httpx
except ModuleNotFoundError as error:
    raise missing_extra(error, "webhook") from None

from onefold._kernel.redaction import redact
from onefold.errors import MessageRefused

_BODY_READ_MAX: Final = 16_384

#: The addresses behind a host and port.
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

#: IPv6 addresses in which a translator of the network finds an IPv4 address: the last four bytes.
_NAT64: Final = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))

#: An IPv4 address behind zeros.
_IPV4_COMPATIBLE: Final = ipaddress.ip_network("::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAnswer:
    """What an endpoint answered: its `status` and its `headers`. Of a long body the beginning is enough."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Sender(Protocol):
    """Makes one HTTP request, without following redirects. Raises OSError or TimeoutError where there is no answer, and
    MessageRefused where the request must not be made."""

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> EndpointAnswer:
        """The answer to a request of this `method` to this `url`, with these `headers` and this `body`, as they are:
        the signature is over them. It must end within `timeout_s`."""
        ...


class HttpxSender:
    """The default: a pool of connections of httpx. Certificates are checked, redirects are not followed, and what the
    environment says of proxies is not read: to go through one, bring a sender. It has at most so many `connections`;
    addresses of private networks and of this machine are refused unless `allow_private` says otherwise."""

    def __init__(self, connections: int = 20, *, allow_private: bool = False) -> None:
        limits = httpx.Limits(max_connections=connections)
        transport: httpx.AsyncBaseTransport = httpx.AsyncHTTPTransport(limits=limits, trust_env=False)
        if not allow_private:
            transport = PublicAddressesOnly(transport)
        self._client = httpx.AsyncClient(transport=transport, trust_env=False)

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> EndpointAnswer:
        """The answer to a request of this `method` to this `url`, with these `headers` and this `body`, within
        `timeout_s`."""
        sent_headers = {**headers, "accept-encoding": "identity"}
        try:
            async with self._client.stream(
                method, url, headers=sent_headers, content=body, timeout=timeout_s
            ) as response:
                start = b""
                async for chunk in response.aiter_raw():
                    start += chunk
                    if len(start) >= _BODY_READ_MAX:
                        break
        except httpx.TimeoutException as error:
            raise TimeoutError(str(error)) from error
        except httpx.HTTPError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return EndpointAnswer(status=response.status_code, headers=dict(response.headers), body=start[:_BODY_READ_MAX])

    async def close(self) -> None:
        await self._client.aclose()


class PublicAddressesOnly(httpx.AsyncBaseTransport):
    """Resolves a host itself, refuses it unless one of its addresses is public, and connects to that address."""

    def __init__(self, inner: httpx.AsyncBaseTransport, resolve: Resolve | None = None) -> None:
        self._inner = inner
        self._resolve = resolve or _resolve

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
        try:
            found = await self._resolve(host, port)
        except OSError as error:
            raise httpx.ConnectError(f"{host} has no address: {error}", request=request) from error
        address = next(filter(is_public, found), None)
        if address is None:
            raise MessageRefused(
                f"{redact(str(request.url))} is at a private address ({', '.join(found) or 'none'}), and webhooks go "
                "to public ones only; for endpoints inside your own network say WebhookBroker(..., allow_private=True)"
            )
        extensions = {**request.extensions, "sni_hostname": host}  # whose certificate is checked
        return await self._inner.handle_async_request(
            httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,  # with the Host of the request
                stream=request.stream,
                extensions=extensions,
            )
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet, however it is spelled."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if any(found in network for network in _NAT64):
            inner = ipaddress.IPv4Address(found.packed[-4:])
        if inner is not None:
            return is_public(str(inner))
        if found.is_site_local or found in _IPV4_COMPATIBLE:  # of no use any more, and global to `ipaddress`
            return False
    return found.is_global and not found.is_multicast


async def _resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
