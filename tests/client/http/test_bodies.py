"""Bodies that are sent again byte for byte, answers that are read as they come, connections that are given back."""

from __future__ import annotations

import gzip
import io
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
import urllib3
from aiohttp import ClientSession, MultipartReader, MultipartWriter

import onefold
from onefold import Retrying, RetryPolicy
from onefold.clients import Reason, options, report_of
from onefold.errors import BodyNotReplayable
from onefold.testing.scripted_server import Act, Chunks, Half, ReceivedRequest, Reply, Reset, ScriptedServer, Trickle
from tests.client.http.clients import Kind, only

LARGE = bytes(range(256)) * 12_000  # 3 MB: more than the buffers between two sockets hold
MEGABYTE = 1_000_000  # aiohttp warns of more bytes than that: the loop would stand still
FAILING = (Reset(), Reply(503), Half(Reply(200, b"12345")), Reply(200, b"done"))
INTERRUPTED = (Reset(body_bytes=1000), Reply(200, b"done"))


def unbounded(received: ReceivedRequest) -> bytes:
    """The body without what a multipart body draws by chance."""
    found = re.search(r"boundary=\"?([^\";]+)", received.headers.get("content-type", ""))
    return received.body.replace(found[1].encode(), b"") if found else received.body


@contextmanager
def given(form: str, folder: Path) -> Iterator[dict[str, Any]]:
    if form == "an open file":
        place = folder / "upload.bin"
        place.write_bytes(LARGE)
        with place.open("rb") as file:
            yield {"files": {"file": file}}
        return
    bodies: dict[str, dict[str, Any]] = {
        "bytes": {"content": b"some bytes"},
        "nothing": {},
        "large": {"content": LARGE[:MEGABYTE]},
        "json": {"json": {"amount": 5, "note": "für später"}},
        "form": {"form": {"a": "1", "b": "zwei"}},
        "a file in memory": {"files": {"file": io.BytesIO(LARGE)}},
    }
    yield bodies[form]


FORMS = ("bytes", "nothing", "large", "json", "form", "a file in memory", "an open file")


@pytest.mark.parametrize("form", FORMS)
async def test_a_body_is_the_same_on_every_attempt(kind: Kind, patient: RetryPolicy, form: str, tmp_path: Path) -> None:
    with given(form, tmp_path) as sent, ScriptedServer(FAILING) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send("POST", server.url, **sent)
    assert reply.body == b"done"
    bodies = [unbounded(seen) for seen in server.requests]
    assert len(bodies) == 4
    assert len(set(bodies)) == 1
    assert bool(bodies[0]) is (form != "nothing")
    if form in ("large", "a file in memory", "an open file"):
        assert LARGE[:MEGABYTE] in bodies[0]


@pytest.mark.parametrize("form", ["large", "a file in memory", "an open file"])
async def test_a_body_of_which_only_a_part_was_taken_is_sent_again_from_its_beginning(
    kind: Kind, patient: RetryPolicy, form: str, tmp_path: Path
) -> None:
    with given(form, tmp_path) as sent, ScriptedServer(INTERRUPTED) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send("PUT", server.url, **sent)
    assert reply.body == b"done"
    assert (LARGE[:MEGABYTE] if form == "large" else LARGE) in server.requests[-1].body


@pytest.mark.parametrize("intended", [False, True], ids=["", "intent"])
@pytest.mark.parametrize("in_a_form", [False, True], ids=["", "form"])
@only(lambda kind: kind.on_tasks)
async def test_a_file_that_is_read_with_await_is_refused_before_it_is_read(
    kind: Kind, patient: RetryPolicy, in_a_form: bool, intended: bool, tmp_path: Path
) -> None:
    """No client rewinds it: the second attempt would have nothing to send."""
    place = tmp_path / "upload.bin"
    place.write_bytes(b"all of it")
    retrying = Retrying(patient, generate_keys=True, journal=tmp_path / "journal.db")
    with ScriptedServer([Reply(503), Reply(200)]) as server:
        async with kind.opened(retrying) as caller, await anyio.open_file(place, "rb") as file:
            sent: dict[str, Any] = {"files": {"file": file}} if in_a_form else {"content": file}
            block = onefold.intent("upload:1") if intended else nullcontext()
            with block, pytest.raises(BodyNotReplayable, match="can be sent only once"):
                await caller.send("PUT", server.url, **sent)
            assert await file.tell() == 0
    await retrying.aclose()
    assert server.requests == []


# httpx announces the length of the whole file; its client for asyncio takes no such file.
@only(lambda kind: not kind.has_options)
async def test_a_file_as_the_whole_body_is_sent_again_where_the_client_can_rewind_it(
    kind: Kind, patient: RetryPolicy
) -> None:
    with ScriptedServer(INTERRUPTED) as server, tempfile.TemporaryFile() as file:
        file.write(b"skipped" + LARGE)
        file.seek(len(b"skipped"))
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            await caller.send("PUT", server.url, content=file)
    assert server.requests[-1].body == LARGE


class Counted:
    """A reader that counts what was read, and no more: it has no `seek`."""

    def __init__(self, content: bytes) -> None:
        file = io.BytesIO(content)
        self.read, self.tell = file.read, file.tell

    def __iter__(self) -> Iterator[bytes]:
        yield self.read()


def answer(content: bytes) -> urllib3.HTTPResponse:
    """What is downloaded from one host to be uploaded to another. It counts, and its `seek` is refused."""
    return urllib3.HTTPResponse(io.BytesIO(content), preload_content=False)


@pytest.mark.parametrize("body", [Counted, answer])
@only(lambda kind: kind.name == "requests")
async def test_what_counts_and_cannot_go_back_is_sent_once_or_refused(
    kind: Kind, patient: RetryPolicy, body: Callable[[bytes], Any]
) -> None:
    with ScriptedServer([Reply(503), Reply(200)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            with pytest.raises(BodyNotReplayable, match="can be sent only once"):
                await caller.send("PUT", server.url, content=body(b"all of it"))
        async with kind.opened(Retrying(RetryPolicy(attempts_max=1))) as caller:
            reply = await caller.send("PUT", server.url, content=body(b"all of it"))
    assert (reply.status, [seen.body for seen in server.requests]) == (503, [b"all of it"])


async def test_a_form_within_a_form_of_aiohttp_that_can_be_sent_once_is_refused(patient: RetryPolicy) -> None:
    async def drawn() -> AsyncIterator[bytes]:
        yield b"all of it"

    with ScriptedServer([Reply(503), Reply(200)]) as server, MultipartWriter() as inner, MultipartWriter() as outer:
        inner.append(drawn())
        outer.append(inner)
        async with ClientSession(middlewares=[Retrying(patient).middleware]) as session:
            with pytest.raises(BodyNotReplayable, match="can be sent only once"):
                await session.put(server.url, data=outer)
    assert server.requests == []


async def test_a_part_of_an_answer_that_aiohttp_passes_on_is_refused(patient: RetryPolicy) -> None:
    """It is read from the connection that it arrives by, once."""
    form = Reply(200, b"--x\r\n\r\nall of it\r\n--x--\r\n", {"Content-Type": "multipart/mixed; boundary=x"})
    with ScriptedServer([form, Reply(503), Reply(200)]) as server:
        middlewares = [Retrying(patient).middleware]
        async with ClientSession(middlewares=middlewares) as session, session.get(server.url) as reply:
            part = await MultipartReader.from_response(reply).next()
            with pytest.raises(BodyNotReplayable, match="can be sent only once"):
                await session.put(server.url, data=part)
    assert len(server.requests) == 1


@pytest.mark.parametrize("intended", [False, True], ids=["", "intent"])
@only(lambda kind: not (kind.has_options and kind.on_tasks))
async def test_a_file_follows_a_redirect_under_the_same_key(
    kind: Kind, patient: RetryPolicy, intended: bool, tmp_path: Path
) -> None:
    retrying = Retrying(patient, generate_keys=True, journal=tmp_path / "journal.db")
    moved = Reply(307, headers={"Location": "/new"})
    with ScriptedServer([Reply(503), moved, Reply(503), Reply(201)]) as server, tempfile.TemporaryFile() as file:
        file.write(b"all of it")
        file.seek(0)
        async with kind.opened(retrying) as caller:
            with onefold.intent("upload:1") if intended else nullcontext():
                reply = await caller.send("POST", server.url, content=file, follow=True)
    await retrying.aclose()
    assert reply.status == 201
    assert [seen.body for seen in server.requests] == [b"all of it"] * 4
    assert len({seen.headers["idempotency-key"] for seen in server.requests}) == 1


async def collected(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


@pytest.mark.parametrize(
    ("first", "content_type"),
    [(b"first", "Text/Event-Stream; charset=utf-8"), (b"first", "audio/mpeg"), (LARGE, "application/json")],
    ids=["events", "sound", "long"],
)
async def test_a_stream_and_a_long_answer_are_read_while_they_arrive(
    kind: Kind, patient: RetryPolicy, first: bytes, content_type: str
) -> None:
    gate = threading.Event()
    act = Chunks((first, b"last"), gate, {"Content-Type": content_type})
    with ScriptedServer([Reply(503), act]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            pieces = caller.pieces(server.url)
            assert first.startswith(await anext(pieces))
            gate.set()
            assert (await collected(pieces)).endswith(b"last")


async def test_an_answer_is_read_while_it_arrives_where_that_is_said(kind: Kind, patient: RetryPolicy) -> None:
    gate = threading.Event()
    with ScriptedServer([Chunks((b"first", b"last"), gate)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            with options(stream=True):
                pieces = caller.pieces(server.url)
                assert await anext(pieces) == b"first"
            gate.set()
            assert await collected(pieces) == b"last"


async def test_an_answer_in_chunks_that_breaks_off_is_tried_again(kind: Kind, patient: RetryPolicy) -> None:
    """Also one that says nothing of its length is read within its attempt."""
    whole = Chunks((b"one", b"two"), headers={"Content-Type": "application/json"})
    with ScriptedServer([Half(whole, -9), whole]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            reply = await caller.send("GET", server.url)
    assert (reply.status, reply.body, len(server.requests)) == (200, b"onetwo", 2)


#: Each takes half a minute, byte by byte, and no client that waits for a byte only would give it up.
SLOW = {
    "headers": Trickle(Reply(200, b"late", {"X-Long": "x" * 600})),
    "body": Trickle(Reply(200, b"late" * 150), at_once=60),
    "chunks": Trickle(Chunks((b"late" * 150,)), at_once=60),
}


@pytest.mark.parametrize("slow", SLOW.values(), ids=SLOW)
async def test_an_answer_that_trickles_in_is_given_up_in_time(kind: Kind, patient: RetryPolicy, slow: Trickle) -> None:
    with ScriptedServer([slow]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            with options(deadline_s=0.6), pytest.raises((kind.no_time, kind.no_connection)) as raised:
                await caller.send("GET", server.url)
    report = report_of(raised.value)
    assert report is not None
    assert report.reason is Reason.DEADLINE
    advised = "options(stream=True)" in "".join(getattr(raised.value, "__notes__", ()))
    assert advised == (slow is SLOW["chunks"])


async def test_a_connection_that_was_used_before_knows_the_limit_of_the_next_attempt(
    kind: Kind, patient: RetryPolicy
) -> None:
    with ScriptedServer([Reply(200, b"ok"), SLOW["headers"]]) as server:
        async with kind.opened(Retrying(patient), connections_max=1) as caller:
            assert (await caller.send("GET", server.url)).body == b"ok"
            with options(deadline_s=0.4, attempts_max=1), pytest.raises(kind.no_time):
                await caller.send("GET", server.url)
    assert server.connections == 1


@pytest.mark.parametrize(
    "act",
    [
        Reply(200, b"short"),
        Reply(200, LARGE),
        Chunks((b"one", b"two")),
        Reply(200, gzip.compress(b"short"), {"Content-Encoding": "gzip"}),
        Chunks((gzip.compress(LARGE),), headers={"Content-Encoding": "gzip"}),
    ],
    ids=["short", "long", "chunks", "packed", "packed chunks"],
)
async def test_an_answer_reads_the_same_whole_and_in_pieces(kind: Kind, patient: RetryPolicy, act: Act) -> None:
    with ScriptedServer([act]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            whole = (await caller.send("GET", server.url)).body
            assert await collected(caller.pieces(server.url)) == whole
    assert whole in (b"short", LARGE, b"onetwo")


@pytest.mark.parametrize(
    ("method", "answer"),
    [("HEAD", Reply(200, headers={"Content-Length": "500"})), ("GET", Reply(204)), ("GET", Reply(304))],
    ids=["HEAD", "204", "304"],
)
async def test_answers_without_a_body_are_answers(kind: Kind, patient: RetryPolicy, method: str, answer: Reply) -> None:
    with ScriptedServer([answer]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True), connections_max=1) as caller:
            for _ in range(3):
                reply = await caller.send(method, server.url)
                assert (reply.status, reply.body) == (answer.status, b"")
    assert len(server.requests) == 3


async def test_a_pool_of_one_connection_survives_fifty_calls_that_fail_in_between(
    kind: Kind, patient: RetryPolicy
) -> None:
    script: list[Act] = []
    for _ in range(10):
        script += [
            Reply(503, b"busy"),
            Reply(200, b"1"),
            Reset(),
            Chunks((b"not", b"now"), status=500),
            Reply(200, b"2"),
            Half(Reply(200, b"12345")),
            Reply(200, b"3"),
            Reply(409, b"{}", {"Content-Type": "application/problem+json"}),
            Reply(200, LARGE),
        ]
    with ScriptedServer([*script, Reply(200)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True), connections_max=1) as caller:
            for _ in range(50):
                assert (await caller.send("POST", server.url, content=b"x")).status in (200, 409)
    assert len(server.requests) == 90


async def test_connections_are_kept_alive_over_retries(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(503, b"busy"), Reply(200, b"ok")] * 5) as server:
        async with kind.opened(Retrying(patient, generate_keys=True), connections_max=1) as caller:
            for _ in range(5):
                await caller.send("GET", server.url)
    assert (len(server.requests), server.connections) == (10, 1)
