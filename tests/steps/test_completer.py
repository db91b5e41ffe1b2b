"""The completer: requests that were left are made again in the application, and their clients find the answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from flask import Flask
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Host, Mount, Router

from onefold import AsyncOnefold, Keyring, Onefold, single_principal
from onefold import Request as HttpRequest
from onefold._app.completion import completion_of
from onefold._http.repeated_requests import RequestRepeater
from onefold._http.request import Request as PlainRequest
from onefold._http.stored_request import KEPT, read_request, write_request
from onefold._steps.completer import Abandoned, CompletedWorks, CompletionAttempt
from onefold._steps.unfinished_works import list_works
from onefold.errors import ConfigurationError
from onefold.fastapi import Steps, stored_principal
from tests.steps.places import Place
from tests.steps.rides import FRAMEWORKS, Application, Broken, breaks
from tests.support.cancelled_drivers import CancelledFirst
from tests.support.patience import PATIENCE_S

NOW: Any = {"abandoned_after_s": 0.0}


@pytest.fixture(params=FRAMEWORKS)
def rides(request: pytest.FixtureRequest, address: str) -> Iterator[Application]:
    with FRAMEWORKS[request.param](address) as application:
        yield application


def due_now(place: Place) -> None:
    place.change(f"UPDATE onefold_work SET due_at{' = created_at' if place.is_postgres else '_ms = created_at_ms'}")


def left(rides: Application, place: Place, where: str) -> None:
    """A request breaks off there, and its client does not come back."""
    rides.shop.plan.after[where] = breaks
    assert rides.post().status_code == 500
    del rides.shop.plan.after[where]
    due_now(place)


@pytest.mark.parametrize("where", ["created", "charged", "finished"])
def test_a_request_that_was_left_is_completed_and_its_client_finds_the_answer(
    rides: Application, place: Place, where: str
) -> None:
    left(rides, place, where)
    assert rides.complete(**NOW) == CompletedWorks(completed=1)
    assert (place.works_left(), place.steps_left()) == (0, [])
    assert (rides.shop.plan.runs["insert"], list(rides.shop.processor.effects.values())) == (1, [1])
    answer = rides.post()
    assert (answer.status_code, answer.headers["idempotent-replayed"]) == (201, "true")
    assert sorted(name for (name,) in place.rows("SELECT name FROM effects")) == ["paid ch_0", "ride"]
    assert rides.complete(**NOW) == CompletedWorks()


def test_a_handler_that_keeps_failing_is_parked_visibly(
    rides: Application, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    left(rides, place, "created")
    rides.shop.processor.fail_next = [Broken("the processor is down")] * 10
    assert rides.complete(**NOW, attempts_max=3) == CompletedWorks(failed=1)
    due_now(place)
    assert rides.complete(**NOW, attempts_max=3) == CompletedWorks(parked=1)
    [work] = place.flow(list_works(place.database.dialect, parked_only=True))
    assert (work.operation, work.attempts, work.steps) == ("POST /rides", 3, 1)
    assert work.reason is not None
    assert work.reason.startswith("failed 3 times: ")
    place.change("UPDATE onefold_work SET parked = 'failed 3 times: Broken: the processor is down'")
    assert [record for record in caplog.records if record.levelno == logging.ERROR and work.id in record.getMessage()]
    answer = rides.post()
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:onefold:problem:work-parked")
    assert "processor" not in str(answer.json())  # what an exception said is the operator's
    assert (rides.shop.plan.runs["insert"], rides.shop.plan.runs["charge"]) == (1, 2)


def test_a_refusal_is_an_end_like_any_other(rides: Application, place: Place) -> None:
    left(rides, place, "created")
    rides.shop.plan.status = 402
    assert rides.complete(**NOW) == CompletedWorks(completed=1)
    answer = rides.post()
    assert (answer.status_code, answer.headers["idempotent-replayed"]) == (402, "true")


def test_a_sealed_request_is_completed(address: str, place: Place) -> None:
    with FRAMEWORKS["fastapi"](address, sealer=Keyring({"k": b"k" * 32}, write="k")) as rides:
        left(rides, place, "charged")
        [(stored,)] = place.rows("SELECT request FROM onefold_work")
        assert b"rides" not in bytes(stored)
        assert rides.complete(**NOW) == CompletedWorks(completed=1)
    with FRAMEWORKS["fastapi"](address, sealer=Keyring({"k": b"k" * 32}, write="k")) as rides:
        assert rides.post().headers["idempotent-replayed"] == "true"


def test_a_request_whose_keys_are_gone_is_parked_with_that_reason(address: str, place: Place) -> None:
    with FRAMEWORKS["fastapi"](address, sealer=Keyring({"k": b"k" * 32}, write="k")) as rides:
        left(rides, place, "charged")
    with FRAMEWORKS["fastapi"](address, sealer=Keyring({"other": b"o" * 32}, write="other")) as rides:
        assert rides.complete(**NOW, attempts_max=2) == CompletedWorks(parked=1)
    [work] = place.flow(list_works(place.database.dialect))
    assert work.reason is not None
    assert "its request cannot be read" in work.reason


def test_a_route_that_is_gone_is_a_failed_attempt(place: Place, address: str) -> None:
    with FRAMEWORKS["fastapi"](address) as rides:
        left(rides, place, "charged")
    once = AsyncOnefold(address, principal=single_principal)
    once.install(FastAPI())

    async def complete() -> Any:
        try:
            return await once.complete(**NOW, attempts_max=2)
        finally:
            await once.close()

    assert asyncio.run(complete()) == CompletedWorks(parked=1)
    [work] = place.flow(list_works(place.database.dialect))
    assert work.reason == "failed 2 times: no application of this process has a route with steps for POST /rides"


def test_without_an_application_there_is_nothing_to_call(address: str) -> None:
    once = Onefold(address, principal=single_principal)
    with pytest.raises(ConfigurationError, match="is installed in no application of this process"):
        once.complete()
    with pytest.raises(ConfigurationError, match="is installed in no application"):
        once.completing().__enter__()
    once.close()


async def _nothing(tx: Any) -> None: ...


async def test_a_request_that_hangs_is_given_up_and_does_not_hold_up_the_completer(address: str, place: Place) -> None:
    once, app = AsyncOnefold(address, principal=single_principal), FastAPI()
    hangs = False

    @app.post("/rides")
    @once.idempotent(required=True)
    async def create_ride(work: Steps) -> None:
        await work.phase("create", _nothing)
        if hangs:
            await asyncio.Event().wait()
        raise Broken("on purpose")

    once.install(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://rides") as client:
        assert (await client.post("/rides", headers={"Idempotency-Key": "k"})).status_code == 500
    due_now(place)
    hangs = True
    assert await once.complete(attempt_s=0.2, attempts_max=1, **NOW) == CompletedWorks(parked=1)
    [(reason,)] = place.rows("SELECT parked FROM onefold_work")
    assert reason == "failed 2 times: no answer within 0.2 s"
    await once.close()


def test_a_thread_that_hangs_is_not_waited_for(address: str, place: Place) -> None:
    once, app = Onefold(address, principal=single_principal), Flask(__name__)
    hangs, goes_on, is_over = False, threading.Event(), threading.Event()

    @app.post("/rides")
    @once.idempotent(required=True)
    def create_ride(work: Steps) -> Any:
        work.phase("create", lambda tx: None)
        if hangs:
            goes_on.wait(PATIENCE_S)
            is_over.set()
        raise Broken("on purpose")

    once.install(app)
    app.config["PROPAGATE_EXCEPTIONS"] = False
    assert app.test_client().post("/rides", headers={"Idempotency-Key": "k"}).status_code == 500
    due_now(place)
    hangs = True
    assert once.complete(attempt_s=0.2, **NOW) == CompletedWorks()  # it has its lease, and is at it still
    goes_on.set()
    assert is_over.wait(PATIENCE_S)
    once.close()


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"attempts_max": 0}, {"abandoned_after_s": -1.0}, {"attempt_s": 0.0}])
def test_settings_out_of_range_are_refused(address: str, wrong: dict[str, Any]) -> None:
    once = Onefold(address, principal=single_principal)
    once.install(Flask(__name__))
    with pytest.raises(ConfigurationError):
        once.complete(**wrong)
    once.close()


# --- who is asking ---------------------------------------------------------------------------------------


class Accounts:
    """An application that authenticates its callers by a token, once for its keys and once for its handlers."""

    def __init__(self, address: str, *, lets_through: bool, operation: str | None = None) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.breaks = True
        self.asked = 0
        self.once = AsyncOnefold(address, principal=self.who, authorize=self.may)
        self.app = FastAPI()

        async def account(request: Request) -> str:
            principal = stored_principal(request) if lets_through else None
            found = principal or {"Bearer a": "ada", "Bearer b": "bob"}.get(request.headers.get("authorization", ""))
            if found is None:
                raise HTTPException(401)
            return found

        @self.app.post("/rides/{number}")
        @self.once.idempotent(required=True, operation=operation)
        async def create(number: int, request: Request, work: Steps, account: str = Depends(account)) -> dict[str, str]:
            await work.call("charge", self.charge)
            self.seen.append((account, dict(request.headers)))
            if self.breaks:
                raise Broken("on purpose")
            return {"account": account, "query": str(request.query_params), "body": (await request.body()).decode()}

        self.once.install(self.app)

    def who(self, request: HttpRequest) -> str | None:
        self.asked += 1
        return {"Bearer a": "ada", "Bearer b": "bob"}.get(request.header("authorization") or "")

    def may(self, request: HttpRequest) -> bool:
        self.asked += 1
        return request.header("authorization") is not None

    async def charge(self) -> None: ...


POSTED: Any = {
    "url": "/rides/7?from=A&to=%C3%A4",
    "content": "ride é".encode(),
    "headers": {
        "Authorization": "Bearer a",
        "Cookie": "session=1",
        "X-Api-Key": "key",
        "Idempotency-Key": "k",
        "Content-Type": "text/plain; charset=utf-8",
        "Accept-Language": "de",
    },
}


@pytest.mark.parametrize("lets_through", [True, False])
def test_a_completed_request_has_the_principal_that_began_it_and_no_credentials(
    address: str, place: Place, lets_through: bool
) -> None:
    accounts = Accounts(address, lets_through=lets_through)
    with TestClient(accounts.app, raise_server_exceptions=False) as client:
        assert client.portal is not None
        assert client.post(**POSTED).status_code == 500
        asked, accounts.breaks = accounts.asked, False
        due_now(place)
        found = client.portal.call(functools.partial(accounts.once.complete, **NOW, attempts_max=2))
        assert accounts.asked == asked
        if not lets_through:
            assert found == CompletedWorks(parked=1)
            [work] = place.flow(list_works(place.database.dialect))
            assert work.reason == "failed 2 times: status 401"
        else:
            assert found == CompletedWorks(completed=1)
            (_, first), (account, headers) = accounts.seen
            assert account == "ada"
            for name in ("authorization", "cookie", "x-api-key"):
                assert name in first
                assert name not in headers
            assert (headers["accept-language"], headers["host"]) == ("de", "testserver")
            replayed = client.post(**POSTED)
            assert replayed.headers["idempotent-replayed"] == "true"
            assert replayed.json() == {"account": "ada", "query": "from=A&to=%C3%A4", "body": "ride é"}
            other = client.post(**{**POSTED, "headers": {**POSTED["headers"], "Authorization": "Bearer b"}})
            assert other.json()["account"] == "bob"
        client.portal.call(accounts.once.close)


def test_the_mark_cannot_be_written_by_a_client(address: str) -> None:
    accounts = Accounts(address, lets_through=True)
    with TestClient(accounts.app, raise_server_exceptions=False) as client:
        for name in ("onefold.completing", "Onefold-Completing", "HTTP_ONEFOLD.COMPLETING"):
            headers = {"Idempotency-Key": "k", name: "ada"}
            assert client.post("/rides/7", headers=headers).status_code == 403
        assert client.portal is not None
        client.portal.call(accounts.once.close)


def test_a_work_that_is_gone_is_not_begun_anew(address: str, place: Place) -> None:
    """A person released it, or the client's retry ended it, after the completer had picked it."""
    accounts = Accounts(address, lets_through=True)
    with TestClient(accounts.app, raise_server_exceptions=False) as client:
        assert client.portal is not None
        assert client.post(**POSTED).status_code == 500
        [(digest, request)] = place.rows("SELECT digest, request FROM onefold_work")
        place.change("DELETE FROM onefold_step")
        place.change("DELETE FROM onefold_work")
        layer = accounts.once._layer
        replays = RequestRepeater(layer.installed, layer.stepped().sealing)
        picked = Abandoned(bytes(digest), "POST /rides/{number}", 1, bytes(request))
        assert client.portal.call(replays.attempt_on_loop, picked) == CompletionAttempt(409)
        assert (len(accounts.seen), place.works_left()) == (1, 0)
        client.portal.call(accounts.once.close)


@pytest.mark.parametrize("error", [Broken("the answer was lost"), asyncio.CancelledError()])
def test_a_request_whose_first_step_is_a_call_that_raised_is_completed(
    address: str, place: Place, error: BaseException
) -> None:
    """Its call may have been made all the same: it is made again, with the same key."""
    accounts = Accounts(address, lets_through=True)
    charged: list[BaseException] = []

    async def charge() -> None:
        if not charged:
            charged.append(error)
            raise error

    accounts.charge, accounts.breaks = charge, False  # type: ignore[method-assign]
    with TestClient(accounts.app, raise_server_exceptions=False) as client:
        assert client.portal is not None
        with contextlib.suppress(BaseException):
            assert client.post(**POSTED).status_code == 500
        wait_until(lambda: place.flow(list_works(place.database.dialect))[0].state == "left")
        due_now(place)
        assert client.portal.call(functools.partial(accounts.once.complete, **NOW)) == CompletedWorks(completed=1)
        assert client.post(**POSTED).headers["idempotent-replayed"] == "true"
        client.portal.call(accounts.once.close)


# --- where the application is ----------------------------------------------------------------------------


def test_an_application_that_is_mounted_in_another_completes_its_requests(address: str, place: Place) -> None:
    accounts = Accounts(address, lets_through=True)
    outer = Starlette(routes=[Mount("/v1", accounts.app)])
    with TestClient(outer, raise_server_exceptions=False) as client:
        assert client.portal is not None
        assert client.post(**{**POSTED, "url": "/v1" + POSTED["url"]}).status_code == 500
        accounts.breaks = False
        due_now(place)
        assert client.portal.call(functools.partial(accounts.once.complete, **NOW)) == CompletedWorks(completed=1)
        replayed = client.post(**{**POSTED, "url": "/v1" + POSTED["url"]})
        assert (replayed.status_code, replayed.headers["idempotent-replayed"]) == (200, "true")
        client.portal.call(accounts.once.close)


@pytest.mark.parametrize("host", ["acme.rides.test", "{tenant}.rides.test"])
def test_an_application_below_a_host_completes_its_requests(address: str, place: Place, host: str) -> None:
    accounts = Accounts(address, lets_through=True)
    outer = Starlette(routes=[Mount("/v1", routes=[Host(host, accounts.app)])])
    posted = {**POSTED, "url": "http://acme.rides.test/v1" + POSTED["url"]}
    with TestClient(outer, raise_server_exceptions=False) as client:
        assert client.portal is not None
        assert client.post(**posted).status_code == 500
        accounts.breaks = False
        due_now(place)
        assert client.portal.call(functools.partial(accounts.once.complete, **NOW)) == CompletedWorks(completed=1)
        replayed = client.post(**posted)
        assert (replayed.status_code, replayed.headers["idempotent-replayed"]) == (200, "true")
        client.portal.call(accounts.once.close)


def test_a_route_at_a_host_of_its_own_application_completes_its_requests(address: str, place: Place) -> None:
    accounts = Accounts(address, lets_through=True)
    routes = accounts.app.router.routes
    routes[:] = [Host("acme.rides.test", Router(list(routes)))]
    posted = {**POSTED, "url": "http://acme.rides.test" + POSTED["url"]}
    with TestClient(accounts.app, raise_server_exceptions=False) as client:
        assert client.portal is not None
        assert client.post(**posted).status_code == 500
        accounts.breaks = False
        due_now(place)
        assert client.portal.call(functools.partial(accounts.once.complete, **NOW)) == CompletedWorks(completed=1)
        assert client.post(**posted).headers["idempotent-replayed"] == "true"
        client.portal.call(accounts.once.close)


@pytest.mark.parametrize("named", [True, False])
def test_of_applications_with_the_same_path_the_one_that_began_a_request_completes_it_or_none(
    address: str, place: Place, named: bool
) -> None:
    once = AsyncOnefold(address, principal=single_principal)
    done: list[str] = []

    async def nothing() -> None: ...

    def make(name: str) -> FastAPI:
        app = FastAPI()

        @app.post("/rides")
        @once.idempotent(required=True, operation=f"ride-of-{name}" if named else None)
        async def create(work: Steps) -> dict[str, str]:
            await work.call("charge", nothing)
            if not done:
                done.append("began")
                raise Broken("on purpose")
            done.append(name)
            return {}

        once.install(app)
        return app

    other, ours = make("other"), make("ours")
    outer = Starlette(routes=[Mount("/other", other), Mount("/ours", ours)])
    with TestClient(outer, raise_server_exceptions=False) as client:
        assert client.portal is not None
        assert client.post("/ours/rides", headers={"Idempotency-Key": "k"}).status_code == 500
        due_now(place)
        found = client.portal.call(functools.partial(once.complete, **NOW, attempts_max=2))
        client.portal.call(once.close)
    if named:
        assert (found, done) == (CompletedWorks(completed=1), ["began", "ours"])
        return
    assert (found, done) == (CompletedWorks(parked=1), ["began"])
    [work] = place.flow(list_works(place.database.dialect))
    assert "2 applications of this process have a route with steps for POST /ours/rides" in (work.reason or "")
    assert "give the routes an operation= of their own" in (work.reason or "")


def test_a_work_that_was_begun_before_its_route_was_given_an_operation_is_completed(address: str, place: Place) -> None:
    before, after = (Accounts(address, lets_through=True, operation=name) for name in (None, "ride"))
    with TestClient(before.app, raise_server_exceptions=False) as client:
        assert client.post(**POSTED).status_code == 500
        assert client.portal is not None
        client.portal.call(before.once.close)
    due_now(place)
    with TestClient(after.app, raise_server_exceptions=False) as client:
        after.breaks = False
        assert client.portal is not None
        assert client.portal.call(functools.partial(after.once.complete, **NOW)) == CompletedWorks(completed=1)
        assert client.post(**POSTED).headers["idempotent-replayed"] == "true"
        assert place.works_left() == 0
        client.portal.call(after.once.close)


def test_what_a_lifespan_leaves_for_requests_is_there(address: str, place: Place) -> None:
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    once = AsyncOnefold(address, principal=single_principal)
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        yield {"pool": "opened"}
        await once.close()

    app = FastAPI(lifespan=lifespan)

    async def charge() -> None: ...

    @app.post("/rides")
    @once.idempotent(required=True)
    async def create(request: Request, work: Steps) -> dict[str, str]:
        await work.call("charge", charge)
        seen.append(request.state.pool)
        if len(seen) == 1:
            raise Broken("on purpose")
        return {}

    once.install(app)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/rides", headers={"Idempotency-Key": "k"}).status_code == 500
        due_now(place)
        assert client.portal is not None
        assert client.portal.call(functools.partial(once.complete, **NOW)) == CompletedWorks(completed=1)
    assert seen == ["opened", "opened"]


def wait_until(reached: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def test_a_block_completes_what_is_left_while_it_lasts(address: str, place: Place) -> None:
    with FRAMEWORKS["flask"](address) as rides:
        left(rides, place, "charged")
        once: Onefold = rides.complete.__self__
        with once.completing(every_s=0.05, **NOW):
            wait_until(lambda: place.works_left() == 0)
        assert rides.post().headers["idempotent-replayed"] == "true"


async def test_a_block_on_asyncio_does_the_same_and_ends(address: str, place: Place) -> None:
    accounts = Accounts(address, lets_through=True)
    transport = httpx.ASGITransport(accounts.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.post(**POSTED)).status_code == 500
        accounts.breaks = False
        await asyncio.to_thread(due_now, place)
        async with accounts.once.completing(every_s=0.05, **NOW):
            await asyncio.to_thread(wait_until, lambda: place.works_left() == 0)
        assert (await client.post(**POSTED)).headers["idempotent-replayed"] == "true"
    await accounts.once.close()


async def test_a_round_that_is_cancelled_elsewhere_does_not_end_the_completer(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    accounts, stop = Accounts(address, lets_through=True), asyncio.Event()
    database = CancelledFirst(accounts.once._for_workers())
    completing = asyncio.create_task(completion_of(accounts.once, {}).until(stop, database, 0.02))
    async with asyncio.timeout(PATIENCE_S):
        while database.acquired < 2:
            assert not completing.done()
            await asyncio.sleep(0.01)
        stop.set()
        await completing
    assert "a round of the completer failed: something that was waited for was cancelled elsewhere" in caplog.text
    await accounts.once.close()


# --- what is kept ----------------------------------------------------------------------------------------

latin = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20)


@settings(max_examples=100, deadline=None)
@given(
    method=st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]),
    path=st.text(max_size=20).map(lambda rest: f"/{rest}"),
    query=st.binary(max_size=20),
    names=st.lists(st.sampled_from([*sorted(KEPT), b"authorization", b"cookie", b"x-api-key"]), unique=True),
    value=latin,
    body=st.binary(max_size=50),
    principal=st.text(max_size=10),
    root=st.text(max_size=10),
)
def test_what_is_kept_of_a_request_is_read_as_it_was(
    method: str, path: str, query: bytes, names: list[bytes], value: str, body: bytes, principal: str, root: str
) -> None:
    headers = tuple((name, value.encode("latin-1")) for name in names)
    asked = PlainRequest(method, path, query, headers, {"root_path": root, "scheme": "https"})
    stored = write_request(asked, body, principal)
    if stored is None:
        return
    found = read_request(stored)
    assert (found.method, found.path, found.query, found.body) == (method, path, query, body)
    assert (found.principal, found.root, found.scheme) == (principal, root, "https")
    assert found.headers == tuple(each for each in headers if each[0] in KEPT)


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        (b"", True),
        (b"from=A&to=B&page=2", True),
        (b"monkey=1&design=2&tokens=3", True),
        (b"access_token=x", False),
        (b"a=1&apiKey=x", False),
        (b"a=1;api%5Fkey=x", False),
        (b"X-Amz-Signature=x", False),
        (b"PASSWORD=x", False),
        (b"key=x", False),
        (b"sig=x", False),
    ],
)
def test_a_request_with_a_credential_in_its_query_is_left_to_its_client(query: bytes, kept: bool) -> None:
    assert (write_request(PlainRequest("POST", "/rides", query), b"", "ada") is not None) is kept
