"""requests with `stream=True`: what is under an error that was read within its attempt reads as it does without us."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest
import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter

from onefold import Retrying, RetryPolicy
from onefold._client.outgoing_request import UNSIZED_BYTES_MAX
from onefold.testing.scripted_server import Act, Chunks, Half, Reply, ScriptedServer

SHORT = b'{"title": "not\nfound"}\n'
#: Longer than what is read within an attempt, also when it is packed.
LONG = b"line\n" * 1_000 + random.Random(1).randbytes(2 * UNSIZED_BYTES_MAX)
GZIP = {"Content-Encoding": "gzip"}


def parts(body: bytes) -> tuple[bytes, ...]:
    return body[:5], body[5 : len(body) // 2], body[len(body) // 2 :]


ACTS: dict[str, Act] = {
    "short": Reply(404, SHORT),
    "long": Reply(404, LONG),
    "chunks": Chunks(parts(SHORT), status=404),
    "long chunks": Chunks(parts(LONG), status=404),
    "packed": Reply(404, gzip.compress(SHORT), GZIP),
    "long packed": Reply(404, gzip.compress(LONG), GZIP),
    "packed chunks": Chunks(parts(gzip.compress(SHORT)), headers=GZIP, status=404),
    "long packed chunks": Chunks(parts(gzip.compress(LONG)), headers=GZIP, status=404),
    "nothing": Reply(404),
    "no chunks": Chunks((), status=404),
}


def copied(response: requests.Response) -> bytes:
    shutil.copyfileobj(response.raw, found := io.BytesIO())
    return found.getvalue()


def filled(response: requests.Response) -> bytes:
    buffer, found = bytearray(1000), b""
    while count := response.raw.readinto(buffer):
        found += buffer[:count]
    return found


def pieces(size: int, **more: Any) -> Callable[[requests.Response], bytes]:
    return lambda response: b"".join(iter(lambda: response.raw.read(size, **more), b""))


READS: dict[str, Callable[[requests.Response], bytes]] = {
    "content": lambda response: response.content,
    "iter_content": lambda response: b"".join(response.iter_content(1000)),
    "iter_content of what there is": lambda response: b"".join(response.iter_content(None)),
    "iter_lines": lambda response: b"|".join(response.iter_lines()),
    "read": lambda response: response.raw.read(),
    "read unpacked": lambda response: response.raw.read(decode_content=True),
    "read a part, and the rest": lambda response: response.raw.read(4) + response.raw.read(),
    "read pieces": pieces(1000),
    "read pieces unpacked": pieces(1000, decode_content=True),
    "read1": lambda response: b"".join(iter(lambda: response.raw.read1(1000), b"")),
    "stream": lambda response: b"".join(response.raw.stream(1000)),
    "stream unpacked": lambda response: b"".join(response.raw.stream(1000, decode_content=True)),
    "stream of what there is": lambda response: b"".join(response.raw.stream(None)),
    "lines": lambda response: b"|".join(response.raw),
    "data": lambda response: response.raw.data,
    "readinto": filled,
    "copyfileobj": copied,
}


@pytest.mark.parametrize("act", ACTS)
def test_an_error_reads_as_it_does_without_us(act: str, patient: RetryPolicy) -> None:
    with ScriptedServer([ACTS[act]]) as server, requests.Session() as plain, requests.Session() as session:
        adapter = HTTPAdapter(pool_maxsize=1, pool_block=True)
        session.mount("http://", Retrying(patient).around(adapter))
        for way, read in READS.items():
            with plain.get(server.url, stream=True) as bare:
                expected = read(bare)
            with session.get(server.url, stream=True, timeout=30) as response:
                assert read(response) == expected, way
                assert expected or act in ("nothing", "no chunks"), "the control: there is something to read"
                assert (response.raw.status, response.raw.reason) == (404, "Not Found")
                assert isinstance(response.raw, urllib3.HTTPResponse)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_error_without_a_body_has_none(method: str, patient: RetryPolicy) -> None:
    act = Reply(404, b"", {"Content-Length": "500"} if method == "HEAD" else {})
    with ScriptedServer([act]) as server, requests.Session() as session:
        session.mount("http://", Retrying(patient).around(HTTPAdapter(pool_maxsize=1, pool_block=True)))
        for _ in range(2):
            with session.request(method, server.url, stream=True) as response:
                assert (response.raw.read(100), response.raw.read(), response.content) == (b"", b"", b"")
    assert server.connections == 1


@pytest.mark.parametrize("act", ["long", "long chunks", "short", "chunks"])
def test_an_error_that_is_not_read_to_its_end_gives_its_connection_back(act: str, patient: RetryPolicy) -> None:
    with ScriptedServer([ACTS[act]]) as server, requests.Session() as session:
        session.mount("http://", Retrying(patient).around(HTTPAdapter(pool_maxsize=1, pool_block=True)))
        for _ in range(3):
            with session.get(server.url, stream=True) as response:
                assert len(response.raw.read(3)) == 3
    assert server.connections == (1 if act in ("short", "chunks") else 3)


def test_an_error_in_chunks_is_handed_on_as_it_arrives(patient: RetryPolicy) -> None:
    gate = threading.Event()
    with ScriptedServer([Chunks((LONG, b"last"), gate, status=500)]) as server, requests.Session() as session:
        session.mount("http://", Retrying(RetryPolicy(attempts_max=1)).around(HTTPAdapter()))
        for unpacked in (True, False):
            gate.clear()
            with session.get(server.url, stream=True) as response:
                arriving, found = response.raw.stream(None, decode_content=unpacked), b""
                while len(found) < len(LONG):
                    found += next(arriving)
                gate.set()
                assert found + b"".join(arriving) == LONG + b"last"


def test_an_error_that_breaks_off_while_it_is_read_is_told_as_the_vendor_tells_it(patient: RetryPolicy) -> None:
    with ScriptedServer([Half(Reply(404, LONG))]) as server, requests.Session() as session:
        session.mount("http://", Retrying(patient).around(HTTPAdapter()))
        for read in (READS["iter_content"], READS["content"]):
            with (
                session.get(server.url, stream=True) as response,
                pytest.raises(requests.exceptions.ChunkedEncodingError),
            ):
                read(response)
        with session.get(server.url, stream=True) as response, pytest.raises(urllib3.exceptions.ProtocolError):
            READS["copyfileobj"](response)


class OwnAdapter(BaseAdapter):
    """An adapter of somebody's own, whose answers do not come from urllib3."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.raw, response.request = 404, io.BytesIO(SHORT), request
        response.headers["Content-Length"] = str(len(SHORT))
        return response

    def close(self) -> None:
        """Nothing is open."""


def test_an_answer_from_elsewhere_is_left_unread(patient: RetryPolicy) -> None:
    with requests.Session() as session:
        session.mount("own://", Retrying(patient).around(OwnAdapter()))
        assert session.get("own://host", stream=True).raw.read() == SHORT
        assert session.get("own://host").content == SHORT


def test_the_cookies_of_an_error_are_kept(patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(403, b"no", {"Set-Cookie": "seen=1"})]) as server, requests.Session() as session:
        session.mount("http://", Retrying(patient).around(HTTPAdapter()))
        session.get(server.url, stream=True).close()
        assert session.cookies.get_dict() == {"seen": "1"}
